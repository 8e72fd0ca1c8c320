"""What clipping does to a step, and to the number of steps that a bound of the progress allows; for all chains."""

from typing import Any

import numpy as np


def clipped_step(step_size: float, threshold: float, length: Any) -> Any:
    """Return alpha min(1, c0/length), and alpha at length 0."""
    return step_size / np.maximum(1.0, np.asarray(length) / threshold)


def count_steps(effort: float, eps: float, ratio: float) -> float:
    """Return ceil(effort max(1/eps^2, ratio/eps)), at least 1: the start is an iterate too.

    >>> count_steps(2.0, 0.5, 1.0), count_steps(0.0, 1e-3, 1.0), count_steps(1.0, 1e-200, 1.0)
    (8.0, 1.0, inf)
    """
    rate = max(1 / eps / eps, ratio / eps)  # the square of a small eps would vanish
    return max(1.0, float(np.ceil(effort * rate))) if effort > 0 else 1.0


def best_of(effort: float, steps: Any, ratio: float) -> Any:
    """Return max(sqrt(effort/K), ratio effort/K) for each K of ``steps``: the inverse of :func:`count_steps`.

    >>> float(best_of(2.0, 8, 1.0)), float(best_of(2.0, 8, 4.0))
    (0.5, 1.0)
    """
    mean = effort / np.asarray(steps, np.float64)
    return np.maximum(np.sqrt(mean), ratio * mean if ratio else 0.0)  # without clipping, whatever the effort
