"""State after a step in both torch engines."""

from typing import NamedTuple

import torch

from digrad.torch.engines.engine import overwrite


class State(NamedTuple):
    x: torch.Tensor
    last: torch.Tensor


def test_field_may_become_what_another_field_was() -> None:
    state = State(torch.tensor([[1.0]]), torch.tensor([[0.0]]))
    overwrite(state, State(x=state.x + 1, last=state.x))
    overwrite(state, State(x=state.last, last=state.x))
    assert (state.x.item(), state.last.item()) == (1.0, 2.0)
