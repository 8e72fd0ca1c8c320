"""The largest value that is stable: a search by trying, and the one rule of what stable means.

As the paper asks for "the largest step sizes that ensure convergence", of the values that are stable the largest is
wanted. The search knows brackets and bisection on a log scale; what is measured (a simulation, a training on a cluster)
is a function of the caller. Lower is better, and not finite means diverged.

The rule no constant added to the loss can change. A run is judged by three things: its last loss, against how far the
best run fell from the start; and the norm of the gradient and the disagreement of the agents, which must vanish or
fall. Where a method or its samples leave a floor under these two (DGD, mini-batches), the floor must not be higher than
what smaller values leave, in proportion: the floor of a method shrinks with the step size, while the cycle of a step
size that is too large is gone below the edge.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from digrad import checks
from digrad.errors import ArgumentError

FACTOR = 2.0  # between neighbouring values before bisection
ROUNDING = 1e-12  # scores that differ by less of themselves are equal

SLACK = 0.05  # of the best fall from the start
WATCHED = ("grad_norm", "consensus_error")
FALLING = 0.8  # the last quarter of a run against the one before it
FLOOR = 2.0  # a floor may be this many times as high as one in proportion to a smaller value's
UNITS = 1000  # of rounding, relative to the largest seen, that count as zero


@dataclass(frozen=True)
class Trial:
    """One value and the score it reached; not finite when the run diverged."""

    value: float
    score: float


@dataclass(frozen=True)
class Search:
    """Result of a search.

    Args:
        value: The one wanted; None when no value tried is stable.
        trials: All that were tried, from the smallest value on.
        is_bounded: Whether values on both sides of the one wanted were tried; else the search ended at its budget.
    """

    value: float | None
    trials: tuple[Trial, ...]
    is_bounded: bool


def largest_stable(
    measure: Callable[[float], float],
    *,
    start: float,
    is_stable: Callable[[float], bool] | None = None,
    factor: float = FACTOR,
    precision: float | None = None,
    budget: int = 12,
) -> Search:
    """Return the largest value that is stable.

    From ``start`` the search goes up by ``factor`` until a value is not stable, down until the smallest tried is
    neither the best nor the only stable one, and then halves, on a log scale, the gap above the largest stable one
    until it is at most ``precision``.

    Args:
        measure: The score of a value; lower is better, not finite means diverged.
        start: The first value tried.
        is_stable: Whether a value that was measured is stable, by all that has been measured so far; by default
            whether its score is finite.
        factor: Between neighbours, before bisection.
        precision: The ratio of the smallest unstable and the largest stable value at which to stop; ``factor`` by
            default, which means no bisection.
        budget: Values tried at most.

    Raises:
        ArgumentError: An argument is out of range.

    Example:
        >>> found = largest_stable(lambda size: 1 / size if size < 1 else math.inf, start=0.1, precision=1.1)
        >>> round(found.value, 3), len(found.trials), found.is_bounded
        (0.951, 8, True)
    """
    trials = _Trials(measure, start, factor, budget, "largest_stable")
    ratio = factor if precision is None else _ratio(precision, "precision", "largest_stable")
    rule = is_stable or (lambda value: True)

    def largest() -> float | None:
        stable = (place for place in trials.scores if trials.is_finite(place) and rule(trials.value(place)))
        return max(stable, default=None)

    trials.attempt(0.0)
    while trials.has_budget:
        good = largest()
        if good == trials.highest:
            trials.attempt(trials.highest + 1)
        elif good in (None, trials.lowest) or trials.is_best_below:
            trials.attempt(trials.lowest - 1)
        else:
            break
    while trials.has_budget and (good := largest()) not in (None, trials.highest):
        bad = min(place for place in trials.scores if place > good)
        if factor ** (bad - good) <= ratio * (1 + 1e-9):
            break
        trials.attempt((good + bad) / 2)
    chosen = largest()
    # While smaller values may still be better, nobody knows yet what is close to the best.
    is_bounded = chosen is not None and trials.lowest < chosen < trials.highest and not trials.is_best_below
    return trials.result(chosen, is_bounded)


def best_value(
    measure: Callable[[float], float],
    *,
    start: float,
    factor: float = FACTOR,
    precision: float | None = None,
    budget: int = 12,
) -> Search:
    """Return the value with the lowest score.

    From ``start`` the search goes up and down by ``factor`` until the best lies between two worse ones, and then
    tries the middle, on a log scale, of the wider gap beside the best, until both are at most ``precision``. Of equal
    scores the larger value is taken.

    Args:
        measure: As in :func:`largest_stable`, and so are the other arguments.
        start: The first value tried.
        factor: Between neighbours, before refinement.
        precision: The ratio of neighbours at which to stop; ``factor`` by default.
        budget: Values tried at most.

    Example:
        >>> found = best_value(lambda size: (math.log(size) + 1) ** 2, start=0.1, precision=1.1, budget=20)
        >>> round(found.value, 2), found.is_bounded
        (0.37, True)
    """
    trials = _Trials(measure, start, factor, budget, "best_value")
    limit = factor if precision is None else _ratio(precision, "precision", "best_value")
    trials.attempt(0.0)
    while trials.has_budget and trials.winner == trials.highest and math.isfinite(trials.best):
        trials.attempt(trials.highest + 1)
    while trials.has_budget and trials.is_best_below:
        trials.attempt(trials.lowest - 1)
    while trials.has_budget and trials.lowest < trials.winner < trials.highest:
        above = min(place for place in trials.scores if place > trials.winner)
        below = max(place for place in trials.scores if place < trials.winner)
        wider = above if above - trials.winner >= trials.winner - below else below
        if factor ** abs(wider - trials.winner) <= limit * (1 + 1e-9):
            break
        trials.attempt((wider + trials.winner) / 2)
    chosen = trials.winner if math.isfinite(trials.best) else None
    return trials.result(chosen, chosen is not None and trials.lowest < chosen < trials.highest)


class _Trials:
    """The scores so far, by the logarithm of value / start to the base ``factor``."""

    def __init__(
        self, measure: Callable[[float], float], start: float, factor: float, budget: int, owner: str
    ) -> None:
        checks.positive(start, "start", owner)
        self._measure, self._start, self._factor = measure, start, _ratio(factor, "factor", owner)
        self._budget = checks.count(budget, "budget", owner)
        self.scores: dict[float, float] = {}

    @property
    def has_budget(self) -> bool:
        return len(self.scores) < self._budget

    @property
    def best(self) -> float:
        return min(self.scores.values())

    @property
    def winner(self) -> float:
        tied = self.best + ROUNDING * abs(self.best)
        return max(place for place, score in self.scores.items() if score <= tied)

    @property
    def highest(self) -> float:
        return max(self.scores)

    @property
    def lowest(self) -> float:
        return min(self.scores)

    @property
    def is_best_below(self) -> bool:
        """Return whether smaller values may be better than all tried."""
        return self.winner == self.lowest or not math.isfinite(self.best)

    def value(self, place: float) -> float:
        return self._start * self._factor**place

    def is_finite(self, place: float) -> bool:
        return math.isfinite(self.scores[place])

    def attempt(self, place: float) -> None:
        score = self._measure(self.value(place))
        self.scores[place] = score if math.isfinite(score) else math.inf

    def result(self, chosen: float | None, is_bounded: bool) -> Search:
        trials = tuple(Trial(self.value(place), self.scores[place]) for place in sorted(self.scores))
        return Search(None if chosen is None else self.value(chosen), trials, is_bounded)


def _ratio(value: float, name: str, owner: str) -> float:
    checks.positive(value, name, owner)
    if value <= 1:
        raise ArgumentError(f"`{name}` of {owner} is a ratio and must be above 1, but got {value!r}.")
    return value


@dataclass(frozen=True)
class Ending:
    """End of the runs of one value, the worst of its seeds.

    Args:
        value: The value tried.
        start: The loss at the start.
        loss: The last loss; not finite when a run diverged.
        floors: Final level of each quantity in ``WATCHED``.
        settled: Those that vanish or fall.
        rounding: The unit of rounding of the runs.
    """

    value: float
    start: float
    loss: float
    floors: Mapping[str, float]
    settled: frozenset[str] = frozenset()
    rounding: float = 2.0**-52

    @property
    def is_settled(self) -> bool:
        """Return whether everything vanishes or falls."""
        return self.settled >= self.floors.keys()


def is_stable(ending: Ending, tried: Iterable[Ending], slack: float = SLACK) -> bool:
    """Return whether a value is stable, given all that were tried with as many steps.

    Example:
        >>> good = Ending(0.1, start=9.0, loss=1.0, floors={"grad_norm": 1e-9}, settled=frozenset(["grad_norm"]))
        >>> cycle = Ending(0.2, start=9.0, loss=1.1, floors={"grad_norm": 0.5})
        >>> is_stable(good, [good, cycle]), is_stable(cycle, [good, cycle])
        (True, False)
    """
    others = [other for other in tried if math.isfinite(other.loss)]
    if not math.isfinite(ending.loss):
        return False
    best, top = min(other.loss for other in others), max(other.start for other in others)
    most = best + slack * max(top - best, 0.0) + UNITS * ending.rounding * max(abs(best), abs(top))
    # What is still far away says nothing about what remains at the end.
    smaller = [other for other in others if other.value < ending.value and other.loss <= most]
    return ending.loss <= most and not any(_is_below(other, ending) for other in smaller)


def _is_below(other: Ending, ending: Ending) -> bool:
    """Return whether a smaller value leaves less, in proportion, of something that has not settled."""
    share = other.value / (FLOOR * ending.value)
    return any(
        other.floors[name] < share * ending.floors[name] for name in set(ending.floors) - ending.settled
    )


def remains(
    columns: Mapping[str, npt.NDArray[Any]], sizes: Mapping[str, float], rounding: float
) -> dict[str, Any]:
    """Return what the last quarter of a run leaves of the quantities in ``WATCHED``, and whether they settle.

    Args:
        columns: Columns of a trace.
        sizes: Sizes of the numbers whose differences the quantities are; rounding is relative to them.
        rounding: The unit of rounding of the run.
    """
    k = columns["k"]
    late, before = k > 0.75 * k[-1], (k > 0.5 * k[-1]) & (k <= 0.75 * k[-1])
    found: dict[str, Any] = {}
    for name in WATCHED:
        values = np.where(np.isnan(columns[name]), np.inf, columns[name])
        floor, most = float(values[late].max()), float(values[np.isfinite(values)].max(initial=0.0))
        is_falling = before.any() and floor <= FALLING * float(values[before].max())
        is_zero = floor <= UNITS * rounding * np.fmax(most, sizes[name])
        found[f"late_{name}"] = floor
        found[f"settled_{name}"] = bool(math.isfinite(floor) and (is_falling or is_zero))
    return found


def worst(
    value: float, start: float, loss: float, runs: Sequence[Mapping[str, Any]], rounding: float
) -> Ending:
    """Return how a value ended, from its loss at the start, its last one, and what :func:`remains` said of each run."""
    return Ending(
        value,
        start,
        loss,
        {name: max(run[f"late_{name}"] for run in runs) for name in WATCHED},
        frozenset(name for name in WATCHED if all(run[f"settled_{name}"] for run in runs)),
        rounding,
    )
