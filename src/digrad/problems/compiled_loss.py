"""Losses without their data: what a compiled function depends on, compared by value.

A compiled loop takes the data as arguments. Its other half, the code of the losses, is a static argument; were that the
losses themselves, every new problem would compile again, and keep its data alive.
"""

import dataclasses
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

from digrad._internal.fingerprints import fingerprint
from digrad.errors import ArgumentError
from digrad.types import Array, Shapes


@dataclass(frozen=True, eq=False)
class LossCode:
    """The functions of losses, equal if their code is and all their arrays have the same shapes and dtypes.

    Args:
        local: The losses, with hollow arrays.
        key: Key that is compared.
    """

    local: Any = field(repr=False)
    key: tuple[Any, ...]

    def __eq__(self, other: object) -> bool:
        """Return whether both compute the same of the same arrays."""
        return isinstance(other, LossCode) and self.key == other.key

    def __hash__(self) -> int:
        """Return a hash of the key."""
        return hash(self.key)

    def losses(self, arrays: Any, x: Array, index: Array | None) -> jax.Array:
        """Return f_i(x_i), ``[n]``; see :class:`~digrad.problems.LocalLosses`."""
        return self.local.losses(arrays, x, index)

    def gradients(self, arrays: Any, x: Array, index: Array | None) -> jax.Array:
        """Return the gradients of f_i at x_i, ``[n, d]``."""
        return self.local.gradients(arrays, x, index)

    def objective(self, arrays: Any, points: Array) -> tuple[jax.Array, jax.Array]:
        """Return F ``[K]`` and its gradient ``[K, d]`` at ``points`` ``[K, d]``."""
        return self.local.objective(arrays, points)

    def regulariser_gradients(self, arrays: Any, x: Array) -> Array:
        """Return the part of the gradients that no sample has a share in, ``[n, d]``; zero if the losses name none."""
        ask = getattr(self.local, "regulariser_gradients", None)
        return jnp.zeros_like(x) if ask is None else ask(arrays, x)

    @property
    def shapes(self) -> Shapes | None:
        """The shapes of the parameters that x holds one after another; None for one vector."""
        return getattr(self.local, "shapes", None)

    @property
    def has_short_sums(self) -> bool:
        """Return whether gradients add up nothing longer than a row of x one by one."""
        return getattr(self.local, "has_short_sums", False)

    def batched_arrays(self, arrays: Any) -> Any:
        """Return the arrays for several runs at once, where other ones are faster."""
        return self.local.batched_arrays(arrays) if hasattr(self.local, "batched_arrays") else arrays


def average_at(local: Any, arrays: Any, point: Array) -> tuple[jax.Array, jax.Array]:
    """Return F and its gradient at one point ``[d]``: the means over the agents of their losses and gradients."""
    x = jnp.broadcast_to(point, (local.n_agents, local.dim))
    return local.losses(arrays, x, None).mean(), local.gradients(arrays, x, None).mean(axis=0)


@partial(jax.jit, static_argnames="code")
def objective_at(arrays: Any, points: Array, *, code: LossCode) -> tuple[jax.Array, jax.Array]:
    """Return :meth:`LossCode.objective`, compiled once per code."""
    return code.objective(arrays, points)


@partial(jax.jit, static_argnames="code")
def losses_at(arrays: Any, x: Array, *, code: LossCode) -> jax.Array:
    """Return :meth:`LossCode.losses` of all samples, compiled once per code."""
    return code.losses(arrays, x, None)


@partial(jax.jit, static_argnames="code")
def gradients_at(arrays: Any, x: Array, *, code: LossCode) -> jax.Array:
    """Return :meth:`LossCode.gradients` of all samples, compiled once per code."""
    return code.gradients(arrays, x, None)


@partial(jax.jit, static_argnames="code")
def batch_gradients_at(arrays: Any, x: Array, index: Array, *, code: LossCode) -> jax.Array:
    """Return :meth:`LossCode.gradients` of several mini-batches ``[draws, n, batch]``, compiled once per code."""
    return jax.lax.map(lambda batch: code.gradients(arrays, x, batch), index)


def code_of(local: Any) -> LossCode:
    """Return the code of losses, a dataclass of arrays, functions and numbers."""
    fields = {one.name: getattr(local, one.name) for one in dataclasses.fields(local)}
    hollow_fields = {name: jax.tree.map(_hollow, value) for name, value in fields.items()}
    hollow = object.__new__(type(local))
    hollow.__dict__.update(hollow_fields)
    parts = [
        (name, jax.tree.structure(value), *map(_key, jax.tree.leaves(value)))
        for name, value in fields.items()
    ]
    return LossCode(hollow, (type(local), *parts))


def _hollow(leaf: Any) -> Any:
    """Return an array of the same shape that takes no memory, losses without their data, anything else as it is."""
    if _is_array(leaf):
        return np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
    return code_of(leaf).local if _are_losses(leaf) else leaf


def _key(leaf: Any) -> Any:
    if _is_array(leaf):
        return (leaf.shape, str(leaf.dtype), scipy.sparse.issparse(leaf))
    if _are_losses(leaf):
        return code_of(leaf).key
    if not callable(leaf):
        return leaf
    try:
        return fingerprint(leaf)
    except ArgumentError:  # equal to itself only; whoever compares holds it, so that no other gets its number
        return id(leaf)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) or scipy.sparse.issparse(leaf)


def _are_losses(leaf: Any) -> bool:
    return dataclasses.is_dataclass(leaf) and hasattr(leaf, "gradients")
