"""The net as a method sees it: the matrix behind each primitive, how arrays are sent, and the weights of averages."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from digrad.network import KINDS, Connectivity, Network
from digrad.types import Shapes


def bindings(method: Any) -> dict[str, str]:
    """Return the matrix ``R``, ``C`` or ``W`` behind each primitive that a method uses.

    ``mix`` is W, except for a one-matrix method with ``mixing="row"``, whose single matrix is R.

    >>> from digrad.methods import CGT, DGD
    >>> bindings(CGT(step_size=0.1, threshold=1.0)), bindings(DGD(step_size=0.1, mixing="row"))
    ({'pull': 'R', 'push': 'C'}, {'mix': 'R'})
    """
    bound = {facts.primitive: facts.matrix for kind, facts in KINDS.items() if kind in method.needs}
    return {**bound, "mix": "R"} if "mix" in bound and getattr(method, "mixing", None) == "row" else bound


def required(method: Any) -> frozenset[str]:
    """Return what a network must offer for a method, as ``Network.require`` asks for it.

    >>> from digrad.methods import DGD
    >>> required(DGD(step_size=0.1, mixing="row"))
    frozenset({'row'})
    """
    matrices = set(bindings(method).values())
    return frozenset(kind for kind, facts in KINDS.items() if facts.matrix in matrices) | (
        method.needs & {"mean"}
    )


def connectivity(method: Any) -> Connectivity:
    """Return how the weights of a network must connect the agents for a method, as ``Network.require`` asks for it.

    >>> from digrad.methods import CGT, SGP
    >>> connectivity(CGT(step_size=0.1, threshold=1.0)), connectivity(SGP(step_size=0.1))
    ('common root', 'strong')
    """
    return getattr(method, "connectivity", "strong" if "column" in method.needs else "root")


def perron_weights(method: Any, network: Network) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return u and v, ``[n]`` each with sum n: Perron vectors of R and C if the method uses them, else ones.

    A network that changes with the iteration, or whose packets may be lost or late, has no Perron vectors; there the
    weighted average is the plain mean.
    """
    used, ones = set(bindings(method).values()), np.ones(network.n)
    if network.period != 1 or network.is_unreliable:
        return ones, ones
    return (network.u if "R" in used else ones, network.v if "C" in used else ones)


class Sent(NamedTuple):
    """One array that a primitive sends, and how it is compressed."""

    array: Any
    is_pair: bool  # whether it is pushed together with its push-sum weight
    is_weight: bool  # whether it is that weight, which is neither compressed nor noisy

    @property
    def numbers(self) -> int:
        """Numbers that each agent sends."""
        return int(np.prod(self.array.shape[1:]))

    def is_compressible(self, dimension: int) -> bool:
        """Return whether it is an estimate or a tracker, of ``dimension`` numbers; all else travels as it is."""
        return not self.is_weight and self.numbers == dimension

    def keeps_reference(self, primitive: str) -> bool:
        """Return whether both ends keep a reference: so for all but a tracker, which is pushed alone and vanishes."""
        return primitive != "push" or self.is_pair


def arrays_sent(primitive: str, x: Any) -> Iterator[Sent]:
    """Yield the arrays of ``x``, one or a tuple, that a primitive sends."""
    parts = x if isinstance(x, tuple) else (x,)
    is_pair = isinstance(x, tuple) and primitive == "push"
    for place, part in enumerate(parts):
        # The last of a pushed tuple is its weight if it is a column.
        yield Sent(part, is_pair, is_pair and place == len(parts) - 1 and part.shape[-1] == 1)


def fields_sent(fields: Sequence[tuple[str, Any]]) -> list[tuple[str, Sent]]:
    """Return fields of a state, by primitive, as they are sent: several that are pushed are one pair."""
    pushed = tuple(array for primitive, array in fields if primitive == "push")
    pair = arrays_sent("push", pushed if len(pushed) > 1 else pushed[0]) if len(pushed) > 0 else iter(())
    return [
        (primitive, next(pair) if primitive == "push" else Sent(array, False, False))
        for primitive, array in fields
    ]


class Primitives:
    """``pull``, ``push`` and ``mix`` of an executor, which defines once how an array is sent."""

    shapes: Shapes | None = None  # of the parameters in a row; an engine that knows them sets it

    def pull(self, x: Any) -> Any:
        """Mix with the row-stochastic R."""
        return self._exchange("pull", x)

    def push(self, x: Any) -> Any:
        """Mix with the column-stochastic C."""
        return self._exchange("push", x)

    def mix(self, x: Any) -> Any:
        """Mix with the doubly stochastic W, or with the one matrix of the method."""
        return self._exchange("mix", x)

    def _exchange(self, primitive: str, x: Any) -> Any:
        """Return what agents that send ``x``, an array or a tuple of arrays, have after mixing."""
        raise NotImplementedError
