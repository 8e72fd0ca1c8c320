"""A deterministic run of CGT that keeps everything, so that every inequality of the theory can be evaluated."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from digrad import checks
from digrad.algorithms import CGT
from digrad.errors import ArgumentError
from digrad.mixing import Network
from digrad.problems import LocalLosses, Problem
from digrad.simulation.executor import SimulatedNet, operators
from digrad.theory.setting import check_problem, one_number, start_array

Floats = npt.NDArray[np.floating]

CHUNK = 500  # points whose loss and gradient are evaluated in one product
LARGEST_ENTRY = 1e100  # beyond it squares and products of an iterate are meaningless


class RunDivergedError(ArgumentError):
    """A run left the range in which the inequalities can be evaluated, at iteration ``k``."""

    def __init__(self, message: str, k: int) -> None:
        """Keep the iteration beside the message."""
        super().__init__(message)
        self.k = k


@dataclass(frozen=True, eq=False)
class Trajectory:
    """x_k, y_k and the gradients of every iteration k = 0, ..., K.

    Attributes:
        x: ``[K + 1, n, d]``.
        y: ``[K + 1, n, d]``, with y_0 the gradients at x_0.
        grad: ``[K + 1, n, d]``, row i the gradient of f_i at x_i.
        average: ``[K + 1, d]``, weighted by u.
        loss: ``[K + 1]``, F at the average.
        grad_F: ``[K + 1, d]``, its gradient there.
        local: ``[K + 1, n, d]``, the gradients of the f_i at the average.
        step_size: alpha.
        threshold: c0.
    """

    x: Floats = field(repr=False)
    y: Floats = field(repr=False)
    grad: Floats = field(repr=False)
    average: Floats = field(repr=False)
    loss: Floats = field(repr=False)
    grad_F: Floats = field(repr=False)  # noqa: N815
    local: Floats = field(repr=False)
    step_size: float
    threshold: float

    @property
    def steps(self) -> int:
        """The number K of steps."""
        return len(self.x) - 1


def run(
    problem: Problem,
    network: Network,
    *,
    step_size: float,
    threshold: float,
    x0: npt.ArrayLike | None = None,
    steps: int,
) -> Trajectory:
    """Run CGT with full gradients and keep every iterate.

    Raises:
        RunDivergedError: The run leaves the range of double precision; take a smaller step size or threshold.

    Example:
        >>> from digrad.graphs import example5
        >>> from digrad.problems import example_quadratic
        >>> path = run(example_quadratic(), Network(example5()), step_size=0.05, threshold=2.0, steps=300)
        >>> path.x.shape, bool(np.linalg.norm(path.grad_F[-1]) < 1e-6)
        ((301, 5, 2), True)
    """
    steps = checks.count(steps, "steps", "theory.run")
    check_problem(problem, "theory.run")
    if not isinstance(network, Network):
        raise ArgumentError(
            f"`network` of theory.run must be one Network, because the theory has a fixed u and v, but got "
            f"{type(network).__name__}; pass one of them."
        )
    for name, value in (("step_size", step_size), ("threshold", threshold)):
        one_number(value, name, "theory.run")
    checks.positive(step_size, "step_size", "theory.run")
    checks.positive(threshold, "threshold", "theory.run", allow_inf=True)
    start = start_array(problem, x0, "theory.run")
    if network.n != problem.n_agents:
        raise ArgumentError(
            f"`network` of theory.run has {network.n} agents, but the problem has {problem.n_agents}; build both for "
            "the same agents."
        )
    with jax.enable_x64(True):
        arrays, mixing = problem.arrays(np.float64), operators(network, CGT.needs, np.float64)[0]
        hyper = jnp.asarray([step_size, threshold], jnp.float64)
        iterates = _scan(mixing, arrays, hyper, jnp.asarray(start), local=problem.local, steps=steps)
        x, y, grad = (np.asarray(array) for array in iterates)
        if not (np.abs(x).max() < LARGEST_ENTRY and np.abs(y).max() < LARGEST_ENTRY):
            k = _first_huge(x, y)
            raise RunDivergedError(
                f"`step_size` of theory.run is {step_size:g}, with which the run leaves double precision at k = {k}; "
                "take a smaller step size or threshold.",
                k,
            )
        average = np.einsum("i,kid->kd", network.u / network.n, x)
        loss, grad_F, local = _at_points(problem, average)
    return Trajectory(x, y, grad, average, loss, grad_F, local, float(step_size), float(threshold))


@partial(jax.jit, static_argnames=("local", "steps"))
def _scan(
    mixing: Any, arrays: Any, hyper: jax.Array, x0: jax.Array, *, local: LocalLosses, steps: int
) -> Any:
    method, net = CGT(step_size=hyper[0], threshold=hyper[1]), SimulatedNet(mixing, x0.shape[0])

    def advance(state: Any, _: None) -> tuple[Any, Any]:
        gradient = local.gradients(arrays, state.x, None)
        following = method.step(state, gradient, net)
        return following, (state.x, following.y, gradient)  # x_k, y_k, gradients at x_k: y is updated first

    return jax.lax.scan(advance, method.init(x0, net), None, length=steps + 1)[1]


@partial(jax.jit, static_argnames=("local",))
def _evaluate(
    arrays: Any, points: jax.Array, *, local: LocalLosses
) -> tuple[jax.Array, jax.Array, jax.Array]:
    loss, gradient = local.objective(arrays, points)
    stacked = jnp.broadcast_to(points[:, None], (len(points), local.n_agents, local.dim))
    return loss, gradient, jax.lax.map(lambda x: local.gradients(arrays, x, None), stacked)


def _at_points(problem: Problem, points: Floats) -> tuple[Floats, Floats, Floats]:
    """Return F, its gradient and all local gradients at points ``[K + 1, d]``, a chunk of equal size at a time."""
    padded = np.concatenate([points, np.repeat(points[-1:], -len(points) % CHUNK, axis=0)])
    parts = [
        _evaluate(problem.arrays(np.float64), padded[first : first + CHUNK], local=problem.local)
        for first in range(0, len(padded), CHUNK)
    ]
    loss, gradient, local = (np.concatenate([np.asarray(part[i]) for part in parts]) for i in range(3))
    return loss[: len(points)], gradient[: len(points)], local[: len(points)]


def _first_huge(x: Floats, y: Floats) -> int:
    size = np.maximum(np.abs(x).max(axis=(1, 2)), np.abs(y).max(axis=(1, 2)))
    return int(np.argmax(~(size < LARGEST_ENTRY)))
