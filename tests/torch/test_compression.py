"""Messages shorter than the numbers: what they cost, and that the answer does not."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from digrad import AB, CGT, PushDIGing
from digrad.errors import ArgumentError
from digrad.graphs import example5, ring, split
from digrad.links import Links, compressors
from digrad.network import Network
from digrad.torch import Replicas
from digrad.torch.engines.compression import Compression, LinkKey, check_packable, pack, unpack
from digrad.torch.engines.mixing import Share

KEY = LinkKey("reference")
SHORT = Network(example5(), links=Links(compressor=compressors.bfloat16()))
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
        (CGT(step_size=0.01, threshold=2.0), 1e-4, 600),
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
    links = Links(compressor=compressors.bfloat16())
    sender, receiver = (Compression(links, x.shape[1]) for _ in range(2))
    shares = {"pull": [Share(0, (), ((1, 1.0),), False)]}
    for step in range(10):
        wire, value = sender.encode(x, KEY)
        sender.keep(KEY, value, sends=True)
        receiver.decode(wire.clone(), x, KEY, in_full=step == 0)
        assert torch.equal(sender.references[KEY], receiver.references[KEY])
        for end in (sender, receiver):
            end.end_step(shares)
        if step < 6:
            x[:, ::2] += 1e-3
    assert wire.nbytes == 2 * x.numel()
    assert torch.equal(sender.references[KEY], x)


COMPRESSORS = [
    *(compressors.quantize(bits) for bits in (2, 3, 4, 8, 16, 20)),
    *(compressors.top_k(k) for k in (1, 3, 200)),
    compressors.sign(),
    compressors.bfloat16(),
    compressors.float16(),
    compressors.float32(),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("compressor", COMPRESSORS, ids=repr)
def test_bytes_that_travel_are_what_the_compressor_makes_of_numbers(
    compressor: Any, dtype: torch.dtype
) -> None:
    for width in (1, 7, 100):
        values = torch.randn(width, dtype=dtype, generator=torch.Generator().manual_seed(width))
        values[width // 2] = 0
        packed = pack(compressor, values)
        assert packed.dtype == torch.uint8
        assert packed.nbytes == compressor.wire_bytes(width, dtype.itemsize)
        assert torch.equal(unpack(compressor, packed, width, dtype), compressor.compress(values[None])[0])
        nothing = torch.zeros_like(values)
        assert torch.equal(unpack(compressor, pack(compressor, nothing), width, dtype), nothing)


@pytest.mark.parametrize(
    "compressor", [compressors.quantize(4), compressors.sign(), compressors.bfloat16()], ids=repr
)
def test_what_is_not_finite_does_not_become_finite_on_the_way(compressor: Any) -> None:
    found = unpack(compressor, pack(compressor, torch.tensor([1.0, torch.nan])), 2, torch.float32)
    assert not found.isfinite().all()


@pytest.mark.parametrize(
    "links",
    [
        Links(loss=0.1),
        Links(compressor=compressors.random_k(2)),
        Links(compressor=compressors.sign(), noise=0.1),
    ],
    ids=repr,
)
def test_links_that_only_emulation_has_are_refused_between_processes(links: Links) -> None:
    with pytest.raises(ArgumentError, match="but real processes have a real network"):
        check_packable(links, torch.device("cpu"), "ProcessNetwork")


@pytest.mark.parametrize(
    "compressor", [compressors.quantize(4), compressors.sign(), compressors.top_k(2)], ids=repr
)
def test_bits_are_packed_on_the_cpu_only(compressor: Any) -> None:
    with pytest.raises(
        ArgumentError, match=r"needs tensors on the CPU, but those of ProcessNetwork are on cuda:0"
    ):
        check_packable(Links(compressor=compressor), torch.device("cuda:0"), "ProcessNetwork")
    check_packable(Links(compressor=compressor), torch.device("cpu"), "ProcessNetwork")


@pytest.mark.parametrize("graph", [example5(), split(example5(), 3)], ids=["constant", "split"])
@pytest.mark.parametrize("method", [CGT(step_size=0.05, threshold=2.0), PushDIGing(step_size=0.05)])
def test_state_dict_goes_on_bitwise_with_short_messages(method: Any, graph: Any) -> None:
    network = Network(graph, links=Links(compressor=compressors.bfloat16()))
    first = Replicas(Point(MINIMUM + 1), method, network)
    train(first, 5)
    stored = copy.deepcopy(first.state_dict())
    train(first, 5)
    second = Replicas(Point(MINIMUM), method, network)
    second.load_state_dict(stored)
    train(second, 5)
    assert all(torch.equal(a, b) for a, b in zip(first.state_fields, second.state_fields, strict=True))


def test_number_too_large_for_a_short_message_is_an_error_not_infinity() -> None:
    replicas = Replicas(
        nn.Linear(2, 1), AB(step_size=0.1), Network(ring(3), links=Links(compressor=compressors.float16()))
    )
    for model in replicas.models:
        model.weight.grad.fill_(1e5)
    replicas.step()
    with pytest.raises(ArgumentError, match="float16, whose largest number is 65504, but"):
        replicas.step()
