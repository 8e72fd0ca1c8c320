"""Curvature bounds on sublevel sets, against Hessians at points of them."""

import numpy as np
import pytest

from digrad import problems
from digrad.theory import Smoothness
from digrad.theory.certificates.curvature_bounds import Losses
from digrad.theory.certificates.linearisation import hessians

RNG = np.random.default_rng(3)


def logistic(power: float = 4.0) -> problems.Problem:
    return problems.logistic(data="digits", agents=4, reg_weight=2e-3, reg_power=power)


PROBLEMS = {
    "quadratic": problems.example_quadratic(),
    "polynomial": problems.example_quartic(),
    "cosh": problems.cosh(center=RNG.normal(size=(3, 2)), scale=[1.0, 2.0, 0.5], sharpness=[1.0, 0.7, 1.5]),
    "quartic": problems.quartic(center=RNG.normal(size=(3, 2)), scale=[1.0, 2.0, 0.5]),
    "quartic shared": problems.quartic(center=np.ones((3, 2))),
    "logistic": logistic(),
    "logistic ridge": logistic(2.0),
}


def points_of_the_region(problem: problems.Problem, level: float, count: int) -> list[np.ndarray]:
    """Return points on rays from the minimum, as far out as the level allows."""
    at, found = problem.solve(tolerance=np.inf).x, []
    for _ in range(count):
        direction = RNG.normal(size=problem.dim)
        direction /= np.linalg.norm(direction)
        low, high = 0.0, 1e-9
        while problem.loss(at + high * direction) < level:
            high *= 2
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if problem.loss(at + middle * direction) <= level else (low, middle)
        found.append(at + low * direction)
    return found


@pytest.mark.parametrize("gap", [1e-6, 0.3])
@pytest.mark.parametrize("name", PROBLEMS)
def test_bound_holds_at_points_of_the_widened_region_and_is_not_far_above(name, gap):
    problem = PROBLEMS[name]
    losses = Losses.of(problem, None)
    minimum = problem.solve(tolerance=np.inf)
    level, width = minimum.loss + gap, np.linspace(0.0, 0.1, problem.n_agents) * gap
    bound = losses.curvature(level, width, 0.0)
    worst = np.zeros(problem.n_agents)
    for center in points_of_the_region(problem, level, 4 if problem.dim > 5 else 40):
        aside = RNG.normal(size=(problem.n_agents, problem.dim))
        aside *= (width / np.linalg.norm(aside, axis=1))[:, None]
        worst = np.maximum(worst, np.linalg.norm(hessians(problem, center + aside), 2, axis=(1, 2)))
    assert (worst <= bound).all()
    assert (bound <= (1.3 if gap < 0.1 else 12) * np.maximum(worst, 1e-3)).all()


def test_bound_grows_with_level_and_width():
    for problem in PROBLEMS.values():
        losses, n = Losses.of(problem, None), problem.n_agents
        base = problem.solve(tolerance=np.inf).loss
        small = losses.curvature(base + 0.1, np.full(n, 0.1), 0.0)
        assert (small <= losses.curvature(base + 1.0, np.full(n, 0.1), 0.0)).all()
        assert (small <= losses.curvature(base + 0.1, np.full(n, 0.5), 0.0)).all()


def test_lower_bound_is_below_the_minimum():
    for problem in PROBLEMS.values():
        assert Losses.of(problem, None).lower_bound <= problem.solve(tolerance=np.inf).loss


def test_unbounded_region_has_no_curvature():
    problem = problems.logistic(data="digits", agents=2, reg_weight=0.0, reg_power=4)
    assert np.isfinite(
        Losses.of(problem, None).curvature(1.0, np.ones(2), 0.0)
    ).all()  # bounded slopes need no region
    cosh = PROBLEMS["cosh"]
    assert np.isinf(Losses.of(cosh, None).curvature(np.inf, np.ones(3), 0.0)).all()


def test_given_constants_bound_the_curvature_around_the_sublevel_set():
    problem = PROBLEMS["cosh"]
    given = Smoothness(L0=[1.0, 0.98, 1.125], L1=[1.0, 0.7, 1.5], ell=4.0, b=6.0, lower_bound=0.0)
    nonconvex = Losses.of(problem, given).curvature(8.0, np.full(3, 0.1), 0.05)
    convex = Losses.of(problem, Smoothness(**{**vars(given), "convex": True})).curvature(
        8.0, np.full(3, 0.1), 0.05
    )
    direct = Losses.of(problem, None).curvature(8.0, np.full(3, 0.1), 0.0)
    assert (direct < nonconvex).all()
    assert (nonconvex < convex).all()  # it looks further, and gains more by convexity
