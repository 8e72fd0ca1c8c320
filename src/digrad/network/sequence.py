"""Weights that change with the iteration: a list of networks in turn, and all weights of several iterations at once."""

import hashlib
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from digrad.errors import ArgumentError, MixingError
from digrad.graphs import Digraph, GraphSequence, roots, sequence, sinks, unreachable_pair
from digrad.links import Links, check_links
from digrad.network.network import Network, of_union
from digrad.network.summary import NetworkSummary
from digrad.network.validation import Connectivity, check_connectivity, no_root, no_sink, not_strong
from digrad.network.weights import KINDS, Mixing


@dataclass(frozen=True, eq=False, repr=False)
class NetworkSequence:
    """Networks in turn: iteration k mixes with number k mod P of the P given.

    Args:
        networks: Each with weights of its own. One whose edges do not connect the agents alone is made with
            ``Network(graph, R=..., C=..., partial=True)``; together they must.
        links: Unreliable or compressed links; by default messages arrive as sent.

    Raises:
        MixingError: Not even all edges together connect the agents.

    Example:
        >>> from digrad.graphs import from_edges
        >>> there, back = from_edges(2, [(0, 1)]), from_edges(2, [(1, 0)])
        >>> turns = NetworkSequence([Network(there, partial=True), Network(back, partial=True)])
        >>> turns.at(3).R.toarray()
        array([[0.5, 0.5], [0. , 1. ]])
    """

    networks: tuple[Network, ...]
    links: Links | None

    def __init__(self, networks: Sequence[Network], *, links: Links | None = None) -> None:
        """Check that they fit together."""
        members = tuple(networks) if isinstance(networks, Sequence) else ()
        if not members or not all(isinstance(one, Network) and one.period == 1 for one in members):
            kinds = " and ".join(sorted({type(one).__name__ for one in members})) or "nothing"
            got = f"a list of {kinds}" if isinstance(networks, Sequence) else type(networks).__name__
            raise ArgumentError(
                f"`networks` of NetworkSequence must be a list of networks of one graph each, but got {got}."
            )
        if len({one.n for one in members}) > 1:
            raise ArgumentError(
                "`networks` of NetworkSequence must have the same agents, but have "
                f"{[one.n for one in members]}."
            )
        linked = [turn for turn, one in enumerate(members) if one.links is not None]
        if linked:
            raise ArgumentError(
                f"`networks` of NetworkSequence: number {linked[0]} has links of its own, but all share those of the "
                "sequence; pass links=... to NetworkSequence."
            )
        check_links(links, members[0].n, "NetworkSequence")
        object.__setattr__(self, "networks", members)
        object.__setattr__(self, "links", links)
        heard = _together([one.R for one in members])
        if not roots(heard).size:
            raise MixingError(f"`networks` of NetworkSequence: {no_root(heard)}; add edges to one of them.")

    def __repr__(self) -> str:
        """Return the sizes."""
        return f"NetworkSequence(n={self.n}, period={self.period})"

    @property
    def n(self) -> int:
        """Number of agents."""
        return self.networks[0].n

    @property
    def period(self) -> int:
        """Iterations after which the networks repeat."""
        return len(self.networks)

    @cached_property
    def graph(self) -> GraphSequence:
        """The digraphs in turn."""
        return sequence([one.union for one in self.networks])

    @property
    def union(self) -> Digraph:
        """All edges that are ever used."""
        return self.graph.union

    @property
    def is_random(self) -> bool:
        """Whether what happens to messages is drawn."""
        return self.links is not None and self.links.is_random

    def with_seed(self, seed: int) -> "NetworkSequence":
        """Return the networks as a run with this seed meets them; see :meth:`Network.with_seed`."""
        if seed == 0 or not (self.links is not None and self.links.is_random):
            return self
        other = copy(self)
        object.__setattr__(other, "links", self.links.with_seed(seed))
        return other

    def at(self, k: int) -> Network:
        """Return the network of iteration k."""
        return self.networks[k % self.period]

    @property
    def content_hash(self) -> str:
        """SHA-256 of all networks, in hexadecimal."""
        return hashlib.sha256(
            " ".join([*(one.content_hash for one in self.networks), repr(self.links)]).encode()
        ).hexdigest()

    def require(self, needs: frozenset[str], owner: str, connectivity: Connectivity = "root") -> None:
        """Make sure, before the first step, that every network has the weights a method mixes with.

        Args:
            needs: As for :meth:`Network.require`, and so are the others.
            owner: The method's name, for the message.
            connectivity: How all edges together must connect the agents.

        Raises:
            MixingError: One lacks them, or all edges together do not connect the agents.
        """
        for one in self.networks:
            one.require(needs, owner)
        used = {
            need: _together([getattr(one, KINDS[need].matrix) for one in self.networks])
            for need in KINDS
            if need in needs
        }
        if "column" in used and not sinks(used["column"]).size:
            raise MixingError(
                f"`networks` of NetworkSequence: {no_sink(used['column'])}; give weight to more edges of one of them."
            )
        if "doubly" in used and unreachable_pair(used["doubly"]) is not None:
            raise MixingError(
                f"`networks` of NetworkSequence: {not_strong(used['doubly'])}; give weight to more edges of one."
            )
        check_connectivity(
            {need: used[need] for need in ("row", "column") if need in used}, owner, connectivity
        )

    def describe(self) -> NetworkSummary:
        """Return the figures of the union of all edges, with uniform weights."""
        return of_union(self.union, self.period)


AnyNetwork: TypeAlias = Network | NetworkSequence


class StepWeights(NamedTuple):
    """The weights of several iterations on common edges; absent edges have weight zero."""

    edges: npt.NDArray[np.int64]  # [A, 2] sender, receiver
    weight: npt.NDArray[np.float64]  # [steps, A]
    own: npt.NDArray[np.float64]  # [steps, n], the diagonals


def step_weights(network: AnyNetwork, name: str, first: int, length: int) -> StepWeights:
    """Return the weights ``R``, ``C`` or ``W`` of the iterations first, ..., first + length - 1.

    Example:
        >>> from digrad.graphs import every, ring
        >>> step_weights(Network(every(2, ring(3))), "R", 0, 2).weight
        array([[0.5, 0.5, 0.5], [0. , 0. , 0. ]])
    """
    if isinstance(network, Network) and isinstance(network.graph, GraphSequence) and name != "W":
        return _uniform(network.graph, name, first, length)
    members = [getattr(network.at(k), name) for k in range(first, first + length)]
    # The edges of the whole period, so that they are the same whichever iterations are asked for.
    turns = (
        members if network.period is None else [getattr(network.at(k), name) for k in range(network.period)]
    )
    return _gathered(_together(turns), members)


def edges_used(network: AnyNetwork, name: str, first: int, length: int) -> npt.NDArray[np.int64]:
    """Return how many edges carry a message with the weights ``name`` at each of the iterations, ``[length]``."""
    if network.period == 1:
        matrix = getattr(network.at(0), name).matrix
        return np.full(length, matrix.nnz - np.count_nonzero(matrix.diagonal()))
    return (step_weights(network, name, first, length).weight != 0).sum(axis=1)


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


def _together(members: Sequence[Mixing]) -> Digraph:
    return sequence([one.support for one in members]).union
