"""What is recorded of the states of many agents, some agents at a time: without arrays of the size of a state."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from digrad import metrics
from digrad.arrays import row_norm

NUMBERS = 1 << 17  # of the agents that are looked at together: they stay in the cache

Array = npt.NDArray[Any]
_quietly = np.errstate(
    over="ignore", invalid="ignore", divide="ignore"
)  # what has diverged is recorded as it is


@_quietly
def estimates(x: Array, u: Array) -> dict[str, Array]:
    """Return the averages of the estimates x ``[n, d]``, weighted by u and plain, and how far agents are from it."""
    total, weighted = np.zeros(x.shape[1]), np.zeros(x.shape[1])
    for some in _blocks(x):
        total += x[some].sum(axis=0, dtype=np.float64)
        weighted += (u[some, None] * x[some]).sum(axis=0, dtype=np.float64)
    point = (weighted / u.sum(dtype=np.float64)).astype(x.dtype)
    return {
        "point": point,
        "mean": (total / len(x)).astype(x.dtype),
        "consensus_error": _root_mean_square((x[some] - point for some in _blocks(x)), len(x)),
    }


@_quietly
def trackers(y: Array, v: Array, threshold: Any) -> dict[str, Array]:
    """Return how far the trackers y ``[n, d]`` are from agreeing, and the fraction of agents that clip."""
    total = np.zeros(y.shape[1])
    for some in _blocks(y):
        total += y[some].sum(axis=0, dtype=np.float64)
    mean = (total / len(y)).astype(y.dtype)
    lengths = np.concatenate([row_norm(y[some]) for some in _blocks(y)])
    ratios = lengths / np.asarray(threshold, y.dtype)
    return {
        "tracking_error": _root_mean_square((y[some] - v[some, None] * mean for some in _blocks(y)), len(y)),
        "fraction_clipped": metrics.fraction_clipped(ratios).astype(y.dtype),
    }


def _root_mean_square(parts: Iterable[Array], n: int) -> Array:
    norms = np.array([row_norm(part.reshape(1, -1))[0, 0] for part in parts])
    return row_norm(norms[None])[0, 0] / n**0.5


def _blocks(rows: Array) -> Iterator[slice]:
    length = max(1, NUMBERS // rows.shape[1])
    for first in range(0, len(rows), length):
        yield slice(first, first + length)
