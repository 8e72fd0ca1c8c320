"""The mixing primitives of methods: which matrix each stands for, and how every executor is called."""

from typing import Any

from digrad.network import KINDS, Connectivity
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
