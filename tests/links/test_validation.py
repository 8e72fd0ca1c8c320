"""Links are checked where a network takes them, and recognised by what they do."""

import numpy as np
import pytest

import digrad as dg
from digrad.errors import ArgumentError
from digrad.links import Rounded, rounded

EXAMPLE = dg.graphs.example5()
QUADRATIC = dg.problems.example_quadratic()


class Scaled:
    """A link of a user's own, which forgets a part of every message."""

    def __init__(self, factor):
        self.factor = factor

    def open(self, x, *, keeps_reference):
        return None

    def send(self, state, x):
        return x

    def arrive(self, state, wire, like):
        return None, self.factor * wire

    def first(self, state, x):
        return None, self.factor * x

    def wire_bytes(self, numbers, itemsize):
        return numbers * itemsize


@pytest.mark.parametrize("links", ["perfect", 0.3, Rounded, dg.Links, np.eye(3)], ids=type)
@pytest.mark.parametrize("owner", ["Network", "NetworkSequence"])
def test_what_is_no_link_is_refused_in_one_line(owner, links):
    build = {"Network": dg.Network, "NetworkSequence": dg.NetworkSequence}[owner]
    given = {"Network": EXAMPLE, "NetworkSequence": [dg.Network(EXAMPLE)]}[owner]
    with pytest.raises(ArgumentError, match=f"^`links` of {owner} must be digrad.Links.*, or None") as caught:
        build(given, links=links)
    assert "\n" not in str(caught.value)


def test_links_of_a_member_of_a_sequence_are_refused():
    members = [dg.Network(EXAMPLE), dg.Network(EXAMPLE, links=rounded("bfloat16"))]
    with pytest.raises(ArgumentError, match="number 1 has links of its own, but all share"):
        dg.NetworkSequence(members)


def test_networks_with_own_links_are_recognised_by_what_the_links_do():
    for build in (
        lambda links: dg.Network(EXAMPLE, links=links),
        lambda links: dg.NetworkSequence([dg.Network(EXAMPLE)], links=links),
    ):
        assert build(Scaled(0.5)).content_hash == build(Scaled(0.5)).content_hash
        assert build(Scaled(0.5)).content_hash != build(Scaled(0.6)).content_hash
        link = Scaled(0.5)
        network = build(link)
        before = network.content_hash
        link.factor = 0.6
        assert network.content_hash != before


def test_a_link_that_was_changed_is_compiled_again():
    link = Scaled(0.5)
    network, method = dg.Network(EXAMPLE, links=link), dg.DGD(step_size=0.05, mixing="row")
    before = dg.simulate(method, QUADRATIC, network, steps=3)
    link.factor = 0.9
    changed = dg.simulate(method, QUADRATIC, network, steps=3)
    fresh = dg.simulate(method, QUADRATIC, dg.Network(EXAMPLE, links=Scaled(0.9)), steps=3)
    np.testing.assert_array_equal(changed.final_x, fresh.final_x)
    assert (changed.final_x != before.final_x).any()


def test_a_link_whose_content_cannot_be_read_runs_but_is_not_stored(tmp_path):
    link = Scaled(0.5)
    link.source = (one for one in ())
    network, method = dg.Network(EXAMPLE, links=link), dg.DGD(step_size=0.05, mixing="row")
    assert dg.simulate(method, QUADRATIC, network, steps=3).facts["network_hash"] is None
    with pytest.raises(ArgumentError, match="must know its run again, but the network cannot be recognised"):
        dg.simulate(method, QUADRATIC, network, steps=3, checkpoint=dg.Checkpoint(tmp_path / "run.npz"))
