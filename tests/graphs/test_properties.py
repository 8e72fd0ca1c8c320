import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from digrad import graphs
from digrad.graphs import Digraph, from_edges


@st.composite
def digraphs(draw: st.DrawFn) -> Digraph:
    n = draw(st.integers(1, 7))
    pairs = [(sender, receiver) for sender in range(n) for receiver in range(n) if sender != receiver]
    return from_edges(n, draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else [])


@settings(deadline=None)
@given(digraphs())
def test_connectivity_components_and_diameter_agree_with_networkx(graph):
    reference = graph.to_networkx()
    components = {frozenset(members) for members in networkx.strongly_connected_components(reference)}
    labels = graphs.strong_components(graph)
    assert {frozenset(np.flatnonzero(labels == label).tolist()) for label in np.unique(labels)} == components
    assert graphs.is_strongly_connected(graph) == (len(components) == 1)
    assert graphs.diameter(graph) == (networkx.diameter(reference) if len(components) == 1 else None)


@settings(deadline=None)
@given(digraphs())
def test_roots_are_exactly_the_agents_that_reach_everybody(graph):
    reference = graph.to_networkx()
    expected = [a for a in range(graph.n) if len(networkx.descendants(reference, a)) == graph.n - 1]
    assert graphs.roots(graph).tolist() == expected


@settings(deadline=None)
@given(digraphs())
def test_unreachable_pair_is_a_witness_or_none(graph):
    pair = graphs.unreachable_pair(graph)
    if pair is None:
        assert graphs.is_strongly_connected(graph)
    else:
        assert not networkx.has_path(graph.to_networkx(), *pair)


def test_components_are_numbered_by_their_first_agent():
    graph = from_edges(5, [(4, 0), (0, 4), (1, 3), (3, 1), (4, 1)])
    assert graphs.strong_components(graph).tolist() == [0, 1, 2, 1, 0]


@pytest.mark.parametrize(
    ("graph", "diameter"),
    [
        (graphs.ring(6), 5),
        (graphs.star(6), 2),
        (graphs.complete(6), 1),
        (graphs.ring(1), 0),
        (graphs.de_bruijn(8), 3),
    ],
)
def test_diameter_of_known_graphs(graph, diameter):
    assert graphs.diameter(graph) == diameter


def test_diameter_is_not_computed_beyond_2000_agents():
    assert graphs.diameter(graphs.ring(2001)) is None


def test_degree_imbalance_is_zero_for_a_ring_and_n_minus_1_for_an_out_star():
    assert graphs.degree_imbalance(graphs.ring(5)) == 0
    assert graphs.degree_imbalance(graphs.example5()) == 1
    assert graphs.degree_imbalance(graphs.out_star(5)) == 4
