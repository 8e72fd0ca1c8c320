"""The fates of the packets of a network: which arcs carry packets, and what becomes of each."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from digrad.core.charges import Charge
from digrad.graphs import Digraph, sequence
from digrad.links import Fates, Links, Timeline
from digrad.links.fates import Part
from digrad.network import AnyNetwork, Network, step_weights


def all_arcs(network: AnyNetwork) -> Digraph:
    """Return every arc that may carry a packet: those of the graph, and of weights that bring their own."""
    members = [network] if isinstance(network, Network) else list(network.networks)
    supports = [weights.support for one in members for weights in one.given]
    return sequence([network.union, *supports]).union if supports else network.union


def numbers_among(arcs: npt.NDArray[np.integer], graph: Digraph) -> npt.NDArray[np.int64]:
    """Return the numbers of ``arcs`` ``[A, 2]`` among those of ``graph``."""
    keys = graph.arcs[:, 1] * graph.n + graph.arcs[:, 0]
    return np.searchsorted(keys, arcs[:, 1] * graph.n + arcs[:, 0])


def make_fates(
    network: AnyNetwork,
    charges: Sequence[Charge] = (),
    letters: Mapping[str, str] | None = None,
) -> Fates | None:
    """Return the fates of all packets of a run, or None on a network whose packets all arrive as sent.

    Args:
        network: On whose arcs.
        charges: What every step sends along every arc; packets weigh nothing without.
        letters: The matrix of each verb of the charges.
    """
    if not isinstance(network.links, Links):
        return None
    graph = all_arcs(network)
    parts = _parts(network, graph, charges, letters or {})
    if network.period == 1:
        churn = network.links.churn
        timeline = Timeline(churn, graph.arcs, network.n) if churn else None
        return Fates(network.links, graph.arcs, network.n, timeline=timeline, parts=parts)
    known = numbers_among(network.union.arcs, graph)

    def presence(first: int, length: int) -> npt.NDArray[np.bool_]:
        there = np.ones((length, graph.n_arcs), bool)
        there[:, known] = network.graph.presence(first, length)  # pyright: ignore[reportAttributeAccessIssue]
        return there

    return Fates(network.links, graph.arcs, network.n, presence, parts=parts)


def _parts(
    network: AnyNetwork, graph: Digraph, charges: Sequence[Charge], letters: Mapping[str, str]
) -> list[Part]:
    """Return what each array takes on each arc: one that only R uses carries nothing that is pushed."""
    turns = 1 if network.period is None else network.period
    carries = {
        verb: np.isin(
            np.arange(graph.n_arcs), numbers_among(step_weights(network, letter, 0, turns).arcs, graph)
        )
        for verb, letter in letters.items()
    }
    return [
        Part(one.short * carries[one.verb], one.full * carries[one.verb], one.starts_in_full)
        for one in charges
    ]
