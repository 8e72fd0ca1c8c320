"""A deterministic run of CGT that keeps everything, so that every inequality of the theory can be evaluated."""

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from digrad import checks
from digrad.errors import ArgumentError
from digrad.methods import CGT
from digrad.network import Network
from digrad.problems import Problem
from digrad.problems.compiled_loss import objective_at
from digrad.simulation import Simulator
from digrad.simulation.record import joined
from digrad.simulation.simulate import run_to_end
from digrad.theory.arguments import check_covered, positive_or_infinite

Floats = npt.NDArray[np.floating]

MOST_NUMBERS = 2**28  # of x in all iterations: 2 GiB, and as much for y and the gradients
POINTS_AT_ONCE = 500  # points at which F and its gradient are evaluated in one product


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
        step_size: alpha.
        threshold: c0.
    """

    x: Floats = field(repr=False)
    y: Floats = field(repr=False)
    grad: Floats = field(repr=False)
    average: Floats = field(repr=False)
    loss: Floats = field(repr=False)
    grad_F: Floats = field(repr=False)  # noqa: N815
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
        ArgumentError: The network changes with time, or its links alter messages: the theory does not cover it.
        ArgumentError: All iterates together do not fit in memory.
        RunDivergedError: The run leaves the range of double precision; take a smaller step size or threshold.

    Example:
        >>> from digrad.graphs import example5
        >>> from digrad.problems import example_quadratic
        >>> path = run(example_quadratic(), Network(example5()), step_size=0.05, threshold=2.0, steps=300)
        >>> path.x.shape, bool(np.linalg.norm(path.grad_F[-1]) < 1e-6)
        ((301, 5, 2), True)
    """
    steps = checks.count(steps, "steps", "theory.run")
    check_covered(network, "theory.run")
    alpha = float(checks.one_number(checks.positive, step_size, "step_size", "theory.run"))
    c0 = float(checks.one_number(positive_or_infinite, threshold, "threshold", "theory.run"))
    simulator = Simulator(CGT(step_size=alpha, threshold=c0), problem, network, keep=_keep)
    size = problem.n_agents * problem.dim
    if steps * size > MOST_NUMBERS:
        raise ArgumentError(
            f"`steps` of theory.run must be at most {MOST_NUMBERS // size} for {network.n} agents in dimension "
            f"{problem.dim}, because every iterate is kept in memory, but got {steps}."
        )
    x, y, grad = _iterates(simulator, x0, steps)
    average = np.einsum("i,kid->kd", network.u / network.n, x)
    loss, grad_F = _at_points(problem, average)
    return Trajectory(x, y, grad, average, loss, grad_F, alpha, c0)


def _iterates(simulator: Simulator, x0: Any, steps: int) -> tuple[Floats, Floats, Floats]:
    """Return x_k, y_k and the gradients at x_k for k = 0, ..., steps."""
    parts = []
    state, interrupted = run_to_end(simulator, simulator.init(x0), steps + 1, parts)
    if interrupted:
        raise KeyboardInterrupt
    if not state.alive:
        raise RunDivergedError(
            f"`step_size` of theory.run is {float(simulator.method.step_size):g}, with which the run diverges "
            f"at k = {int(state.k)}; take a smaller step size or threshold.",
            int(state.k),
        )
    rows = joined(parts)
    return rows["x"], rows["y"], rows["grad"]


def _keep(method: Any, before: Any, after: Any, grad: jax.Array) -> dict[str, jax.Array]:
    return {"x": before.x, "y": after.y, "grad": grad}  # y is updated first: x_k, y_k, gradients at x_k


def _at_points(problem: Problem, points: Floats) -> tuple[Floats, Floats]:
    """Return F ``[K + 1]`` and its gradient at points ``[K + 1, d]``, a chunk of equal size at a time."""
    padded = np.concatenate([points, np.repeat(points[-1:], -len(points) % POINTS_AT_ONCE, axis=0)])
    with jax.enable_x64(True):
        parts = [
            objective_at(problem.arrays(np.float64), chunk, code=problem.code)
            for chunk in padded.reshape(-1, POINTS_AT_ONCE, problem.dim)
        ]
    loss, gradient = (np.concatenate([np.asarray(part[i]) for part in parts]) for i in range(2))
    return loss[: len(points)], gradient[: len(points)]
