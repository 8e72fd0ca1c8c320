"""What is recorded of the states of many agents, some agents at a time: without arrays of the size of a state."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from digrad import metrics
from digrad.arrays import row_norm

NUMBERS = 1 << 17  # of the agents that are looked at together: they stay in the cache

Array = npt.NDArray[Any]
Rows = Callable[[slice], Array]  # from agents i, ..., j - 1 to their rows
_quietly = np.errstate(
    over="ignore", invalid="ignore", divide="ignore"
)  # what has diverged is recorded as it is


@_quietly
def estimates(x: Rows, d: int, u: Array) -> dict[str, Array]:
    """Return the averages of the estimates x, weighted by u ``[n]`` and plain, and how far all are from the first."""
    blocks, total, weighted = _blocks(len(u), d), np.zeros(d), np.zeros(d)
    for some in blocks:
        rows = x(some)
        total += rows.sum(axis=0)
        weighted += np.einsum("n,nd->d", u[some], rows)
    point = (weighted / u.sum(dtype=np.float64)).astype(u.dtype)
    return {
        "point": point,
        "mean": (total / len(u)).astype(u.dtype),
        "consensus_error": _root_mean_square((x(some) - point for some in blocks), len(u)),
    }


@_quietly
def trackers(y: Rows, d: int, v: Array, threshold: Any) -> dict[str, Array]:
    """Return how far the trackers y are from agreeing, with weights v ``[n]``, and the fraction of agents that clip."""
    blocks, total, lengths = _blocks(len(v), d), np.zeros(d), []
    for some in blocks:
        rows = y(some)
        total += rows.sum(axis=0)
        lengths.append(_norms(rows))
    mean = (total / len(v)).astype(v.dtype)
    ratios = np.concatenate(lengths) / np.asarray(threshold, v.dtype)
    return {
        "tracking_error": _root_mean_square((y(some) - v[some, None] * mean for some in blocks), len(v)),
        "fraction_clipped": metrics.fraction_clipped(ratios).astype(v.dtype),
    }


def _root_mean_square(parts: Iterable[Array], n: int) -> Array:
    norms = np.array([_norms(part.reshape(1, -1)) for part in parts])
    return _norms(norms.reshape(1, -1))[0, 0] / n**0.5


def _norms(rows: Array) -> Array:
    """Return the norms of rows ``[n, 1]``: from sums of squares, unless these lose digits or leave the range."""
    squares, tiny, eps = (
        np.einsum("nd,nd->n", rows, rows),
        np.finfo(rows.dtype).tiny,
        np.finfo(rows.dtype).eps,
    )
    is_regular = (squares > tiny / eps**2) & (squares < 1 / tiny)
    return np.sqrt(squares)[:, None] if is_regular.all() else row_norm(rows)


def _blocks(n: int, d: int) -> list[slice]:
    length = max(1, NUMBERS // d)
    return [slice(first, min(n, first + length)) for first in range(0, n, length)]
