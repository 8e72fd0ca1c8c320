"""The executor that methods see in the simulator: all agents at once, one row each."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from digrad.core.net import Primitives, Sent, arrays_sent
from digrad.links import Links
from digrad.links.compressors import decoded
from digrad.simulation.edge_mixing import Edges
from digrad.simulation.mixing import Linked, Operator, apply, apply_decoded


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
