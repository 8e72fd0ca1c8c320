"""Smoothness and heterogeneity constants of a problem, as every chain takes them."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from digrad import checks
from digrad.errors import ArgumentError

Floats = npt.NDArray[np.floating]

SOURCES = ("closed form", "given", "empirical")
INDICATIVE = "indicative, not a certificate"  # the label of what rests on estimates or mini-batches
NOT_GIVEN = -1.0  # no constant is negative


@dataclass(frozen=True, eq=False)
class Smoothness:
    r"""Assumptions of a certificate about the losses.

    .. math::
        \|\nabla^2 f_i\| \le L_{0,i} + L_{1,i} \|\nabla f_i\|, \qquad
        \|\nabla^2 F\| \le L_{0,F} + L_{1,F} \|\nabla F\|, \qquad
        \|\nabla f_i - \nabla F\| \le (\ell - 1) \|\nabla F\| + b.

    Args:
        L0: Per agent, ``[n]``.
        L1: Per agent, ``[n]``; zeros, the default, mean ordinary smoothness.
        ell: At least 1; matters only with L1.
        b: At least 0; matters only with L1.
        lower_bound: A number that F never goes below; 0 by default, as of losses that are not negative.
        L0_F: Constant of F, given together with L1_F; by default the mean of L0_i + b L1_i (the paper's Lemma 3).
        L1_F: Constant of F, given together with L0_F; by default ell times the mean of L1_i.
        strong_convexity: m of F, or any m with ``|grad F|^2 >= 2 m (F - inf F)`` everywhere; 0, no rate, by default.
        convex: Whether every f_i is convex, which doubles certified steps and must be known, not hoped.
        source: ``"closed form"`` and ``"given"`` can be certified; ``"empirical"`` cannot.

    Example:
        >>> constants = Smoothness(L0=[1.0, 3.0], L1=[0.0, 1.0], ell=2.0, b=1.0, lower_bound=0.0)
        >>> constants.L0_F, constants.L1_F
        (2.5, 1.0)
    """

    L0: Floats
    L1: Floats = field(default_factory=lambda: np.zeros(0))
    ell: float = 1.0
    b: float = 0.0
    lower_bound: float = 0.0
    L0_F: float = NOT_GIVEN
    L1_F: float = NOT_GIVEN
    strong_convexity: float = 0.0
    convex: bool = False
    source: str = "given"

    def __post_init__(self) -> None:
        """Check, and fill in the constants of F by the paper's lemma where they are not given."""
        if not np.size(self.L1):
            object.__setattr__(self, "L1", np.zeros_like(np.atleast_1d(np.asarray(self.L0, np.float64))))
        for name in ("L0", "L1"):
            array = np.atleast_1d(np.asarray(getattr(self, name), np.float64))
            if array.ndim != 1 or not (np.isfinite(array).all() and (array >= 0).all()):
                raise ArgumentError(
                    f"`{name}` of Smoothness must be finite and at least 0 for every agent, but got {array!r}."
                )
            object.__setattr__(self, name, array)
        if self.L0.shape != self.L1.shape:
            raise ArgumentError(
                f"`L0` and `L1` of Smoothness must have one entry per agent each, but got {self.L0.size} and "
                f"{self.L1.size}."
            )
        average = [name for name in ("L0_F", "L1_F") if getattr(self, name) != NOT_GIVEN]
        least = dict.fromkeys(("b", "strong_convexity", *average), 0.0) | {"ell": 1.0, "lower_bound": -np.inf}
        for name, bound in least.items():
            value = getattr(self, name)
            if not (np.isfinite(value) and value >= bound):
                kind = f"finite and at least {bound:g}" if np.isfinite(bound) else "finite"
                raise ArgumentError(f"`{name}` of Smoothness must be {kind}, but got {value!r}.")
            object.__setattr__(self, name, float(value))
        checks.choice(self.source, "source", "Smoothness", SOURCES)
        if len(average) == 1:
            (missing,) = {"L0_F", "L1_F"} - {*average}
            raise ArgumentError(
                f"`{missing}` of Smoothness is missing, but `{average[0]}` is given: F is bounded by both together; "
                "give both, or neither."
            )
        if not average:
            object.__setattr__(self, "L0_F", float(np.mean(self.L0 + self.b * self.L1)))
            object.__setattr__(self, "L1_F", float(self.ell * np.mean(self.L1)))

    @property
    def is_certifiable(self) -> bool:
        """Return whether the constants are bounds, not estimates along a run."""
        return self.source != "empirical"

    def local_bounds(self, grad_norm: float) -> Floats:
        """Return L0_i + L1_i (ell G + b): the local curvature where the gradient of F is at most G."""
        return self.L0 + self.L1 * (self.ell * grad_norm + self.b)

    def to_dict(self) -> dict[str, Any]:
        """Return the constants by name, ready for JSON."""
        return {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in vars(self).items()
        }
