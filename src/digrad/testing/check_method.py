"""The contract between methods and engines, one check per promise, on five agents and a quadratic.

The tests of digrad hold each of its own methods against the same checks.
"""

import dataclasses
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from digrad.core.hyperparameters import numeric_fields
from digrad.core.net import bindings, required
from digrad.core.traffic import dry_run
from digrad.errors import PluginError
from digrad.graphs import Digraph, random_digraph
from digrad.network import Network
from digrad.problems import quadratic
from digrad.simulation import simulate
from digrad.testing.numpy_net import NumPyNet, network, run
from digrad.types import Method

_DIMENSION, _STEPS = 3, 12
_TOLERANCE = 1e-11  # sums of a few numbers of order 1 to 10, accumulated over a dozen steps
Invariant = Callable[[Any, Any, Any], Any]


class ContractError(PluginError, AssertionError):
    """A method breaks a promise that engines rely on."""


@dataclass(frozen=True)
class Case:
    """A method and what it is tried on: a strongly connected digraph, quadratics and a start."""

    method: Any
    graph: Digraph
    a: np.ndarray  # [n, d] f_i(x) = 1/2 x' diag(a_i) x - b_i' x
    b: np.ndarray  # [n, d]
    start: np.ndarray  # [n, d]
    invariant: Invariant | None = None

    def gradient(self, x: Any) -> Any:
        """Return the local gradients."""
        return self.a * x - self.b

    def states(self, steps: int = _STEPS) -> list[Any]:
        """Return the states before and after each step, computed by the dense executor."""
        return run(self.method, network(self.graph), self.gradient, self.start, steps)

    def require(self, kept: Any, promise: str) -> None:
        """Raise with the name of the method unless a promise is kept."""
        if not kept:
            raise ContractError(f"{type(self.method).__name__}: {promise}.")


def check_method(method: Method, *, invariant: Invariant | None = None, seed: int = 7) -> list[str]:
    """Hold a method against the contract; raise at the first promise that it breaks.

    Args:
        method: With hyper-parameters at which it is stable on a quadratic with curvatures from 0.5 to 2.
        invariant: ``(before, grad, after) -> residual`` of a step, an array that must vanish. By default the one
            that the state's fields stand for: ``y`` beside ``g`` sums to it, ``w`` is positive and sums to n.
        seed: Random seed of the digraph, the problem and the start.

    Returns:
        One line per promise that holds; those that could not be checked begin with ``not checked``, with the reason.

    Raises:
        ContractError: The first promise that is broken, and how.

    Example:
        >>> import digrad as dg
        >>> from digrad.testing import check_method
        >>> check_method(dg.AB(step_size=0.05))[0]
        'has what the protocol asks for'
    """
    case = case_of(method, invariant=invariant, seed=seed)
    lines = []
    for promise, check in CONTRACT.items():
        obstacle = check(case)
        lines.append(promise if obstacle is None else f"not checked: {promise} ({obstacle})")
    return lines


def case_of(method: Any, *, invariant: Invariant | None = None, seed: int = 7) -> Case:
    """Return what :func:`check_method` tries a method on."""
    rng = np.random.default_rng(seed)
    n = _agents(method)
    return Case(
        method,
        random_digraph(n, 0.3, seed=seed),
        a=rng.uniform(0.5, 2.0, (n, _DIMENSION)),
        b=rng.normal(size=(n, _DIMENSION)),
        start=rng.normal(size=(n, _DIMENSION)),
        invariant=invariant,
    )


def _agents(method: Any) -> int:
    return next((len(column) for column in _columns(method, np.float64).values()), 5)


def _protocol(s: Case) -> None:
    missing = [name for name in ("needs", "init", "estimate", "query", "step") if not hasattr(s.method, name)]
    s.require(not missing, f"must have `{'`, `'.join(missing)}`, which digrad.types.Method explains")
    s.require(dataclasses.is_dataclass(s.method), "must be a dataclass whose fields are the hyper-parameters")
    unknown = set(s.method.needs) - set(NumPyNet.primitives)
    s.require(not unknown, f"`needs` must be some of {', '.join(NumPyNet.primitives)}, but it has {unknown}")


def _shapes(s: Case) -> None:
    states = s.states(3)
    for state in states:
        s.require(isinstance(state, tuple) and hasattr(state, "_fields"), "a state must be a NamedTuple")
        same = [leaf.shape for leaf in state] == [leaf.shape for leaf in states[0]]
        s.require(
            type(state) is type(states[0]) and same, "a step must keep the type and shapes of the state"
        )
        s.require(
            all(len(leaf) == s.graph.n for leaf in state), "a state has one row per agent in every field"
        )
        for name in ("estimate", "query"):
            shape = getattr(s.method, name)(state).shape
            s.require(shape == s.start.shape, f"`{name}` must be [n, d], but it is {list(shape)}")


def _precision(s: Case) -> None:
    method = dataclasses.replace(s.method, **_columns(s.method, np.float32))
    a, b = np.float32(s.a), np.float32(s.b)
    state = run(method, network(s.graph), lambda x: a * x - b, np.float32(s.start), 2)[-1]
    kept = {leaf.dtype for leaf in state} == {np.dtype(np.float32)}
    s.require(kept, "a state of float32 must stay float32: create arrays with digrad.arrays, without a dtype")


def _columns(method: Any, dtype: Any) -> dict[str, Any]:
    values = {name: getattr(method, name) for name in numeric_fields(type(method))}
    return {name: value.astype(dtype) for name, value in values.items() if isinstance(value, np.ndarray)}


def _purity(s: Case) -> None:
    net = network(s.graph).bound(s.method)
    state = s.method.init(_frozen(s.start), net)
    for _ in range(2):
        state = type(state)(*(_frozen(leaf) for leaf in state))
        grad = _frozen(s.gradient(s.method.query(state)))
        try:
            first = s.method.step(state, grad, net)
        except ValueError as error:
            s.require("read-only" not in str(error), "`step` must not write into its arguments")
            raise
        second = s.method.step(state, grad, net)
        same = all(np.array_equal(*pair) for pair in zip(first, second, strict=True))
        s.require(same, "`step` must give the same result twice: no random numbers, no memory of its own")
        state = first


def _frozen(x: Any) -> Any:
    copy = np.array(x)
    copy.flags.writeable = False
    return copy


def _needs(s: Case) -> None:
    net = network(s.graph).bound(s.method).restricted(s.method.needs)
    try:
        run(s.method, net, s.gradient, s.start, 2)
    except AssertionError as error:
        raise ContractError(f"{type(s.method).__name__}: {error}.") from error
    sent = dry_run(s.method, s.start, np.eye(s.graph.n))
    used = {primitive for primitive, _ in (*sent.opening, *sent.calls)}
    idle = {need for need in s.method.needs if NumPyNet.primitives[need] not in used}
    s.require(not idle, f"`needs` announces {', '.join(sorted(idle))}, which `init` and `step` never use")


def _conserved(s: Case) -> str | None:
    states = s.states()
    weights = Network(s.graph).u if _row_only(s) else np.ones(s.graph.n)
    for before, after in pairwise(states):
        grad = s.gradient(s.method.query(before))
        residual = s.invariant(before, grad, after) if s.invariant else _residual(after, weights)
        largest = float(np.max(np.abs(residual), initial=0.0))
        broken = f"its invariant is broken: a residual of {largest:.3g} after a step"
        s.require(largest <= _TOLERANCE * (1 + s.graph.n), broken)
    if "w" in states[0]._fields and "column" in s.method.needs:
        s.require(all((state.w > 0).all() for state in states), "the push-sum weights `w` must stay positive")
    has_default = _residual(states[0], weights).size > 0
    return None if s.invariant or has_default else "no field stands for one; give `invariant`"


def _row_only(s: Case) -> bool:
    return set(bindings(s.method).values()) == {"R"}


def _residual(state: Any, weights: np.ndarray) -> np.ndarray:
    """Return by how much the sums that the fields stand for are missed."""
    fields = set(state._fields)
    found = [np.zeros(0)]
    if {"y", "g"} <= fields:
        found.append(weights @ (state.y - state.g))
    if "w" in fields and state.w.shape == (len(weights), 1):
        found.append(state.w.sum(axis=0) - len(weights))
    return np.concatenate(found)


def _simulator(s: Case) -> None:
    expected = s.method.estimate(s.states()[-1])
    network_ = Network(s.graph)
    network_.require(required(s.method), type(s.method).__name__)
    problem = quadratic(curvature=s.a, linear=s.b)
    trace = simulate(s.method, problem, network_, steps=_STEPS, x0=s.start, record_every=_STEPS)
    s.require(
        _close(trace.final_x, expected),
        "the compiled simulator must compute what NumPy does; see digrad.arrays",
    )


def _replicas(s: Case) -> str | None:
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    import torch

    from digrad.torch import Replicas

    models = [torch.nn.ParameterList([torch.tensor(row, dtype=torch.float64)]) for row in s.start]
    replicas = Replicas(models, s.method, Network(s.graph))
    a, b = torch.tensor(s.a), torch.tensor(s.b)
    for _ in range(_STEPS):
        replicas.zero_grad()
        for i, model in enumerate(replicas.models):
            (x,) = model.parameters()
            (0.5 * a[i] @ x**2 - b[i] @ x).backward()
        replicas.step()
    expected = s.method.estimate(s.states()[-1])
    s.require(
        _close(replicas.estimate(), expected),
        "the torch engines must compute what NumPy does; see digrad.arrays",
    )
    return None


def _close(first: Any, second: Any) -> bool:
    return bool(np.allclose(first, second, rtol=1e-10, atol=1e-10))


# Each check raises if its promise is broken, and returns why it could not look, or None.
CONTRACT: dict[str, Callable[[Case], str | None]] = {
    "has what the protocol asks for": _protocol,
    "keeps type and shapes of its state": _shapes,
    "keeps float32": _precision,
    "is a pure function of its arguments": _purity,
    "needs what it announces, and no more": _needs,
    "conserves its invariant": _conserved,
    "gives the same numbers in the compiled simulator": _simulator,
    "gives the same numbers in torch": _replicas,
}
