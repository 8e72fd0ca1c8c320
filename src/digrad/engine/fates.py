"""The fates of the packets of a network: which arcs carry packets, and what becomes of each."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from digrad.errors import ArgumentError
from digrad.graphs import Digraph, sequence
from digrad.links import Event, Fates, Links, Timeline
from digrad.mixing import AnyNetwork, Network
from digrad.types import Method


def all_arcs(network: AnyNetwork) -> Digraph:
    """Return every arc that may carry a packet: those of the graph, and of weights that bring their own."""
    members = [network] if isinstance(network, Network) else list(network.networks)
    supports = [weights.support for one in members for weights in one.given]
    return sequence([network.union, *supports]).union if supports else network.union


def numbers_among(arcs: npt.NDArray[np.integer], graph: Digraph) -> npt.NDArray[np.int64]:
    """Return the numbers of ``arcs`` ``[A, 2]`` among those of ``graph``."""
    keys = graph.arcs[:, 1] * graph.n + graph.arcs[:, 0]
    return np.searchsorted(keys, arcs[:, 1] * graph.n + arcs[:, 0])


def make_fates(network: AnyNetwork, churn: Sequence[Event] = (), packet: int = 0) -> Fates | None:
    """Return the fates of all packets of a run, or None on a network whose packets all arrive as sent.

    Args:
        network: On whose arcs.
        churn: Which agents go and come.
        packet: The bytes of a packet, where a deadline decides what is late; see :func:`packet_bytes`.
    """
    if not isinstance(network.links, Links):
        return None
    graph = all_arcs(network)
    if network.period == 1:
        timeline = Timeline(churn, graph.arcs, network.n) if churn else None
        return Fates(network.links, graph.arcs, network.n, timeline=timeline, packet=packet)
    known = numbers_among(network.union.arcs, graph)

    def presence(first: int, length: int) -> npt.NDArray[np.bool_]:
        there = np.ones((length, graph.n_arcs), bool)
        there[:, known] = network.graph.presence(first, length)  # pyright: ignore[reportAttributeAccessIssue]
        return there

    return Fates(network.links, graph.arcs, network.n, presence, packet=packet)


def packet_bytes(method: Method, network: AnyNetwork, dimension: int, itemsize: int) -> int:
    """Return the bytes of a packet, as the method declares its traffic, where a deadline makes them matter; else 0.

    Args:
        method: What is sent.
        network: With which links.
        dimension: Numbers per agent, and
        itemsize: the bytes of each.

    Raises:
        ArgumentError: The method does not declare its traffic.
    """
    links = network.links
    if (
        not (isinstance(links, Links) and links.clock and links.is_timed)
        or np.isinf(links.clock.bandwidth).all()
    ):
        return 0
    declared = getattr(method, "traffic", None)
    if not (isinstance(declared, tuple) and all(isinstance(count, int) for count in declared)):
        raise ArgumentError(
            f"`bandwidth` of Clock with a deadline needs the size of packets, but {type(method).__name__} does not "
            "declare it; give the method `traffic`, or leave out bandwidth."
        )
    vectors, numbers = declared
    full = dimension * itemsize
    short = full if links.coder is None else min(full, links.coder.wire_bytes(dimension, itemsize))
    return vectors * short + numbers * itemsize
