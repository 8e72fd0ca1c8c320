"""Mixing speed of weight matrices: spectral radius and norm without the Perron part."""

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import lu_factor, lu_solve
from scipy.sparse import csr_array, diags_array
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs, eigsh

from digrad.errors import MixingError
from digrad.graphs import from_adjacency, is_strongly_connected, roots, sinks, strong_components
from digrad.network.circulant import circulant
from digrad.network.perron_vectors import (
    DENSE_LIMIT,
    INVERSE_LIMIT,
    RESIDUAL_TOLERANCE,
    Patience,
    Vector,
    perron_column,
    perron_row,
)
from digrad.network.weights import Mixing

ARPACK_TOLERANCE = 1e-6
ARPACK_RESIDUAL = 1e-4  # relative, of the eigenvectors that ARPACK finds
ARPACK_RESTARTS = 300  # a few seconds at 10 000 agents; slower graphs are left to an inverse iteration
INVERSE_COUNT = 24  # eigenvalues near 1 that an inverse iteration computes
SHIFT = 1 + 1e-6  # where they are looked for: no eigenvalue is beyond 1
DEFECTIVE = 1e-6  # an eigenvalue that rounding moves by more than this belongs to a cluster
LARGEST_CLUSTER = 0.1  # radius beyond which eigenvalues are not taken for one


def rho(M: Mixing) -> float:
    """Return how fast repeated mixing agrees: the spectral radius of ``M`` without its Perron part.

    That is of R - 1 u'/n, C - v 1'/n or W - 1 1'/n; on a graph that is not strongly connected they are block
    triangular, and the radius is that of the largest block. Circulant weights (rings, exponential graphs): a Fourier
    transform. Else dense eigenvalues up to 2000 agents; beyond it ARPACK with tolerance 1e-6, and for up to
    20 000 agents that mix too slowly for it, the eigenvalues near 1. On 50 000 agents that mix slowly this takes
    minutes; a warning says so after ten seconds.

    Raises:
        MixingError: Neither converges, or rounding alone decides the eigenvalue.

    Example:
        >>> from digrad.graphs import ring
        >>> from digrad.network import row_stochastic
        >>> round(rho(row_stochastic(ring(4))), 6)
        0.707107
    """
    if circulant(M.matrix):
        return float(np.abs(np.fft.fft(M.matrix[:, [0]].toarray()[:, 0])[1:]).max(initial=0.0))
    left, right = _perron_pair(M)
    if M.kind != "doubly" and not is_strongly_connected(M.support):
        return _radius_of_blocks(M)
    if M.n <= DENSE_LIMIT:
        return _dense_radius(M.toarray() - np.outer(right, left) / M.n)
    deflated = _operator(M.n, lambda x: M.matrix @ x - right * (left @ x / M.n))
    try:
        return float(np.abs(_largest(eigs, deflated)).max())
    except MixingError:
        found = _radius_near_one(M) if M.n <= INVERSE_LIMIT else None
        if found is None:
            raise
        return found


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


def _radius_of_blocks(M: Mixing) -> float:
    """Return the largest spectral radius of the strong components, that of the agents that decide without Perron part.

    Together their eigenvalues may form Jordan blocks as long as a path, which rounding scatters; apart they do not.
    """
    component = strong_components(M.support)
    size, diagonal = np.bincount(component), M.matrix.diagonal()
    deciding = component[(roots if M.kind == "row" else sinks)(M.support)[0]]
    radius = float(diagonal[(size[component] == 1) & (component != deciding)].max(initial=0.0))
    for part in np.flatnonzero(size > 1):
        members = np.flatnonzero(component == part)
        block = csr_array(M.matrix[members][:, members])
        if part == deciding:
            found = rho(Mixing(from_adjacency(block), block, M.kind))
        elif len(members) <= DENSE_LIMIT:
            found = _dense_radius(block.toarray())
        else:
            found = float(
                np.abs(_largest(eigs, _operator(len(members), lambda x, block=block: block @ x))).max()
            )
        radius = max(radius, found)
    return radius


def _dense_radius(matrix: npt.NDArray[np.float64]) -> float:
    """Return the spectral radius; of an eigenvalue that is defective, the mean of those it splits into.

    Rounding moves an eigenvalue by its condition number times the rounding of the matrix, and one with a Jordan
    block of size s by the s-th root of rounding; the mean of the cluster stays.
    """
    values = np.linalg.eigvals(matrix)
    largest = values[np.argmax(np.abs(values))]
    uncertainty = _uncertainty(matrix, largest)
    if uncertainty <= DEFECTIVE:
        return float(np.abs(largest))
    for radius in (min(factor * uncertainty, LARGEST_CLUSTER) for factor in (1, 3, 10)):
        center = values[np.abs(values - largest) <= radius].mean()
        distance = np.abs(values - center)
        members = values[distance <= radius]
        others = values[distance > radius]
        is_alone = (np.abs(others - center) > 2 * radius).all() and len(members) > 1
        if is_alone and np.abs(others).max(initial=0.0) < np.abs(center):
            return float(np.abs(members.mean()))
    raise MixingError(
        f"the mixing speed of these {len(matrix)} agents could not be computed: rounding moves the second "
        f"eigenvalue, about {np.abs(largest):.4g}, by {uncertainty:.1e}; use a better connected graph."
    )


def _uncertainty(matrix: npt.NDArray[np.float64], value: complex) -> float:
    """Return how far rounding may move an eigenvalue: its condition number by inverse iteration, times eps."""
    n, eps = len(matrix), float(np.finfo(np.float64).eps)
    if n == 1 or value == 0:
        return 0.0
    factors = lu_factor(matrix - (value + 10 * eps) * np.eye(n), check_finite=False)
    right = left = np.random.default_rng(0).standard_normal(n).astype(complex)
    for _ in range(2):
        right, left = lu_solve(factors, right), lu_solve(factors, left, trans=2)
        if not np.isfinite([right, left]).all():  # a Jordan block so long that its inverse overflows
            return np.inf
        right, left = right / np.linalg.norm(right), left / np.linalg.norm(left)
    return eps * float(np.linalg.norm(matrix)) / max(float(np.abs(np.vdot(left, right))), eps)


def _radius_near_one(M: Mixing) -> float | None:
    """Return the spectral radius without the Perron part from the eigenvalues nearest to 1, if they suffice.

    By Gershgorin all eigenvalues are in the disc |z - a| <= 1 - a with a the smallest diagonal entry. Those with
    |z| >= r are therefore within sqrt((1 - r^2) (1/a - 1)) of 1, so none of them is missed if the farthest one
    found is farther away; of a reversible chain all eigenvalues are real, and at least 2a - 1.
    """
    try:
        values: npt.NDArray[np.complex128] = eigs(  # pyright: ignore[reportAssignmentType, reportCallIssue]
            M.matrix.tocsc(), k=INVERSE_COUNT, sigma=SHIFT, tol=ARPACK_TOLERANCE,  # pyright: ignore[reportArgumentType]
             return_eigenvectors=False,
            v0=np.random.default_rng(0).standard_normal(M.n),
        )  # fmt: skip
    except (ArpackNoConvergence, RuntimeError, MemoryError):
        return None
    distance = np.abs(1 - values)
    others = np.abs(values[np.argsort(distance)[1:]])
    radius, smallest = float(others.max()), float(M.matrix.diagonal().min())
    reach = np.sqrt((1 - radius**2) * (1 / smallest - 1)) if smallest > 0 else np.inf
    is_complete = radius >= 1 - 2 * smallest if _is_reversible(M) else distance.max() >= reach
    return radius if is_complete else None


def _is_reversible(M: Mixing) -> bool:
    # Flows along both directions of an edge are equal, so that the eigenvalues are real.
    left, right = _perron_pair(M)
    flow = csr_array(diags_array(left) @ M.matrix @ diags_array(right))
    return bool(np.abs(flow - flow.T).max() <= RESIDUAL_TOLERANCE * flow.max())


def _perron_pair(M: Mixing) -> tuple[Vector, Vector]:
    ones = np.ones(M.n)
    if M.kind == "row":
        return perron_row(M), ones
    return ones, perron_column(M) if M.kind == "column" else ones


def _operator(n: int, product: Any) -> LinearOperator:
    patience = Patience(f"the mixing speed of {n} agents")

    def matvec(x: Vector) -> Vector:
        patience.tick()
        return product(x)

    return LinearOperator((n, n), matvec=matvec, dtype=np.float64)  # pyright: ignore[reportCallIssue]


def _largest(solver: Any, operator: LinearOperator) -> npt.NDArray[Any]:
    """Return the largest eigenvalue, whose vector leaves a small residual."""
    start = np.random.default_rng(0).standard_normal(operator.shape[0])
    try:
        values, vectors = solver(
            operator, k=1, which="LM", v0=start, tol=ARPACK_TOLERANCE, maxiter=ARPACK_RESTARTS
        )
    except ArpackNoConvergence:
        values, vectors = np.full(1, np.nan), np.ones((operator.shape[0], 1))
    residual = np.linalg.norm(operator @ vectors[:, 0] - values[0] * vectors[:, 0])
    if not residual <= ARPACK_RESIDUAL * np.linalg.norm(vectors[:, 0]):
        raise MixingError(
            f"the mixing speed of these {operator.shape[0]} agents could not be computed: ARPACK did not "
            "converge, as happens on graphs that mix very slowly; "
            "use at most 2000 agents or a better connected graph."
        )
    return values
