"""What each method converges to, measured on the five-agent quadratic whose minimum is (1/3, 1/3)."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from digrad import algorithms as dg
from digrad import graphs, problems
from digrad.algorithms.fields import with_fields
from digrad.mixing import Network, metropolis, rho
from digrad.simulation import simulate

EXACT = 1e-6  # largest distance of any agent from the minimum
SHRINKS = 0.35  # error after a tenth of the step size, relative to the error before, that counts as vanishing with it
STILL = 1e-3  # an iterate that moves less than this in a step, relative to its error, has come to rest


@dataclass(frozen=True)
class Outcome:
    """Where a method ends on the example, and what becomes of its error when the step size is divided by ten."""

    method: str
    setting: str
    steps: int
    mean_error: float  # distance of the agents' mean from the minimum
    largest_error: float  # distance of the farthest agent from the minimum
    largest_error_tenth: float  # the same with a tenth of the step size
    outcome: str  # exact, biased, neighbourhood, or wrong point

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain values."""
        return dataclasses.asdict(self)


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
        (dg.ADDOPT(0.05), "C", 3000),
        (dg.SONATA(0.05), "C", 3000),
        (dg.SGP(0.05), "C", 6000),
        (dg.SubgradientPush(0.05), "C", 6000),
        (dg.DSGT(0.05), "W", 3000),
        (dg.DSGT(0.02, mixing="row"), "R", 6000),
        (dg.DGD(0.05), "W", 6000),
        (dg.DGD(0.05, mixing="row"), "R", 6000),
        (dg.DGDATC(0.05), "W", 6000),
        (dg.DGDClip(0.05, 5.0), "W", 6000),
        (dg.DGDClip(0.05, 1.0), "W", 12000),
        (dg.DGDClip(0.05, 5.0, mixing="row"), "R", 6000),
        (dg.CDSGD(0.05), "W", 6000),
        (dg.CDSGDPolyak(0.02, 0.3), "W", 6000),
        (dg.CDSGDNesterov(0.02, 0.3), "W", 6000),
        (dg.DAMSGrad(0.1, delayed=False), "W", 60000),
        (dg.DAdaGrad(0.1, delayed=False), "W", 60000),
        (dg.DNSGD(0.1, chebyshev=chebyshev), "M", 5000),
        (dg.GTNSGDm(0.1), "W", 5000),
        (dg.JiangClip(0.05, 2.0), "W", 6000),
        (dg.GD(0.05), "mean", 3000),
        (dg.ClippedGD(0.05, 2.0), "mean", 3000),
        (dg.NSGDm(0.1), "mean", 5000),
        (dg.Adam(0.01), "mean", 12000),
    ]


def convergence_table() -> list[Outcome]:
    """Measure every method of :func:`settings`; takes about a minute."""
    return [measure(*row) for row in settings()]


def measure(method: Any, matrix: str, steps: int) -> Outcome:
    """Run one method, once more with a tenth of its step size, and say what it converges to."""
    graph = graphs.example5()
    mixing = metropolis(graph.symmetrized()) if matrix == "M" else None
    network = Network(graph, W=mixing) if mixing is not None else Network(graph)
    x, before = _final(method, network, steps), _final(method, network, steps - 1)
    mean, largest = _errors(x)
    # Ten times smaller steps need ten times more of them.
    _, tenth = _errors(_final(with_fields(method, {"step_size": method.step_size / 10}), network, 10 * steps))
    return Outcome(
        method=type(method).__name__,
        setting=f"{matrix}, {_hyper(method)}",
        steps=steps,
        mean_error=mean,
        largest_error=largest,
        largest_error_tenth=tenth,
        outcome=_outcome(largest, tenth, float(np.abs(x - before).max())),
    )


def _final(method: Any, network: Network, steps: int) -> npt.NDArray[np.floating]:
    start = np.array([10.0, -10.0])
    return simulate(
        method, problems.example_quadratic(), network, steps=steps, x0=start, record_every=steps
    ).final_x


def _errors(x: npt.NDArray[np.floating]) -> tuple[float, float]:
    minimum = np.full(2, 1 / 3)
    return float(np.linalg.norm(x.mean(axis=0) - minimum)), float(np.linalg.norm(x - minimum, axis=1).max())


def _outcome(largest: float, tenth: float, moved: float) -> str:
    if largest <= EXACT:
        return "exact"
    if tenth > SHRINKS * largest:
        return "wrong point"
    return "biased" if moved <= STILL * largest else "neighbourhood"


def _hyper(method: Any) -> str:
    values = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}
    shown = {
        name: value for name, value in values.items() if isinstance(value, float) and name != "chebyshev"
    }
    return ", ".join(f"{name} {value:g}" for name, value in shown.items())
