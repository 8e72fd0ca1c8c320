"""The quantities of the theory along a run: errors in their norms, gradients, steps, one number for each k."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from digrad.theory.chains.setting import LARGEST_CURVATURE, Setting
from digrad.theory.inequalities.pointwise import States
from digrad.theory.trajectory import Trajectory

Floats = npt.NDArray[np.floating]

EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True, eq=False)
class Measured:
    """A trajectory seen through the norms of its network; arrays have one entry per k = 0, ..., K."""

    path: Trajectory = field(repr=False)
    setting: Setting = field(repr=False)

    @cached_property
    def states(self) -> States:
        """Trackers and gradients, for the pointwise inequalities."""
        norms, path = self.setting.norms, self.path
        return States(norms.u, norms.v, path.y, path.grad_F, path.step_size, path.threshold)

    @cached_property
    def X(self) -> Floats:  # noqa: N802
        """Consensus error in the R-norm."""
        return self.setting.norms.R.of(self.setting.norms.consensus(self.path.x))

    @cached_property
    def Y(self) -> Floats:  # noqa: N802
        """Tracking error in the C-norm."""
        return self.setting.norms.C.of(self.setting.norms.tracking(self.path.y))

    @property
    def g(self) -> Floats:
        """Norm of the gradient of F at the average."""
        return self.states.g

    @property
    def w(self) -> Floats:
        """||y - v grad F'||_F."""
        return self.states.w

    @property
    def G(self) -> float:  # noqa: N802
        """The largest gradient norm of the run."""
        return float(self.g.max())

    @cached_property
    def s(self) -> Floats:
        """||alpha_k y||_F: the length of the step of all agents."""
        return np.linalg.norm(self.states.steps * self.states.lengths, axis=-1)

    @cached_property
    def gradient_change(self) -> Floats:
        """||grad f(x_{k+1}) - grad f(x_k)||_F, ``[K]``."""
        return np.linalg.norm(np.diff(self.path.grad, axis=0), axis=(-2, -1))

    @cached_property
    def descent(self) -> Floats:
        """F_{k+1} - F_k, ``[K]``."""
        return np.diff(self.path.loss)

    @cached_property
    def x_rounding(self) -> Floats:
        """What rounding can do to a difference of iterates in the R-norm, ``[K + 1]``: a few units of all of them."""
        lengths = np.linalg.norm(self.path.x, axis=(-2, -1))
        return (
            64 * EPS * self.setting.norms.R.delta * np.maximum(lengths, np.append(lengths[:1], lengths[:-1]))
        )

    @cached_property
    def loss_rounding(self) -> Floats:
        """What rounding can do to F, ``[K + 1]``: a few units of F, and of the terms that make it up.

        They are not known of every loss; of a quadratic they are at most |F|, ||x|| ||grad f|| and L0 ||x||^2.
        """
        size = np.linalg.norm(self.path.average, axis=-1)
        slopes = np.linalg.norm(self.path.local, axis=-1).mean(axis=-1)
        return 16 * EPS * (np.abs(self.path.loss) + size * (slopes + self.setting.smoothness.L0_F * size))

    @cached_property
    def descent_rounding(self) -> Floats:
        """What rounding can do to F_{k+1} - F_k, ``[K]``."""
        return self.loss_rounding[1:] + self.loss_rounding[:-1]

    @cached_property
    def grad_rounding(self) -> Floats:
        """What rounding can do to a difference of gradients or trackers, ``[K + 1]``: a few units of all of them.

        A gradient is a sum of terms that may cancel: L ||x||, and (L |F|)^(1/2), which is what a slope costs in F. A
        tracker keeps what rounding did to it in every step before.
        """
        smooth, path = self.setting.smoothness, self.path
        largest = np.maximum(np.linalg.norm(path.grad, axis=-1), np.linalg.norm(path.local, axis=-1))
        curvature = np.minimum(smooth.L0 + smooth.L1 * largest, LARGEST_CURVATURE)
        length = np.linalg.norm(path.x, axis=-1) + np.linalg.norm(path.average, axis=-1)[:, None]
        terms = largest + curvature * length + np.sqrt(curvature * np.abs(path.loss)[:, None])
        size = terms.sum(axis=-1)
        return EPS * (64 * np.maximum(size, np.append(size[:1], size[:-1])) + np.cumsum(size))

    @property
    def y_rounding(self) -> Floats:
        """The same in the C-norm."""
        return self.setting.norms.C.delta * self.grad_rounding


def squared(length: Floats, rounding: Floats) -> Floats:
    """Return what rounding does to the square of a length that it can change by ``rounding``."""
    return 2 * length * rounding + rounding**2
