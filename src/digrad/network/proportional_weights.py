"""Weights in proportion to numbers on the edges, such as the capacities of a networkx graph."""

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, diags_array

from digrad.graphs import Digraph, from_adjacency
from digrad.graphs.digraph import numbered
from digrad.network.validation import as_weights


def proportions(numbers: Any, owner: str) -> tuple[Digraph, csr_array]:
    """Return the digraph of positive numbers on edges, and the numbers ``[n, n]`` (receiver, sender).

    Args:
        numbers: ``[n, n]``, dense or scipy sparse, or a networkx graph, whose edges count by their ``weight``, or 1.
        owner: How error messages call them.
    """
    if not hasattr(numbers, "is_multigraph"):
        matrix = as_weights(numbers, owner)
        return from_adjacency(matrix), matrix
    graph, number = numbered(numbers)
    edges = [(number[u], number[v], weight) for u, v, weight in numbers.edges(data="weight", default=1)]
    if not numbers.is_directed():
        edges += [(v, u, weight) for u, v, weight in edges if u != v]
    sender, receiver, weight = zip(*edges, strict=True) if edges else ((), (), ())
    matrix = as_weights(csr_array((weight, (receiver, sender)), shape=(graph.n, graph.n)), owner)
    return graph, matrix


def scaled(numbers: csr_array, axis: int) -> csr_array:
    """Return the numbers divided by their sums along an axis: 1 makes rows, 0 columns sum to one.

    An agent whose own number is missing counts itself by the mean of the others, so that equal numbers give uniform
    weights.
    """
    own = numbers.diagonal()
    total, count = numbers.sum(axis=axis), np.bincount(numbers.nonzero()[1 - axis], minlength=own.size)
    mean = np.divide(total, count, out=np.ones_like(total), where=count > 0)
    filled = csr_array(numbers + diags_array(np.where(own > 0, 0.0, mean)))
    share: npt.NDArray[np.float64] = 1 / filled.sum(axis=axis)
    return csr_array(diags_array(share) @ filled if axis == 1 else filled @ diags_array(share))
