"""The rows that use no chain: what the assumptions say of the losses, and what clipping does to one state."""

import numpy as np
import numpy.typing as npt

from digrad.theory.constants.exponentials import phi1, phi2
from digrad.theory.inequalities import pointwise
from digrad.theory.inequalities.measured import EPS, Measured
from digrad.theory.inequalities.rows import ESTIMATES, UNCONDITIONAL, Row, terms, worst_agent

Floats = npt.NDArray[np.floating]

INVARIANT_TOLERANCE = 1e-9
LOWER_BOUND = "lower bound: f_inf <= F_k"


def local_rows(measured: Measured) -> list[Row]:
    """Return the rows of the assumptions (dissimilarity, pre3, pre4), of clipping (pre1) and of the invariant."""
    states, path = measured.states, measured.path
    moved = (
        16
        * EPS
        * np.max(states.steps * states.lengths + states.references * states.v * states.g[:, None], axis=1)
    )
    clipping = worst_agent(*pointwise.clipping_difference(states), moved)
    difference = worst_agent(*pointwise.step_difference(states), moved)
    return [
        _lower_bound(measured),
        _dissimilarity(measured),
        _smoothness(measured, "pre4: grad f_i, x_i^k against the average", path.x, path.grad, last=None),
        _smoothness(
            measured, "pre4: grad f_i, x_i^{k+1} against the average", path.x[1:], path.grad[1:], last=-1
        ),
        _upper_bound(measured),
        Row("pre1: clipped steps", "all", *clipping, terms(True, "v_i > 0"), moved),
        Row("step difference", "all", *difference, terms(True, "v_i > 0"), moved),
        _invariant(measured),
    ]


def _lower_bound(measured: Measured) -> Row:
    smooth, loss = measured.setting.smoothness, measured.path.loss
    given = UNCONDITIONAL if smooth.is_certifiable else terms(False, ESTIMATES)
    lowest = np.full_like(loss, smooth.lower_bound)
    return Row(LOWER_BOUND, "all", lowest, loss, given, measured.loss_rounding)


def _dissimilarity(measured: Measured) -> Row:
    smooth = measured.setting.smoothness
    distance = np.linalg.norm(measured.path.local - measured.path.grad_F[:, None], axis=-1).max(axis=-1)
    return Row(
        "dissimilarity (Assumption 3)",
        "all",
        distance,
        (smooth.ell - 1) * measured.g + smooth.b,
        rounding=measured.grad_rounding,
    )


def _smoothness(measured: Measured, name: str, x: Floats, grad: Floats, last: int | None) -> Row:
    smooth, at_average = measured.setting.smoothness, measured.path.local[:last]
    distance = np.linalg.norm(x - measured.path.average[:last, None], axis=-1)
    lhs = np.linalg.norm(grad - at_average, axis=-1)
    level = smooth.L0 + smooth.L1 * np.linalg.norm(at_average, axis=-1)
    rounding = measured.grad_rounding[1:] if last else measured.grad_rounding
    sides = worst_agent(lhs, phi1(smooth.L1 * distance) * level * distance, rounding)
    return Row(name, "all", *sides, rounding=rounding)


def _upper_bound(measured: Measured) -> Row:
    smooth, path = measured.setting.smoothness, measured.path
    moved = np.diff(path.average, axis=0)
    distance = np.linalg.norm(moved, axis=-1)
    lhs = measured.descent - np.einsum("kd,kd->k", path.grad_F[:-1], moved)
    rhs = phi2(smooth.L1_F * distance) * (smooth.L0_F + smooth.L1_F * measured.g[:-1]) * distance**2 / 2
    return Row("pre3: quadratic upper bound of F", "all", lhs, rhs, rounding=measured.descent_rounding)


def _invariant(measured: Measured) -> Row:
    drift = np.linalg.norm(measured.path.y.sum(axis=1) - measured.path.grad.sum(axis=1), axis=-1)
    size = np.linalg.norm(measured.path.grad, axis=-1).sum(axis=-1)
    return Row(
        "invariant: the y_i sum to the gradients",
        "all",
        drift,
        INVARIANT_TOLERANCE * np.maximum.accumulate(size),
        terms(True, "y_0 = grad f(x_0)"),
        measured.grad_rounding,
    )
