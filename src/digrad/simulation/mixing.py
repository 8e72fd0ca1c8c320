"""Mixing of stacked arrays in JAX: the operators of a network, and the net of one iteration as methods see it.

An operator is a dense matrix for few agents, or fixed-width slots (every agent's first in-neighbours) and a tail of the
remaining edges. A sum over slots with in-bounds gathers was measured 2 to 30 times faster than XLA's sparse
formats on 5 000 to 50 000 agents; the tail keeps a hub from widening the slots of all. Where the mixing matrix of a
large network is circulant (rings, exponential graphs), the sum is over moved copies of x, and no index is read.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from digrad.core.net import Primitives, Sent, arrays_sent
from digrad.links import Links
from digrad.links.compressors import decoded
from digrad.network import Mixing, Network, StepWeights, circulant, step_weights
from digrad.simulation.unreliable_net import Edges, edges_only

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


def known_operators(
    network: Network, matrices: dict[str, str], dtype: np.dtype[Any], most_bytes: int
) -> tuple[dict[str, Operator], dict[str, Operator], int]:
    """Return the operators of a constant network, or those of all phases, and what a fresh one takes otherwise.

    Args:
        network: The network.
        matrices: The matrix behind each primitive.
        dtype: Of the weights.
        most_bytes: What all phases may take.
    """
    if network.period == 1 and builder(network) is of_steps:
        at = network.at(0)
        return {name: constant(getattr(at, matrix), dtype) for name, matrix in matrices.items()}, {}, 0
    entries = network.n**2 if network.n <= DENSE_AGENTS else 2 * (network.n + network.union.n_edges)
    size = entries * dtype.itemsize * len(matrices)  # of one iteration, about
    if network.period is None or network.period * size > most_bytes:
        return {}, {}, size
    return {}, operators_of(network, matrices, 0, network.period, dtype), 0


def operators_of(
    network: Network, matrices: dict[str, str], first: int, length: int, dtype: npt.DTypeLike
) -> dict[str, Operator]:
    """Return the operators of the iterations first, ..., first + length - 1, by primitive."""
    build = builder(network)
    return {name: build(network, matrix, first, length, dtype) for name, matrix in matrices.items()}


def builder(network: Network) -> Callable[..., Operator]:
    """Return what makes the operators of a network."""
    if network.is_unreliable:
        return edges_only
    return of_steps if compression_of(network) is None else linked_steps


def first_operators(
    build: Callable[..., Operator], network: Network, matrices: dict[str, str], dtype: npt.DTypeLike
) -> dict[str, Any]:
    """Return the operators of the first iteration."""
    return {name: pick(build(network, matrix, 0, 1, dtype), 0) for name, matrix in matrices.items()}


def compression_of(network: Network) -> Links | None:
    """Return how messages are compressed, and nothing else of the links; None for not at all."""
    links = network.links
    if links is None or links.compressor is None:
        return None
    return Links(compressor=links.compressor, damping=links.damping)


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


class SimulatedNet(Primitives):
    """The network of one iteration.

    Args:
        operators: The matrices that the method needs, by primitive.
        n: The number of agents.
        dimension: Of an estimate; arrays of this width are compressed.
        links: How messages are compressed; None for not at all.
        references: One for each compressed array that a step sends, in the order of sending, None for one that is
            compressed as it is; by default none are known yet.
        is_first: Whether this is the first step.
    """

    def __init__(
        self,
        operators: Mapping[str, Operator],
        n: int,
        *,
        dimension: int = 0,
        links: Links | None = None,
        references: tuple[Any, ...] | None = None,
        is_first: Any = False,
    ) -> None:
        self._operators, self._n, self._dimension = operators, n, dimension
        self._compression, self._references, self._is_first = links, references, is_first
        self.links: list[Any] = []  # the references after this step

    @property
    def one_hot(self) -> jax.Array:
        """The identity: row i is agent i."""
        return jnp.eye(self._n)

    def mean(self, x: Any) -> Any:
        """Average over all agents."""
        if isinstance(x, tuple):
            return tuple(self.mean(part) for part in x)
        return jnp.broadcast_to(x.mean(axis=0), x.shape)

    def _exchange(self, primitive: str, x: Any) -> Any:
        mixed = tuple(self._send(primitive, sent) for sent in arrays_sent(primitive, x))
        return mixed if isinstance(x, tuple) else mixed[0]

    def _send(self, primitive: str, sent: Sent) -> jax.Array:
        operator, x = self._operators[primitive], sent.array
        if not isinstance(operator, Linked):
            assert not isinstance(operator, Edges)
            return apply(operator, x)
        damping = self._compression.pair_damping if self._compression and sent.is_pair else 1.0
        return apply_decoded(operator, x, self._decoded(primitive, operator, sent), damping)

    def _decoded(self, primitive: str, operator: Linked, sent: Sent) -> jax.Array:
        """Return what receivers decode of an array; a short one, such as a weight, travels as it is."""
        x, compressor = sent.array, self._compression and self._compression.compressor
        if compressor is None or not sent.is_compressible(self._dimension):
            return x
        flat = x.reshape(len(x), -1)
        if not sent.keeps_reference(primitive):
            self.links.append(None)
            return decoded(compressor, flat, None).reshape(x.shape)
        known = jnp.zeros_like(flat) if self._references is None else self._references[len(self.links)]
        value = jnp.where(self._is_first, flat, decoded(compressor, flat, known))
        # The reference of an agent without receivers stays; before the first message it is the estimate itself.
        sends = (operator.sends | self._is_first)[:, None]
        self.links.append(jnp.where(sends, value, known))
        return value.reshape(x.shape)
