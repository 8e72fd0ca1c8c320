"""Bounds for noisy gradients, held against the mean of many runs."""

import math

import numpy as np
import pytest

from digrad import graphs, problems
from digrad.errors import ArgumentError
from digrad.network import Network
from digrad.problems import Problem
from digrad.problems.exact_minimum import Minimum
from digrad.theory import Smoothness, certify_batches

NETWORK = Network(graphs.example5())
PROBLEM = problems.quadratic(
    curvature=np.random.default_rng(0).uniform(0.2, 2.0, (5, 2)),
    linear=np.random.default_rng(1).normal(size=(5, 2)),
)
NOISE = np.array([0.5, 1.0, 0.2, 0.8, 0.4])


def noisy_runs(step_size: float, threshold: float, steps: int, runs: int = 200) -> tuple[float, float]:
    """Return the mean excess, and the mean of sum (u/v) <p, y>, of AB or CGT with Gaussian noise."""
    rng = np.random.default_rng(2)
    a, b = PROBLEM.local.curvature, PROBLEM.local.linear
    R, C, ratio = NETWORK.R.toarray(), NETWORK.C.toarray(), NETWORK.u / NETWORK.v
    at = b.mean(axis=0) / a.mean(axis=0)

    def noisy(x):
        return a * x - b + rng.normal(size=x.shape) * np.sqrt(NOISE / 2)[:, None]

    x = np.zeros((runs, 5, 2))
    y = before = noisy(x)
    excess, progress = 0.0, 0.0
    for _ in range(steps):
        excess += np.mean(np.sum(a * (x - at) ** 2, axis=2)) / 2
        clip = np.minimum(1, threshold / np.linalg.norm(y, axis=2, keepdims=True))
        progress += np.mean(np.sum(ratio * np.sum(clip * y * y, axis=2), axis=1))
        x = R @ x - step_size * clip * y
        after = noisy(x)
        y, before = C @ y + after - before, after
    return excess / steps, progress / steps


@pytest.mark.parametrize("step_size", [0.02, 0.1])
def test_mean_excess_of_ab_with_noise_keeps_to_its_bound(step_size):
    bound = certify_batches(PROBLEM, NETWORK, step_size=step_size, noise=NOISE)
    assert bound is not None
    assert bound.theorem == "S"
    for steps in (20, 400):
        measured = noisy_runs(step_size, math.inf, steps)[0]
        assert measured <= bound.after(steps) <= 30 * measured


def test_floor_of_ab_is_proportional_to_the_step():
    floors = [certify_batches(PROBLEM, NETWORK, step_size=step, noise=NOISE).floor for step in (1e-4, 1e-3)]
    assert floors[1] / floors[0] == pytest.approx(10, rel=0.05)


def test_clipped_steps_with_noise_keep_to_their_bound():
    bound = certify_batches(PROBLEM, NETWORK, step_size=0.05, threshold=1.0, noise=NOISE)
    assert bound is not None
    assert bound.theorem == "M"
    assert "nothing of accuracy" in str(bound)
    for steps in (20, 400):
        assert noisy_runs(0.05, 1.0, steps)[1] <= bound.after(steps)


def test_steps_above_the_largest_are_not_certified():
    largest = certify_batches(PROBLEM, NETWORK, step_size=1e-3, noise=NOISE).alpha_max
    assert certify_batches(PROBLEM, NETWORK, step_size=0.99 * largest, noise=NOISE) is not None
    assert certify_batches(PROBLEM, NETWORK, step_size=1.01 * largest, noise=NOISE) is None
    assert certify_batches(PROBLEM, NETWORK, step_size=1.0, threshold=1.0, noise=NOISE) is None


def test_circle_criterion_is_that_of_the_specification():
    """Section 3: alpha_circ for L = 1 on example5 is 0.519."""
    unit = problems.quadratic(curvature=np.ones((5, 1)), linear=np.zeros((5, 1)))
    assert certify_batches(unit, NETWORK, step_size=0.1, noise=0.0).alpha_max == pytest.approx(
        0.519, rel=0.01
    )


@pytest.mark.parametrize("threshold", [1.0, np.inf])
def test_agents_without_curvature_of_their_own_are_bounded_too(threshold):
    problem = problems.quadratic(curvature=[[0.0], [1.0]], linear=[[0.0], [1.0]])
    assert certify_batches(problem, Network(graphs.ring(2)), step_size=0.1, threshold=threshold, noise=1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "`noise` of certify_batches must be given"),
        ({"noise": -1.0}, "at least 0"),
        ({"noise": "much"}, "at least 0"),
        ({"noise": [1.0, 2.0]}, "one each"),
        ({"noise": 1.0, "smoothness": 2.0}, "must assert convex=True"),
        ({"noise": 1.0, "smoothness": Smoothness([1.0] * 5, [1.0] * 5, 1.0, 1.0, 0.0)}, "bounded everywhere"),
        ({"noise": 1.0, "network": Network(graphs.split(graphs.example5(), 2))}, "it changes with time"),
    ],
)
def test_what_the_theorems_do_not_cover_is_one_clear_error(options, message):
    given = {"problem": PROBLEM, "network": NETWORK, "step_size": 0.01, **options}
    with pytest.raises(ArgumentError, match=message):
        certify_batches(given.pop("problem"), given.pop("network"), **given)


def test_bound_of_ab_holds_although_the_minimum_is_inexact(monkeypatch):
    exact = certify_batches(PROBLEM, NETWORK, step_size=0.05, noise=NOISE)
    x = PROBLEM.solve(tolerance=1e-6).x * 0.999  # nearer to the start at 0, so that V_0 seems smaller
    loss, slope = PROBLEM.local_losses(x).mean(), np.linalg.norm(PROBLEM.local_gradients(x).mean(axis=0))
    monkeypatch.setattr(Problem, "solve", lambda self, **_: Minimum(x, float(loss), float(slope)))
    found = certify_batches(PROBLEM, NETWORK, step_size=0.05, noise=NOISE)
    assert exact.transient * (1 - 1e-9) <= found.transient <= 1.1 * exact.transient
