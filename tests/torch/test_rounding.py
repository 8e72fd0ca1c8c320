"""Messages shorter than the numbers: what they cost, and that the answer does not."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from digrad import AB, CGT, PushDIGing
from digrad.errors import ArgumentError
from digrad.graphs import example5, ring
from digrad.torch import Replicas
from digrad.torch.rounding import decode, encode

CURVATURE = torch.tensor([[1.0 + i, 5.0 - i] for i in range(5)], dtype=torch.float64)
LINEAR = torch.tensor([[1, 0], [0, 2], [-3, 1], [4, 4], [3, -2]], dtype=torch.float64)
MINIMUM = LINEAR.sum(0) / CURVATURE.sum(0)


class Point(nn.Module):
    """A point of the plane."""

    def __init__(self, x: torch.Tensor) -> None:
        super().__init__()
        self.x = nn.Parameter(x.clone())


def train(replicas: Replicas, steps: int) -> None:
    """Minimise the five quadratics of the example."""
    for _ in range(steps):
        for agent, model in enumerate(replicas.models):
            x: Any = model.x
            x.grad.copy_(CURVATURE[agent] * x.detach() - LINEAR[agent])
        replicas.step()


@pytest.mark.parametrize(
    ("method", "start", "steps"),
    [
        (CGT(step_size=0.05, threshold=2.0), 3.0, 400),
        (CGT(step_size=0.005, threshold=2.0), 1e-4, 1200),
        (AB(step_size=0.05), 3.0, 250),
        (PushDIGing(step_size=0.05), 3.0, 250),
    ],
    ids=["CGT", "CGT-small-step", "AB", "PushDIGing"],
)
def test_short_messages_leave_no_error_in_the_answer(method: Any, start: float, steps: int) -> None:
    replicas = Replicas(Point(MINIMUM + start), method, example5(), message_dtype=torch.bfloat16)
    train(replicas, steps)
    assert (replicas.estimate() - MINIMUM).norm(dim=1).max() <= 1e-6 * MINIMUM.norm()


def test_all_messages_of_an_estimate_but_the_first_are_short() -> None:
    sent = []
    for dtype in (None, torch.bfloat16):
        replicas = Replicas(Point(MINIMUM), AB(step_size=0.05), example5(), message_dtype=dtype)
        train(replicas, 10)
        sent.append(replicas.bytes_sent)
    assert (
        sent[1] == sent[0] // 4 + sent[0] // 20 * 3 // 4
    )  # a quarter of float64; one of 20 arrays is in full


def test_both_ends_hold_the_same_reference_which_reaches_a_row_that_rests() -> None:
    x = torch.randn(1, 300_001, generator=torch.Generator().manual_seed(0))
    sender, receiver = None, None
    for _ in range(6):
        message = encode(x, sender, torch.bfloat16)
        sender, receiver = decode(message, sender), decode(message.clone(), receiver)
        assert torch.equal(sender, receiver)
        x[:, ::2] += 1e-3
    assert message.dtype == torch.bfloat16
    for _ in range(4):
        sender = decode(encode(x, sender, torch.bfloat16), sender)
    assert torch.equal(sender, x)


@pytest.mark.parametrize("method", [CGT(step_size=0.05, threshold=2.0), PushDIGing(step_size=0.05)])
def test_state_dict_goes_on_bitwise_with_short_messages(method: Any) -> None:
    first = Replicas(Point(MINIMUM + 1), method, example5(), message_dtype=torch.bfloat16)
    train(first, 5)
    stored = copy.deepcopy(first.state_dict())
    train(first, 5)
    second = Replicas(Point(MINIMUM), method, example5(), message_dtype=torch.bfloat16)
    second.load_state_dict(stored)
    train(second, 5)
    assert all(torch.equal(a, b) for a, b in zip(first.state_fields, second.state_fields, strict=True))


def test_number_too_large_for_a_short_message_is_an_error_not_infinity() -> None:
    replicas = Replicas(nn.Linear(2, 1), AB(step_size=0.1), ring(3), message_dtype=torch.float16)
    for model in replicas.models:
        model.weight.grad.fill_(1e5)
    replicas.step()
    with pytest.raises(ArgumentError, match="float16, which ends at 65504, but 1e"):
        replicas.step()
