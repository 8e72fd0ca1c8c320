"""Weight matrices on a digraph, built or checked.

``matrix[i, j]`` is the weight that receiver i gives to sender j, so one round of mixing is ``matrix @ x``.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.sparse import block_array, csr_array, diags_array, eye_array
from scipy.sparse.linalg import splu

from digrad.errors import MixingError
from digrad.graphs import Digraph, from_adjacency, strong_components, unreachable_pair

Kind: TypeAlias = Literal["row", "column", "doubly"]


class KindFacts(NamedTuple):
    """One kind of weights: its matrix, the primitive of methods that mixes with it, its name, and what builds it."""

    matrix: str
    primitive: str
    adjective: str
    builder: str


KINDS = {
    "row": KindFacts("R", "pull", "row-stochastic", "row_stochastic"),
    "column": KindFacts("C", "push", "column-stochastic", "column_stochastic"),
    "doubly": KindFacts("W", "mix", "doubly stochastic", "sinkhorn"),
}

SINKHORN_TOLERANCE = 1e-13  # of every row sum
SINKHORN_ITERATIONS = 2000  # beyond them Newton's method takes over
NEWTON_ITERATIONS = 200


@dataclass(frozen=True, eq=False, repr=False)
class Mixing:
    """Weights on a digraph, as built or checked by the functions of this package; do not construct directly.

    Attributes:
        graph: The digraph on whose edges, and self loops, the weights live.
        matrix: ``[n, n]`` CSR, float64, sorted indices, read-only.
        kind: ``"row"`` (rows sum to one), ``"column"`` (columns do) or ``"doubly"`` (both do).
    """

    graph: Digraph
    matrix: csr_array
    kind: Kind

    def __post_init__(self) -> None:
        """Freeze the numbers."""
        for array in (self.matrix.data, self.matrix.indices, self.matrix.indptr):
            array.flags.writeable = False

    def __repr__(self) -> str:
        """Return the kind and the sizes."""
        return f"Mixing(kind={self.kind!r}, n={self.n}, n_edges={self.graph.n_edges})"

    @property
    def n(self) -> int:
        """Number of agents."""
        return self.graph.n

    def toarray(self) -> npt.NDArray[np.float64]:
        """Return the weights as a dense ``[n, n]`` array."""
        return self.matrix.toarray()

    @cached_property
    def support(self) -> Digraph:
        """The edges with a positive weight: ``graph``, unless some of its edges were given weight zero."""
        full = self.matrix.nnz == self.graph.n_edges + np.count_nonzero(self.matrix.diagonal())
        return self.graph if full else from_adjacency(self.matrix)

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of the kind, the graph and the weights, in hexadecimal."""
        digest = hashlib.sha256(f"{self.kind} {self.graph.content_hash}".encode())
        for array, dtype in (
            (self.matrix.indptr, "<i8"),
            (self.matrix.indices, "<i8"),
            (self.matrix.data, "<f8"),
        ):
            digest.update(array.astype(dtype).tobytes())
        return digest.hexdigest()


def row_stochastic(graph: Digraph) -> Mixing:
    """Return the uniform weights 1/(in-degree + 1): each receiver averages over its in-neighbours, itself included.

    Example:
        >>> from digrad.graphs import star
        >>> row_stochastic(star(3)).toarray()[1]
        array([0.5, 0.5, 0. ])
    """
    return _mixing(graph, diags_array(1.0 / (graph.in_degree + 1)) @ _ones(graph), "row")


def column_stochastic(graph: Digraph) -> Mixing:
    """Return the uniform weights 1/(out-degree + 1): each sender splits its mass evenly, keeping a share.

    Example:
        >>> from digrad.graphs import star
        >>> column_stochastic(star(3)).toarray()[:, 1]
        array([0.5, 0.5, 0. ])
    """
    return _mixing(graph, _ones(graph) @ diags_array(1.0 / (graph.out_degree + 1)), "column")


def metropolis(graph: Digraph) -> Mixing:
    """Return the Metropolis weights 1/(1 + max degree of the two) of a digraph whose edges all go both ways.

    Raises:
        MixingError: An edge has no reverse.

    Example:
        >>> from digrad.graphs import star
        >>> metropolis(star(3)).toarray()[1].round(3)
        array([0.333, 0.667, 0. ])
    """
    if graph != graph.reversed():
        missing = set(graph.reversed().edges) - set(graph.edges)
        sender, receiver = min(missing)
        raise MixingError(
            f"`graph` of metropolis must have every edge in both directions, but ({receiver}, {sender}) has "
            "no reverse; pass graph.symmetrized(), which adds the missing edges and counts their traffic, "
            "or use sinkhorn(graph)."
        )
    sender, receiver = graph.edge_array.T
    weight = 1.0 / (1 + np.maximum(graph.in_degree[sender], graph.in_degree[receiver]))
    kept = 1.0 - np.bincount(receiver, weights=weight, minlength=graph.n)
    others = csr_array((weight, (receiver, sender)), shape=(graph.n, graph.n))
    return _mixing(graph, others + diags_array(kept), "doubly")


def sinkhorn(graph: Digraph, *, partial: bool = False) -> Mixing:
    """Return the doubly stochastic weights obtained by balancing the uniform weights on the same edges.

    Rows and columns of the adjacency matrix with self loops are normalised in turn until every sum is one
    (Sinkhorn and Knopp, 1967), or Newton's method finishes what that does not in 2000 iterations. The limit is
    unique, and positive on every edge, when the graph is strongly connected.

    Args:
        graph: Strongly connected.
        partial: One step of a sequence: only every edge must lie on a cycle, which is all that balancing needs.

    Raises:
        MixingError: The graph is not strongly connected, or its weights could not be balanced.

    Example:
        >>> from digrad.graphs import triangle
        >>> sinkhorn(triangle()).toarray().round(4)
        array([[0.382 , 0.    , 0.618 ],
               [0.382 , 0.618 , 0.    ],
               [0.2361, 0.382 , 0.382 ]])
    """
    pair = _one_way_edge(graph) if partial else unreachable_pair(graph)
    if pair is not None:
        raise MixingError(
            f"`graph` of sinkhorn must be strongly connected, but agent {pair[0]} cannot reach agent "
            f"{pair[1]}; no doubly stochastic weights use all of its edges. "
            "Add edges, or give weights with custom(...)."
        )
    ones = _ones(graph)
    rows, columns = _balance(ones, _sinkhorn_tolerance(graph))
    return _mixing(graph, diags_array(rows) @ ones @ diags_array(columns), "doubly")


def _one_way_edge(graph: Digraph) -> tuple[int, int] | None:
    """Return the ends, receiver first, of an edge from which no path leads back, or None."""
    component = strong_components(graph)[graph.edge_array]  # [m, 2]
    one_way = np.flatnonzero(component[:, 0] != component[:, 1])
    if not one_way.size:
        return None
    sender, receiver = graph.edge_array[one_way[0]].tolist()
    return receiver, sender


def _sinkhorn_tolerance(graph: Digraph) -> float:
    # A sum of m rounded terms may be off by m roundings, which exceeds 1e-13 for hundreds of neighbours.
    longest = 1 + int(max(graph.in_degree.max(), graph.out_degree.max()))
    return max(SINKHORN_TOLERANCE, longest * float(np.finfo(np.float64).eps))


def _balance(ones: csr_array, tolerance: float) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    transposed = ones.T.tocsr()
    row_sums: npt.NDArray[np.float64] = ones.sum(axis=1)
    rows, columns = np.ones_like(row_sums), np.ones_like(row_sums)
    for _ in range(SINKHORN_ITERATIONS):
        rows = 1.0 / row_sums
        columns = 1.0 / (transposed @ rows)
        row_sums = ones @ columns
        error = float(np.abs(rows * row_sums - 1.0).max())
        if error < tolerance:
            return rows, columns
    return _balance_by_newton(ones, np.log(rows), np.log(columns), tolerance)


def _balance_by_newton(
    ones: csr_array, r: npt.NDArray[np.float64], c: npt.NDArray[np.float64], tolerance: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Balance by Newton's method on sum_ij exp(r_i + c_j) - sum r - sum c, a convex function with that minimum.

    Sinkhorn's iteration slows down with the mixing of the graph; Newton's does not, and damped by 1/(1 + its
    decrement) it converges from everywhere.
    """
    n = len(r)
    receiver, sender = ones.nonzero()
    error = np.inf
    for _ in range(NEWTON_ITERATIONS):
        W = csr_array((np.exp(r[receiver] + c[sender]), (receiver, sender)), shape=(n, n))
        rows, columns = W.sum(axis=1), W.sum(axis=0)
        gap = np.concatenate([rows - 1, columns - 1])
        error = float(np.abs(gap).max())
        if error < tolerance:
            return np.exp(r), np.exp(c)
        # Adding a number to r and taking it from c changes nothing: the last c is held.
        hessian: Any = block_array([[diags_array(rows), W], [W.T, diags_array(columns)]], format="csc")
        step = np.append(splu(hessian[:-1, :-1]).solve(gap[:-1]), 0.0)
        decrement = float(np.sqrt(max(0.0, step @ gap)))
        step = step / (1 + decrement) if decrement > 0.1 else step
        r, c = r - step[:n], c - step[n:]
    raise MixingError(
        f"sinkhorn did not balance the weights of `graph`: a row sum is still off by {error:.1e} after "
        f"{SINKHORN_ITERATIONS} iterations of its own and {NEWTON_ITERATIONS} of Newton's method; "
        "use a better connected graph, or give doubly stochastic weights with custom(...)."
    )


def _ones(graph: Digraph) -> csr_array:
    return csr_array(graph.to_adjacency() + eye_array(graph.n, format="csr"))


def _mixing(graph: Digraph, matrix: Any, kind: Kind) -> Mixing:
    matrix = csr_array(matrix)
    matrix.sort_indices()
    return Mixing(graph, matrix, kind)
