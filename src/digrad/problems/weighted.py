"""Agents that count unequally: F is a weighted mean of the private losses."""

import hashlib
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from digrad.errors import ArgumentError
from digrad.problems.compiled_loss import average_at
from digrad.problems.problem import Floats, LocalLosses, as_floats
from digrad.types import Array

UNCHANGED = ("n_agents", "dim", "sizes", "targets", "shapes", "is_estimated_by_batches")


@dataclass(frozen=True, eq=False)
class WeightedLosses:
    r"""The losses :math:`n p_i f_i`, whose plain mean is :math:`F = \sum_i p_i f_i` with weights of sum one."""

    local: Any  # the losses f_i
    agent_scale: Floats  # [n] n p_i

    def __getattr__(self, name: str) -> Any:
        """Return what weights leave as it is."""
        if name in UNCHANGED:
            return getattr(self.local, name)
        raise AttributeError(name)

    def arrays(self, dtype: npt.DTypeLike) -> tuple[Floats, Any]:
        """Return the weights, and the arrays of the losses."""
        return self.agent_scale.astype(dtype), self.local.arrays(dtype)

    def losses(self, arrays: Any, x: Array, index: Array | None) -> jax.Array:
        """Return n p_i f_i(x_i), ``[n]``."""
        scale, own = arrays
        return scale * self.local.losses(own, x, index)

    def gradients(self, arrays: Any, x: Array, index: Array | None) -> jax.Array:
        """Return the gradients, ``[n, d]``."""
        scale, own = arrays
        return scale[:, None] * self.local.gradients(own, x, index)

    def regulariser_gradients(self, arrays: Any, x: Array) -> Array:
        """Return the part of the gradients that no sample has a share in, ``[n, d]``."""
        scale, own = arrays
        ask = getattr(self.local, "regulariser_gradients", None)
        return jnp.zeros_like(x) if ask is None else scale[:, None] * ask(own, x)

    def objective(self, arrays: Any, points: Array) -> tuple[jax.Array, jax.Array]:
        """Return F and its gradient, point after point."""
        return jax.lax.map(lambda point: average_at(self, arrays, point), points)

    def fingerprint(self) -> str:
        """Return a hash of the weights and of the losses."""
        return hashlib.sha256(self.agent_scale.tobytes() + self.local.fingerprint().encode()).hexdigest()


def weighted(local: LocalLosses, agent_weights: npt.ArrayLike | None, owner: str) -> LocalLosses:
    """Return losses whose mean counts agents by ``agent_weights``; the losses themselves for None.

    Args:
        local: The losses, one vote each.
        agent_weights: ``"samples"``, or one nonnegative number per agent; only their ratios count.
        owner: The function that was given them, for messages.
    """
    if agent_weights is None:
        return local
    if isinstance(agent_weights, str) and agent_weights == "samples" and local.sizes:
        weights = np.array(local.sizes, np.float64)
    else:
        weights = as_floats(agent_weights, "agent_weights", owner)
    n = local.n_agents
    if weights.shape != (n,) or not (np.isfinite(weights).all() and (weights >= 0).all() and weights.any()):
        raise ArgumentError(
            f"`agent_weights` of {owner} must be 'samples', or one nonnegative number for each of the {n} agents, "
            f"not all zero, but got {agent_weights!r}."
        )
    return WeightedLosses(local, weights / weights.mean())  # pyright: ignore[reportReturnType]
