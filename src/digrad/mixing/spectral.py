"""Perron vectors and mixing speed of weight matrices.

u of row-stochastic R: ``u @ R = u``; v of column-stochastic C: ``C @ v = v``; both sum to n.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, eye_array
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs, eigsh, splu

from digrad.errors import MixingError
from digrad.graphs import is_strongly_connected, roots
from digrad.mixing.weights import Mixing

DENSE_LIMIT = 2000  # agents up to which dense linear algebra takes seconds
POWER_ITERATIONS = 5000
POWER_TOLERANCE = 1e-13
PIN_ITERATIONS = 100
PIN_RATIO = 1e3  # how much the largest entry may exceed the fixed one: costs three digits at most
DOUBLY_TOLERANCE = 1e-12  # of the sums, to call a matrix doubly stochastic; spec/algorithms.md, section 12
RESIDUAL_TOLERANCE = 1e-9
ARPACK_TOLERANCE = 1e-6

Vector = npt.NDArray[np.float64]


def perron_row(R: Mixing) -> Vector:
    """Return u ``[n]`` with ``u @ R = u`` and sum n: how much each agent's value counts in the consensus.

    Exactly ones for doubly stochastic weights, and exactly zero for agents that are not roots. Otherwise, up
    to 2000 roots: a dense linear solve. Beyond: power iteration (at most 5000 products, relative residual
    1e-13), and a sparse LU factorization if that is not enough.

    Raises:
        MixingError: No agent reaches all others, or the result leaves a residual above 1e-9.

    Example:
        >>> from digrad.graphs import triangle
        >>> from digrad.mixing import row_stochastic
        >>> 3 * perron_row(row_stochastic(triangle()))
        array([4., 2., 3.])
    """
    members = roots(R.support)
    if not members.size:
        raise MixingError(
            "`R` of perron_row has no root: no agent reaches all others, so its Perron vector is not unique; "
            "add arcs until one agent reaches all."
        )
    u = np.zeros(R.n)
    u[members] = _stationary(csr_array(R.matrix[members][:, members].T), "R")
    return u * (R.n / u.sum())


def perron_column(C: Mixing) -> Vector:
    """Return v ``[n]``, positive, with ``C @ v = v`` and sum n: each agent's share of the total mass.

    Exactly ones for doubly stochastic weights; otherwise computed as in :func:`perron_row`.

    Raises:
        MixingError: The weights are not strongly connected, or the result leaves a residual above 1e-9.

    Example:
        >>> from digrad.graphs import triangle
        >>> from digrad.mixing import column_stochastic
        >>> 3 * perron_column(column_stochastic(triangle()))
        array([3., 2., 4.])
    """
    if not is_strongly_connected(C.support):
        raise MixingError(
            "`C` of perron_column must be strongly connected, else some agents lose all their mass; add arcs."
        )
    return _stationary(C.matrix, "C")


def rho(M: Mixing) -> float:
    """Return how fast repeated mixing agrees: the spectral radius of ``M`` without its Perron part.

    That is of R - 1 u'/n, C - v 1'/n or W - 1 1'/n. Dense eigenvalues up to 2000 agents, beyond it ARPACK
    with tolerance 1e-6.

    Raises:
        MixingError: ARPACK does not converge, as happens on large graphs that mix very slowly.

    Example:
        >>> from digrad.graphs import ring
        >>> from digrad.mixing import row_stochastic
        >>> round(rho(row_stochastic(ring(4))), 6)
        0.707107
    """
    left, right = _perron_pair(M)
    if M.n <= DENSE_LIMIT:
        return float(np.abs(np.linalg.eigvals(M.toarray() - np.outer(right, left) / M.n)).max())
    deflated = _operator(M.n, lambda x: M.matrix @ x - right * (left @ x / M.n))
    return float(np.abs(_largest(eigs, deflated)).max())


def second_singular_value(W: Mixing) -> float:
    """Return ``||W - 1 1'/n||_2`` of doubly stochastic weights: the contraction of one round of mixing.

    Dense singular values up to 2000 agents, beyond it ARPACK with tolerance 1e-6.

    Raises:
        MixingError: ``W`` is not doubly stochastic, or ARPACK does not converge.
    """
    if W.kind != "doubly":
        raise MixingError(
            f"`W` of second_singular_value must be doubly stochastic, but its kind is {W.kind!r}."
        )
    if W.n <= DENSE_LIMIT:
        return float(np.linalg.norm(W.toarray() - 1.0 / W.n, 2))
    transposed = W.matrix.T.tocsr()

    def gram(x: Vector) -> Vector:
        product = transposed @ (W.matrix @ (x - x.mean()))
        return product - product.mean()

    return float(np.sqrt(_largest(eigsh, _operator(W.n, gram)).max()))


def _perron_pair(M: Mixing) -> tuple[Vector, Vector]:
    ones = np.ones(M.n)
    if M.kind == "row":
        return perron_row(M), ones
    return ones, perron_column(M) if M.kind == "column" else ones


def _stationary(matrix: csr_array, name: str) -> Vector:
    # matrix: column-stochastic and irreducible, [m, m]
    size = matrix.indptr.size - 1
    if np.abs(matrix.sum(axis=1) - 1.0).max() <= DOUBLY_TOLERANCE:
        return np.ones(size)
    vector = _pinned(matrix, _dense_pinned) if size <= DENSE_LIMIT else _large_stationary(matrix)
    vector = vector * (size / vector.sum())
    residual = np.abs(matrix @ vector - vector).max() / vector.max()
    if not (residual <= RESIDUAL_TOLERANCE and (vector > 0).all()):
        raise MixingError(
            f"the Perron vector of `{name}` could not be computed: relative residual {residual:.1e}, "
            f"smallest entry {vector.min():.1e}; use a better connected graph or less extreme weights."
        )
    return vector


def _large_stationary(matrix: csr_array) -> Vector:
    vector = np.ones(matrix.indptr.size - 1)
    for _ in range(POWER_ITERATIONS):
        following = matrix @ vector
        if np.abs(following - vector).max() <= POWER_TOLERANCE * following.max():
            return following
        vector = following
    return _pinned(matrix, _sparse_pinned)


def _pinned(matrix: csr_array, solve: Any) -> Vector:
    # Fixing one entry to 1 leaves an M-matrix with a non-negative right-hand side: elimination never
    # subtracts to get an off-diagonal number, so tiny entries stay positive. The system is nearly singular
    # if the fixed entry is tiny, hence a few products to find a large one, and a second solve if the first
    # finds a larger.
    vector = np.ones(matrix.indptr.size - 1)
    for _ in range(PIN_ITERATIONS):
        vector = matrix @ vector
    pin = int(np.argmax(vector))
    try:
        vector = solve(matrix, pin)
        largest = int(np.argmax(vector))
        return vector if vector[largest] < PIN_RATIO else solve(matrix, largest)
    except (np.linalg.LinAlgError, RuntimeError):  # RuntimeError: splu's word for singular
        raise MixingError(
            f"the Perron vector of these {vector.size} agents could not be computed: the linear system is "
            "singular to machine precision; use a better connected graph or less extreme weights."
        ) from None


def _dense_pinned(matrix: csr_array, pin: int) -> Vector:
    dense = matrix.toarray()
    others = np.delete(np.arange(len(dense)), pin)
    system = np.eye(len(others)) - dense[np.ix_(others, others)]
    return np.insert(np.linalg.solve(system, dense[others, pin]), pin, 1.0)


def _sparse_pinned(matrix: csr_array, pin: int) -> Vector:
    others = np.delete(np.arange(matrix.indptr.size - 1), pin)
    system = eye_array(len(others), format="csc") - matrix[others][:, others].tocsc()
    column = matrix[others][:, [pin]].toarray()[:, 0]
    return np.insert(splu(system.tocsc()).solve(column), pin, 1.0)


def _operator(n: int, product: Any) -> LinearOperator:
    return LinearOperator((n, n), matvec=product, dtype=np.float64)  # pyright: ignore[reportCallIssue]


def _largest(solver: Any, operator: LinearOperator) -> npt.NDArray[Any]:
    start = np.random.default_rng(0).standard_normal(operator.shape[0])
    try:
        return solver(operator, k=1, which="LM", v0=start, tol=ARPACK_TOLERANCE, return_eigenvectors=False)
    except ArpackNoConvergence:
        raise MixingError(
            f"the mixing speed of these {operator.shape[0]} agents could not be computed: ARPACK did not "
            "converge, as happens on graphs that mix very slowly; "
            "use at most 2000 agents or a better connected graph."
        ) from None
