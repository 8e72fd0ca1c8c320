"""Stability of a value: the one rule of all searches, which no constant added to the loss can change.

A run is judged by three things: its last loss, against how far the best run fell from the start; and the norm of the
gradient and the disagreement of the agents, which must vanish or fall. Where a method or its samples leave a floor
under these two (DGD, mini-batches), the floor must not be higher than what smaller values leave, in proportion: the
floor of a method shrinks with the step size, while the cycle of a step size that is too large is gone below the edge.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

SLACK = 0.05  # of the best fall from the start
WATCHED = ("grad_norm", "consensus_error")
FALLING = 0.8  # the last quarter of a run against the one before it
FLOOR = 2.0  # a floor may be this many times as high as one in proportion to a smaller value's
ROUNDING = 1000  # units of rounding, relative to the largest seen, that count as zero


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
    most = best + slack * max(top - best, 0.0) + ROUNDING * ending.rounding * max(abs(best), abs(top))
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
        is_zero = floor <= ROUNDING * rounding * np.fmax(most, sizes[name])
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
