"""Churn, agents that join, leave and crash: when that is possible, the network in between, the state afterwards.

What must hold after an event: trackers and undelivered mass add up to the gradients of the agents that remain.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from digrad.errors import ArgumentError
from digrad.graphs import Digraph, GraphSequence, unreachable_pair
from digrad.links import ChurnSchedule, Crash, Event, Join, Leave, Links
from digrad.network import Network


def check_churn(method: Any, network: Network, name: str, owner: str) -> None:
    """Raise unless agents may join and leave, as the links say, while this method, called ``name``, runs."""
    links = network.links
    if not isinstance(links, Links) or not links.churn:
        return
    if method.needs != {"row", "column"}:
        raise ArgumentError(
            f"`churn` of {owner} needs a method with row and column weights, such as CGT, but got {name}, whose "
            "state cannot be repaired."
        )
    if not isinstance(network.graph, Digraph) or network.given:
        raise ArgumentError(
            f"`churn` of {owner} needs a network of one graph with uniform weights, which the agents recompute."
        )
    if links.push != "sum":
        raise ArgumentError(
            f'`churn` of {owner} needs links that keep undelivered mass; give Links(push="sum", churn=...).'
        )
    churn = ChurnSchedule(links.churn, network.graph.edge_array, network.n, owner)
    _check_undo(churn, network.graph, owner)
    for event, present in zip((None, *churn.events), churn.present, strict=True):
        _check_connected(network.graph, present, "at first" if event is None else f"after {event}", owner)


def network_of(network: Network, present: Any) -> Network:
    """Return the network of those who are there, on the edges of all."""
    assert isinstance(network.graph, Digraph)
    there = present[network.graph.edge_array].all(axis=1)
    assert isinstance(network.links, Links)
    return Network(GraphSequence(network.graph, there[None]), links=replace(network.links, churn=()))


def repair(event: Event, state: Any, edges: Any, present: Any, undelivered: Any, lifetime: Any) -> None:
    """Let an event happen to a state, in place.

    Args:
        event: What happens.
        state: ``x``, ``y`` and ``g``, ``[n, d]`` each, of numpy or torch.
        edges: ``[A, 2]`` sender and receiver.
        present: Who is there afterwards, ``[n]``.
        undelivered: ``[A, d]``, pushed and not yet received.
        lifetime: ``[A, d]``, everything ever pushed; used where a crash is undone.
    """
    x, y, g, agent = state.x, state.y, state.g, event.agent
    (sender, receiver), (into, out) = (
        edges.T,
        (np.flatnonzero(end == agent).tolist() for end in edges.T[::-1]),
    )
    senders, receivers = sender[into].tolist(), receiver[out].tolist()  # no agent twice
    if isinstance(event, Join):
        x[agent] = x[min(s for s in senders if present[s])]
    elif isinstance(event, Leave):
        y[senders] += undelivered[into]
        y[receivers] += undelivered[out]
        y[min(r for r in receivers if present[r])] += y[agent] - g[agent]
    elif event.repair == "undo":
        y[senders] += lifetime[into]
        y[receivers] -= lifetime[out] - undelivered[out]
    else:
        y[:], g[:] = 0, 0
    y[agent] = g[agent] = 0


def void_edges(event: Event, edges: Any) -> Any:
    """Return which edges begin anew after an event, ``[A]``: those of its agent, or all."""
    is_anew = isinstance(event, Crash) and event.repair == "restart"
    return (edges == event.agent).any(axis=1) | is_anew


def _check_undo(churn: ChurnSchedule, graph: Digraph, owner: str) -> None:
    """Raise if a crash cannot be undone: what the agent exchanged with a neighbour that has left is known to nobody."""
    for number, event in enumerate(churn.events):
        if not (isinstance(event, Crash) and event.repair == "undo"):
            continue
        near = set(graph.edge_array[(graph.edge_array == event.agent).any(axis=1)].ravel().tolist())
        for before in reversed(churn.events[:number]):
            begins_anew = isinstance(before, Crash) and before.repair == "restart"
            if begins_anew or (isinstance(before, Join) and before.agent == event.agent):
                break
            if isinstance(before, Leave) and before.agent in near:
                raise ArgumentError(
                    f"`churn` of {owner}: {event} cannot be undone, because its neighbour {before.agent} "
                    f'left at {before.at} and took its part of what they exchanged along; use repair="restart".'
                )


def _check_connected(graph: Digraph, present: Any, when: str, owner: str) -> None:
    agents = np.flatnonzero(present)
    place = np.cumsum(present) - 1
    edges = graph.edge_array[present[graph.edge_array].all(axis=1)]
    pair = unreachable_pair(Digraph(len(agents), place[edges])) if len(agents) > 1 else None
    if len(agents) < 2 or pair is not None:
        who = "fewer than two agents are there"
        if pair is not None:
            who = f"agent {agents[pair[0]]} cannot reach agent {agents[pair[1]]}"
        raise ArgumentError(f"`churn` of {owner}: {when} {who}; add edges, or choose other agents.")
