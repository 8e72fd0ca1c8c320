"""How every chain is closed: the gradient bound as a least fixed point, and the largest step it allows.

The constants of a chain depend on a bound G of the gradient, and G depends on the constants: the potential V0
bounds F along the run, and a function Phi turns that into a bound of the gradient. G is the least fixed point of
the increasing map T: G -> Phi(V0(G)). Read literally, the paper's supremum is infinite (erratum A13).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from digrad.theory.chains.setting import Setting

ITERATIONS = 400
INFLATION = (
    1e-9  # each iterate is enlarged by this, so that the iteration ends strictly above the fixed point
)
SETTLED = 1e-7  # a bound above its image by more than this, relatively, is lowered
LONGEST_STEP = 2.0  # a secant step goes at most to so many times the image
BISECTIONS = 40
SMALLEST_STEP = 1e-30


@dataclass(frozen=True)
class Evaluation:
    """A chain at one step size and one gradient bound.

    Attributes:
        constants: Every constant by name.
        conditions: Each condition on the step size by name: at most 1 where it holds.
        budget: V0, the bound on F minus its lower bound; infinite if a condition for its existence fails.
        total: Sbar, the bound on the sum of abar_k ||grad F||^2.
    """

    constants: dict[str, float] = field(repr=False)
    conditions: dict[str, float]
    budget: float
    total: float

    @property
    def holds(self) -> bool:
        """Whether all conditions hold and both bounds are finite."""
        return math.isfinite(self.budget + self.total) and all(
            value <= 1 for value in self.conditions.values()
        )


class Chain(Protocol):
    """A chain of constants: the paper's, the repaired one or the sharp one."""

    name: str

    def local_constants(self, setting: Setting, step_size: float, grad_bound: float) -> dict[str, float]:
        """Return the constants that need no condition, which also serve runs whose step is not certified."""
        ...

    def evaluate(self, setting: Setting, step_size: float, grad_bound: float) -> Evaluation:
        """Return all constants and conditions."""
        ...

    def gradient_bound(self, setting: Setting, gap: float) -> float:
        """Return Phi(gap): the largest gradient norm of F where F is at most ``gap`` above its lower bound."""
        ...

    def iterations(self, setting: Setting, total: float, step_size: float, eps: float) -> float:
        """Return K(eps), after which some iterate has a gradient norm of at most eps."""
        ...


@dataclass(frozen=True)
class Closed:
    """A chain at one step size, with its gradient bound.

    Attributes:
        chain: Its name.
        step_size: alpha.
        grad_bound: G with Phi(V0(G)) <= G if ``certified``; else the last G tried, which bounds nothing.
        evaluation: The constants and conditions at that G.
        certified: Whether such a G was found and all conditions of the chain hold at it.
        caveat: Why nothing is certified although the conditions may hold.
    """

    chain: str
    step_size: float
    grad_bound: float
    evaluation: Evaluation
    certified: bool
    caveat: str = ""

    @property
    def broken(self) -> tuple[str, ...]:
        """The conditions that fail, each by the word before its formula."""
        conditions = self.evaluation.conditions
        return tuple(name.split(":")[0] for name, value in conditions.items() if not value <= 1)

    @property
    def failed(self) -> str:
        """Which conditions fail, or what else stands against a certificate, or an empty string."""
        if self.certified:
            return ""
        if self.caveat:
            return self.caveat
        broken = [
            f"{name} ({value:.3g} > 1)" if math.isfinite(value) else f"{name} (beyond double precision)"
            for name, value in self.evaluation.conditions.items()
            if not value <= 1
        ]
        if broken:
            return ", ".join(broken)
        if not self.evaluation.holds:
            return "the bound V0 of F is beyond double precision"
        return f"the iteration for G did not settle (last G = {self.grad_bound:.4g})"


def close(chain: Chain, setting: Setting, step_size: float) -> Closed:
    """Return the least fixed point of the gradient bound, and whether all conditions hold there.

    An accepted G satisfies T(G) = Phi(V0(G)) <= G, which is all that the induction needs, however G was found. Plain
    iteration from Phi(D0) stays below the least fixed point, but near the largest step, where T touches the diagonal,
    it takes tens of thousands of steps. Secants through the last two iterates take a few dozen; where T is convex
    they stay below the fixed point too. If one leads to where a condition fails, the iteration goes on without them.
    """
    grad_bound = chain.gradient_bound(setting, setting.D0)
    evaluation = chain.evaluate(setting, step_size, grad_bound)
    before: tuple[float, float] | None = None  # the last G and its image
    may_leap = True
    for _ in range(ITERATIONS):
        if not evaluation.holds:
            if before is None or not may_leap:
                break
            may_leap, image = False, before[1]
        else:
            image = chain.gradient_bound(setting, evaluation.budget)
            if image <= grad_bound:
                return _lowered(Closed(chain.name, step_size, grad_bound, evaluation, True), chain, setting)
            following = _leap(before, (grad_bound, image)) if may_leap else image
            before, image = (grad_bound, image), following
        grad_bound = image * (1 + INFLATION)
        evaluation = chain.evaluate(setting, step_size, grad_bound)
    return Closed(chain.name, step_size, grad_bound, evaluation, certified=False)


def _leap(before: tuple[float, float] | None, last: tuple[float, float]) -> float:
    """Return where the secant of T through two points (G, T(G)) meets the diagonal, or T(G) if it does not."""
    grad_bound, image = last
    if before is None or not grad_bound > before[0]:
        return image
    slope = (image - before[1]) / (grad_bound - before[0])
    if not 0 <= slope < 1:
        return image
    return min(grad_bound + (image - grad_bound) / (1 - slope), LONGEST_STEP * image)


def _lowered(closed: Closed, chain: Chain, setting: Setting) -> Closed:
    """Return the same with a smaller G, if a secant led far above the fixed point: T(G) <= G holds for T(G) too."""
    for _ in range(ITERATIONS):
        image = chain.gradient_bound(setting, closed.evaluation.budget)
        if closed.grad_bound <= image * (1 + SETTLED):
            break
        smaller = image * (1 + INFLATION)
        evaluation = chain.evaluate(setting, closed.step_size, smaller)
        if not (evaluation.holds and chain.gradient_bound(setting, evaluation.budget) <= smaller):
            break
        closed = replace(closed, grad_bound=smaller, evaluation=evaluation)
    return closed


def without_proof(closed: Closed, caveat: str) -> Closed:
    """Return the same figures as an indication only."""
    return replace(closed, certified=False, caveat=caveat)


def largest_step(
    chain: Chain, setting: Setting, *, start: float = 1.0, tolerance: float = 1e-6
) -> Closed | None:
    """Return the chain closed at the largest certified step size, to a relative ``tolerance``, or None.

    The certified steps form an interval from 0, because everything increases with the step size and with G.
    """
    lower = _first_certified(lambda step: close(chain, setting, step), start)
    if lower is None:
        return None
    best, low, high = lower, lower.step_size, lower.step_size * 10
    for _ in range(BISECTIONS):
        if high / low < 1 + tolerance:
            break
        middle = math.sqrt(low * high)
        candidate = close(chain, setting, middle)
        if candidate.certified:
            best, low = candidate, middle
        else:
            high = middle
    return best


def _first_certified(attempt: Callable[[float], Closed], start: float) -> Closed | None:
    step = start
    found = attempt(step)
    while found.certified and step < 1e12:
        larger = attempt(step * 10)
        if not larger.certified:
            return found
        step, found = step * 10, larger
    while not found.certified:
        step /= 10
        if step < SMALLEST_STEP:
            return None
        found = attempt(step)
    return found
