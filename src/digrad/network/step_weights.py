"""The weights of several iterations at once, on common edges."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from digrad.graphs import Digraph, GraphSequence, sequence
from digrad.network.network import Network
from digrad.network.weights import Mixing


class StepWeights(NamedTuple):
    """The weights of several iterations on common edges; absent edges have weight zero."""

    edges: npt.NDArray[np.int64]  # [A, 2] sender, receiver
    weight: npt.NDArray[np.float64]  # [steps, A]
    own: npt.NDArray[np.float64]  # [steps, n], the diagonals


def step_weights(network: Network, name: str, first: int, length: int) -> StepWeights:
    """Return the weights ``R``, ``C`` or ``W`` of the iterations first, ..., first + length - 1.

    Example:
        >>> from digrad.graphs import every, ring
        >>> step_weights(Network(every(2, ring(3))), "R", 0, 2).weight
        array([[0.5, 0.5, 0.5], [0. , 0. , 0. ]])
    """
    if isinstance(network.graph, GraphSequence) and not network.networks and name != "W":
        return _uniform(network.graph, name, first, length)
    members = [getattr(network.at(k), name) for k in range(first, first + length)]
    # The edges of the whole period, so that they are the same whichever iterations are asked for.
    phases = (
        members if network.period is None else [getattr(network.at(k), name) for k in range(network.period)]
    )
    return _gathered(sequence([one.support for one in phases]).union, members)


def _uniform(graphs: GraphSequence, name: str, first: int, length: int) -> StepWeights:
    there = graphs.presence(first, length)
    sender, receiver = graphs.union.edge_array.T
    end = receiver if name == "R" else sender  # who divides by its degree
    degree = np.stack([np.bincount(end[row], minlength=graphs.n) for row in there])
    share = 1.0 / (degree + 1)
    return StepWeights(graphs.union.edge_array, np.where(there, share[:, end], 0.0), share)


def _gathered(union: Digraph, members: Sequence[Mixing]) -> StepWeights:
    sender, receiver = union.edge_array.T
    weight = [
        np.asarray(one.matrix[receiver, sender]).ravel() if union.n_edges else np.zeros(0) for one in members
    ]
    own = np.stack([one.matrix.diagonal() for one in members]).astype(np.float64)
    return StepWeights(union.edge_array, np.stack(weight), own)
