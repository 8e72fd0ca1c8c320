"""The largest step with a property, by bisection on a logarithmic scale."""

import math
from collections.abc import Callable


def last_step(holds: Callable[[float], bool], low: float, high: float, *, tolerance: float) -> float:
    """Return the largest number between two for which something holds that also holds below it.

    Args:
        holds: The property, which holds on an interval.
        low: A positive number for which it is taken to hold.
        high: A number above all for which it holds.
        tolerance: Relative distance at which the bisection ends.

    >>> round(last_step(lambda x: x * x < 2, 1.0, 2.0, tolerance=1e-9), 6)
    1.414214
    """
    while high > low * (1 + tolerance):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
