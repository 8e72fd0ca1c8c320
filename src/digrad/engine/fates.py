"""The fates of the packets of a network: which arcs carry packets, and what becomes of each."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from digrad.graphs import Digraph, sequence
from digrad.links import Event, Fates, Links, Timeline
from digrad.mixing import AnyNetwork, Network


def all_arcs(network: AnyNetwork) -> Digraph:
    """Return every arc that may carry a packet: those of the graph, and of weights that bring their own."""
    members = [network] if isinstance(network, Network) else list(network.networks)
    supports = [weights.support for one in members for weights in one.given]
    return sequence([network.union, *supports]).union if supports else network.union


def numbers_among(arcs: npt.NDArray[np.integer], graph: Digraph) -> npt.NDArray[np.int64]:
    """Return the numbers of ``arcs`` ``[A, 2]`` among those of ``graph``."""
    keys = graph.arcs[:, 1] * graph.n + graph.arcs[:, 0]
    return np.searchsorted(keys, arcs[:, 1] * graph.n + arcs[:, 0])


def make_fates(network: AnyNetwork, churn: Sequence[Event] = ()) -> Fates | None:
    """Return the fates of all packets of a run, or None on a network whose packets all arrive as sent."""
    if not isinstance(network.links, Links):
        return None
    graph = all_arcs(network)
    if network.period == 1:
        timeline = Timeline(churn, graph.arcs, network.n) if churn else None
        return Fates(network.links, graph.arcs, network.n, timeline=timeline)
    known = numbers_among(network.union.arcs, graph)

    def presence(first: int, length: int) -> npt.NDArray[np.bool_]:
        there = np.ones((length, graph.n_arcs), bool)
        there[:, known] = network.graph.presence(first, length)  # pyright: ignore[reportAttributeAccessIssue]
        return there

    return Fates(network.links, graph.arcs, network.n, presence)
