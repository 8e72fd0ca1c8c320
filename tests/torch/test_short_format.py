"""Numbers in fewer bytes: what travels is what a coder says, to the last bit."""

import pytest
import torch

import digrad as dg
from digrad.errors import ArgumentError
from digrad.links import Links, coders, rounded
from digrad.torch.short_format import Levels, short_format


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("bits", [2, 3, 4, 8, 16])
def test_levels_say_what_quantize_says_in_as_many_bytes(bits: int, dtype: torch.dtype) -> None:
    coder = coders.quantize(bits)
    for width in (1, 7, 100):
        values = torch.randn(width, dtype=dtype, generator=torch.Generator().manual_seed(bits))
        packed = Levels(bits).pack(values)
        assert packed.nbytes == coder.wire_bytes(width, dtype.itemsize)
        assert torch.equal(Levels(bits).unpack(packed, width, dtype), coder.code(values[None])[0])


def test_levels_of_nothing_are_nothing_and_what_is_not_finite_stays_so() -> None:
    zero = torch.zeros(5)
    assert torch.equal(Levels(4).unpack(Levels(4).pack(zero), 5, torch.float32), zero)
    broken = Levels(4).unpack(Levels(4).pack(torch.tensor([1.0, torch.nan])), 2, torch.float32)
    assert not broken.isfinite().any()


def test_short_format_is_that_of_the_network() -> None:
    graph = dg.graphs.ring(2)
    short = [
        short_format(dg.Network(graph, links=links)) for links in (None, Links(coder=coders.quantize(4)))
    ]
    assert short == [None, Levels(4)]
    values = torch.tensor([1.0 + 2**-12])
    for links in (rounded("bfloat16"), Links(coder=coders.bfloat16())):
        form = short_format(dg.Network(graph, links=links))
        assert form is not None
        assert form.unpack(form.pack(values), 1, torch.float32).tolist() == [1.0]


@pytest.mark.parametrize(
    "links",
    [Links(loss=0.1), Links(coder=coders.sign()), Links(coder=coders.quantize(4), noise=0.1)],
    ids=repr,
)
def test_links_that_real_lateness_leaves_no_room_for_are_refused(links: Links) -> None:
    with pytest.raises(
        ArgumentError, match="`deadline` of ProcessNetwork carries numbers as they are, rounded"
    ):
        short_format(dg.Network(dg.graphs.ring(2), links=links))
