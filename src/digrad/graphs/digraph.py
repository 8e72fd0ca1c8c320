"""An immutable directed graph, and its conversions.

Edges are written ``(sender, receiver)``. Self loops are implicit, never listed: every agent
has its own value too.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from digrad import checks
from digrad._internal.user_warnings import warn_user
from digrad.errors import ArgumentError, GraphError

if TYPE_CHECKING:
    import networkx
    import scipy.sparse


LARGEST_GRAPH = 10_000_000  # agents; a few edges each then take gigabytes
MOST_EDGES = 50_000_000  # to build and sort them takes seconds and gigabytes


@dataclass(frozen=True, eq=False, repr=False)
class Digraph:
    """A directed graph of agents 0, ..., n - 1, compared and hashed by value.

    Args:
        n: Number of agents, from 1 to 10 million.
        edge_array: ``[m, 2]`` whole numbers, one row ``(sender, receiver)`` per edge, in any order. They are stored
            read-only and sorted by receiver, then sender, so the in-neighbours of an agent are contiguous.
        names: Names of the agents in tables and figures, all different; None for their numbers. Names are no part of
            the value: graphs that differ only in them are equal.

    Raises:
        GraphError: An edge names an agent that does not exist, is a self loop, or is listed twice; or the names are
            not n different strings.

    Example:
        >>> graph = Digraph(3, np.array([(0, 1), (1, 2), (2, 0), (0, 2)]))
        >>> graph
        Digraph(n=3, n_edges=4)
        >>> graph.in_neighbors(2), graph.out_degree
        (array([0, 1]), array([2, 1, 1]))
    """

    n: int
    edge_array: npt.NDArray[np.int64]
    names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        """Validate, sort and freeze the edges."""
        object.__setattr__(self, "n", checks.count(self.n, "n", "Digraph", maximum=LARGEST_GRAPH))
        edges = _as_pairs(self.edge_array)
        _check_edges(self.n, edges)
        object.__setattr__(self, "edge_array", _sorted_unique(self.n, edges))
        self.edge_array.flags.writeable = False
        if self.names is not None:
            object.__setattr__(self, "names", _checked_names(self.names, self.n))

    def __eq__(self, other: object) -> bool:
        """Return whether the other graph has the same agents and edges."""
        if not isinstance(other, Digraph):
            return NotImplemented
        return self.n == other.n and np.array_equal(self.edge_array, other.edge_array)

    def __hash__(self) -> int:
        """Return a hash of the value, equal for equal graphs."""
        return hash(self.content_hash)

    def __repr__(self) -> str:
        """Return the sizes; the edges themselves are in ``edges``."""
        return f"Digraph(n={self.n}, n_edges={self.n_edges})"

    @property
    def n_edges(self) -> int:
        """Number of edges, self loops not counted."""
        return len(self.edge_array)

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """The edges as ``(sender, receiver)`` pairs of Python ints, sorted by receiver, then sender."""
        return tuple((sender, receiver) for sender, receiver in self.edge_array.tolist())

    @cached_property
    def in_degree(self) -> npt.NDArray[np.int64]:
        """``[n]``: the number of in-neighbours of each agent."""
        return np.bincount(self.edge_array[:, 1], minlength=self.n)

    @cached_property
    def out_degree(self) -> npt.NDArray[np.int64]:
        """``[n]``: the number of out-neighbours of each agent."""
        return np.bincount(self.edge_array[:, 0], minlength=self.n)

    def in_neighbors(self, agent: int) -> npt.NDArray[np.int64]:
        """Return, in ascending order, the in-neighbours of ``agent``, without itself."""
        agent = self._agent(agent, "in_neighbors")
        first, last = np.searchsorted(self.edge_array[:, 1], [agent, agent + 1])
        return self.edge_array[first:last, 0]

    def out_neighbors(self, agent: int) -> npt.NDArray[np.int64]:
        """Return, in ascending order, the out-neighbours of ``agent``, without itself."""
        return self._reversed.in_neighbors(self._agent(agent, "out_neighbors"))

    def reversed(self) -> "Digraph":
        """Return the graph with every edge turned around."""
        return self._reversed

    def symmetrized(self) -> "Digraph":
        """Return the graph with the reverse of every edge added: links that may not exist in reality."""
        keys = np.unique(
            np.concatenate([_keys(self.n, self.edge_array), _keys(self.n, self.edge_array[:, ::-1])])
        )
        return Digraph(self.n, _from_keys(self.n, keys), self.names)

    def relabeled(self, permutation: npt.ArrayLike) -> "Digraph":
        """Return the same graph with agent i renamed to ``permutation[i]``.

        Raises:
            ArgumentError: ``permutation`` does not hold each of 0, ..., n - 1 once.

        Example:
            >>> from_edges(3, [(0, 1)]).relabeled([2, 0, 1]).edges
            ((2, 0),)
        """
        numbers = np.asarray(permutation)
        if numbers.shape != (self.n,) or not np.array_equal(np.sort(numbers), np.arange(self.n)):
            raise ArgumentError(
                f"`permutation` of Digraph.relabeled must hold each of 0 to {self.n - 1} once, "
                f"but got {permutation!r}."
            )
        names = tuple(self.names[agent] for agent in np.argsort(numbers)) if self.names else None
        return Digraph(self.n, numbers.astype(np.int64)[self.edge_array], names)

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of the number of agents and the edges, in hexadecimal; the same on every machine."""
        digest = hashlib.sha256(np.int64(self.n).astype("<i8").tobytes())
        digest.update(self.edge_array.astype("<i8").tobytes())
        return digest.hexdigest()

    def to_networkx(self) -> "networkx.DiGraph":
        """Return a ``networkx.DiGraph`` with edges sender to receiver; its nodes are the names, or 0, ..., n - 1."""
        import networkx

        graph = networkx.DiGraph()
        nodes = self.names or range(self.n)
        graph.add_nodes_from(nodes)
        graph.add_edges_from((nodes[sender], nodes[receiver]) for sender, receiver in self.edges)
        return graph

    def to_adjacency(self) -> "scipy.sparse.csr_array":
        """Return ones at ``[receiver, sender]`` of every edge, as ``[n, n]`` CSR without diagonal."""
        from scipy.sparse import csr_array

        indptr = np.concatenate([[0], np.cumsum(self.in_degree)])
        return csr_array(
            (np.ones(self.n_edges), self.edge_array[:, 0].copy(), indptr), shape=(self.n, self.n)
        )

    @cached_property
    def _reversed(self) -> "Digraph":
        return Digraph(self.n, self.edge_array[:, ::-1], self.names)

    def _agent(self, agent: int, owner: str) -> int:
        if checks.count(agent, "agent", f"Digraph.{owner}", minimum=0) >= self.n:
            raise ArgumentError(
                f"`agent` of Digraph.{owner} must be 0 to {self.n - 1}, but got {agent!r}; "
                f"the digraph has {self.n} agents."
            )
        return int(agent)


def from_edges(
    n: int, edges: Iterable[tuple[int, int]] | npt.NDArray[np.integer], *, names: Sequence[str] | None = None
) -> Digraph:
    """Return the digraph of ``n`` agents with the given ``(sender, receiver)`` pairs, and perhaps names.

    Raises:
        GraphError: The edges are not pairs; or an edge names an agent that does not exist, is a self loop, or
            is listed twice.

    Example:
        >>> from_edges(3, [(2, 0), (0, 1)]).edges
        ((2, 0), (0, 1))
    """
    if not isinstance(edges, Iterable):
        raise GraphError(
            f"`edges` of from_edges must be a list of pairs (sender, receiver), but got {edges!r}; "
            "give [] for no edges."
        )
    pairs: Any = edges if isinstance(edges, np.ndarray) else list(edges)
    return Digraph(n, pairs, None if names is None else tuple(names))


def from_networkx(graph: "networkx.Graph") -> Digraph:
    """Return the digraph of a networkx graph; an undirected edge becomes two edges, a self loop is dropped.

    Nodes that are exactly 0, ..., n - 1 keep their numbers; others are numbered in the graph's order and become names.
    A digraph has no weights: those on the edges are left out, with a warning; ``Network.from_weights`` reads them.

    Raises:
        GraphError: It is no networkx graph, is a multigraph, or has no nodes.
    """
    found, _ = numbered(graph)
    if any(weight is not None for _, _, weight in graph.edges(data="weight")):
        warn_user(
            "the weights on the edges of a networkx graph are not read, and agents mix with uniform ones; use "
            "Network.from_weights(graph), or give R and C to Network."
        )
    return found


def numbered(graph: "networkx.Graph") -> tuple[Digraph, dict[Any, int]]:
    """Return the digraph of a networkx graph, and the agent that each node became."""
    if not all(hasattr(graph, name) for name in ("is_multigraph", "is_directed", "nodes", "edges")):
        raise GraphError(
            f"`graph` of from_networkx must be a networkx graph, but got {type(graph).__name__}; "
            "use from_edges or from_adjacency for other things."
        )
    if graph.is_multigraph():
        raise GraphError("`graph` of from_networkx is a multigraph; convert it with networkx.DiGraph(graph).")
    nodes = list(graph.nodes)
    if not nodes:
        raise GraphError(
            "`graph` of from_networkx has no nodes, but at least one agent is needed; add nodes."
        )
    named = all(isinstance(node, int | np.integer) for node in nodes) and set(nodes) == set(range(len(nodes)))
    number = {node: node if named else index for index, node in enumerate(nodes)}
    pairs = [(number[sender], number[receiver]) for sender, receiver in graph.edges if sender != receiver]
    if not graph.is_directed():
        pairs += [(receiver, sender) for sender, receiver in pairs]
    names = None if named else [str(node) for node in nodes]
    return from_edges(len(nodes), pairs, names=names), number


def from_adjacency(matrix: Any) -> Digraph:
    """Return the digraph in which i receives from j when ``matrix[i, j]`` is not zero; the diagonal is ignored.

    Args:
        matrix: ``[n, n]``, dense or scipy sparse; row = receiver, column = sender.

    Raises:
        GraphError: The matrix is not square, or has an entry that is not a finite number.

    Example:
        >>> from_adjacency([[1, 0], [1, 1]]).edges
        ((0, 1),)
    """
    from scipy.sparse import coo_array, issparse

    entries = coo_array(matrix, copy=True) if issparse(matrix) else coo_array(_dense(matrix))
    shape: tuple[int, ...] = entries.shape or ()
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] == 0:
        raise GraphError(f"`matrix` of from_adjacency must be square and not empty, but got shape {shape}.")
    entries.sum_duplicates()
    receiver, sender = (np.asarray(coordinate, dtype=np.int64) for coordinate in entries.coords)
    _check_finite(entries.data, receiver, sender)
    kept = (entries.data != 0) & (receiver != sender)
    return Digraph(shape[0], np.stack([sender[kept], receiver[kept]], axis=1))


def _dense(matrix: Any) -> npt.NDArray[np.float64]:
    try:
        dense = np.asarray(matrix, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise GraphError(f"`matrix` of from_adjacency must be a square array of numbers ({error}).") from None
    if dense.ndim != 2:
        raise GraphError(f"`matrix` of from_adjacency must be square, but got shape {dense.shape}.")
    return dense


def _check_finite(data: npt.NDArray[Any], receiver: npt.NDArray[Any], sender: npt.NDArray[Any]) -> None:
    bad = np.flatnonzero(~np.isfinite(data))
    if bad.size:
        where = f"[{receiver[bad[0]]}, {sender[bad[0]]}]"
        raise GraphError(
            f"`matrix` of from_adjacency has {data[bad[0]]} at {where}; use 0 where there is no edge."
        )


def _checked_names(names: Any, n: int) -> tuple[str, ...]:
    given = tuple(names)
    if len(given) != n or len(set(given)) != n or not all(isinstance(name, str) and name for name in given):
        raise GraphError(
            f"`names` of Digraph must be {n} different strings that are not empty, one per agent, but got {names!r}."
        )
    return given


def _as_pairs(edges: Any) -> npt.NDArray[np.int64]:
    try:
        pairs: npt.NDArray[Any] = np.asarray(edges)
    except ValueError:
        pairs = np.empty(0, dtype=object)
    if pairs.size == 0 and pairs.dtype != object:
        return np.empty((0, 2), dtype=np.int64)
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not np.issubdtype(pairs.dtype, np.integer):
        raise GraphError(
            "`edges` of Digraph must be pairs (sender, receiver) of whole numbers, "
            f"but got {pairs.dtype} values of shape {pairs.shape}; list each edge as (sender, receiver)."
        )
    return pairs.astype(np.int64, copy=False)


def _check_edges(n: int, edges: npt.NDArray[np.int64]) -> None:
    outside = np.flatnonzero(((edges < 0) | (edges >= n)).any(axis=1))
    if outside.size:
        sender, receiver = edges[outside[0]].tolist()
        raise GraphError(
            f"`edges` of Digraph: edge ({sender}, {receiver}) names an agent that does not exist; "
            f"with n={n} agents are 0 to {n - 1}."
        )
    loops = np.flatnonzero(edges[:, 0] == edges[:, 1])
    if loops.size:
        agent = int(edges[loops[0], 0])
        raise GraphError(
            f"`edges` of Digraph: edge ({agent}, {agent}) is a self loop; self loops are implicit, "
            "so leave it out."
        )


def _sorted_unique(n: int, edges: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    keys = np.sort(_keys(n, edges))
    twice = np.flatnonzero(keys[1:] == keys[:-1])
    if twice.size:
        receiver, sender = divmod(int(keys[twice[0]]), n)
        raise GraphError(
            f"`edges` of Digraph: edge ({sender}, {receiver}) is listed more than once; list each edge once."
        )
    return _from_keys(n, keys)


def _keys(n: int, edges: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    # One number per edge, in the order (receiver, sender), sorts many times faster than pairs do.
    return edges[:, 1] * n + edges[:, 0]


def _from_keys(n: int, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.stack([keys % n, keys // n], axis=1)
