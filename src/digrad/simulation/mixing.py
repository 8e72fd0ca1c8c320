"""Mixing of stacked arrays in JAX: dense for few agents, sparse for many, of one iteration or of several.

An operator is a dense matrix, or fixed-width slots (every agent's first in-neighbours) plus a tail of the
remaining edges. A sum over slots with in-bounds gathers was measured 2 to 30 times faster than XLA's sparse
formats on 5 000 to 50 000 agents; the tail keeps a hub from widening everybody's slots. Where all agents of a large
network listen alike (rings, exponential graphs), the sum is over moved copies of x, and no index is read.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from digrad.network import Mixing, Network, StepWeights, circulant, step_weights
from digrad.simulation.edge_mixing import Edges

DENSE_AGENTS = 64  # up to which the matrix is multiplied densely
SUM_AGENTS = 8  # up to which a sum over senders beats a matrix product (1.1x of a whole step on a9a)
MANY_AGENTS = 4096  # above which the arrays of a step leave the cache, and other forms are faster
MOST_ROLLS = 64  # moved copies that are added up in one expression
TAIL_COST = 4  # a scattered edge costs about as much as this many slot entries


class Dense(NamedTuple):
    """A mixing matrix."""

    matrix: jax.Array  # [n, n]; of several iterations [steps, n, n]


class Slots(NamedTuple):
    """A mixing matrix by in-neighbours: row i is the sum over s of weight[s, i] x[sender[s, i]], plus a tail.

    Of several iterations, the weights have an axis ``[steps]`` in front.
    """

    sender: jax.Array  # [slots, n]
    weight: jax.Array  # [slots, n]
    tail_receiver: jax.Array  # [tail]
    tail_sender: jax.Array  # [tail]
    tail_weight: jax.Array  # [tail]


@partial(jax.tree_util.register_dataclass, data_fields=("weight",), meta_fields=("offset",))
@dataclass(frozen=True)
class Rolls:
    """A circulant mixing matrix: row i is the sum over s of weight[s] x[i - offset[s] mod n]."""

    weight: jax.Array  # [s]
    offset: tuple[int, ...]


class Linked(NamedTuple):
    """A mixing matrix for compressed messages: receivers mix what they decode, and every agent keeps its own share.

    Row i is own[i] x[i] - given[i] s[i] plus the sum over the others of weight s, with s what is decoded of x. Where
    columns sum to one an agent keeps what it did not give away, whatever is decoded: own is 1.
    """

    others: Dense | Slots
    own: jax.Array  # [n]
    given: jax.Array  # [n]
    sends: jax.Array  # [n] whether the agent has receivers


Operator = Dense | Slots | Rolls | Linked | Edges  # the last only where links are unreliable


def constant(mixing: Mixing, dtype: npt.DTypeLike) -> Dense | Slots | Rolls:
    """Return a mixing matrix in the form that is fastest for its size."""
    if mixing.n <= DENSE_AGENTS:
        return Dense(jax.device_put(mixing.toarray().astype(dtype)))
    alike = circulant(mixing.matrix) if mixing.n > MANY_AGENTS else None
    if alike and len(alike.offset) <= MOST_ROLLS:
        return Rolls(jax.device_put(alike.weight.astype(dtype)), tuple(alike.offset.tolist()))
    matrix = mixing.matrix
    receiver = np.repeat(np.arange(mixing.n), np.diff(matrix.indptr))
    return _slots(mixing.n, matrix.indices, receiver, np.asarray(matrix.data, np.float64), dtype)


def of_steps(network: Network, matrix: str, first: int, length: int, dtype: npt.DTypeLike) -> Operator:
    """Return R, C or W of the iterations first, ..., first + length - 1; :func:`pick` takes one."""
    return _steps(step_weights(network, matrix, first, length), dtype)


def linked_steps(network: Network, matrix: str, first: int, length: int, dtype: npt.DTypeLike) -> Linked:
    """Return the matrices of several iterations for compressed messages."""
    weights = step_weights(network, matrix, first, length)
    nothing = np.zeros_like(weights.own)
    sent = np.stack([np.bincount(weights.edges[:, 0], row, network.n) for row in weights.weight])
    own, given = (weights.own, nothing) if matrix == "R" else (np.ones_like(nothing), sent)
    others = _steps(weights._replace(own=nothing), dtype)
    return Linked(others, *jax.device_put((own.astype(dtype), given.astype(dtype), sent > 0)))


def pick(operator: Operator, i: jax.Array | int) -> Operator:
    """Return the operator of iteration number i of several."""
    if isinstance(operator, Edges):
        return operator.at(i)
    if isinstance(operator, Linked):
        return Linked(_pick(operator.others, i), operator.own[i], operator.given[i], operator.sends[i])
    assert not isinstance(operator, Rolls)  # of one iteration only
    return _pick(operator, i)


def _pick(operator: Dense | Slots, i: jax.Array | int) -> Dense | Slots:
    if isinstance(operator, Dense):
        return Dense(operator.matrix[i])
    return operator._replace(weight=operator.weight[i], tail_weight=operator.tail_weight[i])


def count(operator: Operator) -> int:
    """Return how many iterations an operator of several holds."""
    if isinstance(operator, Linked | Edges):
        return len(operator.own)
    return len(operator.matrix if isinstance(operator, Dense) else operator.weight)


def apply_decoded(operator: Linked, x: jax.Array, decoded: jax.Array, damping: float = 1.0) -> jax.Array:
    """Return what agents that have ``x`` mix, when ``decoded``, times ``damping``, is what the others have of it."""
    column, shared = (-1, *[1] * (x.ndim - 1)), damping * decoded if damping != 1 else decoded
    kept = operator.own.reshape(column) * x - operator.given.reshape(column) * shared
    return kept + apply(operator.others, shared)


def apply(operator: Dense | Slots | Rolls, x: jax.Array) -> jax.Array:
    """Return M @ x for stacked x ``[n, ...]``."""
    flat = x.reshape(x.shape[0], -1)
    if isinstance(operator, Rolls):
        return _rolled(operator, flat).reshape(x.shape)
    if isinstance(operator, Dense) and len(flat) > SUM_AGENTS:
        return (operator.matrix @ flat).reshape(x.shape)
    total = jnp.zeros_like(flat)
    if isinstance(operator, Dense):
        for sender in range(len(flat)):
            total = total + operator.matrix[:, sender, None] * flat[sender]
        return total.reshape(x.shape)
    for sender, weight in zip(operator.sender, operator.weight, strict=True):
        total = total + weight[:, None] * flat.at[sender].get(mode="promise_in_bounds")
    if operator.tail_sender.size:
        messages = operator.tail_weight[:, None] * flat.at[operator.tail_sender].get(mode="promise_in_bounds")
        total = total.at[operator.tail_receiver].add(messages, mode="promise_in_bounds")
    return total.reshape(x.shape)


def _rolled(operator: Rolls, x: jax.Array) -> jax.Array:
    # With the last rows repeated in front, every moved copy is a slice, which needs no memory of its own.
    n, longest = len(x), max(operator.offset)
    longer = jnp.concatenate([x[n - longest :], x])
    total = jnp.zeros_like(x)
    for offset, weight in zip(operator.offset, operator.weight, strict=True):
        total = total + weight * longer[longest - offset : longest - offset + n]
    return total


def _steps(weights: StepWeights, dtype: npt.DTypeLike) -> Dense | Slots:
    n = weights.own.shape[1]
    if n <= DENSE_AGENTS:
        return Dense(jax.device_put(_matrices(weights, dtype)))
    sender, receiver = (np.concatenate([end, np.arange(n)]) for end in weights.edges.T)
    order = np.lexsort((sender, receiver))
    values = np.concatenate([weights.weight, weights.own], axis=1)[:, order]
    return _slots(n, sender[order], receiver[order], values, dtype)


def _matrices(weights: StepWeights, dtype: npt.DTypeLike) -> npt.NDArray[np.floating]:
    steps, n = weights.own.shape
    sender, receiver = weights.edges.T
    matrices = np.zeros((steps, n, n), dtype)
    matrices[:, receiver, sender] = weights.weight
    matrices[:, np.arange(n), np.arange(n)] = weights.own
    return matrices


def _slots(
    n: int,
    senders: npt.NDArray[np.integer],
    receivers: npt.NDArray[np.integer],
    values: npt.NDArray[np.floating],
    dtype: npt.DTypeLike,
) -> Slots:
    """Return entries sorted by receiver, with ``values`` ``[entries]`` or ``[steps, entries]``, as slots."""
    degree = np.bincount(receivers, minlength=n)
    slot = np.arange(len(receivers)) - np.repeat(np.cumsum(degree) - degree, degree)
    width = _best_width(degree)
    inside = slot < width
    sender = np.zeros((width, n), np.int32)
    weight = np.zeros((*values.shape[:-1], width, n), dtype)
    sender[slot[inside], receivers[inside]] = senders[inside]
    weight[..., slot[inside], receivers[inside]] = values[..., inside]
    tail = (
        receivers[~inside].astype(np.int32),
        senders[~inside].astype(np.int32),
        values[..., ~inside].astype(dtype),
    )
    return Slots(*jax.device_put((sender, weight, *tail)))


def _best_width(degree: npt.NDArray[np.integer]) -> int:
    widths = np.arange(1, min(degree.max(), 64) + 1)
    tails = np.array([np.maximum(degree - width, 0).sum() for width in widths])
    return int(widths[np.argmin(widths * len(degree) + TAIL_COST * tails)])
