r"""The largest eigenvalue of Gram matrices of data, bounded from above.

A certificate needs :math:`\lambda_{\max}` of :math:`A = \frac1n \sum_i H_i^T H_i/m_i` as an upper bound: a computed
eigenvalue, or a Ritz value, is none. Small matrices are decomposed and the rounding added. Large ones, whose Gram
matrix is never formed, get Lanczos' method from a random start q and this argument. The vectors
:math:`q_{j+1} = p_j(A) q` of the method have length 1, so that :math:`|c|\, p_j(\lambda_{\max}) \le 1` with c the
component of q in the direction of the eigenvector; beyond the largest Ritz value :math:`p_j` increases; and on the
sphere of R^d :math:`P(|c| < t) \le t \sqrt{2d/\pi}`. Hence :math:`\lambda_{\max}` is at most the x with
:math:`\max_j p_j(x) = 1/t`, except with the probability ``FAILURE``, whatever the data, over the choice of q.

Reference: J. van Dorsselaer, M. Hochstenbach and H. van der Vorst, Computing probabilistic bounds for extreme
eigenvalues of symmetric matrices with the Lanczos method, SIAM J. Matrix Anal. Appl. 22, 2000.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg
import scipy.sparse

Floats = npt.NDArray[np.floating]

EPS = float(np.finfo(np.float64).eps)
DENSE_SIDE = 1000  # eigenvalues of a matrix of this size take half a second
FAILURE = 1e-12  # probability that the bound of a large matrix is too small
TIGHT = 1e-3  # Lanczos' method ends when its bound is this close to the largest Ritz value, relatively,
STEPS = 400  # or after so many products
LOOK_EVERY = 20
SEED = 20_240_607  # of the random start: a bound is a function of the data


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

        def product(x: Floats) -> Floats:
            return np.sum(
                [w * (block.T @ (block @ x)) for w, block in zip(weights, scaled, strict=True)], axis=0
            )

        largest = min(lanczos_bound(product, d, trace), trace)
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


def lanczos_bound(product: Callable[[Floats], Floats], dim: int, trace: float) -> float:
    """Return an upper bound of the largest eigenvalue of a positive semidefinite matrix, given by its products.

    The vectors are orthogonalised twice against all before, without which the argument above would not hold.

    Args:
        product: Maps x ``[dim]`` to A x.
        dim: The dimension.
        trace: The trace of A, which bounds its eigenvalues too.
    """
    steps = min(STEPS, dim)
    basis = np.zeros((steps, dim))
    diagonal, beside = np.zeros(steps), np.zeros(steps)
    start = np.random.default_rng(SEED).standard_normal(dim)
    basis[0] = start / np.linalg.norm(start)
    bound = trace
    for j in range(steps):
        image = product(basis[j])
        diagonal[j] = basis[j] @ image
        for _ in range(2):
            image = image - basis[: j + 1].T @ (basis[: j + 1] @ image)
        noise = (
            8 * EPS * float(diagonal[: j + 1].max())
        )  # what rounding leaves of a vector that should vanish
        beside[j] = max(float(np.linalg.norm(image)), noise)
        is_last = j + 1 == steps or beside[j] == noise
        if is_last or (j + 1) % LOOK_EVERY == 0:
            ritz, bound = _beyond(diagonal[: j + 1], beside[: j + 1], trace, dim)
            if is_last or bound <= ritz * (1 + TIGHT):
                return bound
        basis[j + 1] = image / beside[j]
    return bound


def _beyond(diagonal: Floats, beside: Floats, trace: float, dim: int) -> tuple[float, float]:
    """Return the largest Ritz value, and the x above it at which some p_j(x) reaches 1/t, by bisection."""
    highest = math.sqrt(2 * dim / math.pi) / FAILURE  # 1/t
    ritz = float(scipy.linalg.eigvalsh_tridiagonal(diagonal, beside[:-1])[-1])
    low, high = ritz, max(trace, ritz)
    while high - low > 1e-3 * TIGHT * high:
        middle = (low + high) / 2
        if _reaches(middle, diagonal, beside, highest):
            high = middle
        else:
            low = middle
    return ritz, high


def _reaches(x: float, diagonal: Floats, beside: Floats, highest: float) -> bool:
    """Return whether some p_j(x) > highest: beta_j p_j = (x - alpha_j) p_{j-1} - beta_{j-1} p_{j-2}, p_0 = 1."""
    before, here, last = 0.0, 1.0, 0.0
    for alpha, beta in zip(diagonal.tolist(), beside.tolist(), strict=True):
        before, here, last = here, ((x - alpha) * here - last * before) / beta, beta
        if here > highest:
            return True
    return False


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
