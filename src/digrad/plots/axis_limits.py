"""Scales and limits of the vertical axis: an explosion must not squash what it is compared with."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Floats: TypeAlias = npt.NDArray[np.float64]

_EXPLOSION = 1e3  # a value this many times the largest initial one is left outside the axes
_NEGLIGIBLE = (
    1e-5  # an initial value below this part of what most calm runs reach is a rounding error, no scale
)
SMALLEST, LARGEST = 1e-300, 1e300  # beyond them the arithmetic of an axis under- or overflows
_SHORT = 2.5  # decades below which the ticks of a log axis are plain numbers
_STRIDES = (1, 2, 5, 10, 20, 50, 100)  # decades between the ticks of a log axis


def set_limits(ax: "Axes", runs: Sequence[tuple[Floats, bool]], scale: str) -> None:
    """Choose the limits of a panel, and its scale if that is ``"auto"``.

    Args:
        ax: The panel.
        runs: Finite values, and whether they diverged.
        scale: ``"auto"``, ``"linear"`` or ``"log"``.
    """
    runs = [(values, diverged) for values, diverged in runs if values.size]
    values = np.concatenate([values for values, _ in runs])
    low, high = _range_shown(values, runs)
    shown = values[(values >= low) & (values <= high)]
    if scale == "log" or (scale == "auto" and deserves_log(values)):
        use_log_axis(ax, *log_limits(shown))
    elif shown.size < values.size:
        margin = 0.05 * (high - low or 1.0)
        ax.set_ylim(low - margin, high + margin)


def deserves_log(values: Floats) -> bool:
    """Return whether no value is negative and the positive ones span a factor of ten."""
    positive = values[values > 0]
    return positive.size > 0 and bool(values.min() >= 0 and positive.max() / 10 >= positive.min())


def log_limits(shown: Floats) -> tuple[float, float]:
    """Return limits of a logarithmic axis a little beyond the positive values of ``shown``."""
    if not (shown > 0).any():
        return 0.1, 10.0
    positive = np.clip(shown[shown > 0], SMALLEST, LARGEST)
    first, last = np.log10(positive.min()), np.log10(positive.max())
    margin = 0.05 * (last - first) or 0.3
    return float(10 ** max(first - margin, -305.0)), float(10 ** min(last + margin, 305.0))


def use_log_axis(ax: "Axes", low: float, high: float) -> None:
    """Make the vertical axis logarithmic from ``low`` to ``high``, with few ticks at round numbers."""
    from matplotlib.ticker import FixedLocator, LogFormatterMathtext, NullLocator, StrMethodFormatter

    first, last = math.log10(low), math.log10(high)
    ticks = log_ticks(first, last)
    ax.set_autoscaley_on(False)  # else set_yscale fits the limits itself, which may overflow
    ax.set_yscale("log", nonpositive="mask")
    ax.set_ylim(low, high)
    is_short = last - first < _SHORT
    ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}") if is_short else LogFormatterMathtext())
    ax.yaxis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    ax.yaxis.set_minor_locator(NullLocator())


def _range_shown(values: Floats, runs: Sequence[tuple[Floats, bool]]) -> tuple[float, float]:
    calm = [values for values, diverged in runs if not diverged]
    if not calm:  # nothing is squashed
        return float(values.min()), float(values.max())
    initial = np.array([values[0] for values, _ in runs])
    reached = sorted(values.max() for values in calm)[len(calm) // 2]
    if values.min() >= 0 and initial.max() > _NEGLIGIBLE * reached:
        return 0.0, _EXPLOSION * float(initial.max())
    # On a linear axis, or without an initial scale, the runs that did not diverge set the limits.
    trusted = np.concatenate([initial, *calm])
    return float(trusted.min()), float(trusted.max())


def log_ticks(first: float, last: float) -> list[float]:
    """Return few ticks at round numbers from 10**first to 10**last, or a little beyond."""
    if last - first < _SHORT:
        digits = (1, 1.5, 2, 3, 4, 5, 6, 7, 8) if last - first < 0.7 else (1, 2, 5)
        decades = range(math.floor(first), math.ceil(last) + 1)
        return [digit * 10.0**decade for decade in decades for digit in digits]
    stride = next(step for step in _STRIDES if (last - first) / step <= 7)
    start = stride * math.ceil(first / stride)
    return [10.0**decade for decade in range(start, math.floor(last) + 1, stride)]
