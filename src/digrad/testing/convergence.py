"""Limit of each method, measured on the five-agent quadratic whose minimum is (1/3, 1/3)."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from digrad import graphs, problems
from digrad import methods as dg
from digrad.core.hyperparameters import with_fields
from digrad.network import Network, metropolis, rho
from digrad.simulation import Simulator

Floats = npt.NDArray[np.floating]

EXACT = 1e-6  # largest distance of any agent from the minimum
SHRINKS = 0.35  # error after a tenth of the step size, relative to the error before, that counts as vanishing with it
GROWS = 1.01  # error after four times the steps, relative to the error before, that counts as still growing
STILL = 1e-3  # an iterate that moves less than this in a step, relative to its error, has come to rest
TAIL = 5  # last iterates whose largest error counts if they have not come to rest
BAND = 5  # an iterate that keeps moving is shown to be within this many step sizes (or tens of it): where it
# stands when the run ends depends on rounding, and over the last 1500 iterates it stays within about three


@dataclass(frozen=True)
class Outcome:
    """End of a method on the example, and its error when the step size is divided by ten."""

    method: str
    setting: str
    steps: int
    step_size: float
    # Distances from the minimum: the largest of the last TAIL iterates if they keep moving.
    mean_error: float  # of the agents' mean
    largest_error: float  # of the farthest agent
    largest_error_tenth: float  # the same with a tenth of the step size
    outcome: str  # exact, biased, drifting, neighbourhood, or wrong point
    decentralized: bool  # False for a method that needs the true average of all agents

    def cells(self) -> tuple[str | int, ...]:
        """Return the outcome in the order in which tables show it, from ``method`` to ``decentralized``."""
        is_decentralized = "yes" if self.decentralized else "no"
        return self.method, self.setting, self.steps, *self._errors(), self.outcome, is_decentralized

    def _errors(self) -> tuple[str, str, str]:
        """Return the three errors to the digits that do not depend on rounding."""
        errors = (self.mean_error, self.largest_error, self.largest_error_tenth)
        if self.outcome == "neighbourhood":
            mean, largest, tenth = (_band(error / self.step_size) for error in (*errors[:2], 10 * errors[2]))
            return f"<= {mean:g} alpha", f"<= {largest:g} alpha", f"<= {tenth / 10:g} alpha"
        mean, largest, tenth = ("< 1e-9" if error < 1e-9 else f"{error:.2g}" for error in errors)
        return mean, largest, tenth


def settings() -> list[tuple[Any, str, int]]:
    """Return the methods that are measured, their matrices and the number of steps."""
    second = rho(metropolis(graphs.example5().symmetrized()))
    chebyshev = dg.chebyshev_momentum(second)
    return [
        (dg.CGT(0.05, 2.0), "R, C", 3000),
        (dg.SoftCGT(0.05, 2.0), "R, C", 3000),
        (dg.AB(0.05), "R, C", 3000),
        (dg.PushPull(0.05), "R, C", 3000),
        (dg.AugPushPull(0.05), "R, C", 3000),
        (dg.NormalizedAB(0.1), "R, C", 5000),
        (dg.FROST(0.02), "R", 6000),
        (dg.PushDIGing(0.05), "C", 3000),
        (dg.PushSAGA(0.05), "C", 3000),
        (dg.ADDOPT(0.05), "C", 3000),
        (dg.SONATA(0.05), "C", 3000),
        (dg.SGP(0.05), "C", 6000),
        (dg.SubgradientPush(0.05), "C", 6000),
        (dg.DSGT(0.05), "W", 3000),
        (dg.DSGT(0.02, mixing="row"), "R", 6000),
        (dg.MomentumTracking(0.02, 0.5), "W", 3000),
        (dg.DGD(0.05), "W", 6000),
        (dg.DGD(0.05, mixing="row"), "R", 6000),
        (dg.DGDATC(0.05), "W", 6000),
        (dg.QGDSGDm(0.05), "W", 6000),
        (dg.DGDClip(0.05, 5.0), "W", 6000),
        (dg.DGDClip(0.05, 1.0), "W", 12000),
        (dg.DGDClip(0.05, 5.0, mixing="row"), "R", 6000),
        (dg.CDSGDPolyak(0.02, 0.3), "W", 6000),
        (dg.CDSGDNesterov(0.02, 0.3), "W", 6000),
        (dg.DAMSGrad(0.1, delayed=False), "W", 60000),
        (dg.DAdaGrad(0.1, delayed=False), "W", 60000),
        (dg.DAMSGrad(0.01), "W", 60000),  # delayed, as published; likewise the next
        (dg.DAdaGrad(0.01), "W", 60000),
        (dg.DNSGD(0.1, chebyshev=chebyshev), "M", 5000),
        (dg.GTNSGDm(0.1), "W", 5000),
        (dg.DeMuon(0.1), "W", 5000),
        (dg.JiangClip(0.05, 2.0), "W", 6000),
        (dg.DiLoCo(0.02, 5, momentum=0.5), "W", 6000),
        (dg.NoLoCo(0.02, 5), "W", 6000),
        (dg.GD(0.05), "mean", 3000),
        (dg.ClippedGD(0.05, 2.0), "mean", 3000),
        (dg.NSGDm(0.1), "mean", 5000),
        (dg.Adam(0.01), "mean", 12000),
    ]


def convergence_table() -> list[Outcome]:
    """Measure every method of :func:`settings`; takes one to two minutes."""
    return [measure(*row) for row in settings()]


def measure(method: Any, matrix: str, steps: int) -> Outcome:
    """Run one method, once more with a tenth of its step size, and say what it converges to."""
    graph = graphs.example5()
    network = Network(graph, W=metropolis(graph.symmetrized())) if matrix == "M" else Network(graph)
    last = _last_iterates(method, network, steps, TAIL)
    moves = _moves(last)
    mean, largest = _worst(last if moves else last[-1:])
    # Ten times smaller steps need ten times more of them.
    smaller = with_fields(method, {"step_size": method.step_size / 10})
    _, tenth = _worst(_last_iterates(smaller, network, 10 * steps, TAIL if moves else 1))
    return Outcome(
        method=type(method).__name__,
        setting=setting(method, matrix),
        steps=steps,
        step_size=method.step_size,
        mean_error=mean,
        largest_error=largest,
        largest_error_tenth=tenth,
        outcome=_outcome(
            largest, tenth, moves=moves, grows=not moves and _grows(method, network, steps, largest)
        ),
        decentralized="mean" not in method.needs,
    )


def setting(method: Any, matrix: str) -> str:
    """Return the matrices, the hyper-parameters without a default, and those that differ from theirs.

    >>> setting(dg.DGDClip(0.05, 5.0), "W"), setting(dg.DAMSGrad(0.1, delayed=False), "W")
    ('W, step_size 0.05, threshold 5', 'W, step_size 0.1, delayed False')
    >>> setting(dg.DiLoCo(0.05, 3), "W")
    'W, step_size 0.05, local_steps 3'
    """
    values = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}
    shown = [name for name, value in values.items() if value != _default(method, name)]
    texts = [f"{values[name]:g}" if isinstance(values[name], float) else str(values[name]) for name in shown]
    return ", ".join([matrix, *(f"{name} {text}" for name, text in zip(shown, texts, strict=True))])


def _default(method: Any, name: str) -> Any:
    field = type(method).__dataclass_fields__[name]
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _moves(last: list[Floats]) -> bool:
    """Return whether a method that ends away from the minimum has not come to rest."""
    _, largest = _errors(last[-1])
    return largest > EXACT and float(np.abs(last[-1] - last[-2]).max()) > STILL * largest


def _grows(method: Any, network: Network, steps: int, largest: float) -> bool:
    """Return whether the error of a method that hardly moves is larger still after four times the steps."""
    return largest > EXACT and _worst(_last_iterates(method, network, 4 * steps, 1))[1] > GROWS * largest


def _worst(iterates: list[Floats]) -> tuple[float, float]:
    errors = [_errors(x) for x in iterates]
    return max(mean for mean, _ in errors), max(largest for _, largest in errors)


def _band(step_sizes: float) -> float:
    return BAND * 10.0 ** math.ceil(math.log10(max(1.0, step_sizes / BAND)))


def _last_iterates(method: Any, network: Network, steps: int, count: int) -> list[Floats]:
    """Return the estimates of all agents, ``[n, d]``, after each of the last steps of one run."""
    simulator, found = Simulator(method, problems.example_quadratic(), network, record_every=steps), []
    state = simulator.init([10.0, -10.0])
    for end in range(steps - count + 1, steps + 1):
        state, _ = simulator.run(state, end - int(state.k))
        found.append(simulator.estimate(state))
    return found


def _errors(x: Floats) -> tuple[float, float]:
    minimum = np.full(2, 1 / 3)
    return float(np.linalg.norm(x.mean(axis=0) - minimum)), float(np.linalg.norm(x - minimum, axis=1).max())


def _outcome(largest: float, tenth: float, *, moves: bool, grows: bool) -> str:
    if largest <= EXACT:
        return "exact"
    if grows:
        return "drifting"
    if tenth > SHRINKS * largest:
        return "wrong point"
    return "neighbourhood" if moves else "biased"
