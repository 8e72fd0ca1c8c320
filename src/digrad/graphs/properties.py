"""Properties of a digraph: connectivity, roots, distances and degrees."""

import numpy as np
import numpy.typing as npt

from digrad.graphs.digraph import Digraph

DIAMETER_LIMIT = 2000  # one search per agent: beyond this size it takes too long


def is_strongly_connected(graph: Digraph) -> bool:
    """Return whether every agent can reach every other along edges.

    Example:
        >>> from digrad.graphs import out_star, ring
        >>> is_strongly_connected(ring(4)), is_strongly_connected(out_star(4))
        (True, False)
    """
    return int(strong_components(graph).max()) == 0


def strong_components(graph: Digraph) -> npt.NDArray[np.int64]:
    """Return the strong component of each agent, ``[n]``, numbered from 0 in the order of their first agents.

    Example:
        >>> from digrad.graphs import from_edges
        >>> strong_components(from_edges(4, [(0, 1), (1, 0), (1, 2), (2, 3), (3, 2)]))
        array([0, 0, 1, 1])
    """
    from scipy.sparse.csgraph import connected_components

    _, labels = connected_components(graph.to_adjacency(), directed=True, connection="strong")
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    return rank[inverse]


def roots(graph: Digraph) -> npt.NDArray[np.int64]:
    """Return, in ascending order, the agents from which all others can be reached; may be empty.

    They are the members of the only strong component without edges from outside itself, if it is the only one.

    Example:
        >>> from digrad.graphs import out_star
        >>> roots(out_star(4)), roots(out_star(4).reversed())
        (array([0]), array([], dtype=int64))
    """
    component = strong_components(graph)
    sender, receiver = component[graph.edge_array].T
    has_senders = np.zeros(component.max() + 1, dtype=bool)
    has_senders[receiver[sender != receiver]] = True
    sources = np.flatnonzero(~has_senders)
    return np.flatnonzero(component == sources[0]) if len(sources) == 1 else np.empty(0, dtype=np.int64)


def sinks(graph: Digraph) -> npt.NDArray[np.int64]:
    """Return, in ascending order, the agents that can be reached from all others; may be empty.

    Example:
        >>> from digrad.graphs import out_star
        >>> sinks(out_star(4)), sinks(out_star(4).reversed())
        (array([], dtype=int64), array([0]))
    """
    return roots(graph.reversed())


def degree_imbalance(graph: Digraph) -> int:
    """Return the largest difference between an agent's in-degree and out-degree; 0 for a balanced digraph."""
    return int(np.abs(graph.in_degree - graph.out_degree).max())


def diameter(graph: Digraph) -> int | None:
    """Return the largest number of edges on a shortest path between two agents.

    Exact, by a search from each agent; ``None`` if the graph is not strongly connected, or has
    more than 2000 agents.

    Example:
        >>> from digrad.graphs import exponential, ring
        >>> diameter(ring(8)), diameter(exponential(8))
        (7, 3)
    """
    if graph.n > DIAMETER_LIMIT or not is_strongly_connected(graph):
        return None
    if graph.n_edges == graph.n * (graph.n - 1):
        return min(1, graph.n_edges)
    from scipy.sparse.csgraph import shortest_path

    return int(shortest_path(graph.to_adjacency(), unweighted=True).max())


def unreachable_pair(graph: Digraph) -> tuple[int, int] | None:
    """Return agents (a, b) such that b cannot be reached from a; ``None`` if the graph is strongly connected.

    Example:
        >>> from digrad.graphs import out_star
        >>> unreachable_pair(out_star(3))
        (1, 0)
    """
    receivers_of_0, senders_to_0 = _reachable(graph), _reachable(graph.reversed())
    if not receivers_of_0.all():
        return 0, int(np.argmin(receivers_of_0))
    if not senders_to_0.all():
        return int(np.argmin(senders_to_0)), 0
    return None


def _reachable(graph: Digraph) -> npt.NDArray[np.bool_]:
    from scipy.sparse.csgraph import breadth_first_order

    reached = np.zeros(graph.n, dtype=bool)
    reached[breadth_first_order(graph.to_adjacency().T.tocsr(), 0, return_predecessors=False)] = True
    return reached
