import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from digrad import graphs, problems
from digrad.errors import ArgumentError
from digrad.network import Network
from digrad.theory import closed_form, empirical_smoothness, envelope, run, tightest_line


@settings(max_examples=40, deadline=None)
@given(
    points=st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), min_size=1, max_size=12),
)
def test_tightest_line_solves_the_linear_program(points):
    g, h = np.round(np.array(points).T, 3)
    line = tightest_line(g, h)
    assert (line(g) >= h - 1e-9).all()
    assert line.intercept >= 0
    assert line.slope >= 0
    best = linprog([len(g), g.sum()], A_ub=-np.stack([np.ones_like(g), g], axis=1), b_ub=-h)
    assert np.isclose(np.sum(line(g)), best.fun, atol=1e-6 * (1 + abs(best.fun)))


def test_envelope_is_the_lowest_line_of_its_slope():
    line = envelope([0.0, 1.0, 4.0], [1.0, 3.0, 3.0], 0.5)
    assert (line.intercept, line.slope) == (2.5, 0.5)


def test_exact_hessian_norms_are_found_by_power_iteration():
    problem = problems.example_quartic()
    points = np.random.default_rng(0).normal(size=(7, 2)) * 2
    found = empirical_smoothness(problem, points, iterations=300)
    curvature = problem.local.curvature[None] + 3 * points[:, None] ** 2  # [K, n, d]
    assert np.allclose(found.hessian_norms, curvature.max(axis=-1), rtol=1e-3)
    assert np.allclose(found.hessian_norms_F, curvature.mean(axis=1).max(axis=-1), rtol=1e-2)
    assert (found.hessian_norms <= curvature.max(axis=-1) * (1 + 1e-12)).all()  # a lower estimate


def test_estimates_along_a_run_are_below_the_closed_form():
    rng = np.random.default_rng(0)
    problem = problems.cosh(center=rng.normal(size=(5, 3)), scale=rng.uniform(0.5, 2, 5))
    path = run(
        problem, Network(graphs.example5()), step_size=0.02, threshold=5.0, x0=[3.0, -3.0, 2.0], steps=200
    )
    found, proven = empirical_smoothness(problem, path.average), closed_form(problem)
    for g, h, L0 in zip(found.grad_norms.T, found.hessian_norms.T, proven.L0, strict=True):
        assert envelope(g, h, 1.0).intercept <= L0 * (1 + 1e-9)
    assert envelope(found.grad_norms_F, found.hessian_norms_F, 1.0).intercept <= proven.L0_F * (1 + 1e-9)
    assert found.dissimilarity_line.slope <= proven.ell - 1 + 1e-9
    assert 0.5 < found.line.slope < 1.5  # cosh: L1 = 1
    assert found.constants().source == "empirical"
    assert not found.constants().is_certifiable
    assert len(found.table()) == 6


def test_users_loss_is_measured_like_any_other():
    problem = problems.from_loss(
        lambda w, batch: ((w - batch) ** 4).sum() / 4, [np.zeros((1, 1)), np.ones((1, 1))], 1
    )
    found = empirical_smoothness(problem, np.linspace(-2, 3, 21)[:, None])
    assert np.allclose(found.hessian_norms[:, 0], 3 * np.linspace(-2, 3, 21) ** 2, rtol=1e-6)
    assert found.line.slope > 0


def test_estimates_are_stored_with_their_points():
    points = np.random.default_rng(0).normal(size=(6, 2))
    found = empirical_smoothness(problems.example_quartic(), points)
    stored = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    constants = found.constants()
    assert stored["label"] == "indicative, not a certificate"
    assert (stored["ell"], stored["b"]) == (constants.ell, constants.b)
    assert [row["loss"] for row in stored["losses"]] == [*(f"agent {i}" for i in range(5)), "F"]
    assert np.shape(stored["points"]["hessian_norms"]) == (6, 5)
    g, distance = (np.array(stored["points"][key]) for key in ("grad_norms_F", "dissimilarity"))
    assert (distance <= (stored["ell"] - 1) * g + stored["b"] + 1e-9).all()


def test_points_are_thinned_out_evenly():
    problem = problems.example_quadratic()
    found = empirical_smoothness(problem, np.zeros((1000, 2)), max_points=10)
    assert found.grad_norms.shape == (10, 5)


@pytest.mark.parametrize("points", [np.zeros((0, 2)), np.zeros(2), np.full((3, 2), np.nan), np.zeros((3, 7))])
def test_malformed_points_are_refused(points):
    with pytest.raises(ArgumentError, match="points"):
        empirical_smoothness(problems.example_quadratic(), points)


def test_lines_need_equally_many_finite_numbers():
    with pytest.raises(ArgumentError, match="equally many"):
        tightest_line([1.0], [1.0, 2.0])
