"""Mixing edge by edge, for networks whose links lose, delay or change what is sent.

Edges are ordered so that the sum over an agent's in-edges is a sum of slices: agents by falling in-degree, first the
first in-edge of each, then the second of those that have one, and so on. What an edge remembers then takes exactly one
row; no agent's rows are widened to those of a hub.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

from digrad.core.network_delivery import all_edges, numbers_among
from digrad.network import Network, step_weights

MOST_SLICES = 64  # further in-edges of a hub are added one by one


class Edges(NamedTuple):
    """A mixing matrix by edges; of several iterations ``weight``, ``own`` and ``given`` have ``[steps]`` in front."""

    sender: jax.Array  # [E]
    receiver: jax.Array  # [E]
    number: jax.Array  # [E] place of the edge in the table of deliveries
    place: jax.Array  # [n] of each agent in the order by falling in-degree
    weight: jax.Array  # [E]
    own: jax.Array  # [n] the diagonal
    given: jax.Array  # [n] what each agent gives away: the sum of its weights as a sender

    def at(self, i: jax.Array | int) -> "Edges":
        """Return the edges of iteration number i of several."""
        return self._replace(weight=self.weight[i], own=self.own[i], given=self.given[i])


Slices = tuple[int, ...]  # where each slice of the edges ends


def edges_of_steps(
    network: Network, matrix: str, first: int, length: int, dtype: npt.DTypeLike
) -> tuple[Edges, Slices]:
    """Return the matrices ``matrix`` of the iterations first, ..., first + length - 1, edge by edge."""
    weights = step_weights(network, matrix, first, length)
    sender, receiver = weights.edges.T
    degree = np.bincount(receiver, minlength=network.n)
    by_degree = np.argsort(-degree, kind="stable")
    place = np.argsort(by_degree)
    rank = np.arange(len(receiver)) - np.repeat(
        np.cumsum(degree) - degree, degree
    )  # edges are sorted by receiver
    order = np.lexsort((place[receiver], rank))
    numbers = numbers_among(weights.edges, all_edges(network))
    given = np.stack([np.bincount(sender, row, network.n) for row in weights.weight])
    ends = np.cumsum(np.bincount(rank, minlength=1)).tolist() if len(rank) else []
    arrays = (
        sender[order].astype(np.int32),
        receiver[order].astype(np.int32),
        numbers[order].astype(np.int32),
        place.astype(np.int32),
        weights.weight[:, order].astype(dtype),
        weights.own.astype(dtype),
        given.astype(dtype),
    )
    return Edges(*jax.device_put(arrays)), tuple(ends[:MOST_SLICES])


def edges_only(network: Network, matrix: str, first: int, length: int, dtype: npt.DTypeLike) -> Edges:
    """Return the matrices of several iterations edge by edge."""
    return edges_of_steps(network, matrix, first, length, dtype)[0]


def only_if(condition: jax.Array | bool, make: Callable[..., Any], *operands: Any) -> Any:
    """Return ``make(*operands)``, or zeros where the condition is false, and it is not computed then."""
    make = jax.jit(make, inline=True)  # traced once, for its shapes and for its code
    shapes = jax.eval_shape(make, *operands)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return lax.cond(condition, make, lambda *_: nothing, *operands)


def add_up(edges: Edges, slices: Slices, values: jax.Array, weight: jax.Array | None = None) -> jax.Array:
    """Return the sum over the in-edges of each agent of ``weight`` ``[E]`` times ``values`` ``[E, d]``, ``[n, d]``."""
    weights = jnp.ones(len(values), values.dtype) if weight is None else weight.astype(values.dtype)
    return _summed(edges, slices, weights, lambda piece: values[piece])


def add_up_sent(edges: Edges, slices: Slices, sent: jax.Array, weight: jax.Array) -> jax.Array:
    """Return the sum over the in-edges of each agent of ``weight`` ``[E]`` times what its sender sent, ``[n, d]``."""

    def taken(piece: slice) -> jax.Array:
        return sent.at[edges.sender[piece]].get(mode="promise_in_bounds")

    return _summed(edges, slices, weight.astype(sent.dtype), taken)


def add_up_weights(edges: Edges, slices: Slices, weight: jax.Array) -> jax.Array:
    """Return the sum over the in-edges of each agent of ``weight`` ``[E]``, ``[n, 1]``."""
    return _summed(edges, slices, weight, lambda piece: jnp.ones((1, 1), weight.dtype))


def _summed(
    edges: Edges, slices: Slices, weight: jax.Array, values: Callable[[slice], jax.Array]
) -> jax.Array:
    n, begin = len(edges.place), 0
    total: jax.Array = jnp.zeros((n, values(slice(0, 0)).shape[1]), weight.dtype)
    for end in slices:
        piece = slice(begin, end)
        added = total[: end - begin] + weight[piece, None] * values(piece)
        total = added if end - begin == n else lax.dynamic_update_slice(total, added, (0, 0))
        begin = end
    total = total.at[edges.place].get(mode="promise_in_bounds", unique_indices=True)
    if begin < len(weight):
        rest = slice(begin, None)
        added = weight[rest, None] * values(rest)
        total = total.at[edges.receiver[rest]].add(added, mode="promise_in_bounds")
    return total
