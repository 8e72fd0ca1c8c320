"""Mixing arc by arc, for networks whose links lose, delay or change what is sent.

Arcs are ordered so that the sum over an agent's in-arcs is a sum of slices: agents by falling in-degree, first the
first in-arc of each, then the second of those that have one, and so on. What an arc remembers then takes exactly one
row; no agent's rows are widened to those of a hub.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

from digrad.core.delivery import all_arcs, numbers_among
from digrad.network import AnyNetwork, step_weights

MOST_SLICES = 64  # further in-arcs of a hub are added one by one


class Arcs(NamedTuple):
    """A mixing matrix by arcs; of several iterations ``weight``, ``own`` and ``given`` have ``[steps]`` in front."""

    sender: jax.Array  # [A]
    receiver: jax.Array  # [A]
    fate: jax.Array  # [A] the number of the arc in the table of fates
    place: jax.Array  # [n] of each agent in the order by falling in-degree
    weight: jax.Array  # [A]
    own: jax.Array  # [n] the diagonal
    given: jax.Array  # [n] what each agent gives away: the sum of its weights as a sender

    def at(self, i: jax.Array | int) -> "Arcs":
        """Return the arcs of iteration number i of several."""
        return self._replace(weight=self.weight[i], own=self.own[i], given=self.given[i])


Slices = tuple[int, ...]  # where each slice of the arcs ends


def arcs_of_steps(
    network: AnyNetwork, letter: str, first: int, length: int, dtype: npt.DTypeLike
) -> tuple[Arcs, Slices]:
    """Return the matrices ``letter`` of the iterations first, ..., first + length - 1, arc by arc."""
    weights = step_weights(network, letter, first, length)
    sender, receiver = weights.arcs.T
    degree = np.bincount(receiver, minlength=network.n)
    by_degree = np.argsort(-degree, kind="stable")
    place = np.argsort(by_degree)
    rank = np.arange(len(receiver)) - np.repeat(
        np.cumsum(degree) - degree, degree
    )  # arcs are sorted by receiver
    order = np.lexsort((place[receiver], rank))
    numbers = numbers_among(weights.arcs, all_arcs(network))
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
    return Arcs(*jax.device_put(arrays)), tuple(ends[:MOST_SLICES])


def stored(k: jax.Array | int, make: Callable[..., Any], *operands: Any) -> Any:
    """Return ``make(*operands)`` at iteration k, as arrays that what follows reads.

    XLA would compute the index or the mask of a row anew for every number in it, which took ten times as long on 1000
    agents, and it drops optimization barriers before it fuses; through a branch that is always taken it does not look.
    """
    shapes = jax.eval_shape(make, *operands)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return lax.cond(k >= 0, make, lambda *_: nothing, *operands)


def add_up(arcs: Arcs, slices: Slices, values: jax.Array, weight: jax.Array | None = None) -> jax.Array:
    """Return the sum over the in-arcs of each agent of ``weight`` ``[A]`` times ``values`` ``[A, d]``, ``[n, d]``."""
    weights = jnp.ones(len(values), values.dtype) if weight is None else weight.astype(values.dtype)
    return _summed(arcs, slices, weights, lambda piece: values[piece])


def add_up_sent(arcs: Arcs, slices: Slices, sent: jax.Array, weight: jax.Array) -> jax.Array:
    """Return the sum over the in-arcs of each agent of ``weight`` ``[A]`` times what its sender sent, ``[n, d]``."""

    def taken(piece: slice) -> jax.Array:
        return sent.at[arcs.sender[piece]].get(mode="promise_in_bounds")

    return _summed(arcs, slices, weight.astype(sent.dtype), taken)


def add_up_weights(arcs: Arcs, slices: Slices, weight: jax.Array) -> jax.Array:
    """Return the sum over the in-arcs of each agent of ``weight`` ``[A]``, ``[n, 1]``."""
    return _summed(arcs, slices, weight, lambda piece: jnp.ones((1, 1), weight.dtype))


def _summed(arcs: Arcs, slices: Slices, weight: jax.Array, values: Callable[[slice], jax.Array]) -> jax.Array:
    n, begin = len(arcs.place), 0
    total: jax.Array = jnp.zeros((n, values(slice(0, 0)).shape[1]), weight.dtype)
    for end in slices:
        piece = slice(begin, end)
        added = total[: end - begin] + weight[piece, None] * values(piece)
        total = added if end - begin == n else lax.dynamic_update_slice(total, added, (0, 0))
        begin = end
    total = total.at[arcs.place].get(mode="promise_in_bounds", unique_indices=True)
    if begin < len(weight):
        rest = slice(begin, None)
        added = weight[rest, None] * values(rest)
        total = total.at[arcs.receiver[rest]].add(added, mode="promise_in_bounds")
    return total
