"""What the paper's constants start from: one run to be certified, reduced to numbers."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from digrad.problems import Problem
from digrad.theory.arguments import check_start
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
    """Return the numbers that the constants need of a problem started at x0 ``[n, d]``."""
    losses, gradients = check_start(problem, smoothness.lower_bound, norms.average(x0), x0)
    return Setting(
        norms,
        smoothness,
        float(threshold),
        X0=float(norms.R.of(norms.consensus(x0))),
        Y0=float(norms.C.of(norms.tracking(gradients))),
        D0=max(0.0, float(losses.mean()) - smoothness.lower_bound),
    )
