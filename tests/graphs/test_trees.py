"""Spanning trees with a common root."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from digrad import graphs
from digrad.errors import ArgumentError


def test_trees_of_the_example_are_those_of_the_specification():
    trees = graphs.spanning_trees(graphs.example5())
    assert set(trees.outward.edges) == {(0, 1), (0, 2), (2, 3), (1, 4)}
    assert set(trees.inward.edges) == {(4, 0), (3, 4), (1, 4), (2, 3)}


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 12), seed=st.integers(0, 2**16), data=st.data())
def test_trees_use_the_fewest_edges_of_the_graph_and_share_their_root(n, seed, data):
    graph = graphs.random_digraph(n, 0.3, seed=seed)
    root = data.draw(st.integers(0, n - 1))
    outward, inward = graphs.spanning_trees(graph, root)
    assert outward.n_edges == inward.n_edges == n - 1
    assert {*outward.edges, *inward.edges} <= set(graph.edges)
    np.testing.assert_array_equal(graphs.roots(outward), np.arange(n) if n == 1 else [root])
    np.testing.assert_array_equal(graphs.sinks(inward), np.arange(n) if n == 1 else [root])


def test_root_that_is_none_is_refused_with_those_that_are():
    chain = graphs.from_edges(3, [(0, 1), (1, 2), (2, 1)])
    with pytest.raises(
        ArgumentError, match=r"must be an agent that reaches all others, but agent 1 is not; .*: 0"
    ):
        graphs.spanning_trees(chain, 1)
    with pytest.raises(ArgumentError, match=r"is reached by all others, but agent 0 is not; .*: 1, 2"):
        graphs.spanning_trees(chain, 0)
    with pytest.raises(ArgumentError, match="`root` of spanning_trees must be at most 2"):
        graphs.spanning_trees(chain, 3)
