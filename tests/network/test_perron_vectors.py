import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from digrad import graphs
from digrad.errors import MixingError
from digrad.network import (
    Network,
    column_stochastic,
    custom,
    perron_column,
    perron_row,
    perron_vectors,
    rho,
    row_stochastic,
    second_singular_value,
    sinkhorn,
)

EXAMPLE = graphs.example5()


def test_perron_vectors_of_the_five_agent_example_match_the_reference():
    u, v = perron_row(row_stochastic(EXAMPLE)), perron_column(column_stochastic(EXAMPLE))
    np.testing.assert_allclose(u, np.array([40, 30, 15, 20, 30]) / 27, rtol=1e-13)
    np.testing.assert_allclose(v, np.array([30, 15, 30, 30, 40]) / 29, rtol=1e-13)
    assert u @ v == pytest.approx(4.980843, abs=5e-7)


def test_perron_vectors_of_the_triangle_match_the_reference():
    u, v = perron_row(row_stochastic(graphs.triangle())), perron_column(column_stochastic(graphs.triangle()))
    np.testing.assert_allclose(u, [4 / 3, 2 / 3, 1], rtol=1e-13)
    np.testing.assert_allclose(v, [1, 2 / 3, 4 / 3], rtol=1e-13)
    assert u @ v == pytest.approx(28 / 9, rel=1e-13)


def test_perron_vector_of_the_two_way_star_matches_the_reference():
    np.testing.assert_allclose(perron_row(row_stochastic(graphs.star(3))), [9 / 7, 6 / 7, 6 / 7], rtol=1e-13)


def test_leader_of_an_out_star_decides_everything_exactly():
    assert perron_row(row_stochastic(graphs.out_star(5))).tolist() == [5, 0, 0, 0, 0]


def test_agents_outside_the_root_component_weigh_exactly_zero():
    graph = graphs.from_edges(5, [(0, 1), (1, 2), (2, 0), (0, 2), (2, 3), (3, 4), (4, 3)])
    u = perron_row(row_stochastic(graph))
    assert u[3:].tolist() == [0, 0]
    np.testing.assert_allclose(u[:3], np.array([4, 2, 3]) * 5 / 9, rtol=1e-13)


def test_doubly_stochastic_weights_have_perron_vectors_of_exact_ones():
    mixing = sinkhorn(EXAMPLE)
    assert perron_row(mixing).tolist() == [1] * 5
    assert perron_column(mixing).tolist() == [1] * 5


def test_tiny_perron_entries_stay_positive_and_accurate():
    # A path on which everybody also sends to agent 0: each agent on it holds half as much as the one before.
    n = 200
    graph = graphs.from_edges(n, [(i, i + 1) for i in range(n - 1)] + [(i, 0) for i in range(1, n)])
    v = perron_column(column_stochastic(graph))
    np.testing.assert_allclose(v[2:-1] / v[1:-2], 1 / 2, rtol=1e-12)
    assert 0 < v.min() < 1e-50


def test_perron_vector_does_not_depend_on_the_labels_even_when_agent_0_holds_almost_nothing():
    # Weights are multiples of 1/4, so elimination that keeps a tiny entry fixed cancels to exactly singular.
    n = 100
    edges = {(i, i + 1) for i in range(n - 1)} | {(i, 0) for i in range(1, n)} | {(i, 1) for i in range(2, n)}
    graph = graphs.from_edges(n, sorted(edges | {(0, 2), (0, 3), (1, 3)}))
    v = perron_column(column_stochastic(graph))
    mirrored = perron_column(column_stochastic(graph.relabeled(np.arange(n)[::-1])))
    np.testing.assert_allclose(mirrored[::-1], v, rtol=1e-12)
    assert v.min() < 1e-40


def test_a_singular_system_is_an_error_with_a_remedy(monkeypatch):
    def singular(matrix):
        raise RuntimeError("Factor is exactly singular")

    monkeypatch.setattr(perron_vectors, "splu", singular)
    monkeypatch.setattr(perron_vectors, "DENSE_LIMIT", 2)
    monkeypatch.setattr(perron_vectors, "POWER_ITERATIONS", 1)
    with pytest.raises(MixingError, match="singular to machine precision; use a better connected graph"):
        perron_row(row_stochastic(EXAMPLE))


@pytest.mark.parametrize("weak", [1e-8, 1e-14, 1e-200])
def test_perron_vector_of_a_nearly_uncoupled_chain_is_right_to_rounding(weak):
    matrix = [[1 - 2 * weak, 2 * weak], [weak, 1 - weak]]
    np.testing.assert_allclose(perron_row(custom(matrix, "row")), [2 / 3, 4 / 3], rtol=1e-14)
    np.testing.assert_allclose(
        perron_column(custom(np.transpose(matrix), "column")), [2 / 3, 4 / 3], rtol=1e-14
    )


def two_blocks(size, weak, *, back=0):
    """Two cliques, of which the first gives away twice as much as it gets; the second sends to agent ``back``."""
    matrix = np.kron(np.eye(2), np.full((size, size), 1 / size))
    matrix[back, [back, size]] = 1 / size - 2 * weak, 2 * weak
    matrix[size, [size, 0]] = 1 / size - weak, weak
    return custom(matrix, "row")


def test_perron_vector_of_blocks_that_hardly_communicate_is_right_across_elimination_blocks():
    u = perron_row(two_blocks(100, 1e-15))
    np.testing.assert_allclose(u, np.repeat([2 / 3, 4 / 3], 100), rtol=1e-12)


def test_a_large_network_whose_parts_hardly_communicate_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(perron_vectors, "DENSE_LIMIT", 10)
    with pytest.raises(MixingError, match="decided by weights below 1e-08 between 2 parts"):
        perron_row(two_blocks(20, 1e-15, back=1))
    np.testing.assert_allclose(
        perron_row(two_blocks(20, 1e-4, back=1)), np.repeat([2 / 3, 4 / 3], 20), rtol=1e-2
    )
    # The same parts coupled both ways along one edge balance, and ratios of weights decide.
    np.testing.assert_allclose(perron_row(two_blocks(20, 1e-15)), np.repeat([2 / 3, 4 / 3], 20), rtol=1e-12)


def test_no_root_and_no_strong_connection_are_errors():
    with pytest.raises(MixingError, match="`R` has no agent that reaches all others"):
        perron_row(row_stochastic(graphs.out_star(3).reversed()))
    with pytest.raises(MixingError, match="`C` has no agent that all others reach"):
        perron_column(column_stochastic(graphs.out_star(3)))
    with pytest.raises(MixingError, match="must be doubly stochastic, but its kind is 'row'"):
        second_singular_value(row_stochastic(EXAMPLE))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 15), st.floats(0, 1), st.integers(0, 2**32))
def test_perron_vectors_are_positive_fixed_points_that_sum_to_n(n, p, seed):
    graph = graphs.random_digraph(n, p, seed=seed)
    row, column = row_stochastic(graph), column_stochastic(graph)
    u, v = perron_row(row), perron_column(column)
    np.testing.assert_allclose(u @ row.toarray(), u, atol=1e-12)
    np.testing.assert_allclose(column.toarray() @ v, v, atol=1e-12)
    assert u.sum() == pytest.approx(n)
    assert v.sum() == pytest.approx(n)
    assert min(u.min(), v.min()) > 0
    assert max(rho(row), rho(column)) < 1


def test_a_wrong_perron_vector_is_never_returned(monkeypatch):
    monkeypatch.setattr(perron_vectors, "_eliminated", lambda flow: np.ones(len(flow)))
    with pytest.raises(MixingError, match="Perron vector of `R` could not be computed"):
        perron_row(row_stochastic(EXAMPLE))


def test_factors_that_do_not_fit_into_memory_are_not_tried(monkeypatch):
    monkeypatch.setattr(perron_vectors, "INVERSE_LIMIT", 100)
    monkeypatch.setattr(perron_vectors, "FACTOR_LIMIT", 500_000)
    for graph in (graphs.grid(1, 3000), graphs.ring(3000)):
        perron_vectors._check_factors(row_stochastic(graph).matrix)
    halves = [graphs.k_out(1500, 3, seed=seed).edge_array + 1500 * seed for seed in (0, 1)]
    slow = graphs.from_edges(3000, [*halves[0].tolist(), *halves[1].tolist(), (0, 1500), (1500, 0)])
    matrix = row_stochastic(slow).matrix.copy()
    with pytest.raises(MixingError, match="sparse factors do not fit into memory") as refused:
        perron_vectors._check_factors(matrix)
    assert "\n" not in str(refused.value)


def test_a_large_reversible_chain_needs_no_iteration(monkeypatch):
    monkeypatch.setattr("digrad.network.perron_vectors.DENSE_LIMIT", 100)
    monkeypatch.setattr("digrad.network.perron_vectors.POWER_ITERATIONS", 0)
    monkeypatch.setattr("digrad.network.perron_vectors._pinned", lambda _: pytest.fail("nor factors"))
    graph = graphs.grid(20, 30)
    degree = graph.in_degree + 1.0
    expected = 600 * degree / degree.sum()
    np.testing.assert_allclose(perron_row(row_stochastic(graph)), expected, rtol=1e-13)
    np.testing.assert_allclose(perron_column(column_stochastic(graph)), expected, rtol=1e-13)


def test_a_chain_of_two_way_edges_that_is_not_reversible_is_not_taken_for_one(monkeypatch):
    graph = graphs.grid(4, 5)
    weights = (graph.to_adjacency().toarray() + np.eye(20)) * np.random.default_rng(0).uniform(1, 2, (20, 20))
    R = Network(graph, R=weights / weights.sum(axis=1, keepdims=True)).R
    expected = perron_row(R)
    monkeypatch.setattr("digrad.network.perron_vectors.DENSE_LIMIT", 10)
    np.testing.assert_allclose(perron_row(R), expected, rtol=1e-9)
