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
    metropolis,
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


def test_mixing_speeds_of_the_five_agent_example_match_the_reference():
    assert rho(row_stochastic(EXAMPLE)) == pytest.approx(3**-0.5, abs=1e-9)
    assert rho(column_stochastic(EXAMPLE)) == pytest.approx(0.653124, abs=5e-7)
    assert rho(sinkhorn(EXAMPLE)) == pytest.approx(0.639511, abs=5e-7)
    assert second_singular_value(sinkhorn(EXAMPLE)) == pytest.approx(0.774854, abs=5e-7)
    assert second_singular_value(metropolis(EXAMPLE.symmetrized())) == pytest.approx(0.5, abs=1e-12)


@pytest.mark.parametrize("n", [3, 4, 5, 10])
def test_ring_contracts_by_the_cosine_of_pi_over_n(n):
    assert second_singular_value(sinkhorn(graphs.ring(n))) == pytest.approx(np.cos(np.pi / n), abs=1e-12)


@pytest.mark.parametrize(("n", "norm"), [(4, 1 / 3), (5, 0.25), (6, 0.5), (8, 0.5), (16, 0.6)])
def test_exponential_graph_contracts_as_in_the_catalogue(n, norm):
    assert second_singular_value(sinkhorn(graphs.exponential(n))) == pytest.approx(norm, abs=1e-12)


def test_lazy_de_bruijn_contracts_as_in_the_catalogue_and_the_plain_one_averages_in_three_rounds():
    plain = np.zeros((8, 8))
    for sender in range(8):
        plain[[2 * sender % 8, (2 * sender + 1) % 8], sender] = 0.5
    np.testing.assert_array_equal(np.linalg.matrix_power(plain, 3), np.full((8, 8), 1 / 8))
    lazy = custom((plain + np.eye(8)) / 2, "doubly", graphs.de_bruijn(8))
    assert second_singular_value(lazy) == pytest.approx(0.900969, abs=5e-7)


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
    """Two cliques, of which the first gives away twice as much as it gets; the second is heard by agent ``back``."""
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


def lazy_de_bruijn(n):
    plain = np.zeros((n, n))
    for sender in range(n):
        plain[[2 * sender % n, (2 * sender + 1) % n], sender] += 0.5
    return custom((plain + np.eye(n)) / 2, "doubly")


@pytest.mark.parametrize("n", [8, 64, 256])
def test_mixing_speed_of_a_defective_matrix_is_the_center_of_its_cluster(n):
    # All eigenvalues but one are 1/2, in Jordan blocks of up to log2(n), which rounding splits by a root of it.
    assert rho(lazy_de_bruijn(n)) == pytest.approx(0.5, abs=1e-9)


@pytest.mark.parametrize("graph", [graphs.ring(7), graphs.exponential(12), graphs.complete(5)])
def test_mixing_speed_of_circulant_weights_agrees_with_dense_eigenvalues(graph):
    mixing = row_stochastic(graph)
    dense = np.abs(np.linalg.eigvals(mixing.toarray() - 1 / graph.n)).max()
    assert rho(mixing) == pytest.approx(dense, abs=1e-12)


def test_mixing_speed_of_a_ring_of_thousands_is_its_cosine():
    assert rho(row_stochastic(graphs.ring(3000))) == pytest.approx(np.cos(np.pi / 3000), abs=1e-15)


def test_mixing_speed_of_a_large_slow_graph_comes_from_the_eigenvalues_near_one(monkeypatch):
    path = graphs.grid(1, 100)
    exact = rho(row_stochastic(path))
    monkeypatch.setattr(perron_vectors, "DENSE_LIMIT", 10)
    monkeypatch.setattr(perron_vectors, "ARPACK_RESTARTS", 1)
    assert rho(row_stochastic(path)) == pytest.approx(exact, abs=1e-9)


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


@pytest.mark.parametrize("graph", [graphs.k_out(60, 3, seed=1), graphs.grid(4, 12)], ids=["power", "splu"])
def test_large_network_path_agrees_with_the_dense_one(monkeypatch, graph):
    row, column, doubly = row_stochastic(graph), column_stochastic(graph), sinkhorn(graph)
    dense = [perron_row(row), perron_column(column), rho(row), rho(column), rho(doubly)]
    norm = second_singular_value(doubly)
    monkeypatch.setattr(perron_vectors, "DENSE_LIMIT", 10)
    monkeypatch.setattr(perron_vectors, "POWER_ITERATIONS", 100)
    large = [perron_row(row), perron_column(column), rho(row), rho(column), rho(doubly)]
    for small_figure, large_figure in zip(dense, large, strict=True):
        np.testing.assert_allclose(large_figure, small_figure, rtol=1e-5)
    np.testing.assert_allclose(large[0], dense[0], rtol=1e-10)
    assert second_singular_value(doubly) == pytest.approx(norm, rel=1e-5)


def test_a_wrong_perron_vector_is_never_returned(monkeypatch):
    monkeypatch.setattr(perron_vectors, "_eliminated", lambda flow: np.ones(len(flow)))
    with pytest.raises(MixingError, match="Perron vector of `R` could not be computed"):
        perron_row(row_stochastic(EXAMPLE))


def test_arpack_without_convergence_is_an_error_with_a_remedy(monkeypatch):
    def never(*args, **kwargs):
        raise perron_vectors.ArpackNoConvergence("no", np.array([]), np.array([]))

    monkeypatch.setattr(perron_vectors, "DENSE_LIMIT", 2)
    monkeypatch.setattr(perron_vectors, "eigs", never)
    with pytest.raises(MixingError, match="ARPACK did not converge"):
        rho(sinkhorn(EXAMPLE))


def test_a_published_directed_doubly_stochastic_matrix_mixes_as_recorded():
    matrix = [
        [0.6, 0, 0, 0.4, 0],
        [0.2, 0.8, 0, 0, 0],
        [0.2, 0.1, 0.4, 0, 0.3],
        [0, 0, 0, 0.6, 0.4],
        [0, 0.1, 0.6, 0, 0.3],
    ]
    mixing = custom(matrix, "doubly")
    assert rho(mixing) == pytest.approx(0.659052, abs=5e-7)
    assert second_singular_value(mixing) == pytest.approx(0.8, abs=1e-12)


@pytest.mark.parametrize("n", [4, 40, 100_000])
def test_mixing_speed_of_a_path_is_the_weight_that_agents_give_themselves(n):
    path = graphs.from_edges(n, [(agent, agent + 1) for agent in range(n - 1)])
    assert rho(row_stochastic(path)) == 0.5
    assert Network(path).describe().rho_R == (0.5 if n <= 2000 else None)  # of more it is not asked for
    assert perron_row(row_stochastic(path)).tolist() == [n, *[0] * (n - 1)]


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


def test_mixing_speed_of_a_graph_without_cycles_is_the_largest_weight_on_the_diagonal():
    tree = graphs.from_edges(12, [((agent - 1) // 2, agent) for agent in range(1, 12)])
    assert rho(row_stochastic(tree)) == 0.5


@pytest.mark.parametrize("limit", [2000, 3])
def test_mixing_speed_of_a_rooted_graph_is_that_of_its_slowest_component(monkeypatch, limit):
    monkeypatch.setattr("digrad.network.perron_vectors.DENSE_LIMIT", limit)
    slow_followers = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 5), (5, 6), (6, 3), (6, 7)]
    slow_roots = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (5, 6), (6, 7)]
    for edges in (slow_followers, slow_roots):
        R = row_stochastic(graphs.from_edges(8, edges))
        second = np.sort(np.abs(np.linalg.eigvals(R.toarray())))[-2]
        np.testing.assert_allclose(rho(R), second, rtol=0, atol=1e-6)  # that of ARPACK


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


def test_long_computations_give_a_sign_of_life(monkeypatch):
    monkeypatch.setattr("digrad.network.perron_vectors.DENSE_LIMIT", 10)
    monkeypatch.setattr("digrad.network.perron_vectors.PATIENCE", 0.0)
    R = row_stochastic(graphs.random_digraph(60, 0.1, seed=0))
    with pytest.warns(UserWarning, match="of 60 agents: .* may take minutes") as found:
        rho(R)
    assert len(found) == 2  # one for the Perron vector, one for the mixing speed
