"""Agents that join, leave and crash, in the simulator: a run stops before each event, and its state is repaired."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from digrad.core.repair import repair, void_edges
from digrad.links import Event
from digrad.simulation.edge_mixing import Edges
from digrad.simulation.loop import Params, State
from digrad.simulation.unreliable_net import LinkState, undelivered


def repaired(event: Event, state: State, params: Params) -> State:
    """Return where a run is after an event.

    Args:
        event: What happens.
        state: Where the run was.
        params: Those after the event, with the agents that are present then.
    """
    links, edges = state.links, params.turns["push"]  # uniform weights: all primitives use the same edges
    assert isinstance(edges, Edges)
    ends = np.stack([edges.sender, edges.receiver], axis=1)
    pushed = next(link for link in links if link.pushed is not None)
    after = jax.tree.map(np.array, state.method_state)
    lifetime = None if pushed.lifetime is None else np.asarray(pushed.lifetime)
    repair(event, after, ends, np.asarray(params.present), np.asarray(undelivered(pushed)), lifetime)
    void = void_edges(event, ends)
    return state._replace(
        method_state=jax.tree.map(jnp.asarray, after), links=tuple(_forget(link, void) for link in links)
    )


def _forget(link: LinkState, void: Any) -> LinkState:
    """Return what is remembered of an array when some edges begin anew."""

    def clear(rows: Any) -> Any:
        return None if rows is None else jnp.where(void.reshape(-1, *[1] * (rows.ndim - 1)), 0, rows)

    return link._replace(
        pushed=clear(link.pushed),
        delivered=None if link.delivered is None else link.delivered & ~void,
        inbox=clear(link.inbox),
        lifetime=clear(link.lifetime),
        new=None if link.new is None else link.new & ~void,
    )
