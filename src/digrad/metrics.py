"""What is measured of stacked estimates: pure functions of arrays, in NumPy or JAX.

The average of the agents is weighted by the Perron vector u of the matrix that the estimates are mixed with,
because that average obeys the dynamics of the method; u is all ones for doubly stochastic mixing and for
push-sum.
"""

from digrad.arrays import row_norm
from digrad.types import Array


def perron_average(x: Array, u: Array) -> Array:
    """Return (1/n) u^T x, ``[d]``, for stacked x ``[n, d]`` and weights u ``[n]`` that sum to n.

    >>> import numpy as np
    >>> perron_average(np.array([[1.0], [4.0]]), np.array([1.5, 0.5]))
    array([1.75])
    """
    return (u[:, None] * x).sum(0) / x.shape[0]


def consensus_error(x: Array, u: Array) -> Array:
    """Return ||x - 1 xbar^T||_F / sqrt(n) with xbar the Perron average."""
    return _root_mean_square(x - perron_average(x, u))


def tracking_error(y: Array, v: Array) -> Array:
    """Return ||y - v ybar^T||_F / sqrt(n): how far the trackers y are from agreeing on their mean ybar."""
    return _root_mean_square(y - v[:, None] * y.mean(0))


def fraction_clipped(factors: Array) -> Array:
    """Return the fraction of agents whose clip factor is below one."""
    return (factors < 1).sum() / factors.shape[0]


def _root_mean_square(rows: Array) -> Array:
    flat = row_norm(rows.reshape(1, -1))
    return flat[0, 0] / rows.shape[0] ** 0.5
