"""Agents that go and come, in the simulator: between two steps, arrays are edited and weights exchanged."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from digrad.core.churn import network_of, repair, void_arcs
from digrad.links import Event
from digrad.network import Network
from digrad.simulation.arcs import Arcs
from digrad.simulation.loop import Carry
from digrad.simulation.unreliable import Call, outstanding


def happen(event: Event, carry: Carry, arcs: dict[str, Arcs], present: Any) -> Carry:
    """Return where a run is after an event.

    Args:
        event: What happens.
        carry: Where the run was.
        arcs: By verb.
        present: Who is there afterwards.
    """
    calls, one = carry.links, arcs["push"]  # uniform weights: all verbs use the same arcs
    ends = np.stack([one.sender, one.receiver], axis=1)
    pushed = next(call for call in calls if call.owed is not None)
    state = jax.tree.map(np.array, carry.state)
    lifetime = None if pushed.lifetime is None else np.asarray(pushed.lifetime)
    repair(event, state, ends, present, np.asarray(outstanding(pushed)), lifetime)
    void = void_arcs(event, ends)
    return carry._replace(
        state=jax.tree.map(jnp.asarray, state), links=tuple(_forget(call, void) for call in calls)
    )


def _forget(call: Call, void: Any) -> Call:
    """Return what is remembered of an array when some arcs begin anew."""

    def clear(rows: Any) -> Any:
        return None if rows is None else jnp.where(void.reshape(-1, *[1] * (rows.ndim - 1)), 0, rows)

    return call._replace(
        owed=clear(call.owed),
        settled=None if call.settled is None else call.settled & ~void,
        inbox=clear(call.inbox),
        lifetime=clear(call.lifetime),
        new=None if call.new is None else call.new & ~void,
    )


def phases(run: Any, network: Network, operators: Callable[[Network], dict[str, Any]]) -> list[Any]:
    """Return a prepared run for the time before the first event, and one for the time after each."""
    timeline = run.fates.timeline
    found = []
    for phase, present in enumerate(timeline.present):
        weights = jnp.asarray(timeline.weights(phase), run.dtype)
        fixed = run.fixed._replace(
            turns=operators(network_of(network, present)), u=weights, v=weights, present=jnp.asarray(present)
        )
        found.append(dataclasses.replace(run, fixed=fixed))
    return found


def arcs_of(run: Any) -> dict[str, Arcs]:
    """Return the arcs of a prepared run, by verb."""
    return jax.tree.map(lambda one: one.at(0), run.fixed.turns, is_leaf=lambda one: isinstance(one, Arcs))
