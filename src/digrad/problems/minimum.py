"""The minimum of the average loss, to rounding, as the reference that methods are measured against."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

Objective = Callable[[Any, Any], tuple[Any, Any]]

HESSIAN_BATCH = 16  # columns of the Hessian computed together: one product of matrices, at little memory
DENSE_HESSIAN_LIMIT = 2000  # above this dimension Newton's equation is solved by conjugate gradients


@dataclass(frozen=True, eq=False)
class Minimum:
    """A point where the gradient of F vanishes to rounding."""

    x: npt.NDArray[np.float64]  # [d]
    loss: float
    grad_norm: float


def minimise(objective: Objective, arrays: Any, start: npt.NDArray[np.float64]) -> Minimum:
    """Return the minimum that L-BFGS finds from ``start``, polished by Newton steps.

    L-BFGS stalls where differences of F are lost to rounding, around a gradient of 1e-8; Newton's steps are
    accepted by the gradient norm instead, which rounding leaves alone until about 1e-14.

    Args:
        objective: Maps arrays and points ``[K, d]`` to F ``[K]`` and its gradients ``[K, d]``, in JAX.
        arrays: The first argument of ``objective``.
        start: Where to begin, ``[d]``.
    """
    from scipy.optimize import minimize

    evaluate = jax.jit(objective)

    def value_and_gradient(x: npt.NDArray[np.float64]) -> tuple[float, npt.NDArray[np.float64]]:
        loss, gradient = evaluate(arrays, x[None])
        return float(loss[0]), np.asarray(gradient[0])

    options = {"maxiter": 5000, "maxfun": 10_000, "ftol": 0, "gtol": 1e-9}
    x = minimize(value_and_gradient, start, jac=True, method="L-BFGS-B", options=options).x
    loss, gradient = value_and_gradient(x)
    newton = _newton_direction(objective, arrays, x.size)
    for _ in range(50):
        candidate = x - newton(x, gradient)
        candidate_loss, candidate_gradient = value_and_gradient(candidate)
        if not np.linalg.norm(candidate_gradient) < 0.9 * np.linalg.norm(gradient):
            break
        x, loss, gradient = candidate, candidate_loss, candidate_gradient
    return Minimum(x=x, loss=loss, grad_norm=float(np.linalg.norm(gradient)))


def _newton_direction(
    objective: Objective, arrays: Any, dim: int
) -> Callable[[Any, Any], npt.NDArray[np.float64]]:
    def product(arrays: Any, x: jax.Array, direction: jax.Array) -> jax.Array:
        return jax.jvp(lambda x: objective(arrays, x[None])[1][0], (x,), (direction,))[1]

    @jax.jit
    def hessian(arrays: Any, x: jax.Array) -> jax.Array:
        return jax.lax.map(lambda e: product(arrays, x, e), jnp.eye(dim), batch_size=HESSIAN_BATCH)

    @jax.jit
    def conjugate_gradients(arrays: Any, x: jax.Array, gradient: jax.Array) -> jax.Array:
        return jax.scipy.sparse.linalg.cg(lambda p: product(arrays, x, p), gradient, tol=1e-12, maxiter=1000)[
            0
        ]

    if dim > DENSE_HESSIAN_LIMIT:
        return lambda x, gradient: np.asarray(conjugate_gradients(arrays, x, gradient))
    return lambda x, gradient: np.linalg.lstsq(np.asarray(hessian(arrays, x)), gradient)[0]
