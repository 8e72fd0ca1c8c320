"""Weights that every agent gives alike: row i is row 0, moved by i, as on rings and exponential graphs."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

ROWS = 4096  # compared at a time: another graph is found out at once, and nothing of its size is made


class Circulant(NamedTuple):
    """Agent i gives ``weight[s]`` to agent i - ``offset[s]`` mod n."""

    offset: npt.NDArray[np.int64]  # descending
    weight: npt.NDArray[np.float64]


def circulant(matrix: csr_array) -> Circulant | None:
    """Return the offsets and weights of a circulant matrix with sorted indices, None for any other.

    >>> circulant(csr_array([[2.0, 0, 1], [1, 2, 0], [0, 1, 2]]))
    Circulant(offset=array([1, 0]), weight=array([1., 2.]))
    """
    n = matrix.indptr.size - 1
    counts = np.diff(matrix.indptr)
    if not counts[0] or (counts != counts[0]).any():
        return None
    first = -matrix.indices[: counts[0]].astype(np.int64) % n
    order = np.argsort(-first)
    found = Circulant(first[order], np.asarray(matrix.data, np.float64)[order])
    indices, weights = matrix.indices.reshape(n, -1), matrix.data.reshape(n, -1)
    for begin in range(0, n, ROWS):
        senders, expected = _rows(found, begin, min(begin + ROWS, n), n)
        rows = slice(begin, begin + ROWS)
        if not (np.array_equal(indices[rows], senders) and np.array_equal(weights[rows], expected)):
            return None
    return found


def _rows(
    found: Circulant, begin: int, end: int, n: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Return senders, ascending, and weights of the agents begin, ..., end - 1."""
    agents = np.arange(begin, end)[:, None]
    # First the offsets up to i, then those that wrap around, both descending.
    wrapped = (found.offset > agents).sum(axis=1, keepdims=True)
    place = (np.arange(len(found.offset)) + wrapped) % len(found.offset)
    senders = agents - found.offset[place]
    return senders + n * (senders < 0), found.weight[place]
