"""Claims about curves as numbers. Each function takes one run and returns one number."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from digrad.specs.run_directory import Result
from digrad.trace import Trace
from digrad.trace.ensemble import members

_TREND_DEGREE = 3  # of the polynomial that stands for the trend of the second half of a run


@dataclass(frozen=True)
class Oscillation:
    """Extent to which a curve moves up and down in the second half of a run.

    Args:
        deviation: Standard deviation around a cubic trend.
        relative: The same, divided by the mean.
        sign_changes: Share of consecutive differences with opposite signs; 0 for a monotone curve.
        variation: Total variation of the whole curve over its net decrease; 1 for a monotone curve.
    """

    deviation: float
    relative: float
    sign_changes: float
    variation: float


def over_seeds(result: Result, measure: Callable[[Trace], float | None]) -> float | None:
    """Return the median of a measure over the seeds; None when half of them give none."""
    values = [measure(trace) for trace in members(result)]
    median = float(np.median([np.inf if value is None else value for value in values]))
    return median if np.isfinite(median) else None


def tail_mean(values: npt.NDArray[Any]) -> float:
    """Return the mean of the last quarter, which mini-batch noise moves less than the last value.

    Example:
        >>> tail_mean(np.array([9.0, 9.0, 9.0, 1.0]))
        1.0
    """
    return float(np.mean(values[-max(1, len(values) // 4) :]))


def iterations_to(trace: Trace, level: float) -> int | None:
    """Return the first recorded iteration with a loss of at most ``level``, or None."""
    reached = np.flatnonzero(trace.loss <= level)
    return int(trace.k[reached[0]]) if reached.size else None


def largest_over_initial(trace: Trace) -> float | None:
    """Return the largest loss over the initial one; None if a loss is not finite."""
    return float(trace.loss.max() / trace.loss[0]) if np.isfinite(trace.loss).all() else None


def last_clipped(trace: Trace) -> int | None:
    """Return the last recorded iteration at which an agent clipped, or None."""
    clipped = np.flatnonzero(trace.fraction_clipped > 0)
    return int(trace.k[clipped[-1]]) if clipped.size else None


def oscillation(k: npt.NDArray[Any], values: npt.NDArray[np.float64]) -> Oscillation:
    """Measure how much a finite curve moves up and down.

    Example:
        >>> k = np.arange(100)
        >>> oscillation(k, 1.0 - 0.001 * k).variation
        1.0
        >>> round(oscillation(k, (-1.0) ** k - k).sign_changes, 2)
        1.0
    """
    half = slice(len(k) // 2, None)
    place = (k[half] - k[half].mean()) / max(1.0, float(np.ptp(k[half])))
    degree = min(_TREND_DEGREE, len(place) - 1)
    rest = values[half] - np.polyval(np.polyfit(place, values[half], degree), place)
    moves = np.diff(values[half])
    signs = np.sign(moves)
    decrease = abs(float(values[0] - values[-1]))
    variation = float(np.abs(np.diff(values)).sum())
    return Oscillation(
        deviation=float(rest.std()),
        relative=float(rest.std() / max(abs(values[half].mean()), np.finfo(float).tiny)),
        sign_changes=float(np.mean(signs[1:] != signs[:-1])) if signs.size > 1 else 0.0,
        variation=variation / decrease if decrease else float("inf"),
    )
