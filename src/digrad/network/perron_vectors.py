"""Perron vectors of weight matrices.

u of row-stochastic R: ``u @ R = u``; v of column-stochastic C: ``C @ v = v``; both sum to n.
"""

import time

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, diags_array
from scipy.sparse.csgraph import breadth_first_order, connected_components, reverse_cuthill_mckee
from scipy.sparse.linalg import splu

from digrad._internal.user_warnings import warn_user
from digrad.errors import MixingError
from digrad.graphs import roots, sinks
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
INVERSE_LIMIT = 20_000  # agents up to which sparse factors of a slowly mixing graph fit into memory
FACTOR_LIMIT = 200_000_000  # numbers of sparse factors beyond that many agents: 2.4 GB
SLOW_FACTORS = 20_000_000  # numbers of factors that take a minute or more
HUBS = 20  # agents whose rows and columns may be full
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
    patience = Patience(f"the Perron vector of {vector.size} agents")
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


class Patience:
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
