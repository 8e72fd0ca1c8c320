"""Directions of :class:`~digrad.methods.Tracking`: ways to turn a tracker into a step.

A direction D is a pure function of stacked rows with a memory of its own; the step that is subtracted from x is
``step_size * D(y)``. The trackers of all agents point the same way in the end, so that a direction that is odd and
never points away from y moves no fixed point: on the *tracker* it causes no bias, while the same function of the local
gradients would. A direction that vanishes with y ends at the minimum; one of fixed length (:class:`normalize`,
:class:`sign`, :class:`orthogonalize`) hovers around it at a distance proportional to the step size.

>>> import numpy as np
>>> chain(clip(5.0), sign()).update(np.array([[30.0, -40.0]]), np.zeros((1, 0)), np.zeros((1, 2)), ((2,),))[0]
array([[ 1., -1.]])
"""

import math
from dataclasses import dataclass
from typing import Annotated, Protocol, TypeAlias

from digrad import checks
from digrad.arrays import (
    clip_rows,
    concat_columns,
    newton_schulz,
    normalize_rows,
    polar_factor,
    signs,
    soft_clip_factors,
    split_columns,
)
from digrad.errors import ArgumentError
from digrad.methods.optimizers import from_optax, from_torch
from digrad.types import Array, Count, OneThreshold, Shapes

__all__ = [
    "Direction",
    "chain",
    "clip",
    "from_optax",
    "from_torch",
    "normalize",
    "orthogonalize",
    "plain",
    "sign",
    "soft_clip",
]


class Direction(Protocol):
    """Way to turn a tracker into a step: a pure function of stacked rows that treats each agent's row on its own.

    ``vanishes`` is None where it is not known, as of an optimizer; ``shapes`` are those of the parameters that a
    row holds one after another.
    """

    @property
    def vanishes(self) -> bool | None:
        """Return whether the step vanishes with the tracker."""
        ...

    def init(self, x: Array, shapes: Shapes) -> Array:
        """Return the memory before the first step, ``[rows, m]``."""
        ...

    def update(self, y: Array, memory: Array, x: Array, shapes: Shapes) -> tuple[Array, Array]:
        """Return the direction ``[rows, d]``, of which a multiple is subtracted from x, and the memory after it."""
        ...


def no_memory(direction: object, x: Array, shapes: Shapes) -> Array:
    """Return a memory of no numbers; a direction that keeps nothing says ``init = no_memory``."""
    return x[:, :0]


@dataclass(frozen=True)
class plain:
    """The tracker itself, as AB and its relatives have it."""

    vanishes = True
    init = no_memory

    def update(self, y: Array, memory: Array, x: Array, shapes: Shapes) -> tuple[Array, Array]:
        """Return the tracker."""
        return y, memory


@dataclass(frozen=True)
class clip:
    r""":math:`D(y) = \min(1, c_0/\|y\|)\, y`, as CGT has it.

    Args:
        threshold: :math:`c_0 > 0`, or infinity.
    """

    threshold: OneThreshold

    vanishes = True
    init = no_memory
    __post_init__ = checks.fields

    def update(self, y: Array, memory: Array, x: Array, shapes: Shapes) -> tuple[Array, Array]:
        """Return the clipped tracker."""
        return clip_rows(y, self.threshold), memory


@dataclass(frozen=True)
class soft_clip:
    r""":math:`D(y) = c_0\, y/(c_0 + \|y\|)`, as SoftCGT has it.

    Args:
        threshold: :math:`c_0 > 0`, or infinity.
    """

    threshold: OneThreshold

    vanishes = True
    init = no_memory
    __post_init__ = checks.fields

    def update(self, y: Array, memory: Array, x: Array, shapes: Shapes) -> tuple[Array, Array]:
        """Return the softly clipped tracker."""
        return y * soft_clip_factors(y, self.threshold), memory


@dataclass(frozen=True)
class normalize:
    r""":math:`D(y) = y/\|y\|`, with 0/0 = 0: a step of fixed length, as NormalizedAB and GT-NSGDm have it."""

    vanishes = False
    init = no_memory

    def update(self, y: Array, memory: Array, x: Array, shapes: Shapes) -> tuple[Array, Array]:
        """Return the unit vector along the tracker."""
        return normalize_rows(y), memory


@dataclass(frozen=True)
class sign:
    """The sign of every entry: one bit per number, whatever the scale of the coordinates."""

    vanishes = False
    init = no_memory

    def update(self, y: Array, memory: Array, x: Array, shapes: Shapes) -> tuple[Array, Array]:
        """Return the sign of every entry."""
        return signs(y), memory


@dataclass(frozen=True)
class orthogonalize:
    r""":math:`D(Y) = U V^T` of :math:`Y = U \Sigma V^T` for every matrix among the parameters, as Muon has it.

    Every parameter with two axes or more is a matrix (its first axis by all others); of a vector it is the unit vector.
    The engines know the shapes: those of the pytree of :func:`digrad.problems.from_loss`, or of the parameters of a
    torch module. A problem on plain vectors has one parameter, and there this is :class:`normalize`.

    Args:
        iterations: None for a singular value decomposition; a number for that many Newton-Schulz iterations with the
            coefficients of Muon, which are faster for large matrices and leave singular values between 0.7 and 1.2
            (5 is usual).
    """

    iterations: Count | None = None

    vanishes = False
    init = no_memory
    __post_init__ = checks.fields

    def update(self, y: Array, memory: Array, x: Array, shapes: Shapes) -> tuple[Array, Array]:
        """Return the orthogonal factor of every matrix."""
        return orthogonal_factors(y, shapes, self.iterations), memory


@dataclass(frozen=True, init=False)
class chain:
    """Directions one after another, such as ``chain(clip(5.0), from_optax(optax.adam(1e-3)))``.

    Raises:
        ArgumentError: There is no part, or more than one of them is an optimizer with a memory.
    """

    parts: tuple[Direction, ...]

    def __init__(self, *parts: Direction) -> None:
        for part in parts:
            check_direction(part, "parts", "chain")
        if not parts or sum(part.vanishes is None for part in parts) > 1:
            raise ArgumentError(
                f"`parts` of chain must be directions of which at most one is an optimizer, but got {len(parts)} of "
                f"which {sum(part.vanishes is None for part in parts)} are."
            )
        object.__setattr__(self, "parts", parts)

    @property
    def vanishes(self) -> bool | None:
        """Return whether the step vanishes with the tracker: if it does for all parts."""
        known = [part.vanishes for part in self.parts]
        return None if None in known else all(known)

    @property
    def threshold(self) -> float:
        """The threshold of the first part that has one, or infinity."""
        return next((part.threshold for part in self.parts if hasattr(part, "threshold")), math.inf)  # pyright: ignore[reportAttributeAccessIssue]

    def init(self, x: Array, shapes: Shapes) -> Array:
        """Return the memory of the part that has one."""
        return concat_columns([part.init(x, shapes) for part in self.parts])

    def update(self, y: Array, memory: Array, x: Array, shapes: Shapes) -> tuple[Array, Array]:
        """Return what the last part makes of what the parts before it make of the tracker."""
        for part in self.parts:
            y, memory = part.update(y, memory, x, shapes)
        return y, memory


def check_direction(value: object, name: str, owner: str) -> None:
    """Raise unless ``value`` is a direction."""
    if isinstance(value, type) or not hasattr(value, "vanishes") or not hasattr(value, "update"):
        raise ArgumentError(
            f"`{name}` of {owner} must be a direction, such as dg.directions.clip(5.0), "
            "dg.directions.from_optax(optax.adam(1e-3)) or "
            f"dg.directions.from_torch(lambda p: torch.optim.Adam(p, lr=1e-3)), but got {value!r}."
        )


#: A field that holds a direction, for ``checks.fields``.
CheckedDirection: TypeAlias = Annotated[Direction, check_direction]


def orthogonal_factors(y: Array, shapes: Shapes, iterations: int | None = None) -> Array:
    """Return the orthogonal factor of every matrix and the unit vector of every vector in the rows of y."""
    parts = []
    for part in split_columns(y, shapes):
        if part.ndim < 3:
            factor = normalize_rows(part.reshape(len(y), -1))
        else:
            matrix = part.reshape(len(y), part.shape[1], -1)
            factor = polar_factor(matrix) if iterations is None else newton_schulz(matrix, iterations)
        parts.append(factor.reshape(len(y), -1))
    return concat_columns(parts)
