"""Requirements of a method on its network and links, checked before the first step: the table of the specification."""

import pytest
import torch

import digrad as dg
from digrad.core.validation import check_fit, check_links
from digrad.errors import ArgumentError
from digrad.links import Clock, Exponential, Links
from digrad.torch import Replicas
from method_cases import BOTH, CASES, COLUMN, DOUBLY, ROW

SPARSE = dg.Network(dg.graphs.every(5, dg.graphs.complete(5)))
BOTH_WAYS = dg.graphs.from_edges(
    5, [edge for s, r in dg.graphs.example5().edges for edge in ((s, r), (r, s))]
)  # on which W is symmetric
LINKS = {
    "little loss": Links(loss=0.05),
    "loss": Links(loss=0.3),
    "loss both ways": Links(loss=0.3, two_way=True),
    "delay": Links(delay=2),
    "sleep": Links(awake=0.5),
    "deadline": Links(clock=Clock(compute=Exponential(1.0), deadline=1.0)),
    "compressor": Links(compressor=dg.compressors.sign()),
    "compressor and loss": Links(loss=0.3, compressor=dg.compressors.sign()),
    "noise": Links(noise=0.1),
}
REFUSED = {  # by what a method needs
    BOTH: set(),
    ROW: set(),
    COLUMN: {"compressor and loss"},
    DOUBLY: {"little loss", "loss", "delay", "sleep", "deadline", "compressor and loss"},
}
LEARNS = {*REFUSED[DOUBLY], "loss both ways"}  # FROST, which learns the Perron vector of R
WARNED = {"loss", "loss both ways", "sleep", "deadline"}  # push-sum, which these drain


@pytest.mark.parametrize("method", [dg.DiLoCo, dg.NoLoCo])
def test_rounds_end_when_the_network_sends(method):
    check_fit(method(0.1, local_steps=5), SPARSE, "it")
    check_fit(method(0.1, local_steps=5), dg.Network(dg.graphs.complete(5)), "it")
    for H in (1, 4, 10):  # 1 is the default
        with pytest.raises(ArgumentError, match=f"`local_steps` of it must be 5, .* but got {H}"):
            check_fit(method(0.1, local_steps=H), SPARSE, "it")


def test_rounds_are_checked_by_every_engine():
    problem, method = dg.problems.example_quadratic(), dg.DiLoCo(0.1)
    for run in (
        lambda: dg.simulate(method, problem, SPARSE, steps=2),
        lambda: Replicas(torch.nn.Linear(1, 1), method, SPARSE),
    ):
        with pytest.raises(ArgumentError, match="`local_steps` of DiLoCo must be 5"):
            run()


def message_of(case, links):
    """Return why a method is refused; nothing if it is not."""
    network = dg.Network(BOTH_WAYS, W=dg.network.metropolis(BOTH_WAYS), links=links)
    try:
        check_links(case.method, network, case.label)
    except ArgumentError as error:
        return str(error)
    return ""


@pytest.mark.filterwarnings("ignore:.*divides by a weight")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_every_method_is_refused_what_the_specification_says(case):
    refused = {name for name, links in LINKS.items() if message_of(case, links)}
    assert not any("\n" in message_of(case, links) for links in LINKS.values())
    expected = set(LINKS) - {"compressor"} if "mean" in case.needs else REFUSED[case.needs]
    assert refused == (LEARNS if case.label == "FROST" else expected)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
@pytest.mark.parametrize("name", sorted(WARNED))
def test_push_sum_alone_is_warned_of_what_drains_its_weights(case, name, recwarn):
    if not message_of(case, LINKS[name]):
        warned = [str(one.message).count("divides by a weight") for one in recwarn]
        assert warned == [1] * (case.needs == COLUMN)
