"""Losses that are polynomials, with minima and constants known in closed form."""

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
class Polynomial:
    r""":math:`f_i(x) = \frac12 x^T \mathrm{diag}(a_i) x - b_i^T x + \frac{q_i}{4} \sum_c x_c^4`."""

    curvature: Floats  # [n, d] a
    linear: Floats  # [n, d] b
    quartic: Floats  # [n, 1] q

    has_short_sums: ClassVar = True

    @property
    def n_agents(self) -> int:
        """The number n of losses."""
        return self.curvature.shape[0]

    @property
    def dim(self) -> int:
        """The dimension d."""
        return self.curvature.shape[1]

    @property
    def sizes(self) -> None:
        """There are no samples."""
        return None

    def arrays(self, dtype: npt.DTypeLike) -> Any:
        """Return (a, b, q)."""
        return tuple(np.asarray(array, dtype) for array in (self.curvature, self.linear, self.quartic))

    def losses(self, arrays: Any, x: jax.Array, index: object = None) -> jax.Array:
        """Return f_i(x_i), ``[n]``."""
        a, b, q = arrays
        return _loss(a, b, q, x)

    def gradients(self, arrays: Any, x: jax.Array, index: object = None) -> jax.Array:
        """Return a_i x_i - b_i + q_i x_i^3, ``[n, d]``."""
        a, b, q = arrays
        return _gradient(a, b, q, x)

    def objective(self, arrays: Any, points: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return F and its gradient at ``points``: the polynomial with averaged coefficients."""
        a, b, q = (array.mean(axis=0) for array in arrays)
        return _loss(a, b, q, points), _gradient(a, b, q, points)

    def fingerprint(self) -> str:
        """Return a hash of the coefficients."""
        digest = hashlib.sha256()
        for array in self.arrays(np.float64):
            digest.update(np.ascontiguousarray(array).data)  # not as bytes: that would be a copy
        return digest.hexdigest()


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
    q = np.broadcast_to(as_floats(quartic, "quartic", "quadratic").reshape(-1, 1), (a.shape[0], 1)).copy()
    if not ((q >= 0).all() and np.isfinite(q).all()):
        raise ArgumentError(f"`quartic` of quadratic must be finite and nonnegative, but got {quartic!r}.")
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


def _loss(a: jax.Array, b: jax.Array, q: jax.Array, x: jax.Array) -> jax.Array:
    # By Horner's rule: a x^2 - b x could overflow to inf - inf, and 0 x^2 to 0 inf.
    return jnp.sum(x * (a * x / 2 - b + q * _where_quartic(q, x) ** 3 / 4), axis=-1)


def _gradient(a: jax.Array, b: jax.Array, q: jax.Array, x: jax.Array) -> jax.Array:
    return a * x - b + q * _where_quartic(q, x) ** 3


def _where_quartic(q: jax.Array, x: jax.Array) -> jax.Array:
    """Return x, or 0 where there is no quartic term: 0 x^3 is not a number once x^3 overflows."""
    return jnp.where(q > 0, x, 0)


def _example(quartic: float) -> Problem:
    curvature = [[1 + i, 5 - i] for i in range(5)]
    linear = [[1, 0], [0, 2], [-3, 1], [4, 4], [3, -2]]
    return quadratic(curvature=curvature, linear=linear, quartic=quartic)
