"""Agents that join, leave and crash, in the simulator: a run stops before each event, and its state is repaired."""

import jax
import jax.numpy as jnp
import numpy as np

from digrad.core.repair import repair, void_edges
from digrad.links import Event
from digrad.simulation.edge_mixing import Edges
from digrad.simulation.loop import Params, State


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
