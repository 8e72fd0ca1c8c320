"""Messages shorter than the numbers: what they cost, and that the answer does not."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from digrad import AB, CGT, PushDIGing
from digrad.errors import ArgumentError
from digrad.graphs import example5, ring, split
from digrad.links import rounded
from digrad.network import Network
from digrad.torch import Replicas
from digrad.torch.link_state import LinkState
from digrad.torch.mixing_order import Share

SHORT = Network(example5(), links=rounded("bfloat16"))
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
    replicas = Replicas(Point(MINIMUM + start), method, SHORT)
    train(replicas, steps)
    assert (replicas.estimate() - MINIMUM).norm(dim=1).max() <= 1e-6 * MINIMUM.norm()


def test_all_messages_of_an_estimate_but_the_first_are_short() -> None:
    sent = []
    for network in (Network(example5()), SHORT):
        replicas = Replicas(Point(MINIMUM), AB(step_size=0.05), network)
        train(replicas, 10)
        sent.append(replicas.bytes_sent)
    assert (
        sent[1] == sent[0] // 4 + sent[0] // 20 * 3 // 4
    )  # a quarter of float64; one of 20 arrays is in full


def test_both_ends_hold_the_same_reference_which_reaches_a_row_that_rests() -> None:
    x = torch.randn(1, 300_001, generator=torch.Generator().manual_seed(0))
    sender, receiver = (LinkState(rounded("bfloat16"), x.shape[1]) for _ in range(2))
    shares = {"pull": [Share(0, (), ((1, 1.0),), False)]}
    for step in range(10):
        word = sender.say(x, "x")
        sender.hold("x", word.said, [True])
        receiver.hear(word.wire.clone(), x, "x", in_full=step == 0)
        assert torch.equal(sender.known["x"], receiver.known["x"])
        for end in (sender, receiver):
            end.end_step(shares)
        if step < 6:
            x[:, ::2] += 1e-3
    assert word.wire.dtype == torch.bfloat16
    assert torch.equal(sender.known["x"], x)


@pytest.mark.parametrize("graph", [example5(), split(example5(), 3)], ids=["constant", "split"])
@pytest.mark.parametrize("method", [CGT(step_size=0.05, threshold=2.0), PushDIGing(step_size=0.05)])
def test_state_dict_goes_on_bitwise_with_short_messages(method: Any, graph: Any) -> None:
    network = Network(graph, links=rounded("bfloat16"))
    first = Replicas(Point(MINIMUM + 1), method, network)
    train(first, 5)
    stored = copy.deepcopy(first.state_dict())
    train(first, 5)
    second = Replicas(Point(MINIMUM), method, network)
    second.load_state_dict(stored)
    train(second, 5)
    assert all(torch.equal(a, b) for a, b in zip(first.state_fields, second.state_fields, strict=True))


def test_number_too_large_for_a_short_message_is_an_error_not_infinity() -> None:
    replicas = Replicas(nn.Linear(2, 1), AB(step_size=0.1), Network(ring(3), links=rounded("float16")))
    for model in replicas.models:
        model.weight.grad.fill_(1e5)
    replicas.step()
    with pytest.raises(ArgumentError, match="float16, which ends at 65504, but 1e"):
        replicas.step()
