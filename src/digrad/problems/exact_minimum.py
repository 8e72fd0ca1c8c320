"""The minimum of the average loss, to rounding, as the reference that methods are measured against."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from digrad.problems.compiled_loss import LossCode, objective_at

Vector = npt.NDArray[np.float64]

HESSIAN_BATCH = 16  # columns of the Hessian computed together: one product of matrices, at little memory
DENSE_HESSIAN_LIMIT = 2000  # above this dimension only products with the Hessian are computed
KRYLOV_DIM = 60
CURVATURE_TOLERANCE = 1e-3  # of eigenvalues of large Hessians, relative to the size of the Hessian
EVALUATIONS = 10_000  # of the loss, by L-BFGS
NEWTON_STEPS = 50
DESCENTS = 20  # from a saddle or a maximum to the next stationary point, each lower than the one before
ROUNDING = 1e-10  # of losses, relative to 1 + |F|: a smaller difference says nothing
STATIONARY = 1e-6  # a larger gradient says itself that the point is no minimum
FLAT = 1e-8  # a curvature below this, relative to the largest, is zero to rounding


@dataclass(frozen=True, eq=False)
class Minimum:
    """A point where the gradient of F vanishes to rounding, and from which no direction leads down."""

    x: Vector  # [d]
    loss: float
    grad_norm: float


class NoMinimumError(Exception):
    """The reason why no minimum was found; for the caller, who knows what the problem is called."""


def minimise(code: LossCode, arrays: Any, start: Vector) -> Minimum:
    """Return the minimum that L-BFGS finds from ``start``, polished by Newton steps.

    L-BFGS stalls where differences of F are lost to rounding, around a gradient of 1e-8; Newton's steps are
    accepted by the gradient norm instead, which rounding leaves alone until about 1e-14. Both stop at saddles
    and maxima too: there the search goes on along the direction of least curvature.

    Args:
        code: The losses without their data.
        arrays: Their data, in float64.
        start: The first point, ``[d]``.

    Raises:
        NoMinimumError: The loss is not finite, falls without end, or cannot be left for lower ground.
    """

    def value_and_gradient(x: Vector) -> tuple[float, Vector]:
        loss, gradient = objective_at(arrays, x[None], code=code)
        return float(loss[0]), np.asarray(gradient[0])

    hessian = _Hessian(code, arrays)
    x = start
    for _ in range(DESCENTS):
        found = _stationary(value_and_gradient, hessian, x)
        lower = _lower_point(value_and_gradient, hessian, found)
        if lower is None:
            return found
        x = lower
    lowest = value_and_gradient(x)[0]
    raise NoMinimumError(f"after {DESCENTS} descents from saddles the loss still falls, to {lowest:.3g}")


def _stationary(
    value_and_gradient: Callable[[Vector], tuple[float, Vector]], hessian: "_Hessian", start: Vector
) -> Minimum:
    from scipy.optimize import minimize

    options = {"maxiter": 5000, "maxfun": EVALUATIONS, "ftol": 0, "gtol": 1e-9}
    with np.errstate(over="ignore", invalid="ignore"):  # a loss may fall to -inf; that is looked at below
        x = minimize(value_and_gradient, start, jac=True, method="L-BFGS-B", options=options).x
    loss, gradient = value_and_gradient(x)
    if not (np.isfinite(loss) and np.isfinite(gradient).all()):
        raise NoMinimumError(
            f"at |x| = {np.abs(x).max():.3g} the loss is {loss:g} and its gradient reaches {np.abs(gradient).max():g}"
        )
    lengths: list[float] = []
    for _ in range(NEWTON_STEPS):
        step = hessian.newton_step(x, gradient)
        new_loss, new_gradient = value_and_gradient(x - step)
        is_better = np.linalg.norm(new_gradient) < 0.9 * np.linalg.norm(gradient)
        if not (is_better and new_loss <= loss + ROUNDING * (1 + abs(loss))):
            break
        x, loss, gradient = x - step, new_loss, new_gradient
        lengths.append(float(np.linalg.norm(step)))
    # Newton's steps shrink near a minimum, however flat; along a tail such as exp(-x) or 1/x they do not.
    last = lengths[-4:]
    is_tail = len(last) == 4 and all(b > 0.95 * a for a, b in pairwise(last))
    if is_tail and last[-1] > FLAT * (1 + np.linalg.norm(x)):
        raise NoMinimumError(
            f"the loss still falls at |x| = {np.abs(x).max():.3g}, towards its infimum at infinity"
        )
    return Minimum(x=x, loss=loss, grad_norm=float(np.linalg.norm(gradient)))


def _lower_point(
    value_and_gradient: Callable[[Vector], tuple[float, Vector]], hessian: "_Hessian", found: Minimum
) -> Vector | None:
    """Return a point below a stationary one along its direction of least curvature; None if it is a minimum."""
    if found.grad_norm > STATIONARY:
        return None
    curvature, direction, largest = hessian.least_curvature(found.x)
    if curvature > FLAT * largest:
        return None
    width = 1 + float(np.linalg.norm(found.x))
    for length in (1e-4, 1e-3, 1e-2, 0.1, 1.0):
        for point in (found.x + length * width * direction, found.x - length * width * direction):
            if value_and_gradient(point)[0] < found.loss - ROUNDING * (1 + abs(found.loss)):
                return point
    if curvature < -FLAT * largest:
        raise NoMinimumError(
            f"the gradient vanishes where the curvature is {curvature:.3g}, and no lower point was found near it"
        )
    return None


@dataclass(frozen=True, eq=False)
class _Hessian:
    """The second derivative of F, dense in small dimensions and as products in large ones."""

    code: LossCode
    arrays: Any

    def newton_step(self, x: Vector, gradient: Vector) -> Vector:
        """Return H^-1 gradient."""
        if self._is_dense(x):
            return np.asarray(np.linalg.lstsq(self._dense(x), gradient)[0], np.float64)
        return np.asarray(_conjugate_gradients(self.arrays, x, gradient, code=self.code))

    def least_curvature(self, x: Vector) -> tuple[float, Vector, float]:
        """Return the smallest eigenvalue, its direction, and the largest absolute eigenvalue."""
        if self._is_dense(x):
            dense = self._dense(x)
            values, vectors = np.linalg.eigh((dense + dense.T) / 2)
        else:
            values, vectors = _extreme_eigenpairs(
                lambda direction: np.asarray(_product(self.arrays, x, direction, code=self.code)), x.size
            )
        return float(values[0]), vectors[:, 0], float(np.abs(values).max())

    def _is_dense(self, x: Vector) -> bool:
        return x.size <= DENSE_HESSIAN_LIMIT

    def _dense(self, x: Vector) -> Vector:
        return np.asarray(_dense_hessian(self.arrays, x, code=self.code))


@partial(jax.jit, static_argnames="code")
def _product(arrays: Any, x: jax.Array, direction: jax.Array, *, code: LossCode) -> jax.Array:
    return jax.jvp(lambda x: code.objective(arrays, x[None])[1][0], (x,), (direction,))[1]


@partial(jax.jit, static_argnames="code")
def _dense_hessian(arrays: Any, x: jax.Array, *, code: LossCode) -> jax.Array:
    return jax.lax.map(lambda e: _product(arrays, x, e, code=code), jnp.eye(x.size), batch_size=HESSIAN_BATCH)


@partial(jax.jit, static_argnames="code")
def _conjugate_gradients(arrays: Any, x: jax.Array, gradient: jax.Array, *, code: LossCode) -> jax.Array:
    solve = jax.scipy.sparse.linalg.cg
    return solve(lambda p: _product(arrays, x, p, code=code), gradient, tol=1e-12, maxiter=1000)[0]


def _extreme_eigenpairs(product: Callable[[Vector], Vector], dim: int) -> tuple[Vector, Vector]:
    """Return the smallest and the largest eigenvalue of a symmetric matrix, and their vectors ``[d, 2]``."""
    from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh

    start = np.random.default_rng(0).standard_normal(dim)
    # ARPACK's tolerance is relative to an eigenvalue: a shift keeps the smallest away from zero.
    shift = 2 * float(np.linalg.norm(product(start)) / np.linalg.norm(start)) or 1.0
    shifted = cast(Any, LinearOperator)((dim, dim), lambda x: product(x) + shift * x, dtype=np.float64)
    options = {"ncv": min(dim, KRYLOV_DIM), "tol": CURVATURE_TOLERANCE, "v0": start}
    try:
        values, vectors = eigsh(shifted, 2, which="BE", **options)
    except ArpackNoConvergence as error:
        raise NoMinimumError(f"the least curvature was not found ({error})") from error
    return values - shift, vectors
