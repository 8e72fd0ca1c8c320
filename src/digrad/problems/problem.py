"""A problem: n private losses f_i on R^d, whose average F = (1/n) sum_i f_i the agents minimise together.

Every agent has one vote; ``agent_weights`` of the functions that make problems counts them otherwise, by letting
n p_i f_i take the place of f_i.
"""

import dataclasses
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import jax
import numpy as np
import numpy.typing as npt

from digrad.data import Partition
from digrad.errors import ArgumentError
from digrad.problems.compiled_loss import (
    LossCode,
    batch_gradients_at,
    code_of,
    gradients_at,
    losses_at,
    objective_at,
)
from digrad.problems.exact_minimum import Minimum, NoMinimumError, minimise
from digrad.sampling import WithReplacement
from digrad.types import Array

Floats = npt.NDArray[np.floating]


def as_floats(value: npt.ArrayLike, name: str, owner: str) -> npt.NDArray[np.float64]:
    """Return an argument as an array of numbers, or refuse it."""
    try:
        return np.array(value, np.float64)
    except (TypeError, ValueError, OverflowError):  # the last for a whole number of 400 digits
        raise ArgumentError(f"`{name}` of {owner} must be an array of numbers, but got {value!r}.") from None


def per_agent(
    value: npt.ArrayLike, agents: int, name: str, owner: str, *, least: float = 0.0, is_open: bool = False
) -> npt.NDArray[np.float64]:
    """Return numbers of at least, or above, ``least`` as an array ``[n]``: one per agent, or one for all."""
    numbers = as_floats(value, name, owner).reshape(-1)
    is_allowed = np.isfinite(numbers) & ((numbers > least) if is_open else (numbers >= least))
    if numbers.size not in (1, agents) or not is_allowed.all():
        raise ArgumentError(
            f"`{name}` of {owner} must be one finite number {'above' if is_open else 'of at least'} {least:g}, or one "
            f"for each of the {agents} agents, but got {value!r}."
        )
    return np.broadcast_to(numbers, agents).copy()


class LocalLosses(Protocol):
    """The mathematics of a problem: pure JAX functions of arrays, handed out in the dtype of the run."""

    @property
    def n_agents(self) -> int:
        """The number n of losses."""
        ...

    @property
    def dim(self) -> int:
        """The dimension d."""
        ...

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """Samples per agent; None when the losses are not averages over samples."""
        ...

    def arrays(self, dtype: npt.DTypeLike) -> Any:
        """Return the pytree of NumPy arrays that the functions below take, cast to ``dtype``."""
        ...

    def losses(self, arrays: Any, x: Array, index: Array | None) -> jax.Array:
        """Return f_i(x_i), ``[n]``; on the samples ``index`` ``[n, batch]`` if given."""
        ...

    def gradients(self, arrays: Any, x: Array, index: Array | None) -> jax.Array:
        """Return the gradients of f_i at x_i, ``[n, d]``; on samples ``index`` ``[n, batch]`` if given."""
        ...

    def objective(self, arrays: Any, points: Array) -> tuple[jax.Array, jax.Array]:
        """Return F ``[K]`` and its gradient ``[K, d]`` at K points ``[K, d]``, in one batched evaluation."""
        ...

    def fingerprint(self) -> str:
        """Return a hash of everything the losses depend on."""
        ...


@dataclass(frozen=True, eq=False, repr=False)
class Problem:
    """n private losses on R^d, made by a function of :mod:`digrad.problems`.

    Args:
        name: Its name in reports.
        local: The losses themselves.
        start: Default start of a run, ``[d]``.
        partition: Which samples each agent holds, if the losses come from a data set.
        unravel: Turns a vector ``[d]`` into the parameters of the user's loss.

    Example:
        >>> from digrad.problems import from_loss
        >>> data = [np.zeros(3), np.ones(2)]
        >>> problem = from_loss(lambda w, batch: ((w - batch) ** 2).mean(), data, 1)
        >>> round(problem.loss(np.array([0.5])), 6), problem.solve().x.round(9)
        (0.25, array([0.5]))
    """

    name: str
    local: LocalLosses
    start: Floats
    partition: Partition | None = None
    unravel: Callable[[Any], Any] = field(default=lambda x: x, repr=False)
    _on_device: dict[str, Any] = field(default_factory=dict, init=False, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what another process computes for itself: arrays on the device, the minimum, compiled code."""
        return {one.name: getattr(self, one.name) for one in dataclasses.fields(self)} | {"_on_device": {}}

    def __repr__(self) -> str:
        """Return the name and the sizes, never the data."""
        samples = "" if self.sizes is None else f", n_samples={sum(self.sizes)}"
        return f"Problem({self.name!r}, n_agents={self.n_agents}, dim={self.dim}{samples})"

    @property
    def n_agents(self) -> int:
        """The number n of agents."""
        return self.local.n_agents

    @property
    def dim(self) -> int:
        """The dimension d."""
        return self.local.dim

    @property
    def sizes(self) -> tuple[int, ...] | None:
        """Samples per agent; None when the losses are not averages over samples."""
        return self.local.sizes

    @property
    def agent_scale(self) -> Floats:
        """Weight of each agent relative to one vote each: n p_i, ``[n]``."""
        return getattr(self.local, "agent_scale", np.ones(self.n_agents))

    @property
    def targets(self) -> tuple[Floats, ...] | None:
        """The labels of each agent's samples, ``[m_i]`` each; None when the losses have none."""
        return getattr(self.local, "targets", None)

    @cached_property
    def is_estimated_by_batches(self) -> bool:
        """Return whether mini-batches estimate the losses: they are means over samples, not sums."""
        if self.sizes is None:
            return False
        ask = getattr(self.local, "is_estimated_by_batches", None)
        return ask is None or ask(self.start)

    @cached_property
    def code(self) -> LossCode:
        """The losses without their data, as compiled functions see them."""
        return code_of(self.local)

    @property
    def content_hash(self) -> str:
        """A hash of everything a run depends on.

        Raises:
            ArgumentError: The user's loss holds something that has no fingerprint, or has changed.
        """
        return hashlib.sha256(f"{self.name}{self.local.fingerprint()}".encode()).hexdigest()

    def loss(self, x: npt.ArrayLike) -> float:
        """Return F at one point ``[d]``."""
        return float(self._objective(x)[0])

    def gradient(self, x: npt.ArrayLike) -> Floats:
        """Return the gradient of F at one point ``[d]``."""
        return self._objective(x)[1]

    def local_losses(self, x: npt.ArrayLike) -> Floats:
        """Return f_i(x_i) ``[n]`` for stacked x ``[n, d]`` or one common point ``[d]``."""
        with jax.enable_x64(True):
            return np.asarray(losses_at(self._arrays, self._stacked(x), code=self.code))

    def local_gradients(self, x: npt.ArrayLike) -> Floats:
        """Return the gradients of f_i at x_i ``[n, d]`` for stacked x ``[n, d]`` or one point ``[d]``."""
        with jax.enable_x64(True):
            return np.asarray(gradients_at(self._arrays, self._stacked(x), code=self.code))

    def gradient_errors(
        self, x: npt.ArrayLike, *, draws: int = 100, batch_size: int = 1, seed: int = 0
    ) -> Floats:
        """Return the errors of mini-batch gradients at x, ``[draws, n, d]``, e.g. for :func:`digrad.noise.tail_index`.

        Args:
            x: Points of the agents, ``[n, d]``, or one for all, ``[d]``.
            draws: Number of mini-batches per agent.
            batch_size: Samples of each, with replacement.
            seed: Random seed of the samples.
        """
        if self.sizes is None:
            raise ArgumentError(
                f"{self.name} has no samples to draw from, so that its gradients have no errors."
            )
        drawn = WithReplacement(self.sizes, batch_size, seed).batches(0, draws)
        with jax.enable_x64(True):
            noisy = batch_gradients_at(self._arrays, self._stacked(x), drawn, code=self.code)
        return np.asarray(noisy) - self.local_gradients(x)

    def solve(self, *, tolerance: float = 1e-10) -> Minimum:
        """Return a minimum of F with a gradient norm of at most ``tolerance`` (computed once).

        Raises:
            ArgumentError: no such point was found from ``start``; F may have no minimum.
        """
        try:
            minimum = self._minimum
        except NoMinimumError as error:
            raise ArgumentError(
                f"no minimum of {self.name} was found from its start: {error}; add a regulariser, or start elsewhere."
            ) from None
        if minimum.grad_norm > tolerance:
            raise ArgumentError(
                f"no minimum of {self.name} was found from its start: `tolerance` of Problem.solve is {tolerance:g}, "
                f"but the best gradient norm reached is {minimum.grad_norm:.3g}; ask for less, or check that the loss "
                "has a minimum."
            )
        return minimum

    def check_gradient(self, x: npt.ArrayLike | None = None, *, seed: int = 0) -> float:
        """Return the largest error of the gradients against central differences, relative to their norms.

        What rounding of the losses explains is not counted.

        Args:
            x: Points to check at, ``[n, d]`` or ``[d]``; standard normal by default.
            seed: Random seed of the point and of the directions.
        """
        generator = np.random.default_rng(seed)
        point = self._stacked(generator.standard_normal((self.n_agents, self.dim)) if x is None else x)
        direction = generator.standard_normal((self.n_agents, self.dim))
        direction /= np.linalg.norm(direction, axis=1, keepdims=True)
        width = 1e-5 * (1 + np.abs(point).max())  # balances truncation and rounding of a central difference
        ahead, behind = (self.local_losses(point + sign * width * direction) for sign in (1, -1))
        gradients = self.local_gradients(point)
        common = point.mean(axis=0)
        average, claimed = self.local_gradients(common).mean(axis=0), self.gradient(common)
        # Rounding of the losses is no fault of the gradients.
        rounding = np.finfo(np.float64).eps * (np.abs(ahead) + np.abs(behind)) / width
        errors = np.abs((ahead - behind) / (2 * width) - np.sum(gradients * direction, axis=1)) - rounding
        norms = np.linalg.norm(gradients, axis=1)
        return max(
            _relative(np.maximum(errors, 0), np.maximum(norms, np.abs(ahead - behind) / (2 * width))),
            _relative(np.linalg.norm(average - claimed), np.linalg.norm(average)),
        )

    def arrays(self, dtype: npt.DTypeLike) -> Any:
        """Return the arrays of the losses on the device, in ``dtype``; made once."""
        key = np.dtype(dtype).name
        if key not in self._on_device:
            with jax.enable_x64(True):
                self._on_device[key] = jax.device_put(self.local.arrays(dtype))
        return self._on_device[key]

    @property
    def _arrays(self) -> Any:
        return self.arrays(np.float64)

    @cached_property
    def _minimum(self) -> Minimum:
        with jax.enable_x64(True):
            return minimise(self.code, self._arrays, np.asarray(self.start, np.float64))

    def _objective(self, x: npt.ArrayLike) -> tuple[Floats, Floats]:
        point = np.asarray(x, dtype=np.float64)
        if point.shape != (self.dim,):
            raise ArgumentError(f"`x` must have shape ({self.dim},) for {self.name}, but got {point.shape}.")
        with jax.enable_x64(True):
            loss, gradient = objective_at(self._arrays, point[None], code=self.code)
            return np.asarray(loss)[0], np.asarray(gradient)[0]

    def _stacked(self, x: npt.ArrayLike) -> Floats:
        point = np.asarray(x, dtype=np.float64)
        if point.shape not in ((self.dim,), (self.n_agents, self.dim)):
            raise ArgumentError(
                f"`x` must have shape ({self.dim},) or ({self.n_agents}, {self.dim}) for {self.name}, "
                f"but got {point.shape}."
            )
        return np.broadcast_to(point, (self.n_agents, self.dim))


def _relative(errors: Any, sizes: Any) -> float:
    """Return the largest error relative to its size; an error of something that is zero is infinite."""
    return float(np.max(np.where(errors == 0, 0, errors / np.where(errors == 0, 1, sizes))))
