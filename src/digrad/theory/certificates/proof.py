"""The proof of a certified step: the numbers from which it is verified again, and what they promise."""

import math
import reprlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from digrad._internal.json_files import strict
from digrad.theory.certificates.frequency_responses import Matrices, Taps

Floats = npt.NDArray[np.floating]

# How a file names the numbers of a proof; the last two are None there where they are infinite.
NUMBERS = {
    "step_size": "step_size",
    "eps": "kept",
    "slack": "slack",
    "past": "past",
    "V0": "potential",
    "lower_bound": "lower_bound",
    "modulus": "modulus",
}
INFINITE = ("depth", "contraction")


class Proof(NamedTuple):
    """A step size, what is asked of its storage, and everything from which that is verified again."""

    step_size: float
    taps: Taps
    curvature: Floats  # [n] L_i
    convex: bool = True
    kept: float = 0.0  # eps: V falls by that share of alpha <p, D y>
    slack: float = 0.0  # s: V falls by s |e_x|^2/alpha too
    past: float = 0.0  # s': and by the history d_j, h_j; only the rate needs it
    storages: tuple[Floats, ...] = ()  # P before each step of a period
    potential: float = math.inf  # V_0, an upper bound
    lower_bound: float = -math.inf  # of F
    width: Floats = np.zeros(0)  # [n] E_i
    modulus: float = 0.0  # m: |grad F|^2 >= 2 m min(F - inf F, h)
    depth: float = math.inf  # h
    contraction: float = math.inf  # kappa: V - n inf F over the decrease of an unclipped step, at most

    @property
    def later(self) -> Floats:
        """C_l = sum of c_j over j > l, ``[J]``: how often V counts the state l steps ago."""
        c = self.taps.a - self.taps.b if self.convex else np.eye(1, len(self.taps.a))[0]
        return np.cumsum(c[::-1])[::-1]

    @property
    def level(self) -> float:
        """V_0/n, which F does not exceed at any average."""
        return self.potential / len(self.curvature)

    @property
    def budget(self) -> float:
        """V_0 - n f_inf, which all decreases of V together do not exceed."""
        return max(0.0, self.potential - len(self.curvature) * self.lower_bound)

    def iterations(
        self, phases: tuple[Matrices, ...], reach: Floats, shares: Floats, eps: float
    ) -> float | None:
        """Return K(eps), or None if V is not known to fall by the square of the consensus error (section 1.1).

        From there on ``|grad F|`` stays below eps if the linear rate is what bounds K(eps).
        """
        # While |grad F| > eps, a step lowers V by at least d with sqrt(Q d) + T d = n eps: n |grad F| is at most the
        # sum of |y_i| and L_i |e_i|, and |y| <= max(r, r^2/c0) where <p, y> = r^2.
        if self.kept <= 0 or self.slack < 0:
            return None
        n, ratio = len(reach), np.min([phase.ratio for phase in phases], axis=0)
        weights = 1 / (ratio * shares * self.kept * self.step_size)
        energy = float(weights.sum())
        if self.slack:
            energy += float(np.sum(self.curvature**2)) * self.step_size / self.slack
        elif n > 1:
            return None
        aim, clip = n * eps, float(np.max(weights / reach))
        root = 2 * aim / (math.sqrt(energy) + math.sqrt(energy + 4 * clip * aim))
        if root <= 1e-150:
            return math.inf
        linear = 1 + self._steps_to(root * root, float(np.min(reach / weights * reach)))
        return max(1.0, min(float(np.ceil(self.budget / root / root)), linear))

    def _steps_to(self, aim: float, clipped: float) -> float:
        """Return after how many steps V - n inf F <= aim by the linear rate; falls below ``clipped`` have no clip."""
        # b = V - n inf F falls by at least min(b, knee)/kappa in a step, section 1.10.
        knee = min(self.budget, self.contraction * clipped, len(self.curvature) * self.depth)
        if math.isinf(self.contraction) or knee <= 0:
            return math.inf
        steps = self.budget / knee - 1, max(0.0, math.log(knee / aim))
        return float(np.ceil(self.contraction * steps[0]) + np.ceil(self.contraction * steps[1]))

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the storage, which one Riccati equation gives again, ready for JSON."""
        return strict(
            {
                **{name: getattr(self, field) for name, field in NUMBERS.items()},
                **{name: getattr(self, name) for name in (*INFINITE, "convex", "width", "level")},
                "taps": self.taps._asdict(),
                "L": self.curvature,
            }
        )

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Proof":
        """Return the proof that :meth:`to_dict` stored, without its storage.

        Raises:
            KeyError: Something is missing.
            TypeError: Something else is stored.
            ValueError: Numbers are not finite or not as many as they should be, L or alpha are not positive.
        """
        a, b, L = _numbers(stored["taps"]["a"]), _numbers(stored["taps"]["b"]), _numbers(stored["L"])
        width = np.array([_or_infinite(width) for width in stored["width"]])
        if not isinstance(stored["convex"], bool):
            raise TypeError("its convex is neither true nor false")
        finite = _numbers([stored[name] for name in NUMBERS]).tolist()
        numbers: dict[str, Any] = dict(zip(NUMBERS.values(), finite, strict=True))
        numbers |= {name: _or_infinite(stored[name]) for name in INFINITE}
        found = cls(
            taps=Taps(a, b, float(stored["taps"]["step_size"])),
            curvature=L,
            convex=stored["convex"],
            width=width,
            **numbers,
        )
        if not (len(a) == len(b) and len(L) == len(width)):
            raise ValueError("its lists are not as long as each other")
        if not (found.step_size > 0 and (L > 0).all() and found.depth > 0 and found.contraction > 0):
            raise ValueError("its step_size, L, depth and contraction are not all positive")
        return found


def _or_infinite(stored: Any) -> float:
    return math.inf if stored is None else float(stored)


def _numbers(stored: Any) -> Floats:
    """Return finite numbers ``[m]``, m >= 1."""
    found = np.array(stored, float)
    if found.ndim != 1 or not found.size or not np.isfinite(found).all():
        raise ValueError(f"{reprlib.repr(stored)} is no list of finite numbers")
    return found
