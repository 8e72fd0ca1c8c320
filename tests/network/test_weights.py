import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from digrad import graphs
from digrad.errors import MixingError
from digrad.network import Mixing, column_stochastic, metropolis, row_stochastic, sinkhorn
from digrad.network import weights as module

random_digraphs = st.builds(
    lambda n, p, seed: graphs.random_digraph(n, p, seed=seed),
    st.integers(1, 12),
    st.floats(0, 1),
    st.integers(0, 2**32),
)


def test_uniform_weights_of_the_five_agent_example_match_the_paper():
    row, column = row_stochastic(graphs.example5()), column_stochastic(graphs.example5())
    half, third = 1 / 2, 1 / 3
    expected_row = [
        [half, 0, 0, 0, half],
        [half, half, 0, 0, 0],
        [third, third, third, 0, 0],
        [0, 0, half, half, 0],
        [0, third, 0, third, third],
    ]
    expected_column = [
        [third, 0, 0, 0, half],
        [third, third, 0, 0, 0],
        [third, third, half, 0, 0],
        [0, 0, half, half, 0],
        [0, third, 0, half, half],
    ]
    np.testing.assert_allclose(row.toarray(), expected_row, rtol=1e-15)
    np.testing.assert_allclose(column.toarray(), expected_column, rtol=1e-15)
    assert (row.kind, column.kind) == ("row", "column")


def test_sinkhorn_of_the_five_agent_example_matches_the_reference():
    expected = [
        [0.332527, 0, 0, 0, 0.667473],
        [0.454486, 0.545514, 0, 0, 0],
        [0.212986, 0.255645, 0.531369, 0, 0],
        [0, 0, 0.468631, 0.531369, 0],
        [0, 0.198841, 0, 0.468631, 0.332527],
    ]
    np.testing.assert_allclose(sinkhorn(graphs.example5()).toarray(), expected, atol=5e-7)


def test_sinkhorn_of_the_triangle_has_golden_ratio_weights():
    phi = (1 + 5**0.5) / 2
    expected = [[phi**-2, 0, 1 / phi], [phi**-2, 1 / phi, 0], [phi**-3, phi**-2, phi**-2]]
    np.testing.assert_allclose(sinkhorn(graphs.triangle()).toarray(), expected, atol=1e-12)


def test_metropolis_of_the_symmetrized_example_is_symmetric_and_doubly_stochastic():
    mixing = metropolis(graphs.example5().symmetrized())
    dense = mixing.toarray()
    np.testing.assert_array_equal(dense, dense.T)
    np.testing.assert_allclose(dense.sum(axis=1), 1, atol=1e-15)
    assert (dense.diagonal() > 0).all()
    assert mixing.kind == "doubly"


def test_metropolis_of_a_one_way_edge_says_what_symmetrizing_costs():
    with pytest.raises(
        MixingError, match=r"\(0, 1\) has no reverse.*graph\.symmetrized\(\).*counts their traffic"
    ):
        metropolis(graphs.from_edges(3, [(0, 1), (1, 2), (2, 1)]))


def test_sinkhorn_of_a_regular_graph_is_uniform_at_once(monkeypatch):
    monkeypatch.setattr(module, "SINKHORN_ITERATIONS", 1)
    np.testing.assert_allclose(sinkhorn(graphs.exponential(8)).matrix.data, 1 / 4, rtol=1e-15)


def test_sinkhorn_needs_a_strongly_connected_graph_and_names_a_pair():
    with pytest.raises(MixingError, match="strongly connected, but agent 1 cannot reach agent 0"):
        sinkhorn(graphs.out_star(3))


def test_sinkhorn_says_so_when_the_iterations_do_not_suffice(monkeypatch):
    monkeypatch.setattr(module, "SINKHORN_ITERATIONS", 3)
    monkeypatch.setattr(module, "NEWTON_ITERATIONS", 1)
    with pytest.raises(MixingError, match="after 3 iterations of its own and 1 of Newton's method"):
        sinkhorn(graphs.example5())


def test_sinkhorn_balances_a_long_path_with_feedback():
    n = 1000
    graph = graphs.from_edges(n, [(i, i + 1) for i in range(n - 1)] + [(i, 0) for i in range(1, n)])
    weights = sinkhorn(graph).matrix
    np.testing.assert_allclose(weights.sum(axis=0), 1, rtol=0, atol=1e-12)
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=0, atol=1e-12)
    assert weights.data.min() > 0


def test_sinkhorn_by_newton_finds_the_same_weights(monkeypatch):
    expected = sinkhorn(graphs.example5()).toarray()
    monkeypatch.setattr(module, "SINKHORN_ITERATIONS", 1)
    np.testing.assert_allclose(sinkhorn(graphs.example5()).toarray(), expected, rtol=0, atol=1e-12)


@settings(max_examples=50, deadline=None)
@given(random_digraphs)
def test_sinkhorn_is_doubly_stochastic_and_positive_exactly_on_the_edges(graph):
    mixing = sinkhorn(graph)
    dense = mixing.toarray()
    np.testing.assert_allclose(dense.sum(axis=0), 1, atol=1e-12)
    np.testing.assert_allclose(dense.sum(axis=1), 1, atol=1e-12)
    np.testing.assert_array_equal(dense > 0, (graph.to_adjacency().toarray() + np.eye(graph.n)) > 0)


@settings(max_examples=50, deadline=None)
@given(random_digraphs)
def test_uniform_weights_sum_to_one_on_the_edges_of_the_graph(graph):
    row, column = row_stochastic(graph).toarray(), column_stochastic(graph).toarray()
    np.testing.assert_allclose(row.sum(axis=1), 1, atol=1e-14)
    np.testing.assert_allclose(column.sum(axis=0), 1, atol=1e-14)
    np.testing.assert_array_equal(row > 0, column > 0)
    np.testing.assert_array_equal(row > 0, (graph.to_adjacency().toarray() + np.eye(graph.n)) > 0)


@settings(max_examples=25, deadline=None)
@given(random_digraphs, st.randoms(use_true_random=False))
def test_relabelling_agents_permutes_the_weights(graph, random):
    names = list(range(graph.n))
    random.shuffle(names)
    for build in (row_stochastic, column_stochastic, sinkhorn):
        renamed = build(graph.relabeled(names)).toarray()
        np.testing.assert_allclose(renamed[np.ix_(names, names)], build(graph).toarray(), atol=1e-11)


def test_weights_are_sorted_read_only_csr_of_float64():
    for build in (row_stochastic, column_stochastic, sinkhorn, lambda g: metropolis(g.symmetrized())):
        mixing: Mixing = build(graphs.example5())
        assert mixing.matrix.format == "csr"
        assert mixing.matrix.dtype == np.float64
        assert mixing.matrix.has_sorted_indices
        with pytest.raises(ValueError, match="read-only"):
            mixing.matrix.data[0] = 2.0


def test_content_hash_tells_weights_apart():
    graph = graphs.example5()
    hashes = {build(graph).content_hash for build in (row_stochastic, column_stochastic, sinkhorn)}
    assert len(hashes) == 3
    assert row_stochastic(graph).content_hash in hashes
