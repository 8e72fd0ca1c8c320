"""Losses in closed form: polynomials, and losses whose gradients grow fast, with known (L0, L1)."""

import dataclasses
import hashlib
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from digrad.errors import ArgumentError
from digrad.problems.compiled_loss import average_at
from digrad.problems.problem import Floats, Problem, as_floats, per_agent


@dataclass(frozen=True, eq=False)
class ClosedForm:
    """Losses whose fields are coefficients: arrays ``[n, d]``, or ``[n, 1]`` for one number per agent."""

    has_short_sums: ClassVar = True

    @property
    def n_agents(self) -> int:
        """The number n of losses."""
        return self._coefficients()[0].shape[0]

    @property
    def dim(self) -> int:
        """The dimension d."""
        return max(array.shape[1] for array in self._coefficients())

    @property
    def sizes(self) -> None:
        """There are no samples."""
        return None

    def arrays(self, dtype: npt.DTypeLike) -> Any:
        """Return the coefficients in the order of the fields."""
        return tuple(np.asarray(array, dtype) for array in self._coefficients())

    def objective(self, arrays: Any, points: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return F and its gradient at ``points``."""
        return jax.vmap(lambda point: average_at(self, arrays, point))(points)

    def fingerprint(self) -> str:
        """Return a hash of the coefficients."""
        digest = hashlib.sha256()
        for array in self.arrays(np.float64):
            digest.update(np.ascontiguousarray(array).data)  # not as bytes: that would be a copy
        return digest.hexdigest()

    def _coefficients(self) -> list[Floats]:
        return [getattr(self, one.name) for one in dataclasses.fields(self)]


@dataclass(frozen=True, eq=False)
class Polynomial(ClosedForm):
    r""":math:`f_i(x) = \frac12 x^T \mathrm{diag}(a_i) x - b_i^T x + \frac{q_i}{4} \sum_c x_c^4`."""

    curvature: Floats  # [n, d] a
    linear: Floats  # [n, d] b
    quartic: Floats  # [n, 1] q

    def losses(self, arrays: Any, x: jax.Array, index: object = None) -> jax.Array:
        """Return f_i(x_i), ``[n]``."""
        a, b, q = arrays
        # By Horner's rule: a x^2 - b x could overflow to inf - inf, and 0 x^2 to 0 inf.
        return jnp.sum(x * (a * x / 2 - b + q * _where_quartic(q, x) ** 3 / 4), axis=-1)

    def gradients(self, arrays: Any, x: jax.Array, index: object = None) -> jax.Array:
        """Return a_i x_i - b_i + q_i x_i^3, ``[n, d]``."""
        a, b, q = arrays
        return a * x - b + q * _where_quartic(q, x) ** 3

    def objective(self, arrays: Any, points: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return F and its gradient at ``points``: the polynomial with averaged coefficients."""
        average = tuple(array.mean(axis=0) for array in arrays)
        return self.losses(average, points), self.gradients(average, points)


@dataclass(frozen=True, eq=False)
class Cosh(ClosedForm):
    r""":math:`f_i(x) = a_i \sum_c \cosh(s_i (x_c - m_{ic}))`.

    (L0, L1)-smooth with :math:`L_0 = a_i s_i^2` and :math:`L_1 = s_i`.
    """

    scale: Floats  # [n, 1] a
    sharpness: Floats  # [n, 1] s
    center: Floats  # [n, d] m

    def losses(self, arrays: Any, x: jax.Array, index: object = None) -> jax.Array:
        """Return f_i(x_i), ``[n]``."""
        a, s, m = arrays
        return jnp.sum(a * jnp.cosh(s * (x - m)), axis=-1)

    def gradients(self, arrays: Any, x: jax.Array, index: object = None) -> jax.Array:
        """Return a_i s_i sinh(s_i (x_i - m_i)), ``[n, d]``."""
        a, s, m = arrays
        return a * s * jnp.sinh(s * (x - m))


@dataclass(frozen=True, eq=False)
class Quartic(ClosedForm):
    r""":math:`f_i(x) = \frac{a_i}{4} \|x - m_i\|^4`.

    (L0, L1)-smooth with :math:`L_0 = 4 a_i/L_1^2` for every L1 > 0.
    """

    scale: Floats  # [n, 1] a
    center: Floats  # [n, d] m

    def losses(self, arrays: Any, x: jax.Array, index: object = None) -> jax.Array:
        """Return f_i(x_i), ``[n]``."""
        a, m = arrays
        return a[:, 0] / 4 * jnp.sum((x - m) ** 2, axis=-1) ** 2

    def gradients(self, arrays: Any, x: jax.Array, index: object = None) -> jax.Array:
        """Return a_i ||x_i - m_i||^2 (x_i - m_i), ``[n, d]``."""
        a, m = arrays
        square = jnp.sum((x - m) ** 2, axis=-1, keepdims=True)
        # Beyond overflow a coordinate at its center would be inf 0, which is NaN.
        return jnp.where(jnp.isinf(square) & (x == m), 0, a * square * (x - m))


def quadratic(*, curvature: npt.ArrayLike, linear: npt.ArrayLike, quartic: npt.ArrayLike = 0.0) -> Problem:
    r"""Return the problem :math:`f_i(x) = \frac12 x^T \mathrm{diag}(a_i) x - b_i^T x`, or more with ``quartic``.

    Args:
        curvature: a, ``[n, d]``, nonnegative, with a positive average in each coordinate.
        linear: b, ``[n, d]``.
        quartic: q, a number or one per agent: adds :math:`\frac{q_i}{4} \sum_c x_c^4`, which no quadratic
            bounds.

    Example:
        >>> quadratic(curvature=[[1.0], [3.0]], linear=[[0.0], [4.0]]).solve().x.round(12)
        array([1.])
    """
    a, b = as_floats(curvature, "curvature", "quadratic"), as_floats(linear, "linear", "quadratic")
    if a.ndim != 2 or a.shape != b.shape or 0 in a.shape:
        raise ArgumentError(
            f"`curvature` and `linear` of quadratic must both have shape (n, d), "
            f"but got {a.shape} and {b.shape}."
        )
    if not (np.isfinite(a).all() and np.isfinite(b).all() and (a >= 0).all() and (a.mean(axis=0) > 0).all()):
        raise ArgumentError(
            "`curvature` and `linear` of quadratic must be finite, `curvature` nonnegative and positive on average "
            "in each coordinate, or F has no minimum."
        )
    q = per_agent(quartic, len(a), "quartic", "quadratic")[:, None]
    name = "quartic" if q.any() else "quadratic"
    return Problem(name=name, local=Polynomial(a, b, q), start=np.zeros(a.shape[1]))


def example_quadratic() -> Problem:
    """Return the five-agent quadratic whose minimum is (1/3, 1/3), the oracle of the tests.

    >>> example_quadratic().solve().x.round(6)
    array([0.333333, 0.333333])
    """
    return _example(quartic=0.0)


def example_quartic() -> Problem:
    """Return :func:`example_quadratic` plus a quarter of the sum of fourth powers: (L0, L1)-smooth, not
    smooth.

    >>> example_quartic().solve().x.round(6)
    array([0.322185, 0.322185])
    """
    return _example(quartic=1.0)


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


def _where_quartic(q: jax.Array, x: jax.Array) -> jax.Array:
    """Return x, or 0 where there is no quartic term: 0 x^3 is NaN once x^3 overflows."""
    return jnp.where(q > 0, x, 0)


def _center(center: npt.ArrayLike, owner: str) -> Floats:
    m = as_floats(center, "center", owner)
    if m.ndim != 2 or 0 in m.shape or not np.isfinite(m).all():
        raise ArgumentError(
            f"`center` of {owner} must be finite and of shape (n, d), but got shape {m.shape}."
        )
    return m


def _column(value: npt.ArrayLike, center: Floats, name: str, owner: str) -> Floats:
    return per_agent(value, len(center), name, owner, is_open=True)[:, None]


def _example(quartic: float) -> Problem:
    curvature = [[1 + i, 5 - i] for i in range(5)]
    linear = [[1, 0], [0, 2], [-3, 1], [4, 4], [3, -2]]
    return quadratic(curvature=curvature, linear=linear, quartic=quartic)
