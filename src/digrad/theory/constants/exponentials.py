"""How much a gradient may grow over a distance: the functions of the smoothness lemmas (docs/theory.md, section 3)."""

from typing import Any

import numpy as np

EXPONENT = 700.0  # exp of more than this is treated as infinite


def phi1(c: float | Any) -> Any:
    """Return (e^c - 1)/c, and 1 at c = 0: how much the gradient may grow over a distance c/L1.

    >>> float(phi1(0.0)), round(float(phi1(1.0)), 6)
    (1.0, 1.718282)
    """
    c = np.asarray(c, np.float64)
    safe = np.where(c > 1e-8, c, 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        direct = np.where(safe < EXPONENT, np.expm1(safe) / safe, np.inf)
        return np.where(c > 1e-8, direct, 1 + c / 2)


def phi2(c: float | Any) -> Any:
    """Return 2 (e^c - 1 - c)/c^2, and 1 at c = 0: the same for the quadratic upper bound.

    >>> float(phi2(0.0)), round(float(phi2(1.0)), 6)
    (1.0, 1.436564)
    """
    c = np.asarray(c, np.float64)
    safe = np.where(c > 1e-3, c, 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        direct = np.where(safe < EXPONENT, 2 * (np.expm1(safe) - safe) / safe**2, np.inf)
    return np.where(c > 1e-3, direct, 1 + c / 3 + c**2 / 12 + c**3 / 50)  # 1/60 rounded up: an upper bound
