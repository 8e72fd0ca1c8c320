"""A method of your own against CGT, on a loss that needs clipping: `python examples/own_method.py [figure.png]`."""

import sys
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

import digrad as dg
from digrad.arrays import clip_rows, zeros_like
from digrad.methods.defaults import state_x


class HeavyBallState(NamedTuple):
    """Estimates, trackers, stored gradients and velocities, each [n, d]."""

    x: Any
    y: Any
    g: Any
    m: Any


@dataclass(frozen=True, eq=False)
class HeavyBallCGT:
    """CGT whose clipped tracker is accumulated before the step; nothing is claimed about it."""

    step_size: float
    threshold: float
    momentum: float

    needs = frozenset({"row", "column"})
    converges: ClassVar = "exact"
    estimate = query = state_x

    def init(self, x0: Any, net: Any) -> HeavyBallState:
        """Start at x0, at rest."""
        return HeavyBallState(x=x0, y=zeros_like(x0), g=zeros_like(x0), m=zeros_like(x0))

    def step(self, state: HeavyBallState, grad: Any, net: Any) -> HeavyBallState:
        """Track the average gradient, clip, accumulate, move."""
        y = net.push(state.y) + grad - state.g
        m = self.momentum * state.m + clip_rows(y, self.threshold)
        x = net.pull(state.x) - self.step_size * m
        return HeavyBallState(x=x, y=y, g=grad, m=m)


def steps_to(trace: dg.Trace, grad_norm: float) -> int:
    """Return the first iteration whose gradient is that small."""
    return int(trace.k[np.argmax(trace.grad_norm <= grad_norm)])


def main() -> None:
    problem, network = dg.problems.example_quartic(), dg.Network(dg.graphs.example5())
    methods = {
        "CGT": dg.CGT(step_size=0.01, threshold=2.0),
        "CGT with momentum": HeavyBallCGT(step_size=0.01, threshold=2.0, momentum=0.5),
    }
    traces = dg.compare(methods, problem, network, steps=3000, x0=np.full(problem.dim, 10.0))
    own, plain = steps_to(traces["CGT with momentum"], 1e-6), steps_to(traces["CGT"], 1e-6)
    print(f"steps to a gradient of 1e-6, relative to CGT: {own / plain:.2f}")
    if len(sys.argv) > 1:
        dg.plots.curves(traces, "grad_norm").savefig(sys.argv[1])


if __name__ == "__main__":
    main()
