"""Agents that join, leave and crash, in the simulator: a run stops before each event, and its state is repaired."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from digrad.core.net import bindings
from digrad.core.state_repair import network_of, repair, void_edges
from digrad.links import ChurnSchedule, Event
from digrad.network import Network
from digrad.simulation.loop import Params, State
from digrad.simulation.mixing import builder
from digrad.simulation.unreliable_net import Edges


def repaired(event: Event, state: State, params: Params) -> State:
    """Return where a run is after an event.

    Args:
        event: What happens.
        state: Where the run was.
        params: Those after the event, with the agents that are present then.
    """
    links, edges = state.links, params.periodic["push"]  # uniform weights: all primitives use the same edges
    assert isinstance(edges, Edges)
    ends = np.stack([edges.sender, edges.receiver], axis=1)
    pushed = next(link for link in links if link.pushed is not None)
    after = jax.tree.map(np.array, state.method_state)
    lifetime = None if pushed.lifetime is None else np.asarray(pushed.lifetime)
    repair(event, after, ends, np.asarray(params.present), np.asarray(pushed.undelivered), lifetime)
    void = void_edges(event, ends)
    return state._replace(
        method_state=jax.tree.map(jnp.asarray, after), links=tuple(link.without(void) for link in links)
    )


def phases(
    params: Params, network: Network, churn: ChurnSchedule, dtype: np.dtype[Any]
) -> tuple[Params, ...]:
    """Return the parameters before the first agent joins or leaves, and those after each event."""
    found = []
    for phase, present in enumerate(churn.present):
        weights = jnp.asarray(churn.weights(phase), dtype)
        now, build = network_of(network, present), builder(network)
        periodic = {name: build(now, matrix, 0, 1, dtype) for name, matrix in bindings(params.method).items()}
        found.append(params._replace(periodic=periodic, u=weights, v=weights, present=jnp.asarray(present)))
    return tuple(found)
