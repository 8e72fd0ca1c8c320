"""Promises of the library on the real a9a data."""

import numpy as np
import pytest

import digrad as dg

pytestmark = pytest.mark.a9a


@pytest.fixture(scope="module")
def setting(a9a_folder):
    problem = dg.problems.logistic(
        data="a9a",
        agents=5,
        partition="sorted",
        reg_weight=[5e-4, 1e-3, 2e-3, 1e-3, 1e-3],
        reg_power=[4, 5, 6, 5, 4],
    )
    return problem, dg.Network(dg.graphs.example5())


def test_gradient_tracking_explodes_within_ten_steps_where_cgt_decreases(setting):
    problem, network = setting
    methods = [dg.CGT(step_size=0.05, threshold=5.0), dg.AB(step_size=0.05)]
    traces = dg.compare(
        methods, problem, network, steps=1000, batch_size=32, x0="normal", seed=0, record_every=10
    )
    assert traces["AB"].verdict == "diverged"
    assert traces["AB"].diverged_at <= 10
    assert traces["CGT"].loss.max() == traces["CGT"].loss[0]
    assert traces["CGT"].loss[-1] < 0.40


@pytest.mark.parametrize(
    ("step_size", "steps", "ratio"),
    [(0.3, 100, 3), pytest.param(0.05, 5000, 100, marks=pytest.mark.slow)],
)
def test_clipped_dgd_is_biased_where_clipped_tracking_is_not(setting, step_size, steps, ratio):
    problem, network = setting
    methods = {
        "CGT": dg.CGT(step_size=step_size, threshold=5.0),
        "row": dg.DGDClip(step_size=step_size, threshold=5.0, mixing="row"),
        "sinkhorn": dg.DGDClip(step_size=step_size, threshold=5.0),
    }
    traces = dg.compare(methods, problem, network, steps=steps, x0="normal", seed=0, record_every=50)
    final = {name: trace.final["grad_norm"] for name, trace in traces.items()}
    assert final["CGT"] <= final["row"] / ratio
    assert final["CGT"] <= final["sinkhorn"] / ratio


def test_the_minimum_is_known_to_rounding(setting):
    problem, _ = setting
    minimum = problem.solve(tolerance=1e-10)
    assert np.linalg.norm(problem.gradient(minimum.x)) <= 1e-10
    assert minimum.loss == pytest.approx(0.3860674705, abs=1e-9)
