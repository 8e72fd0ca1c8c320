"""The first guess of a threshold."""

import numpy as np
import pytest

import digrad as dg
from digrad.errors import ArgumentError

NETWORK = dg.Network(dg.graphs.example5())
QUARTIC = dg.problems.example_quartic()


def test_the_guess_is_how_much_gradients_differ_at_the_average_start():
    x0 = np.arange(10.0).reshape(5, 2)
    gradients = QUARTIC.local_gradients(x0.mean(axis=0))
    expected = np.sqrt(np.mean(np.sum((gradients - gradients.mean(axis=0)) ** 2, axis=1)))
    advice = dg.recommend_threshold(QUARTIC, x0=x0)
    assert advice.threshold == pytest.approx(expected)
    assert f"{expected:.3g}" in advice.reason


def test_cgt_converges_with_it_from_a_steep_start_where_ab_explodes():
    threshold = dg.recommend_threshold(QUARTIC, x0=[10.0, 10.0]).threshold
    run = {"steps": 300, "x0": [10.0, 10.0], "record_every": 100}
    assert dg.simulate(dg.CGT(0.05, threshold), QUARTIC, NETWORK, **run).verdict == "converged"
    assert dg.simulate(dg.AB(0.05), QUARTIC, NETWORK, **run).verdict == "diverged"


def test_agents_that_agree_get_the_norm_of_their_gradient():
    problem = dg.problems.quadratic(curvature=[[2.0], [2.0]], linear=[[0.0], [0.0]])
    assert dg.recommend_threshold(problem, x0=[3.0]).threshold == pytest.approx(6.0)


def test_a_start_at_the_minimum_of_all_says_nothing():
    problem = dg.problems.quadratic(curvature=[[2.0], [2.0]], linear=[[0.0], [0.0]])
    with pytest.raises(ArgumentError, match="start elsewhere"):
        dg.recommend_threshold(problem, x0=[0.0])
