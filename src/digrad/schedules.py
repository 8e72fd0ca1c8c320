"""Hyper-parameters that change with the iteration: any function of k = 0, 1, ... will do; these are the usual
ones.

They are values with a readable form, so that a stored run says exactly which schedule it used.

>>> inverse = Inverse(scale=0.5, offset=10)
>>> inverse(0), inverse
(0.05, Inverse(scale=0.5, offset=10))
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from digrad import checks
from digrad.types import Positive


@dataclass(frozen=True)
class Constant:
    """``value`` at every k."""

    value: Annotated[float, partial(checks.positive, allow_inf=True)]

    __post_init__ = checks.fields

    def __call__(self, k: int) -> float:
        """Return the value at iteration k."""
        return self.value


@dataclass(frozen=True)
class InverseSqrt:
    """``scale / sqrt(k + offset)``."""

    scale: Positive
    offset: Positive = 1.0

    __post_init__ = checks.fields

    def __call__(self, k: int) -> float:
        """Return the value at iteration k."""
        return self.scale / (k + self.offset) ** 0.5


@dataclass(frozen=True)
class Inverse:
    """``scale / (k + offset)``: not summable, but its squares are."""

    scale: Positive
    offset: Positive = 1.0

    __post_init__ = checks.fields

    def __call__(self, k: int) -> float:
        """Return the value at iteration k."""
        return self.scale / (k + self.offset)


@dataclass(frozen=True)
class Geometric:
    """``scale * ratio ** k``, for example noise that fades."""

    scale: Positive
    ratio: Positive

    __post_init__ = checks.fields

    def __call__(self, k: int) -> float:
        """Return the value at iteration k."""
        try:
            return self.scale * self.ratio**k
        except OverflowError:
            return math.inf


SCHEDULES = {"constant": Constant, "inverse_sqrt": InverseSqrt, "inverse": Inverse, "geometric": Geometric}
