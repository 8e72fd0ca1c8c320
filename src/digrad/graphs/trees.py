"""Spanning trees: the fewest edges with paths from all agents to one, and from it to all."""

from typing import NamedTuple

import numpy as np

from digrad import checks
from digrad.errors import ArgumentError
from digrad.graphs.digraph import Digraph
from digrad.graphs.properties import roots, sinks


class SpanningTrees(NamedTuple):
    """Two trees with one root: along ``outward`` it reaches all others, along ``inward`` all others reach it."""

    outward: Digraph
    inward: Digraph


def spanning_trees(graph: Digraph, root: int = 0) -> SpanningTrees:
    """Return two spanning trees of a digraph with a common root, by breadth-first search: as shallow as can be.

    Methods with row- and column-stochastic weights need no more: R on the outward tree, C on the inward one, n - 1
    messages each. The root then decides alone, and a step counts n times as much (see ``Network.gain``).

    Args:
        graph: The edges that may be used.
        root: The agent that reaches all others and that all others reach.

    Raises:
        ArgumentError: The root is no such agent of the graph.

    Example:
        >>> import digrad as dg
        >>> trees = spanning_trees(dg.graphs.example5(), root=0)
        >>> trees.outward.edges, trees.inward.edges
        (((0, 1), (0, 2), (2, 3), (1, 4)), ((4, 0), (2, 3), (1, 4), (3, 4)))
        >>> network = dg.Network(
        ...     dg.graphs.example5(),
        ...     R=dg.network.row_stochastic(trees.outward),
        ...     C=dg.network.column_stochastic(trees.inward),
        ... )
        >>> network.u, network.gain
        (array([5., 0., 0., 0., 0.]), 5.0)
    """
    root = checks.count(root, "root", "spanning_trees", minimum=0, maximum=graph.n - 1)
    for found, what in ((roots(graph), "reaches all others"), (sinks(graph), "is reached by all others")):
        if root not in found:
            raise ArgumentError(
                f"`root` of spanning_trees must be an agent that {what}, but agent {root} is not; "
                + (
                    f"those that are: {', '.join(map(str, found[:10].tolist()))}."
                    if found.size
                    else "no agent is."
                )
            )
    return SpanningTrees(_outward(graph, root), _outward(graph.reversed(), root).reversed())


def _outward(graph: Digraph, root: int) -> Digraph:
    from scipy.sparse.csgraph import breadth_first_order

    order, parent = breadth_first_order(graph.to_adjacency().T.tocsr(), root)
    others = order[1:]
    return Digraph(graph.n, np.column_stack([parent[others], others]), names=graph.names)
