"""The search for multipliers: by frequency responses on a fixed network, by trial on one that changes periodically."""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy import optimize

from digrad.theory.bisection import last_step
from digrad.theory.certificates.frequency_responses import Matrices, Taps, largest_step
from digrad.theory.certificates.proof import Proof
from digrad.theory.certificates.storage_function import EPS, prove_storages

Floats = npt.NDArray[np.floating]

TAUS = (-3.0, 3.0)  # logarithms between which the scalar of a changing network is sought
SETTLED = 0.1  # of that logarithm
TOLERANCE = 0.01  # relative, of the steps that are tried on a changing network
STEPS = (1e-6, 2.0)  # times the inverse curvature: all that can be certified lies between


@dataclass(frozen=True, eq=False)
class TapSearch:
    """Finds taps for many curvatures on one network, and remembers: 1/alpha_max grows with every L_i and scales with L.

    Attributes:
        phases: The matrices of each step of a period.
        taps: J; 1 on a network that changes.
        convex: Whether all losses are convex.
    """

    phases: tuple[Matrices, ...]
    taps: int
    convex: bool
    known: list[tuple[Floats, Taps]] = field(default_factory=list, init=False, repr=False)

    def best(self, curvature: Floats) -> Taps:
        """Return the best taps for L ``[n]``."""
        first, *others = self.phases
        if others:
            found = _largest_by_trial(self.phases, curvature, self.convex)
        else:
            start = self.known[-1][1] if self.known else None
            found = largest_step(first, curvature, taps=self.taps, convex=self.convex, start=start)
        self.known.append((curvature, found))
        return found

    def reaching(self, curvature: Floats, step_size: float) -> Taps:
        """Return taps that promise ``step_size`` for L; if there are none, taps whose step bounds what can be."""
        for before, taps in reversed(self.known):
            ratio = curvature / before
            if taps.step_size >= step_size * ratio.max():
                return taps._replace(step_size=taps.step_size / float(ratio.max()))
            if taps.step_size < step_size * ratio.min():
                return taps._replace(step_size=taps.step_size / float(ratio.min()))
        return self.best(curvature)


def _largest_by_trial(phases: tuple[Matrices, ...], curvature: Floats, convex: bool) -> Taps:
    """Return the best scalar and the largest step that has a storage with it: its steps form an interval from 0."""
    unit = float(curvature.max())

    def multipliers(log_tau: float) -> Taps:
        tau = np.array([np.exp(log_tau)])
        return Taps(1 + tau if convex else 0 * tau, tau, 0.0)

    def largest(log_tau: float) -> float:
        taps = multipliers(log_tau)

        def has_storage(step: float) -> bool:
            return (
                prove_storages(phases, Proof(step, taps, curvature / unit, convex), relative=EPS) is not None
            )

        return last_step(has_storage, *STEPS, tolerance=TOLERANCE)

    best = optimize.minimize_scalar(
        lambda s: -largest(s), bounds=TAUS, method="bounded", options={"xatol": SETTLED}
    )
    return multipliers(float(best.x))._replace(step_size=largest(float(best.x)) / unit)
