"""A method and a problem in a package of their own: all that digrad asks of it."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import digrad as dg
from digrad import checks
from digrad.arrays import zeros_like
from digrad.types import Array, Hyper, Net, StepSize


class HeavyBallABState(NamedTuple):
    """State of HeavyBallAB."""

    x: Array  # [n, d] estimates
    last: Array  # [n, d] the estimates before
    y: Array  # [n, d] trackers
    g: Array  # [n, d] the gradients that y contains


@dataclass(frozen=True, eq=False)
class HeavyBallAB:
    """Gradient tracking with a row- and a column-stochastic matrix, and a heavy ball (ABm)."""

    step_size: StepSize
    momentum: Hyper = 0.3

    needs = frozenset({"row", "column"})
    converges: ClassVar = "exact"
    bibtex: ClassVar = (
        "@article{xin2020heavy,\n  author = {Xin, Ran and Khan, Usman A.},\n  year = {2020},\n}"
    )
    __post_init__ = checks.fields

    def init(self, x0: Array, net: Net) -> HeavyBallABState:
        """Start at x0, at rest."""
        return HeavyBallABState(x=x0, last=x0, y=zeros_like(x0), g=zeros_like(x0))

    def estimate(self, state: HeavyBallABState) -> Array:
        """Return the estimates."""
        return state.x

    query = estimate

    def step(self, state: HeavyBallABState, grad: Array, net: Net) -> HeavyBallABState:
        """Track, then move along the tracker and a little further in the direction of the last move."""
        y = net.push(state.y) + grad - state.g
        x = net.pull(state.x) - self.step_size * y + self.momentum * (state.x - state.last)
        return HeavyBallABState(x=x, last=state.x, y=y, g=grad)


class LeakyAB(HeavyBallAB):
    """The same with a mistake on purpose: a hundredth of what is tracked is lost in every step."""

    def step(self, state: HeavyBallABState, grad: Array, net: Net) -> HeavyBallABState:
        """Track, and lose something."""
        after = super().step(state, grad, net)
        return after._replace(y=0.99 * after.y)


def distances(agents: int, target: float = 1.0) -> dg.Problem:
    """Return the problem whose minimum is the mean of ``target`` times the agents' numbers."""
    return dg.problems.quadratic(curvature=[[1.0]] * agents, linear=[[target * i] for i in range(agents)])


def nothing(agents: int) -> None:
    """Return no problem at all."""
