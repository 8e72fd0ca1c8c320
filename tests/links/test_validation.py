"""Links are checked where a network takes them, and recognised by what they do."""

import numpy as np
import pytest

import digrad as dg
from digrad.errors import ArgumentError
from digrad.links import Links, compressors

EXAMPLE = dg.graphs.example5()
QUADRATIC = dg.problems.example_quadratic()


@pytest.mark.parametrize("links", ["perfect", 0.3, compressors.sign(), dg.Links, np.eye(3)], ids=type)
@pytest.mark.parametrize("graph", [EXAMPLE, [dg.Network(EXAMPLE)] * 2], ids=["one", "two"])
def test_what_is_no_link_is_refused_in_one_line(graph, links):
    with pytest.raises(ArgumentError, match=r"^`links` of Network must be digrad.Links.*, or None") as caught:
        dg.Network(graph, links=links)
    assert "\n" not in str(caught.value)


def test_links_of_a_member_of_a_sequence_are_refused():
    members = [dg.Network(EXAMPLE), dg.Network(EXAMPLE, links=Links(compressor=compressors.bfloat16()))]
    with pytest.raises(ArgumentError, match="number 1 has links of its own, but all share"):
        dg.Network(members)
