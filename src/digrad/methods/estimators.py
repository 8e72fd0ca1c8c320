"""Estimators of :class:`~digrad.methods.Tracking`: ways to turn gradients into the quantity that is tracked.

An estimator is one pure function of stacked rows, ``update(grad, g)``: the new quantity from the fresh gradient and the
quantity before, which starts at zero and is all that is remembered. Where nothing moves any more it must be a fixed
multiple of the local gradient; otherwise the method ends at a wrong point, because the limit is where the tracked
quantities, and not the gradients, add up to zero.

>>> import numpy as np
>>> momentum(0.5).update(np.array([[2.0]]), np.array([[1.0]]))
array([[2.5]])
"""

import math
from dataclasses import dataclass, field
from typing import Protocol

from digrad import checks
from digrad.arrays import clip_rows, row_norm, where
from digrad.types import Array, OneFraction, OneThreshold

__all__ = ["Estimator", "error_feedback", "gradient", "momentum"]


class Estimator(Protocol):
    """Way to turn gradients into the quantity tracked: a pure function of stacked rows, row by row."""

    def update(self, grad: Array, g: Array) -> Array:
        """Return what is tracked now, ``[rows, d]``, from the gradient and from what was tracked before."""
        ...


@dataclass(frozen=True)
class gradient:
    """The gradient itself, as plain gradient tracking has it."""

    def update(self, grad: Array, g: Array) -> Array:
        """Return the gradient."""
        return grad


@dataclass(frozen=True)
class momentum:
    r"""The momentum :math:`g^+ = \beta g + (1 - \tau) \nabla f_i`, in the words of ``torch.optim.SGD``.

    Args:
        momentum: :math:`\beta` in [0, 1).
        dampening: :math:`\tau` in [0, 1): 0 gives the sum of momentum tracking, whose effective step size is
            :math:`\alpha/(1 - \beta)`; :math:`\tau = \beta` the moving average of GT-NSGDm and DeMuon.
    """

    momentum: OneFraction
    dampening: OneFraction = field(default=0.0, kw_only=True)

    __post_init__ = checks.fields

    def update(self, grad: Array, g: Array) -> Array:
        """Return the momentum."""
        return self.momentum * g + (1 - self.dampening) * grad


@dataclass(frozen=True)
class error_feedback:
    r"""An estimate that follows the gradient by at most ``threshold`` a step (Clip21).

    :math:`g^+ = g + \min(1, c/\|\nabla f_i - g\|)(\nabla f_i - g)`: what an agent adds to the trackers in a step is
    bounded, and yet nothing is biased, because what was clipped away follows later. Far from the minimum it overshoots
    where clipping the tracker does not (it bounds the acceleration, not the velocity); near it, the trackers keep no
    rounding errors of huge gradients.

    Args:
        threshold: The longest change of what is tracked.
    """

    threshold: OneThreshold = math.inf

    __post_init__ = checks.fields

    def update(self, grad: Array, g: Array) -> Array:
        """Return the gradient, or as much of the way to it as the threshold allows."""
        change = grad - g
        # The gradient itself, not g + (grad - g), which is another number after rounding.
        return where(row_norm(change) <= self.threshold, grad, g + clip_rows(change, self.threshold))
