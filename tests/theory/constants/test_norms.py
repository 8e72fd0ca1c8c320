import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from digrad import graphs
from digrad.errors import ArgumentError, MixingError
from digrad.network import Network, row_stochastic
from digrad.theory import WeightedNorm, network_norms
from digrad.theory.constants.norms import candidate_norms


def tree_network() -> Network:
    chain = graphs.from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 4)])
    return Network(graphs.example5(), R=row_stochastic(chain))


def candidates(network: Network) -> tuple[list[WeightedNorm], list[WeightedNorm]]:
    u, v, one = network.u, network.v, np.ones(network.n)
    pull = candidate_norms(network.R.toarray(), np.outer(one, u) / network.n, u)
    return pull, candidate_norms(network.C.toarray(), np.outer(v, one) / network.n, 1 / v)


def test_selected_norms_reproduce_the_figures_of_the_specification():
    norms = network_norms(Network(graphs.example5()))
    found = [norms.R.sigma, norms.C.sigma, norms.R.delta, norms.C.delta, norms.R.rho, norms.C.rho]
    assert np.allclose(found, [0.762, 0.705, 1.10, 1.10, 0.577, 0.653], atol=5e-3)


def test_contraction_close_to_rho_makes_delta_explode():
    network = Network(graphs.example5())
    R, C = (found[1] for found in candidates(network))
    assert np.allclose([R.sigma, C.sigma, R.delta, C.delta], [0.58, 0.65, 9.1, 7.9], atol=0.06)


def test_diagonal_norm_has_the_closed_form():
    network = Network(graphs.example5())
    R, C = (found[0] for found in candidates(network))
    root = np.sqrt(network.u)
    values = np.linalg.svd(root[:, None] * network.R.toarray() / root, compute_uv=False)
    assert np.isclose(R.sigma, values[1])
    assert np.isclose(R.tau, 1)
    assert np.isclose(R.delta, np.sqrt(network.u.max() / network.u.min()))
    assert np.isclose(C.delta, np.sqrt(network.v.max() / network.v.min()))
    assert np.isclose(C.induced(np.diag([1.0, 2, 3, 4, 5])), 5)


def test_norm_of_a_diagonal_matrix_differs_for_a_lyapunov_norm():
    norms = network_norms(Network(graphs.example5()))
    assert norms.R.kind == "lyapunov"
    assert norms.R.induced(np.diag([1.0, 2, 3, 4, 5])) > 5


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 15), p=st.floats(0, 1), seed=st.integers(0, 1000))
def test_norms_contract_and_dominate_the_euclidean_norm(n, p, seed):
    network = Network(graphs.random_digraph(n, p, seed=seed))
    norms = network_norms(network)
    rng = np.random.default_rng(seed)
    z = rng.standard_normal((4, n, 2))
    for norm, matrix, error in (
        (norms.R, network.R.toarray(), norms.consensus),
        (norms.C, network.C.toarray(), norms.tracking),
    ):
        assert norm.rho <= norm.sigma + 1e-9
        assert norm.sigma < 1
        assert norm.kappa <= norm.tau * norm.delta * (1 + 1e-9)
        assert (norm.of(error(matrix @ z)) <= norm.sigma * norm.of(error(z)) * (1 + 1e-9) + 1e-12).all()
        assert (np.linalg.norm(z, axis=(1, 2)) <= norm.of(z) * (1 + 1e-9)).all()
        assert (norm.of(z) <= norm.delta * np.linalg.norm(z, axis=(1, 2)) * (1 + 1e-9)).all()


def test_tree_gets_a_lyapunov_norm_because_u_has_zeros():
    norms = network_norms(tree_network())
    assert np.allclose(norms.u, [5, 0, 0, 0, 0])
    assert norms.R.kind == "lyapunov"
    assert norms.R.sigma < 1
    assert norms.uv > 0


def test_long_path_gets_a_norm_although_its_matrix_is_defective():
    path = graphs.from_edges(15, [(i, i + 1) for i in range(14)])
    norms = network_norms(Network(graphs.ring(15), R=row_stochastic(path)))
    assert norms.R.sigma < 1
    assert norms.R.delta < 1e4


def test_network_too_large_for_dense_norms_is_refused():
    with pytest.raises(ArgumentError, match="at most 500 agents"):
        network_norms(Network(graphs.ring(501)))


def test_disconnected_graph_is_one_clear_error():
    with pytest.raises(MixingError, match="no agent reaches all others"):
        Network(graphs.from_edges(4, [(0, 1), (1, 0), (2, 3), (3, 2)]))
