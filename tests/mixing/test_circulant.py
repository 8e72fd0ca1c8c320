import numpy as np
import pytest

import digrad as dg
from digrad.mixing import circulant


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
