"""Agents that go and come, in the simulator: between two steps, arrays are edited and weights exchanged.

What must hold afterwards: the trackers and what is owed add up to the gradients of the agents that remain.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from digrad.errors import ArgumentError
from digrad.graphs import Digraph, GraphSequence, unreachable_pair
from digrad.links import Crash, Event, Join, Leave, Links, Timeline
from digrad.mixing import AnyNetwork, Network
from digrad.simulation.advance import Carry
from digrad.simulation.arcs import Arcs
from digrad.simulation.fated_net import Call, outstanding


def check_churn(churn: Sequence[Event], method: Any, network: AnyNetwork, name: str) -> None:
    """Raise unless agents of this network may go and come while this method, called ``name``, runs."""
    if not churn:
        return
    if not all(isinstance(event, Leave | Crash | Join) for event in churn):
        raise ArgumentError(
            f"`churn` of simulate must be a list of Leave, Crash and Join of digrad.links, but got {churn!r}."
        )
    if method.needs != {"row", "column"}:
        raise ArgumentError(
            f"`churn` of simulate needs a method with row and column weights, such as CGT, but got {name}, whose books "
            "cannot be repaired."
        )
    if not isinstance(network, Network) or not isinstance(network.graph, Digraph) or network.given:
        raise ArgumentError(
            "`churn` of simulate needs a network of one graph with uniform weights, which the agents recompute."
        )
    if not isinstance(network.links, Links) or network.links.push != "sum":
        raise ArgumentError(
            '`churn` of simulate needs links that say what is owed; give Network(graph, links=Links(push="sum")).'
        )
    timeline = Timeline(churn, network.graph.arcs, network.n)
    _check_ledgers(timeline, network.graph)
    for event, present in zip((None, *timeline.events), timeline.present, strict=True):
        _check_connected(network.graph, present, "at first" if event is None else f"after {event}")


def network_of(network: Network, present: Any) -> Network:
    """Return the network of those who are there, on the arcs of all."""
    assert isinstance(network.graph, Digraph)
    there = present[network.graph.arcs].all(axis=1)
    return Network(GraphSequence(network.graph, there[None]), links=network.links)


def happen(event: Event, carry: Carry, arcs: dict[str, Arcs], present: Any) -> Carry:
    """Return where a run is after an event.

    Args:
        event: What happens.
        carry: Where the run was.
        arcs: By verb.
        present: Who is there afterwards.
    """
    state, calls = carry.state, list(carry.links)
    x, y, g = (np.array(getattr(state, field)) for field in ("x", "y", "g"))
    pushed = next(i for i, call in enumerate(calls) if call.owed is not None)
    sender, receiver = np.asarray(arcs["push"].sender), np.asarray(arcs["push"].receiver)
    owed = np.asarray(outstanding(calls[pushed]))
    agent = event.agent
    into, out = receiver == agent, sender == agent
    if isinstance(event, Join):
        hears = [s for s in sender[into].tolist() if present[s] and s != agent]
        x[agent] = x[hears[0]]
    elif isinstance(event, Leave):
        np.add.at(y, sender[into], owed[into])
        np.add.at(y, receiver[out], owed[out])
        heir = min(r for r in receiver[out].tolist() if present[r])
        y[heir] += y[agent] - g[agent]
    elif event.repair == "ledger":
        sums = np.asarray(calls[pushed].lifetime)
        np.add.at(y, sender[into], sums[into])
        np.subtract.at(y, receiver[out], (sums - owed)[out])
    else:
        y[:], g[:] = 0, 0
    y[agent] = g[agent] = 0
    is_anew = isinstance(event, Crash) and event.repair == "restart"
    calls = [_forget(call, arcs, agent, is_anew=is_anew) for call in calls]
    return carry._replace(
        state=state._replace(x=jnp.asarray(x), y=jnp.asarray(y), g=jnp.asarray(g)), links=tuple(calls)
    )


def _forget(call: Call, arcs: dict[str, Arcs], agent: int, *, is_anew: bool) -> Call:
    """Return what is remembered of an array when the arcs of an agent begin anew, or all arcs do."""
    one = next(iter(arcs.values()))  # uniform weights: all verbs use the same arcs
    void = (one.sender == agent) | (one.receiver == agent) | is_anew

    def clear(rows: Any) -> Any:
        return None if rows is None else jnp.where(void.reshape(-1, *[1] * (rows.ndim - 1)), 0, rows)

    since = call.since
    return call._replace(
        owed=clear(call.owed),
        settled=None if call.settled is None else call.settled & ~void,
        inbox=clear(call.inbox),
        lifetime=clear(call.lifetime),
        new=None if call.new is None else call.new & ~void,
        since=None if since is None else jnp.where(void[None, :, None], 0, since),
    )


def _check_ledgers(timeline: Timeline, graph: Digraph) -> None:
    """Raise if a ledger is incomplete: what an agent exchanged with a neighbour that has left is in nobody's books."""
    for number, event in enumerate(timeline.events):
        if not (isinstance(event, Crash) and event.repair == "ledger"):
            continue
        near = set(graph.arcs[(graph.arcs == event.agent).any(axis=1)].ravel().tolist())
        for before in reversed(timeline.events[:number]):
            begins_anew = isinstance(before, Crash) and before.repair == "restart"
            if begins_anew or (isinstance(before, Join) and before.agent == event.agent):
                break
            if isinstance(before, Leave) and before.agent in near:
                raise ArgumentError(
                    f"`churn` of simulate: {event} cannot be repaired by ledger, because its neighbour {before.agent} "
                    f'has left at {before.at} with part of the books; use repair="restart".'
                )


def _check_connected(graph: Digraph, present: Any, when: str) -> None:
    agents = np.flatnonzero(present)
    place = np.cumsum(present) - 1
    arcs = graph.arcs[present[graph.arcs].all(axis=1)]
    pair = unreachable_pair(Digraph(len(agents), place[arcs])) if len(agents) > 1 else None
    if len(agents) < 2 or pair is not None:
        who = "fewer than two agents are there"
        if pair is not None:
            who = f"agent {agents[pair[0]]} cannot reach agent {agents[pair[1]]}"
        raise ArgumentError(f"`churn` of simulate: {when} {who}; add arcs, or let others go.")


def phases(run: Any, network: Network, operators: Callable[[Network], dict[str, Any]]) -> list[Any]:
    """Return a prepared run for the time before the first event, and one for the time after each."""
    timeline = run.fates.timeline
    found = []
    for present in timeline.present:
        weights = jnp.asarray(present * (network.n / present.sum()), run.dtype)
        fixed = run.fixed._replace(
            turns=operators(network_of(network, present)), u=weights, v=weights, present=jnp.asarray(present)
        )
        found.append(dataclasses.replace(run, fixed=fixed))
    return found


def arcs_of(run: Any) -> dict[str, Arcs]:
    """Return the arcs of a prepared run, by verb."""
    return jax.tree.map(lambda one: one.at(0), run.fixed.turns, is_leaf=lambda one: isinstance(one, Arcs))
