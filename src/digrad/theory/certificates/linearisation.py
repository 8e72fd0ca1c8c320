"""The largest stable step near the minimum: the upper end of what any certificate could promise."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from digrad.errors import ArgumentError
from digrad.problems import LossCode, Problem
from digrad.theory.certificates.frequency_responses import Matrices

Floats = npt.NDArray[np.floating]

STEPS = 2000  # of the linear iteration whose growth is watched
PARTS = 40  # after each of which it is looked at
TOLERANCE = 0.005
GROWN = 1.001  # between the third and the last quarter: what counts as growth
MOST_ENTRIES = 2**24  # of all Hessians together


def largest_stable_step(
    problem: Problem, phases: tuple[Matrices, ...], *, first: float, scalar: bool = False
) -> float | None:
    """Return the largest step with which AB, linearised at the minimum of F, does not grow; None if it is not computed.

    That is the truth about runs near the minimum, where nothing is clipped, and no promise about the way there. It is
    measured, by bisection, along the linear iteration from a random state.

    Args:
        problem: The losses; without a minimum, or with too many dimensions, the answer is None.
        phases: The matrices of each step of a period.
        first: Where the search begins, for example a certified step.
        scalar: Whether to take every Hessian as its norm times the identity, as a certificate does.
    """
    if problem.n_agents * problem.dim**2 > MOST_ENTRIES:
        return None
    try:
        at = problem.solve(tolerance=1e-6).x
    except ArgumentError:
        return None
    found = hessians(problem, np.broadcast_to(at, (problem.n_agents, problem.dim)))
    if not np.abs(found).max() > 0:
        return None
    if scalar:
        found = np.linalg.norm(found, 2, axis=(1, 2))[:, None, None]
    low, high = first, 2 * first
    while _grows(phases, found, low):
        low, high = low / 2, low
    while not _grows(phases, found, high):
        low, high = high, 2 * high
    while high > low * (1 + TOLERANCE):
        middle = (low + high) / 2
        low, high = (low, middle) if _grows(phases, found, middle) else (middle, high)
    return low


def hessians(problem: Problem, x: Floats) -> Floats:
    """Return the Hessians of f_i at x_i, ``[n, d, d]``, for x ``[n, d]``."""
    with jax.enable_x64(True):
        return np.asarray(_hessians(problem.arrays(np.float64), x, losses=problem.code))


@partial(jax.jit, static_argnames="losses")
def _hessians(arrays: Any, x: jax.Array, *, losses: LossCode) -> jax.Array:
    def column(direction: jax.Array) -> jax.Array:
        along = jnp.broadcast_to(direction, x.shape)
        return jax.jvp(lambda point: losses.gradients(arrays, point, None), (x,), (along,))[1]

    return jnp.moveaxis(jax.lax.map(column, jnp.eye(x.shape[1], dtype=x.dtype)), 0, -1)  # [n, d, d]


def _grows(phases: tuple[Matrices, ...], hessians: Floats, step_size: float) -> bool:
    x = np.random.default_rng(0).standard_normal(hessians.shape[:2])
    y = _product(hessians, x)
    seen, longest = np.empty((STEPS // PARTS, *y.shape)), np.zeros(PARTS)
    for part in range(PARTS):
        with np.errstate(over="ignore", invalid="ignore"):
            for k in range(len(seen)):
                matrices = phases[(part * len(seen) + k) % len(phases)]
                following = matrices.R @ x - step_size * y
                y = matrices.C @ y + _product(hessians, following - x)
                x, seen[k] = following, y
            longest[part] = np.abs(seen).max()
        if not longest[part] < 1e100:
            return True
    return bool(longest[-PARTS // 4 :].max() > GROWN * longest[PARTS // 2 : -PARTS // 4].max())


def _product(hessians: Floats, x: Floats) -> Floats:
    return np.matmul(hessians, x[:, :, None])[:, :, 0]
