"""Metrics of stacked estimates: pure functions of arrays, in NumPy, JAX or torch.

The average of the agents is their plain mean, one function of the estimates for all methods, or weighted by the
Perron vector u of the matrix that the estimates are mixed with, because that average obeys the dynamics of the method;
u is all ones for doubly stochastic mixing. Push-sum methods conserve the sum of their weights w times their estimates,
so that w takes the place of u.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

from digrad.arrays import maximum, precision, row_norm, where
from digrad.types import Array, State

AVERAGES = ("plain", "weighted")  # where loss and gradient are evaluated


def average_weights(method: Any, state: State, u: Array) -> Array:
    """Return how much each estimate counts in the average, ``[n]``: what the method says, or else u."""
    return method.average_weights(state)[:, 0] if hasattr(method, "average_weights") else u


def perron_average(x: Array, u: Array) -> Array:
    """Return u^T x / u^T 1, ``[d]``, for stacked x ``[n, d]`` and weights u ``[n]``.

    >>> import numpy as np
    >>> perron_average(np.array([[1.0], [4.0]]), np.array([1.5, 0.5]))
    array([1.75])
    """
    return (u[:, None] * x).sum(0) / u.sum()  # not n: of push-sum, part may be under way


def consensus_error(x: Array, u: Array) -> Array:
    """Return ||x - 1 xbar^T||_F / sqrt(n) with xbar the average weighted by u."""
    return _root_mean_square(x - perron_average(x, u))


def tracking_error(y: Array, v: Array) -> Array:
    """Return ||y - v ybar^T||_F / sqrt(n): how far the trackers y are from agreeing on their mean ybar."""
    return _root_mean_square(y - v[:, None] * y.mean(0))


def mass_error(tracker: Array, g: Array) -> Array:
    """Return the residual of the invariant of gradient tracking: the largest entry of |sum of trackers - sum of g|.

    Sums that look equal are equal up to half a unit in their last place, which is what is returned then: where trackers
    explode, all but the last gradients is rounded away, and what was lost of the sum with it.

    >>> import numpy as np
    >>> float(mass_error(np.array([[1e30], [1e30]]), np.array([[2e30], [0.0]]))) == 2e30 * 2.0**-53
    True
    """
    return _residual(tracker.sum(0), g.sum(0))


PACKET_COLUMNS = ("mass_error", "in_transit", "min_weight")  # NaN where a method has no such thing


def packet_figures(state: Any, undelivered: Sequence[Array]) -> dict[str, Array]:
    """Return how much mass is missing, how much is under way, and the smallest weight of push-sum.

    What a method tracks its gradients with is what it pushes first, and a push-sum weight is what it pushes last.

    Args:
        state: Of all agents.
        undelivered: What is under way of each array that is pushed, ``[A, width]``.
    """
    tracker = getattr(state, "y", getattr(state, "s", None)) if hasattr(state, "g") else None
    found, missing = {}, []
    if tracker is not None:
        under_way = undelivered[0].sum(0) if undelivered else 0.0
        missing.append(_residual(tracker.sum(0) + under_way, state.g.sum(0)))
    if hasattr(state, "w"):
        under_way = undelivered[-1].sum() if undelivered else 0.0
        missing.append(_or_infinite(abs(state.w.sum() + under_way - len(state.w))))
        found["min_weight"] = state.w.min()
    if missing:
        found["mass_error"] = reduce(maximum, missing)
    counted = undelivered[:1] if tracker is not None else undelivered
    found["in_transit"] = sum(_norm(part) ** 2 for part in counted) ** 0.5
    return found


def fraction_clipped(ratios: Array) -> Array:
    """Return the fraction of agents whose ratio ``[n, 1]`` of norm to threshold is above one; NaN if one is NaN.

    >>> import numpy as np
    >>> float(fraction_clipped(np.array([[0.5], [2.0], [1.0], [3.0]])))
    0.5
    """
    share = (ratios > 1).sum() / ratios.shape[0]
    return share + 0 * (1 / maximum(ratios, 1.0)).sum()  # NaN stays NaN, infinity counts as clipped


def _residual(total: Array, wanted: Array) -> Array:
    rounding = precision(wanted) / 2 * abs(wanted).max()
    return _or_infinite(maximum(abs(total - wanted).max(), rounding))


def _root_mean_square(rows: Array) -> Array:
    return _norm(rows) / rows.shape[0] ** 0.5


def _norm(rows: Array) -> Array:
    """Return the Frobenius norm, row by row: one long sum of float32 numbers loses digits."""
    return _or_infinite(row_norm(row_norm(rows).reshape(1, -1))[0, 0])


def _or_infinite(value: Array) -> Array:
    """Return a figure that was measured: where it is NaN, something has overflowed on the way."""
    return where(value == value, value, float("inf"))
