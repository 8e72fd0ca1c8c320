"""Perron vectors and mixing speed of weight matrices.

u of row-stochastic R: ``u @ R = u``; v of column-stochastic C: ``C @ v = v``; both sum to n.
"""

import time
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import lu_factor, lu_solve
from scipy.sparse import csr_array, diags_array
from scipy.sparse.csgraph import breadth_first_order, connected_components, reverse_cuthill_mckee
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigs, eigsh, splu

from digrad._internal.user_warnings import warn_user
from digrad.errors import MixingError
from digrad.graphs import from_adjacency, is_strongly_connected, roots, sinks, strong_components
from digrad.network.circulant import circulant
from digrad.network.weights import Mixing

DENSE_LIMIT = 2000  # agents up to which dense linear algebra takes seconds
POWER_ITERATIONS = 5000
POWER_TOLERANCE = 1e-13
PIN_ITERATIONS = 100
PIN_RATIO = 1e3  # how much the largest entry may exceed the fixed one: costs three digits at most
RATIO_STEPS = 10  # products over which the speed of the power iteration is measured
COUPLED = 1e-8  # a power iteration may end before it sees what weights below this do
GTH_BLOCK = 64  # states eliminated before the others are updated by one product of matrices
LARGE = 1e200  # entries are scaled down before they overflow
BALANCED = 1e-12  # relative difference of the flows along both directions of an edge that rounding explains
RESIDUAL_TOLERANCE = 1e-9
ARPACK_TOLERANCE = 1e-6
ARPACK_RESIDUAL = 1e-4  # relative, of the eigenvectors that ARPACK finds
ARPACK_RESTARTS = 300  # a few seconds at 10 000 agents; slower graphs are left to an inverse iteration
INVERSE_LIMIT = 20_000  # agents up to which sparse factors of a slowly mixing graph fit into memory
FACTOR_LIMIT = 200_000_000  # numbers of sparse factors beyond that many agents: 2.4 GB
SLOW_FACTORS = 20_000_000  # numbers of factors that take a minute or more
HUBS = 20  # agents whose rows and columns may be full
INVERSE_COUNT = 24  # eigenvalues near 1 that an inverse iteration computes
SHIFT = 1 + 1e-6  # where they are looked for: no eigenvalue is beyond 1
DEFECTIVE = 1e-6  # an eigenvalue that rounding moves by more than this belongs to a cluster
LARGEST_CLUSTER = 0.1  # radius beyond which eigenvalues are not taken for one
PATIENCE = 10.0  # seconds after which a computation says that it goes on

Vector = npt.NDArray[np.float64]


def perron_row(R: Mixing) -> Vector:
    """Return u ``[n]`` with ``u @ R = u`` and sum n: how much each agent's value counts in the consensus.

    Exactly ones for doubly stochastic weights, and exactly zero for agents that are not roots. Otherwise, up
    to 2000 roots: elimination without subtractions, which is right to rounding in every entry. Beyond: the ratios of
    weights along a tree, if the flows along both directions of every edge balance (uniform weights of an undirected
    graph); else power iteration (at most 5000 products), and a sparse LU factorization if that is not enough, which
    fits into memory on long rings, paths and grids, but not on slowly mixing random graphs of more than 20 000 agents.

    Raises:
        MixingError: No agent reaches all others, the result leaves a residual above 1e-9, its factors do not fit into
            memory, or more than 2000 roots form parts that are coupled by weights below 1e-8 only.

    Example:
        >>> from digrad.graphs import triangle
        >>> from digrad.network import row_stochastic
        >>> 3 * perron_row(row_stochastic(triangle()))
        array([4., 2., 3.])
    """
    return _perron(R, "R", roots(R.support), "reaches all others")


def perron_column(C: Mixing) -> Vector:
    """Return v ``[n]`` with ``C @ v = v`` and sum n: each agent's share of the total mass.

    Exactly ones for doubly stochastic weights, and exactly zero for agents that not all others reach; otherwise
    computed as in :func:`perron_row`.

    Raises:
        MixingError: No agent is reached by all others, or the result leaves a residual above 1e-9.

    Example:
        >>> from digrad.graphs import triangle
        >>> from digrad.network import column_stochastic
        >>> 3 * perron_column(column_stochastic(triangle()))
        array([3., 2., 4.])
    """
    return _perron(C, "C", sinks(C.support), "all others reach")


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


def _perron(M: Mixing, name: str, members: npt.NDArray[np.int64], what: str) -> Vector:
    """Return the Perron vector, left of R and right of C, which is zero but for ``members``."""
    if not members.size:
        raise MixingError(
            f"`{name}` has no agent that {what}, so its Perron vector is not unique; add edges until there is one."
        )
    if M.kind == "doubly":
        return np.ones(M.n)
    block, vector = M.matrix[members][:, members], np.zeros(M.n)
    vector[members] = _stationary(csr_array(block.T if name == "R" else block), name)
    return vector * (M.n / vector.sum())


def _perron_pair(M: Mixing) -> tuple[Vector, Vector]:
    ones = np.ones(M.n)
    if M.kind == "row":
        return perron_row(M), ones
    return ones, perron_column(M) if M.kind == "column" else ones


def _stationary(matrix: csr_array, name: str) -> Vector:
    # matrix: column-stochastic and irreducible, [m, m]
    size = matrix.indptr.size - 1
    flow = _without_diagonal(matrix)
    if np.array_equal(flow.sum(axis=1), flow.sum(axis=0)):  # as much comes in as goes out
        return np.ones(size)
    vector = _eliminated(flow.T.toarray()) if size <= DENSE_LIMIT else _large_stationary(matrix, name)
    vector = vector * (size / vector.sum())
    residual = np.abs(matrix @ vector - vector).max() / vector.max()
    if not (residual <= RESIDUAL_TOLERANCE and (vector > 0).all()):
        raise MixingError(
            f"the Perron vector of `{name}` could not be computed: relative residual {residual:.1e}, "
            f"smallest entry {vector.min():.1e}; use a better connected graph or less extreme weights."
        )
    return vector


def _eliminated(flow: npt.NDArray[np.float64]) -> Vector:
    """Return the left Perron vector of a row-stochastic matrix by the elimination of GTH, in blocks.

    Grassmann, Taksar and Heyman (1985) remove one state after the other and never subtract: what leaves a state
    is summed from the entries beside the diagonal, so that every entry of the result is right to rounding, also
    when parts of the chain hardly communicate. ``flow`` is overwritten.
    """
    n = len(flow)
    for end in range(n, 1, -GTH_BLOCK):
        first = max(1, end - GTH_BLOCK)
        for k in range(end - 1, first - 1, -1):
            flow[k, :k] += flow[k, k + 1 : end] @ flow[k + 1 : end, :k]
            flow[:k, k] += flow[:k, k + 1 : end] @ flow[k + 1 : end, k]
            flow[:k, k] /= flow[k, :k].sum()
        flow[:first, :first] += flow[:first, first:end] @ flow[first:end, :first]
    vector = np.ones(n)
    for k in range(1, n):
        vector[k] = vector[:k] @ flow[:k, k]
        if vector[k] > LARGE:
            vector[: k + 1] /= vector[k]
    return vector


def _without_diagonal(matrix: csr_array) -> csr_array:
    flow = matrix.copy()
    flow.setdiag(0)
    flow.eliminate_zeros()
    return flow


def _large_stationary(matrix: csr_array, name: str) -> Vector:
    balanced = _balanced(matrix)
    if balanced is not None:
        return balanced
    _check_coupled(matrix, name)
    vector = np.ones(matrix.indptr.size - 1)
    changes: list[float] = []
    patience = _Patience(f"the Perron vector of {vector.size} agents")
    for _ in range(POWER_ITERATIONS):
        patience.tick()
        following = matrix @ vector
        changes.append(float(np.abs(following - vector).max() / following.max()))
        if changes[-1] <= POWER_TOLERANCE:
            # What is still to come is a geometric series of changes.
            ratio = (
                (changes[-1] / changes[-RATIO_STEPS]) ** (1 / RATIO_STEPS)
                if len(changes) > RATIO_STEPS
                else 0
            )
            if changes[-1] <= (1 - ratio) * RESIDUAL_TOLERANCE:
                return following
            break
        vector = following
    return _pinned(matrix)


def _balanced(matrix: csr_array) -> Vector | None:
    """Return the Perron vector if the chain is reversible, c_ij v_j = c_ji v_i: from ratios along a tree."""
    n = matrix.indptr.size - 1
    if ((matrix != 0) != (matrix.T != 0)).nnz:
        return None
    order, parent = breadth_first_order(matrix, 0)  # of either direction: every edge has its reverse
    child, parent = order[1:], parent[order[1:]]
    ratio = np.asarray(matrix[child, parent] / matrix[parent, child]).ravel()
    vector = np.ones(n)
    for one, above, factor in zip(child.tolist(), parent.tolist(), ratio.tolist(), strict=True):
        vector[one] = vector[above] * factor
    if not (np.isfinite(vector).all() and (vector > 0).all()):
        return None
    receiver, sender = matrix.nonzero()
    there, back = matrix[receiver, sender] * vector[sender], matrix[sender, receiver] * vector[receiver]
    return vector if (np.abs(there - back) <= BALANCED * there).all() else None


def _check_coupled(matrix: csr_array, name: str) -> None:
    """Raise if tiny weights alone decide how much the parts of a large network count: only elimination can tell."""
    strong = csr_array(matrix * (matrix > COUPLED))
    count, part = connected_components(strong, directed=True, connection="strong")
    receiver, sender = strong.nonzero()
    closed = count - len(np.unique(part[sender[part[sender] != part[receiver]]]))
    if closed > 1:
        raise MixingError(
            f"the Perron vector of `{name}` is decided by weights below {COUPLED:g} between {closed} parts, which is "
            f"computed for at most {DENSE_LIMIT} agents; use larger weights between them."
        )


def _pinned(matrix: csr_array) -> Vector:
    # Fixing one entry to 1 leaves an M-matrix with a non-negative right-hand side. The system is nearly
    # singular if the fixed entry is tiny, hence a few products to find a large one, and a second solve if the
    # first finds a larger.
    vector = np.ones(matrix.indptr.size - 1)
    for _ in range(PIN_ITERATIONS):
        vector = matrix @ vector
    pin = int(np.argmax(vector))
    try:
        vector = _sparse_pinned(matrix, pin)
        largest = int(np.argmax(vector))
        return vector if vector[largest] < PIN_RATIO else _sparse_pinned(matrix, largest)
    except RuntimeError:  # splu's word for singular
        raise MixingError(
            f"the Perron vector of these {vector.size} agents could not be computed: the linear system is "
            "singular to machine precision; use a better connected graph or less extreme weights."
        ) from None


def _check_factors(flow: csr_array) -> None:
    """Raise if the factors of a large system would not fit into memory, by the profile of its best known order."""
    n = flow.indptr.size - 1
    if n <= INVERSE_LIMIT:
        return
    either = csr_array(flow + flow.T)
    few = np.sort(np.argsort(np.diff(either.indptr))[:-HUBS])  # a hub fills its row and column at most
    order = reverse_cuthill_mckee(csr_array(either[few][:, few]), symmetric_mode=True)
    ordered = csr_array(either[few[order]][:, few[order]])
    receiver, sender = ordered.nonzero()
    reach = np.zeros(len(few), np.int64)
    np.maximum.at(reach, receiver, receiver - sender)
    numbers = 2 * (int(reach.sum()) + HUBS * n)
    if numbers > FACTOR_LIMIT:
        raise MixingError(
            f"the Perron vector of these {n} agents could not be computed: power iteration is too slow on a graph that "
            f"mixes this slowly, and sparse factors do not fit into memory; use at most {INVERSE_LIMIT} agents or a "
            "better connected graph."
        )
    if numbers > SLOW_FACTORS:
        _warn_of_minutes(f"the Perron vector of {n} agents")


def _sparse_pinned(matrix: csr_array, pin: int) -> Vector:
    others = np.delete(np.arange(matrix.indptr.size - 1), pin)
    flow = _without_diagonal(matrix)
    _check_factors(flow)
    system = diags_array(flow.sum(axis=0)[others]) - flow[others][:, others]
    column = flow[others][:, [pin]].toarray()[:, 0]
    return np.insert(splu(system.tocsc()).solve(column), pin, 1.0)


class _Patience:
    """A sign of life: one warning when a computation has taken long."""

    def __init__(self, what: str) -> None:
        self.what, self.end = what, time.monotonic() + PATIENCE

    def tick(self) -> None:
        """Warn once after the time is over."""
        if time.monotonic() > self.end:
            self.end = np.inf
            _warn_of_minutes(self.what)


def _warn_of_minutes(what: str) -> None:
    warn_user(f"computing {what}: on a graph of this size that mixes slowly it may take minutes.")


def _operator(n: int, product: Any) -> LinearOperator:
    patience = _Patience(f"the mixing speed of {n} agents")

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
