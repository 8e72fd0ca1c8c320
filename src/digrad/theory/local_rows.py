"""The rows that use no chain: what the assumptions say of the losses, and what clipping does to one state."""

import numpy as np
import numpy.typing as npt

from digrad.theory import pointwise
from digrad.theory.measured import EPS, Measured
from digrad.theory.rows import ESTIMATES, UNCONDITIONAL, Row, terms, worst_agent
from digrad.theory.sharp import phi1, phi2

Floats = npt.NDArray[np.floating]

INVARIANT_TOLERANCE = 1e-9
LOWER_BOUND = "lower bound: f_inf <= F_k"


def local_rows(run: Measured) -> list[Row]:
    """Return the rows of the assumptions (dissimilarity, pre3, pre4), of clipping (pre1) and of the invariant."""
    states = run.states
    moved = (
        16
        * EPS
        * np.max(states.steps * states.lengths + states.references * states.v * states.g[:, None], axis=1)
    )
    clipping = worst_agent(*pointwise.clipping_difference(states), moved)
    difference = worst_agent(*pointwise.step_difference(states), moved)
    return [
        _lower_bound(run),
        _dissimilarity(run),
        _smoothness(run, "pre4: grad f_i, x_i^k against the average", run.path.x, run.path.grad, last=None),
        _smoothness(
            run, "pre4: grad f_i, x_i^{k+1} against the average", run.path.x[1:], run.path.grad[1:], last=-1
        ),
        _upper_bound(run),
        Row("pre1: clipped steps", "all", *clipping, terms(True, "v_i > 0"), moved),
        Row("step difference", "all", *difference, terms(True, "v_i > 0"), moved),
        _invariant(run),
    ]


def _lower_bound(run: Measured) -> Row:
    smooth, loss = run.setting.smoothness, run.path.loss
    given = UNCONDITIONAL if smooth.is_certifiable else terms(False, ESTIMATES)
    lowest = np.full_like(loss, smooth.lower_bound)
    return Row(LOWER_BOUND, "all", lowest, loss, given, run.loss_rounding)


def _dissimilarity(run: Measured) -> Row:
    smooth = run.setting.smoothness
    distance = np.linalg.norm(run.path.local - run.path.grad_F[:, None], axis=-1).max(axis=-1)
    return Row(
        "dissimilarity (Assumption 3)",
        "all",
        distance,
        (smooth.ell - 1) * run.g + smooth.b,
        rounding=run.grad_rounding,
    )


def _smoothness(run: Measured, name: str, x: Floats, grad: Floats, last: int | None) -> Row:
    smooth, at_average = run.setting.smoothness, run.path.local[:last]
    distance = np.linalg.norm(x - run.path.average[:last, None], axis=-1)
    lhs = np.linalg.norm(grad - at_average, axis=-1)
    level = smooth.L0 + smooth.L1 * np.linalg.norm(at_average, axis=-1)
    rounding = run.grad_rounding[1:] if last else run.grad_rounding
    sides = worst_agent(lhs, phi1(smooth.L1 * distance) * level * distance, rounding)
    return Row(name, "all", *sides, rounding=rounding)


def _upper_bound(run: Measured) -> Row:
    smooth, path = run.setting.smoothness, run.path
    moved = np.diff(path.average, axis=0)
    distance = np.linalg.norm(moved, axis=-1)
    lhs = run.descent - np.einsum("kd,kd->k", path.grad_F[:-1], moved)
    rhs = phi2(smooth.L1_F * distance) * (smooth.L0_F + smooth.L1_F * run.g[:-1]) * distance**2 / 2
    return Row("pre3: quadratic upper bound of F", "all", lhs, rhs, rounding=run.descent_rounding)


def _invariant(run: Measured) -> Row:
    drift = np.linalg.norm(run.path.y.sum(axis=1) - run.path.grad.sum(axis=1), axis=-1)
    size = np.linalg.norm(run.path.grad, axis=-1).sum(axis=-1)
    return Row(
        "invariant: the y_i sum to the gradients",
        "all",
        drift,
        INVARIANT_TOLERANCE * np.maximum.accumulate(size),
        terms(True, "y_0 = grad f(x_0)"),
        run.grad_rounding,
    )
