"""The network as the simulator runs it: mixing of stacked arrays in JAX, dense for few agents and sparse for
many.

An operator is a dense matrix, or fixed-width slots (every agent's first in-neighbours) plus a tail of the
remaining arcs. A sum over slots with in-bounds gathers was measured 2 to 30 times faster than XLA's sparse
formats on 5 000 to 50 000 agents; the tail keeps a hub from widening everybody's slots.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from digrad.mixing import Mixing, Network

DENSE_LIMIT = 64  # agents up to which the matrix is multiplied densely
SUM_LIMIT = 8  # agents up to which a sum over senders beats a matrix product (1.1x of a whole step on a9a)
TAIL_COST = 4  # a scattered arc costs about as much as this many slot entries


class Dense(NamedTuple):
    """A mixing matrix."""

    matrix: jax.Array  # [n, n]


class Slots(NamedTuple):
    """A mixing matrix by in-neighbours: row i is the sum over s of weight[s, i] x[sender[s, i]], plus a tail."""

    sender: jax.Array  # [slots, n]
    weight: jax.Array  # [slots, n]
    tail_receiver: jax.Array  # [tail]
    tail_sender: jax.Array  # [tail]
    tail_weight: jax.Array  # [tail]


Operator = Dense | Slots


class SimulatedNet:
    """The executor that methods see: all agents at once, one row each.

    Args:
        operators: The matrices that the method needs, by verb.
        n: The number of agents.
        n_arcs: How many messages each verb sends; without it nothing is counted.
    """

    def __init__(
        self, operators: Mapping[str, Operator], n: int, n_arcs: Mapping[str, int] | None = None
    ) -> None:
        self._operators, self._n, self._n_arcs = operators, n, n_arcs or {}
        self.bytes_sent = 0

    @property
    def one_hot(self) -> jax.Array:
        """The identity: row i is agent i."""
        return jnp.eye(self._n)

    def pull(self, x: Any) -> Any:
        """Mix with the row-stochastic R."""
        return self._exchange("pull", x)

    def push(self, x: Any) -> Any:
        """Mix with the column-stochastic C."""
        return self._exchange("push", x)

    def mix(self, x: Any) -> Any:
        """Mix with the doubly stochastic W."""
        return self._exchange("mix", x)

    def mean(self, x: Any) -> Any:
        """Average over all agents, charged as a ring all-reduce: 2 (n - 1) messages of the size of a row."""
        if isinstance(x, tuple):
            return tuple(self.mean(part) for part in x)
        self._charge(2 * (self._n - 1), x)
        return jnp.broadcast_to(x.mean(axis=0), x.shape)

    def _exchange(self, verb: str, x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(self._exchange(verb, part) for part in x)
        self._charge(self._n_arcs.get(verb, 0), x)
        return apply(self._operators[verb], x)

    def _charge(self, messages: int, x: Any) -> None:
        self.bytes_sent += messages * int(np.prod(x.shape[1:])) * x.dtype.itemsize


def operators(
    network: Network, needs: frozenset[str], dtype: npt.DTypeLike
) -> tuple[dict[str, Operator], dict[str, int]]:
    """Return the operators that a method with these needs uses, and the number of arcs of each."""
    chosen = {verb: getattr(network, matrix) for need, verb, matrix in _VERBS if need in needs}
    return (
        {verb: operator(mixing, dtype) for verb, mixing in chosen.items()},
        {verb: mixing.matrix.nnz - mixing.n for verb, mixing in chosen.items()},
    )


_VERBS = (("row", "pull", "R"), ("column", "push", "C"), ("doubly", "mix", "W"))


def operator(mixing: Mixing, dtype: npt.DTypeLike) -> Operator:
    """Return a mixing matrix in the form that is fastest for its size."""
    if mixing.n <= DENSE_LIMIT:
        return Dense(jax.device_put(mixing.toarray().astype(dtype)))
    return _slots(mixing, dtype)


def apply(operator: Operator, x: jax.Array) -> jax.Array:
    """Return M @ x for stacked x ``[n, ...]``."""
    flat = x.reshape(x.shape[0], -1)
    if isinstance(operator, Dense) and len(flat) > SUM_LIMIT:
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


def _slots(mixing: Mixing, dtype: npt.DTypeLike) -> Slots:
    matrix = mixing.matrix
    degree = np.diff(matrix.indptr)
    receiver = np.repeat(np.arange(mixing.n), degree)
    slot = np.arange(matrix.nnz) - np.repeat(matrix.indptr[:-1], degree)
    width = _best_width(degree)
    sender, weight = np.zeros((width, mixing.n), np.int32), np.zeros((width, mixing.n), dtype)
    inside = slot < width
    sender[slot[inside], receiver[inside]] = matrix.indices[inside]
    weight[slot[inside], receiver[inside]] = matrix.data[inside]
    tail = (
        receiver[~inside].astype(np.int32),
        matrix.indices[~inside].astype(np.int32),
        matrix.data[~inside].astype(dtype),
    )
    return Slots(*jax.device_put((sender, weight, *tail)))


def _best_width(degree: npt.NDArray[np.integer]) -> int:
    widths = np.arange(1, min(degree.max(), 64) + 1)
    tails = np.array([np.maximum(degree - width, 0).sum() for width in widths])
    return int(widths[np.argmin(widths * len(degree) + TAIL_COST * tails)])
