import numpy as np
import pytest

import digrad as dg
from digrad.network import circulant


@pytest.mark.parametrize(
    "graph", [dg.graphs.ring(5), dg.graphs.exponential(11), dg.graphs.exponential(16), dg.graphs.complete(4)]
)
def test_circulant_weights_give_the_matrix_back(graph):
    mixing = dg.Network(graph).R
    found = circulant(mixing.matrix)
    assert found is not None
    matrix, agents = np.zeros((graph.n, graph.n)), np.arange(graph.n)
    for offset, weight in zip(*found, strict=True):
        matrix[agents, (agents - offset) % graph.n] += weight
    np.testing.assert_array_equal(matrix, mixing.toarray())


@pytest.mark.parametrize("graph", [dg.graphs.torus(4, 4), dg.graphs.example5(), dg.graphs.star(5)])
def test_other_weights_are_not_circulant(graph):
    assert circulant(dg.Network(graph).R.matrix) is None


def test_one_different_weight_is_found_beyond_the_first_rows():
    matrix = dg.Network(dg.graphs.ring(10_000)).R.matrix.copy()
    matrix.data = matrix.data.copy()
    matrix.data[-1] = 0.4
    assert circulant(matrix) is None


def test_a_ring_of_100000_agents_says_how_slowly_it_mixes():
    summary = dg.Network(dg.graphs.ring(100_000)).describe()
    assert summary.rho_R == pytest.approx(np.cos(np.pi / 100_000), abs=1e-14)
    assert "rho_R               1 - 4.93e-10" in str(summary)
    assert "rho_W               not computed" in str(summary)


def test_a_path_of_100000_agents_has_a_perron_vector_and_admits_that_its_gap_is_not_computed():
    network = dg.Network(dg.graphs.grid(1, 100_000))
    residual = network.u @ network.R.matrix - network.u
    assert np.abs(residual).max() <= 1e-9
    assert network.u[0] / network.u[1] == pytest.approx(
        2 / 3, rel=1e-9
    )  # degrees and the self loop: 2 against 3
    assert network.describe().rho_R is None
