"""The executor that methods see in the simulator: all agents at once, one row each."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from digrad.core.net import Verbs
from digrad.core.traffic import Meter
from digrad.links import Link, heard
from digrad.links.seam import keeps_reference
from digrad.simulation.edges import Edges
from digrad.simulation.operators import Linked, Operator, apply, apply_heard


class SimulatedNet(Verbs):
    """The network of one iteration.

    Args:
        operators: The matrices that the method needs, by verb.
        n: The number of agents.
        dimension: Of an estimate; arrays of this width are subject to the link.
        link: What happens to messages on their way; None for nothing.
        states: Of the link, one for each array that a step sends, in the order of sending; None opens them.
        is_first: Whether this is the first step.
    """

    def __init__(
        self,
        operators: Mapping[str, Operator],
        n: int,
        *,
        dimension: int = 0,
        link: Link | None = None,
        states: tuple[Any, ...] | None = None,
        is_first: Any = False,
    ) -> None:
        self._operators, self._n, self._dimension = operators, n, dimension
        self._link, self._states, self._is_first = link, states, is_first
        self.links: list[Any] = []  # the states after this step
        self.meter = Meter()

    @property
    def one_hot(self) -> jax.Array:
        """The identity: row i is agent i."""
        return jnp.eye(self._n)

    def mean(self, x: Any) -> Any:
        """Average over all agents, charged as a ring all-reduce."""
        if isinstance(x, tuple):
            return tuple(self.mean(part) for part in x)
        self.meter.charge_mean(self._n, _numbers(x) * x.dtype.itemsize)
        return jnp.broadcast_to(x.mean(axis=0), x.shape)

    def _exchange(self, verb: str, x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(self._send(verb, part, is_alone=False) for part in x)
        return self._send(verb, x, is_alone=True)

    def _send(self, verb: str, x: jax.Array, *, is_alone: bool) -> jax.Array:
        operator = self._operators[verb]
        if not isinstance(operator, Linked):
            self.meter.charge(verb, _numbers(x) * x.dtype.itemsize)
            assert not isinstance(operator, Edges)
            return apply(operator, x)
        return apply_heard(operator, x, self._heard(verb, operator, x, is_alone=is_alone))

    def _heard(self, verb: str, operator: Linked, x: jax.Array, *, is_alone: bool) -> jax.Array:
        """Return what the others understand of x; a short array, such as a weight, travels as it is."""
        if self._link is None or _numbers(x) != self._dimension:
            self.meter.charge(verb, _numbers(x) * x.dtype.itemsize)
            return x
        refers = keeps_reference(verb, is_alone=is_alone)
        full = _numbers(x) * x.dtype.itemsize
        size = self._link.wire_bytes(_numbers(x), x.dtype.itemsize)
        self.meter.charge(verb, size, in_full=full if refers else size)
        known = self._states
        state = self._link.open(x, keeps_reference=refers) if known is None else known[len(self.links)]
        after, value = heard(self._link, state, x, self._is_first)
        # The reference of a silent agent stays; before the first word it is the estimate itself.
        speaks = (operator.speaks | self._is_first).reshape(-1, *[1] * (x.ndim - 1))
        self.links.append(jax.tree.map(lambda new, old: jnp.where(speaks, new, old), after, state))
        return value


def _numbers(x: jax.Array) -> int:
    return int(np.prod(x.shape[1:]))
