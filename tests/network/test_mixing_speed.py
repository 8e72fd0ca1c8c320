import numpy as np
import pytest

from digrad import graphs
from digrad.errors import MixingError
from digrad.network import (
    Network,
    column_stochastic,
    custom,
    metropolis,
    mixing_speed,
    perron_column,
    perron_row,
    perron_vectors,
    rho,
    row_stochastic,
    second_singular_value,
    sinkhorn,
)

EXAMPLE = graphs.example5()


def lazy_de_bruijn(n):
    plain = np.zeros((n, n))
    for sender in range(n):
        plain[[2 * sender % n, (2 * sender + 1) % n], sender] += 0.5
    return custom((plain + np.eye(n)) / 2, "doubly")


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
    monkeypatch.setattr(mixing_speed, "DENSE_LIMIT", 10)
    monkeypatch.setattr(mixing_speed, "ARPACK_RESTARTS", 1)
    assert rho(row_stochastic(path)) == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize("graph", [graphs.k_out(60, 3, seed=1), graphs.grid(4, 12)], ids=["power", "splu"])
def test_large_network_path_agrees_with_the_dense_one(monkeypatch, graph):
    row, column, doubly = row_stochastic(graph), column_stochastic(graph), sinkhorn(graph)
    dense = [perron_row(row), perron_column(column), rho(row), rho(column), rho(doubly)]
    norm = second_singular_value(doubly)
    for module in (perron_vectors, mixing_speed):
        monkeypatch.setattr(module, "DENSE_LIMIT", 10)
    monkeypatch.setattr(perron_vectors, "POWER_ITERATIONS", 100)
    large = [perron_row(row), perron_column(column), rho(row), rho(column), rho(doubly)]
    for small_figure, large_figure in zip(dense, large, strict=True):
        np.testing.assert_allclose(large_figure, small_figure, rtol=1e-5)
    np.testing.assert_allclose(large[0], dense[0], rtol=1e-10)
    assert second_singular_value(doubly) == pytest.approx(norm, rel=1e-5)


def test_arpack_without_convergence_is_an_error_with_a_remedy(monkeypatch):
    def never(*args, **kwargs):
        raise mixing_speed.ArpackNoConvergence("no", np.array([]), np.array([]))

    monkeypatch.setattr(mixing_speed, "DENSE_LIMIT", 2)
    monkeypatch.setattr(mixing_speed, "eigs", never)
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


def test_mixing_speed_of_a_graph_without_cycles_is_the_largest_weight_on_the_diagonal():
    tree = graphs.from_edges(12, [((agent - 1) // 2, agent) for agent in range(1, 12)])
    assert rho(row_stochastic(tree)) == 0.5


@pytest.mark.parametrize("limit", [2000, 3])
def test_mixing_speed_of_a_rooted_graph_is_that_of_its_slowest_component(monkeypatch, limit):
    monkeypatch.setattr(mixing_speed, "DENSE_LIMIT", limit)
    slow_followers = [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4), (4, 5), (5, 6), (6, 3), (6, 7)]
    slow_roots = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 0), (5, 6), (6, 7)]
    for edges in (slow_followers, slow_roots):
        R = row_stochastic(graphs.from_edges(8, edges))
        second = np.sort(np.abs(np.linalg.eigvals(R.toarray())))[-2]
        np.testing.assert_allclose(rho(R), second, rtol=0, atol=1e-6)  # that of ARPACK


def test_long_computations_give_a_sign_of_life(monkeypatch):
    for module in (perron_vectors, mixing_speed):
        monkeypatch.setattr(module, "DENSE_LIMIT", 10)
    monkeypatch.setattr(perron_vectors, "PATIENCE", 0.0)
    R = row_stochastic(graphs.random_digraph(60, 0.1, seed=0))
    with pytest.warns(UserWarning, match="of 60 agents: .* may take minutes") as found:
        rho(R)
    assert len(found) == 2  # one for the Perron vector, one for the mixing speed
