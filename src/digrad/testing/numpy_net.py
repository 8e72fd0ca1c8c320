"""A dense NumPy executor for methods; what they send is measured by :mod:`digrad.core.traffic`."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from digrad.core.net import Primitives
from digrad.graphs import Digraph
from digrad.network import KINDS


class NumPyNet(Primitives):
    """Mixes with the given matrices: R for pull, C for push, W for mix.

    A primitive whose matrix is missing raises, and so does ``mean`` unless it is allowed: `needs` is tested with that.
    """

    primitives: ClassVar = {**{kind: facts.primitive for kind, facts in KINDS.items()}, "mean": "mean"}

    def __init__(self, n: int, *, R: Any = None, C: Any = None, W: Any = None, mean: bool = True) -> None:
        J = np.full((n, n), 1 / n) if mean else None
        self.matrices = {"pull": R, "push": C, "mix": W, "mean": J}
        self.one_hot = np.eye(n)

    def restricted(self, needs: Iterable[str]) -> "NumPyNet":
        """Return a net that offers nothing but ``needs``."""
        net = NumPyNet(len(self.one_hot))
        allowed = {self.primitives[need] for need in needs}
        net.matrices = {
            primitive: matrix if primitive in allowed else None for primitive, matrix in self.matrices.items()
        }
        return net

    def bound(self, method: Any) -> "NumPyNet":
        """Return a net whose ``mix`` is the single matrix that a method has chosen."""
        if getattr(method, "mixing", None) != "row" or self.matrices["pull"] is None:
            return self
        net = NumPyNet(len(self.one_hot))
        net.matrices = {**self.matrices, "mix": self.matrices["pull"]}
        return net

    def mean(self, x: Any) -> Any:
        """Return the average in every row."""
        return self._exchange("mean", x)

    def _exchange(self, primitive: str, x: Any) -> Any:
        matrix = self.matrices[primitive]
        if matrix is None:
            raise AssertionError(f"the method calls net.{primitive}, which its `needs` does not announce")
        return tuple(_apply(matrix, part) for part in x) if isinstance(x, tuple) else _apply(matrix, x)


def _apply(matrix: Any, x: Any) -> Any:
    return (matrix.astype(x.dtype) if isinstance(x, np.ndarray) else matrix) @ x


@lru_cache(maxsize=256)  # tests try all methods on the same graphs
def weights(graph: Digraph) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return R, C and the Sinkhorn W of a digraph, computed here from the definition; they are read-only."""
    support = np.eye(graph.n)
    for sender, receiver in graph.edges:
        support[receiver, sender] = 1
    R = support / support.sum(axis=1, keepdims=True)
    C = support / support.sum(axis=0, keepdims=True)
    W = support.copy()
    while abs(W.sum(axis=1) - 1).max() > 1e-14:
        W /= W.sum(axis=1, keepdims=True)
        W /= W.sum(axis=0, keepdims=True)
    for matrix in (R, C, W):
        matrix.flags.writeable = False
    return R, C, W


def network(graph: Digraph) -> NumPyNet:
    """Return the net of a digraph with uniform R and C and the Sinkhorn W."""
    R, C, W = weights(graph)
    return NumPyNet(graph.n, R=R, C=C, W=W)


def run(method: Any, net: Any, gradient: Callable[[Any], Any], x0: Any, steps: int) -> list[Any]:
    """Return the states before and after each step."""
    net = net.bound(method)
    state = method.init(x0, net)
    states = [state]
    for _ in range(steps):
        state = method.step(state, gradient(method.query(state)), net)
        states.append(state)
    return states


def final(method: Any, net: Any, gradient: Callable[[Any], Any], x0: Any, steps: int) -> np.ndarray:
    """Return the estimates after the last step; a state that repeats is the last one."""
    net = net.bound(method)
    state = method.init(x0, net)
    for _ in range(steps):
        before, state = state, method.step(state, gradient(method.query(state)), net)
        if all(map(np.array_equal, before, state)):
            break
    return method.estimate(state)
