"""A first guess of CGT's threshold c0, from the gradients at the start."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from digrad import checks
from digrad.errors import ArgumentError
from digrad.problems import Problem
from digrad.simulation.run_options import make_start

NEGLIGIBLE = 1e-9  # a difference below this share of the gradient is a rounding error


@dataclass(frozen=True)
class ThresholdAdvice:
    """Result of :func:`recommend_threshold`.

    Args:
        threshold: c0.
        reason: Why, with the figures it rests on.
        differences: ``[n]`` how far each agent's first gradient is from the average one.
        average_norm: The norm of the average gradient.
    """

    threshold: float
    reason: str
    differences: npt.NDArray[np.float64]
    average_norm: float


def recommend_threshold(
    problem: Problem,
    *,
    x0: npt.ArrayLike | Literal["zeros", "normal"] | None = None,
    seed: int = 0,
) -> ThresholdAdvice:
    r"""Return a threshold to begin with: how much the agents' first gradients differ.

    .. math:: c_0 = \Big(\frac1n \sum_i \|\nabla f_i(\bar x_0) - \nabla F(\bar x_0)\|^2\Big)^{1/2}

    at the average start. While agents disagree, their trackers differ from the average gradient by about as much: a
    much smaller threshold clips what they have to tell each other, a much larger one lets the steep slopes of a far
    start through. A first guess: docs/guides/step_size.md measures it, :func:`tune` with ``field="threshold"`` improves
    it.

    Args:
        problem: The private losses.
        x0: The start of the run, as in :func:`simulate`.
        seed: Random seed of a random start.

    Raises:
        ArgumentError: The gradients at the start are zero or not finite: nothing can be said.

    Example:
        >>> import digrad as dg
        >>> advice = dg.recommend_threshold(dg.problems.example_quartic(), x0=[10.0, 10.0])
        >>> round(advice.threshold, 1), round(advice.average_norm)
        (19.2, 1455)
    """
    start = make_start(x0, problem, checks.seed(seed, "recommend_threshold")).mean(axis=0)
    gradients = problem.local_gradients(start)
    average = float(np.linalg.norm(gradients.mean(axis=0)))
    differences = np.linalg.norm(gradients - gradients.mean(axis=0), axis=1)
    spread = float(np.sqrt(np.mean(differences**2)))
    agree = spread <= NEGLIGIBLE * average
    threshold = average if agree else spread
    if not 0 < threshold < np.inf:
        raise ArgumentError(
            f"`x0` of recommend_threshold must have finite gradients that are not all zero, but their average has norm "
            f"{average:.3g}; start elsewhere."
        )
    why = (
        "the norm of the first gradient, which is the same for all"
        if agree
        else "how much the first gradients differ"
    )
    reason = f"c0 = {threshold:.3g}, {why} ({differences.min():.3g} to {differences.max():.3g} from an average of norm "
    return ThresholdAdvice(threshold, f"{reason}{average:.3g})", differences, average)
