"""The delivery schedule of a network: which edges carry packets, and which of them arrive when."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from digrad.core.traffic import Charge
from digrad.graphs import Digraph, sequence
from digrad.links import ChurnSchedule, DeliverySchedule
from digrad.links.delivery_schedule import Part
from digrad.network import Network, step_weights


def all_edges(network: Network) -> Digraph:
    """Return every edge that may carry a packet: those of the graph, and of weights that bring their own."""
    members = network.networks or (network,)
    supports = [weights.support for one in members for weights in one.given]
    return sequence([network.union, *supports]).union if supports else network.union


def numbers_among(edges: npt.NDArray[np.integer], graph: Digraph) -> npt.NDArray[np.int64]:
    """Return the numbers of ``edges`` ``[A, 2]`` among those of ``graph``."""
    return numbers_of_edges(edges, graph.edge_array, graph.n)


def numbers_of_edges(
    edges: npt.NDArray[np.integer], among: npt.NDArray[np.integer], n: int
) -> npt.NDArray[np.int64]:
    """Return the numbers of ``edges`` ``[A, 2]`` of n agents among others, sorted by receiver, then sender."""
    return np.searchsorted(among[:, 1] * n + among[:, 0], edges[:, 1] * n + edges[:, 0])


def make_delivery(
    network: Network,
    charges: Sequence[Charge] = (),
    matrices: Mapping[str, str] | None = None,
) -> DeliverySchedule:
    """Return the delivery schedule of a run.

    Args:
        network: An unreliable one.
        charges: What every step sends along every edge; packets weigh nothing without.
        matrices: The matrix of each primitive of the charges.
    """
    assert network.links is not None
    graph = all_edges(network)
    parts = _parts(network, graph, charges, matrices or {})
    if network.period == 1:
        events = network.links.churn
        churn = ChurnSchedule(events, graph.edge_array, network.n) if events else None
        return DeliverySchedule(network.links, graph.edge_array, network.n, churn=churn, parts=parts)
    known = numbers_among(network.union.edge_array, graph)

    def presence(first: int, length: int) -> npt.NDArray[np.bool_]:
        there = np.ones((length, graph.n_edges), bool)
        there[:, known] = network.graph.presence(first, length)  # pyright: ignore[reportAttributeAccessIssue]
        return there

    return DeliverySchedule(network.links, graph.edge_array, network.n, presence, parts=parts)


def _parts(
    network: Network, graph: Digraph, charges: Sequence[Charge], matrices: Mapping[str, str]
) -> list[Part]:
    """Return what each array takes on each edge: one that only R uses carries nothing that is pushed."""
    phases = 1 if network.period is None else network.period
    carries = {
        primitive: np.isin(
            np.arange(graph.n_edges), numbers_among(step_weights(network, matrix, 0, phases).edges, graph)
        )
        for primitive, matrix in matrices.items()
    }
    return [
        Part(one.short * carries[one.primitive], one.full * carries[one.primitive], one.starts_in_full)
        for one in charges
    ]
