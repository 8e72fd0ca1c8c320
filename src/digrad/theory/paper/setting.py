"""What the paper's constants start from: one run to be certified, reduced to numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from digrad.errors import ArgumentError
from digrad.problems import Problem
from digrad.theory.constants.assumptions import Smoothness
from digrad.theory.constants.norms import Norms

Floats = npt.NDArray[np.floating]

LARGEST_CURVATURE = 1e60  # beyond this it is treated as infinite: products of constants would overflow


@dataclass(frozen=True, eq=False)
class Setting:
    """A run before its step size is chosen.

    Attributes:
        norms: Of the network.
        smoothness: Of the losses.
        threshold: c0; infinite only if all L1 vanish.
        X0: Consensus error of the start in the R-norm.
        Y0: Gradient heterogeneity of the start in the C-norm.
        D0: F at the average start, above the lower bound.
    """

    norms: Norms
    smoothness: Smoothness
    threshold: float
    X0: float
    Y0: float
    D0: float

    @property
    def n(self) -> int:
        """Number of agents."""
        return self.norms.n

    @property
    def v_norm(self) -> float:
        """||v||_2."""
        return float(np.linalg.norm(self.norms.v))

    @property
    def kappa_v(self) -> float:
        """||v||_2 over the smallest v_i."""
        return self.v_norm / float(self.norms.v.min())

    @property
    def kappa_uv(self) -> float:
        """The largest u_i/v_i."""
        return float((self.norms.u / self.norms.v).max())

    def reach(self, step_size: float) -> float:
        """Return alpha c0, how far an agent moves by itself in one step."""
        return step_size * self.threshold


def scaled(factor: float, length: float) -> float:
    """Return factor times length, and 0 if the factor vanishes: L1 = 0 forgives an infinite threshold.

    >>> scaled(0.0, float("inf")), scaled(2.0, 3.0)
    (0.0, 6.0)
    """
    return factor * length if factor else 0.0


def make_setting(
    problem: Problem, norms: Norms, smoothness: Smoothness, threshold: float, x0: Floats
) -> Setting:
    """Return the numbers that the constants need of a problem started at x0 ``[n, d]``; see :func:`make_settings`."""
    return make_settings(problem, norms, [smoothness], threshold, x0)[0]


def make_settings(
    problem: Problem, norms: Norms, options: Sequence[Smoothness], threshold: float, x0: Floats
) -> list[Setting]:
    """Return one setting for each of several constants; the losses are evaluated once.

    Raises:
        ArgumentError: The lower bound of the constants lies above F at the start, or F or its gradients are not
            finite there.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        losses, gradients = problem.local_losses(norms.average(x0)), problem.local_gradients(x0)
        loss = float(losses.mean())
        errors = {
            "X0": float(norms.R.of(norms.consensus(x0))),
            "Y0": float(norms.C.of(norms.tracking(gradients))),
        }
        terms = float(np.abs(losses).mean() + np.linalg.norm(x0) * np.linalg.norm(gradients))
    if not np.isfinite([loss, *errors.values()]).all():
        raise ArgumentError(
            f"`x0` of the run must be a point where F and all gradients are finite, but F is {loss:.6g}, X0 is "
            f"{errors['X0']:.6g} and Y0 is {errors['Y0']:.6g}; start elsewhere."
        )
    return [
        Setting(norms, option, float(threshold), D0=_gap(loss, option.lower_bound, terms), **errors)
        for option in options
    ]


def _gap(loss: float, lower_bound: float, terms: float) -> float:
    """Return F minus its lower bound, which may be negative by rounding of the terms of F."""
    if loss - lower_bound < -1e-9 * max(terms, abs(lower_bound)):
        raise ArgumentError(
            f"`lower_bound` of Smoothness must not exceed F anywhere, but it is {lower_bound:.6g} and F at the start "
            f"is {loss:.6g}; lower it."
        )
    return max(0.0, loss - lower_bound)
