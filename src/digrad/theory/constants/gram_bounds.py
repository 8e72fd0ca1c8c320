r"""The largest eigenvalue of Gram matrices of data, bounded from above.

A certificate needs :math:`\lambda_{\max}` of :math:`A = \frac1n \sum_i H_i^T H_i/m_i` as an upper bound: a computed
eigenvalue, or a Ritz value, is none. Small matrices are decomposed and the rounding added. Of large ones, whose Gram
matrix is never formed, the magnitudes of the entries are bounded instead: :math:`|x'Ax| \le |x|'B|x|`, B the same with
:math:`|H_i|`, and :math:`\lambda_{\max}(B) \le \max_j (Bx)_j/x_j` for every :math:`x > 0` (Collatz and Wielandt), which
is close for features that are not negative, such as counts and words, and loose where signs alternate.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

Floats = npt.NDArray[np.floating]

EPS = float(np.finfo(np.float64).eps)
DENSE_SIDE = 2000  # eigenvalues of a matrix of this size take a second or two
ITERATIONS = 50  # of the power method behind the bound of larger ones
LEAST = 1e-6  # added to its vectors, relatively


def gram_bound(blocks: Sequence[Any]) -> float:
    """Return an upper bound of the largest eigenvalue of the mean over blocks H ``[m, d]`` of H'H/m.

    Blocks are float64, all dense or all sparse.

    Example:
        >>> bound = gram_bound([np.array([[3.0, 0.0], [0.0, 1.0]])])
        >>> 4.5 < bound < 4.5 * (1 + 1e-13)
        True
    """
    scaled, exponent = _in_units(blocks)
    weights = [1 / (len(blocks) * block.shape[0]) for block in scaled]
    trace = sum(w * float(_data(block) @ _data(block)) for w, block in zip(weights, scaled, strict=True))
    rows, d = sum(block.shape[0] for block in scaled), scaled[0].shape[1]
    if min(rows, d) <= DENSE_SIDE:
        largest = float(np.linalg.eigvalsh(_gram(scaled, weights))[-1])
    else:
        largest = min(_positive_bound(scaled, weights), trace)
    # Rounding of sums of products, and of a backward stable eigenvalue: (rows + d) units of the sum of all squares.
    return _from_units(largest + 4 * EPS * (rows + d) * trace, 2 * exponent)


def row_lengths(block: Any) -> tuple[float, float]:
    """Return upper bounds of the mean and of the largest Euclidean length of the rows of ``block``.

    >>> mean, largest = row_lengths(np.array([[3.0, 4.0], [0.0, 1.0]]))
    >>> 3 < mean < 3 * (1 + 1e-14), 5 < largest < 5 * (1 + 1e-14)
    (True, True)
    """
    (scaled,), exponent = _in_units([block])
    squares = scaled.multiply(scaled) if scipy.sparse.issparse(scaled) else np.square(scaled)
    lengths = np.sqrt(np.asarray(squares.sum(axis=1)).ravel())
    up = 1 + EPS * (sum(block.shape) + 8)
    return _from_units(up * float(lengths.mean()), exponent), _from_units(up * float(lengths.max()), exponent)


def _positive_bound(blocks: list[Any], weights: list[float]) -> float:
    """Return the least of max_j (Bx)_j/x_j over some x > 0, B the matrix with the magnitudes of all entries."""
    sizes = [abs(block) for block in blocks]
    x = np.ones(sizes[0].shape[1])
    bound = math.inf
    for _ in range(ITERATIONS):
        image = np.sum([w * (block.T @ (block @ x)) for w, block in zip(weights, sizes, strict=True)], axis=0)
        bound = min(bound, float(np.max(image / x)))
        x = image + LEAST * float(image.max())  # no entry vanishes
        if not x.any():
            break
        x = x / x.max()
    return bound


def _gram(blocks: list[Any], weights: list[float]) -> Floats:
    """Return A, or the matrix of the same nonzero eigenvalues on the side of the samples if that is smaller."""
    rows, d = sum(block.shape[0] for block in blocks), blocks[0].shape[1]
    if d <= rows:
        return np.asarray(
            sum(w * _dense(block.T @ block) for w, block in zip(weights, blocks, strict=True)), np.float64
        )
    roots = [block * math.sqrt(w) for w, block in zip(weights, blocks, strict=True)]
    stacked = scipy.sparse.vstack(roots, "csr") if scipy.sparse.issparse(roots[0]) else np.vstack(roots)
    return _dense(stacked @ stacked.T)


def _in_units(blocks: Sequence[Any]) -> tuple[list[Any], int]:
    """Return blocks with entries of at most 1, scaled exactly, by a power of two: their squares stay within doubles."""
    largest = max(float(np.abs(_data(block)).max(initial=0.0)) for block in blocks)
    exponent = math.frexp(largest)[1]
    return [_ldexp(block, -exponent) for block in blocks], exponent


def _from_units(value: float, exponent: int) -> float:
    """Return value times 2^exponent, rounded up; infinite beyond doubles, and 0 of 0 only."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.nextafter(np.ldexp(value, exponent), np.inf)) if value else 0.0


def _ldexp(block: Any, exponent: int) -> Any:
    if not scipy.sparse.issparse(block):
        return np.ldexp(block, exponent)
    scaled = block.copy()
    scaled.data = np.ldexp(block.data, exponent)
    return scaled


def _data(block: Any) -> Floats:
    return block.data if scipy.sparse.issparse(block) else block.ravel()


def _dense(matrix: Any) -> Floats:
    return matrix.toarray() if scipy.sparse.issparse(matrix) else matrix
