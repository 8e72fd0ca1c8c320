"""Matrix that each primitive of a network stands for."""

import numpy as np
import pytest

import digrad as dg
from digrad.core.net import bindings, perron_weights, required
from method_cases import CASES

NETWORK = dg.Network(dg.graphs.example5())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.label)
def test_bindings_cover_what_a_method_needs(case):
    matrices = {"row": "R", "column": "C", "doubly": "W"}
    assert required(case.method) == case.needs
    assert set(bindings(case.method).values()) == {matrices[need] for need in case.needs if need != "mean"}


def test_averages_use_the_perron_vectors_of_the_matrices_in_use():
    ones = np.ones(5)
    expected = {
        dg.CGT(0.1, 1.0): (NETWORK.u, NETWORK.v),
        dg.DGD(0.1): (ones, ones),
        dg.DGD(0.1, mixing="row"): (NETWORK.u, ones),
        dg.SGP(0.1): (ones, NETWORK.v),
    }
    for method, (u, v) in expected.items():
        found = perron_weights(method, NETWORK)
        np.testing.assert_array_equal(found[0], u)
        np.testing.assert_array_equal(found[1], v)
    changing = dg.Network(dg.graphs.split(dg.graphs.example5(), 2))
    np.testing.assert_array_equal(perron_weights(dg.CGT(0.1, 1.0), changing)[0], ones)
