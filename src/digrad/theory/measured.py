"""The quantities of the theory along a run: errors in their norms, gradients, steps, one number for each k."""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from digrad.theory.pointwise import States
from digrad.theory.setting import Setting
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
    def loss_rounding(self) -> Floats:
        """What rounding can do to F_{k+1} - F_k, ``[K]``: a few units in the last place of F."""
        return 16 * EPS * (1 + np.abs(self.path.loss[1:]) + np.abs(self.path.loss[:-1]))

    @cached_property
    def grad_rounding(self) -> Floats:
        """What rounding can do to a difference of gradients, ``[K + 1]``: a few units of all of them."""
        largest = np.maximum(
            np.linalg.norm(self.path.grad, axis=-1), np.linalg.norm(self.path.local, axis=-1)
        )
        return 64 * EPS * largest.sum(axis=-1)
