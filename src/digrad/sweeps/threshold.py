"""A first guess of CGT's threshold c0, from the gradients at the start."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from digrad.errors import ArgumentError
from digrad.problems import Problem
from digrad.simulation.arguments import make_seed, make_start


@dataclass(frozen=True)
class ThresholdAdvice:
    """What :func:`recommend_threshold` says.

    Args:
        threshold: c0.
        reason: Why, with the figures it rests on.
        local_norms: ``[n]`` the norms of the first local gradients, which are the first trackers.
        average_norm: The norm of their average.
    """

    threshold: float
    reason: str
    local_norms: npt.NDArray[np.float64]
    average_norm: float


def recommend_threshold(
    problem: Problem,
    *,
    x0: npt.ArrayLike | Literal["zeros", "normal"] | None = None,
    seed: int = 0,
) -> ThresholdAdvice:
    """Return a threshold to begin with: the median norm of the first local gradients.

    The first trackers of CGT are the local gradients at the start. With their median as threshold the agents whose
    gradients are the longest are clipped at once and half of them are not; near a minimum, where trackers vanish,
    nobody is. It is a first guess, measured in docs/choosing.md: :func:`tune` with ``field="threshold"`` improves it.

    Args:
        problem: The private losses.
        x0: The start of the run, as in :func:`simulate`.
        seed: Of a random start.

    Raises:
        ArgumentError: The gradients at the start are zero or not finite: nothing can be said.

    Example:
        >>> import digrad as dg
        >>> advice = dg.recommend_threshold(dg.problems.example_quartic(), x0=[10.0, 10.0])
        >>> round(advice.threshold), advice.local_norms.round().tolist()
        (9, [1.0])
    """
    start = make_start(x0, problem, make_seed(seed))
    gradients = problem.local_gradients(start)
    norms = np.linalg.norm(gradients, axis=1)
    average = float(np.linalg.norm(gradients.mean(axis=0)))
    threshold = float(np.median(norms))
    if not 0 < threshold < np.inf:
        raise ArgumentError(
            f"`x0` of recommend_threshold must have local gradients that are finite and not zero, but their norms are "
            f"{norms.tolist()}; start elsewhere."
        )
    reason = (
        f"c0 = {threshold:.3g}, the median norm of the first local gradients ({norms.min():.3g} to {norms.max():.3g}; "
        f"their average has {average:.3g})"
    )
    return ThresholdAdvice(threshold, reason, norms, average)
