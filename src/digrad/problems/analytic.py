"""Losses whose gradients grow fast, with known (L0, L1): the test problems of generalized smoothness."""

import hashlib
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from digrad.errors import ArgumentError
from digrad.problems.problem import Floats, Problem, as_floats


@dataclass(frozen=True, eq=False)
class Cosh:
    r""":math:`f_i(x) = a_i \sum_c \cosh(s_i (x_c - m_{ic}))`.

    (L0, L1)-smooth with :math:`L_0 = a_i s_i^2` and :math:`L_1 = s_i`.
    """

    scale: Floats  # [n, 1] a
    sharpness: Floats  # [n, 1] s
    center: Floats  # [n, d] m

    has_short_sums: ClassVar = True

    @property
    def n_agents(self) -> int:
        """The number n of losses."""
        return self.center.shape[0]

    @property
    def dim(self) -> int:
        """The dimension d."""
        return self.center.shape[1]

    @property
    def sizes(self) -> None:
        """There are no samples."""
        return None

    def arrays(self, dtype: npt.DTypeLike) -> Any:
        """Return (a, s, m)."""
        return tuple(np.asarray(array, dtype) for array in (self.scale, self.sharpness, self.center))

    def losses(self, arrays: Any, x: jax.Array, index: object = None) -> jax.Array:
        """Return f_i(x_i), ``[n]``."""
        a, s, m = arrays
        return jnp.sum(a * jnp.cosh(s * (x - m)), axis=-1)

    def gradients(self, arrays: Any, x: jax.Array, index: object = None) -> jax.Array:
        """Return a_i s_i sinh(s_i (x_i - m_i)), ``[n, d]``."""
        a, s, m = arrays
        return a * s * jnp.sinh(s * (x - m))

    def objective(self, arrays: Any, points: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return F and its gradient at ``points``."""
        return _averaged(self, arrays, points)

    def fingerprint(self) -> str:
        """Return a hash of the coefficients."""
        return _hash(self.arrays(np.float64))


@dataclass(frozen=True, eq=False)
class Quartic:
    r""":math:`f_i(x) = \frac{a_i}{4} \|x - m_i\|^4`.

    (L0, L1)-smooth with :math:`L_0 = 4 a_i/L_1^2` for every L1 > 0.
    """

    scale: Floats  # [n, 1] a
    center: Floats  # [n, d] m

    has_short_sums: ClassVar = True

    @property
    def n_agents(self) -> int:
        """The number n of losses."""
        return self.center.shape[0]

    @property
    def dim(self) -> int:
        """The dimension d."""
        return self.center.shape[1]

    @property
    def sizes(self) -> None:
        """There are no samples."""
        return None

    def arrays(self, dtype: npt.DTypeLike) -> Any:
        """Return (a, m)."""
        return tuple(np.asarray(array, dtype) for array in (self.scale, self.center))

    def losses(self, arrays: Any, x: jax.Array, index: object = None) -> jax.Array:
        """Return f_i(x_i), ``[n]``."""
        a, m = arrays
        return a[:, 0] / 4 * jnp.sum((x - m) ** 2, axis=-1) ** 2

    def gradients(self, arrays: Any, x: jax.Array, index: object = None) -> jax.Array:
        """Return a_i ||x_i - m_i||^2 (x_i - m_i), ``[n, d]``."""
        a, m = arrays
        square = jnp.sum((x - m) ** 2, axis=-1, keepdims=True)
        # Beyond overflow a coordinate at its center would be inf 0, which is not a number.
        return jnp.where(jnp.isinf(square) & (x == m), 0, a * square * (x - m))

    def objective(self, arrays: Any, points: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return F and its gradient at ``points``."""
        return _averaged(self, arrays, points)

    def fingerprint(self) -> str:
        """Return a hash of the coefficients."""
        return _hash(self.arrays(np.float64))


def cosh(*, center: npt.ArrayLike, scale: npt.ArrayLike = 1.0, sharpness: npt.ArrayLike = 1.0) -> Problem:
    r"""Return the problem :math:`f_i(x) = a_i \sum_c \cosh(s_i (x_c - m_{ic}))`.

    Args:
        center: m, ``[n, d]``.
        scale: a > 0, a number or one per agent.
        sharpness: s > 0, a number or one per agent.

    Example:
        >>> cosh(center=[[-1.0], [1.0]]).solve().x.round(12) + 0.0
        array([0.])
    """
    m = _center(center, "cosh")
    local = Cosh(_column(scale, m, "scale", "cosh"), _column(sharpness, m, "sharpness", "cosh"), m)
    return Problem(name="cosh", local=local, start=np.zeros(m.shape[1]))


def quartic(*, center: npt.ArrayLike, scale: npt.ArrayLike = 1.0) -> Problem:
    r"""Return the problem :math:`f_i(x) = \frac{a_i}{4} \|x - m_i\|^4`.

    Args:
        center: m, ``[n, d]``.
        scale: a > 0, a number or one per agent.

    Example:
        >>> quartic(center=[[-1.0], [1.0]]).solve().x.round(6) + 0.0
        array([0.])
    """
    m = _center(center, "quartic")
    return Problem(
        name="quartic", local=Quartic(_column(scale, m, "scale", "quartic"), m), start=np.zeros(m.shape[1])
    )


def _averaged(local: Cosh | Quartic, arrays: Any, points: jax.Array) -> tuple[jax.Array, jax.Array]:
    def at(point: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = jnp.broadcast_to(point, (local.n_agents, local.dim))
        return local.losses(arrays, x, None).mean(), local.gradients(arrays, x, None).mean(axis=0)

    return jax.vmap(at)(points)


def _center(center: npt.ArrayLike, owner: str) -> Floats:
    m = as_floats(center, "center", owner)
    if m.ndim != 2 or 0 in m.shape or not np.isfinite(m).all():
        raise ArgumentError(
            f"`center` of {owner} must be finite and of shape (n, d), but got shape {m.shape}."
        )
    return m


def _column(value: npt.ArrayLike, center: Floats, name: str, owner: str) -> Floats:
    array = as_floats(value, name, owner).reshape(-1, 1)
    if array.size not in (1, len(center)) or not ((array > 0).all() and np.isfinite(array).all()):
        raise ArgumentError(
            f"`{name}` of {owner} must be one positive number, or one for each of the {len(center)} agents, "
            f"but got {value!r}."
        )
    return np.broadcast_to(array, (len(center), 1)).copy()


def _hash(arrays: tuple[Floats, ...]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
