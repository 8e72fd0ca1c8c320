"""Divergence of a run: an entry of x is not finite, or it is far away where the losses are steep.

Far away is beyond 1e12 times the largest entry of x_0 or, where that is zero, of the first iterate that is not; steep
is a gradient of more than 1000 times the largest at the start. Neither depends on units. The first alone is not enough:
a minimum may lie that far from the start, and on the way there gradients become smaller. Trainings of networks go by
the first alone: no weight of a network grows that much.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from digrad.problems import Problem

# An entry of x beyond this, relative to the largest one of the start, is far away.
DIVERGED = 1e12
# A gradient of more than this many times the largest at the start is steep; noise and overshooting stay below.
STEEP = 1e3


def far_away(largest: Any, representable: Any, minimum: Callable[[Any, Any], Any] = min) -> Any:
    """Return the entry of x beyond which a run is far away.

    Args:
        largest: The largest entry of x_0, in absolute value; of a later iterate if that is zero.
        representable: The largest number of its dtype.
        minimum: Of two numbers, or of arrays of them.

    Example:
        >>> far_away(9.0, 1.8e308)
        9000000000000.0
    """
    return minimum(DIVERGED * largest, representable)


def limit_of(x: npt.NDArray[np.floating]) -> float:
    """Return the entry of x beyond which a run that was at ``x`` ``[n, d]`` is far away; 0 where that is no scale."""
    return far_away(float(np.abs(x).max()), float(np.finfo(x.dtype).max))


def largest_gradient(problem: Problem, x: Any) -> float:
    """Return the largest entry, in absolute value, of the gradients at ``x`` ``[n, d]``."""
    return float(np.abs(problem.local_gradients(np.asarray(x, np.float64))).max())
