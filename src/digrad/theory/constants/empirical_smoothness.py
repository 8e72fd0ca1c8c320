"""Smoothness constants estimated along a run, for any problem: an indication, never a certificate.

Every function below the front end takes arrays of gradient norms and Hessian norms, wherever they come from; the
front end computes them for a JAX problem by power iteration on Hessian-vector products.
"""

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from scipy import optimize

from digrad import checks
from digrad._internal.tables import Table
from digrad.errors import ArgumentError
from digrad.problems import LossCode, Problem
from digrad.theory.constants.assumptions import INDICATIVE, Smoothness

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.floating]

POWER_ITERATIONS = 50
POINTS = ("grad_norms", "hessian_norms", "grad_norms_F", "hessian_norms_F", "dissimilarity")


@dataclass(frozen=True)
class Line:
    """An upper line: intercept + slope times the gradient norm, above every point it was fitted to."""

    intercept: float
    slope: float

    def __call__(self, grad_norm: npt.ArrayLike) -> Floats:
        """Return the height of the line."""
        return self.intercept + self.slope * np.asarray(grad_norm, np.float64)


@dataclass(frozen=True, eq=False)
class EmpiricalSmoothness:
    """Gradient and Hessian norms at points of a run, with the lines above them.

    Attributes:
        grad_norms: Gradient norms of the agents' losses, ``[K, n]``.
        hessian_norms: Their Hessian norms, ``[K, n]``.
        grad_norms_F: Gradient norms of F, ``[K]``.
        hessian_norms_F: Hessian norms of F, ``[K]``.
        dissimilarity: The largest ||grad f_i - grad F||, ``[K]``.
        lower_bound: The smallest F seen; an estimate of its minimum from above.
    """

    grad_norms: Floats = field(repr=False)
    hessian_norms: Floats = field(repr=False)
    grad_norms_F: Floats = field(repr=False)  # noqa: N815
    hessian_norms_F: Floats = field(repr=False)  # noqa: N815
    dissimilarity: Floats = field(repr=False)
    lower_bound: float = 0.0
    label: ClassVar[str] = INDICATIVE

    @property
    def line(self) -> Line:
        """The tightest line (L0, L1) above the Hessian norms of F."""
        return tightest_line(self.grad_norms_F, self.hessian_norms_F)

    @property
    def agent_lines(self) -> tuple[Line, ...]:
        """The same for each agent."""
        return tuple(
            tightest_line(g, h) for g, h in zip(self.grad_norms.T, self.hessian_norms.T, strict=True)
        )

    @property
    def dissimilarity_line(self) -> Line:
        """The tightest line above the dissimilarity: intercept b, slope ell - 1."""
        return tightest_line(self.grad_norms_F, self.dissimilarity)

    def constants(self) -> Smoothness:
        """Return constants that hold at the points seen."""
        lines, line, spread = self.agent_lines, self.line, self.dissimilarity_line
        return Smoothness(
            L0=np.array([each.intercept for each in lines]),
            L1=np.array([each.slope for each in lines]),
            L0_F=line.intercept,
            L1_F=line.slope,
            ell=1 + spread.slope,
            b=spread.intercept,
            lower_bound=self.lower_bound,
            source="empirical",
        )

    def table(self) -> Table:
        """Return one row per loss: agents, then F."""
        rows = [
            {"loss": f"agent {i}", "L0": each.intercept, "L1": each.slope}
            for i, each in enumerate(self.agent_lines)
        ]
        return Table((*rows, {"loss": "F", "L0": self.line.intercept, "L1": self.line.slope}))

    def to_dict(self) -> dict[str, Any]:
        """Return the estimates and the points they were fitted to, ready for JSON."""
        spread = self.dissimilarity_line
        return {
            "label": self.label,
            "losses": [dict(row) for row in self.table()],
            "ell": 1 + spread.slope,
            "b": spread.intercept,
            "lower_bound": self.lower_bound,
            "points": {name: getattr(self, name).tolist() for name in POINTS},
        }

    def figure(self) -> "Figure":
        """Return Hessian norm against gradient norm with the fitted line, for F and for every agent."""
        from digrad.plots.inequalities import smoothness_figure

        return smoothness_figure(self)


def tightest_line(grad_norms: npt.ArrayLike, values: npt.ArrayLike) -> Line:
    """Return the line above all points, with nonnegative coefficients, that is closest to them on average.

    This is the linear program min sum(L0 + L1 g_k - H_k) subject to the line being above.

    Example:
        >>> tightest_line([0.0, 1.0, 2.0], [1.0, 3.0, 5.0])
        Line(intercept=1.0, slope=2.0)
    """
    g, h = _points(grad_norms, values)
    unit_g, unit_h = float(g.max()) or 1.0, float(h.max()) or 1.0  # linear programs have absolute tolerances
    rows = -np.stack([np.ones_like(g), g / unit_g], axis=1)
    found = optimize.linprog([1, np.mean(g / unit_g)], A_ub=rows, b_ub=-h / unit_h)
    return envelope(g, h, float(found.x[1]) * unit_h / unit_g)


def envelope(grad_norms: npt.ArrayLike, values: npt.ArrayLike, slope: float) -> Line:
    """Return the lowest line of a given slope above all points: L0(L1) = max_k (H_k - L1 g_k)_+.

    Example:
        >>> envelope([0.0, 1.0], [1.0, 3.0], 1.0)
        Line(intercept=2.0, slope=1.0)
    """
    g, h = _points(grad_norms, values)
    return Line(float(max(0.0, np.max(h - slope * g))), float(slope))


def empirical_smoothness(
    problem: Problem,
    points: npt.ArrayLike,
    *,
    max_points: int = 200,
    iterations: int = POWER_ITERATIONS,
    seed: int = 0,
) -> EmpiricalSmoothness:
    """Return what a problem's smoothness looks like at points, for instance the averages of a run.

    Args:
        problem: Any problem, built in or made of a JAX loss.
        points: ``[K, d]``; evenly thinned out to ``max_points``.
        max_points: Hessian norms are computed at so many points at most.
        iterations: Iterations of the power method; each estimate is a lower bound of the Hessian norm.
        seed: Random seed of the first vectors of the power method.

    Example:
        >>> from digrad.problems import cosh
        >>> found = empirical_smoothness(cosh(center=[[0.0], [0.0]]), np.linspace(-3, 3, 31)[:, None])
        >>> bool(abs(found.line.slope - 1) < 0.1)
        True
    """
    array = np.asarray(points, np.float64)
    if array.ndim != 2 or array.shape[1] != problem.dim or not np.isfinite(array).all() or not len(array):
        raise ArgumentError(
            f"`points` of empirical_smoothness must be finite and of shape (K, {problem.dim}), but got shape "
            f"{array.shape}."
        )
    count = min(len(array), checks.count(max_points, "max_points", "empirical_smoothness"))
    chosen = array[np.unique(np.linspace(0, len(array) - 1, count).astype(int))]
    rounds = checks.count(iterations, "iterations", "empirical_smoothness")
    with jax.enable_x64(True):
        start = np.random.default_rng(seed).standard_normal((problem.n_agents + 1, problem.dim))
        found = _norms_at(
            problem.arrays(np.float64), jnp.asarray(chosen), jnp.asarray(start), rounds, code=problem.code
        )
        loss, grads, grad_F, hessians, hessian_F = (np.asarray(part) for part in found)
    return EmpiricalSmoothness(
        grad_norms=np.linalg.norm(grads, axis=-1),
        hessian_norms=hessians,
        grad_norms_F=np.linalg.norm(grad_F, axis=-1),
        hessian_norms_F=hessian_F,
        dissimilarity=np.linalg.norm(grads - grad_F[:, None], axis=-1).max(axis=-1),
        lower_bound=float(loss.min()),
    )


@partial(jax.jit, static_argnames="code")
def _norms_at(arrays: Any, points: jax.Array, start: jax.Array, rounds: int, *, code: LossCode) -> Any:
    def average(point: jax.Array) -> jax.Array:
        return code.objective(arrays, point[None])[1]

    def at(point: jax.Array) -> Any:
        stacked = jnp.broadcast_to(point, (code.local.n_agents, point.size))
        gradients, product = jax.linearize(lambda x: code.gradients(arrays, x, None), stacked)
        loss, _ = code.objective(arrays, point[None])
        gradient, product_F = jax.linearize(average, point)
        hessians = _power(product, start[:-1], rounds)
        hessian_F = _power(lambda x: product_F(x[0]), start[-1:], rounds)
        return loss[0], gradients, gradient[0], hessians, hessian_F[0]

    return jax.lax.map(at, points)


def _power(product: Any, start: jax.Array, rounds: int) -> jax.Array:
    """Return ||H v|| after power iteration on each row: a lower bound of the norm that grows to it."""

    def normalise(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        length = jnp.linalg.norm(rows, axis=-1, keepdims=True)
        return rows / jnp.where(length > 0, length, 1.0), length[:, 0]

    def body(_: int, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        return normalise(product(carry[0]))

    unit, _ = normalise(start)
    return jax.lax.fori_loop(0, rounds, body, (unit, jnp.zeros(len(start), start.dtype)))[1]


def _points(grad_norms: npt.ArrayLike, values: npt.ArrayLike) -> tuple[Floats, Floats]:
    g, h = np.asarray(grad_norms, np.float64).ravel(), np.asarray(values, np.float64).ravel()
    if g.shape != h.shape or not g.size or not (np.isfinite(g).all() and np.isfinite(h).all()):
        raise ArgumentError(
            f"`grad_norms` and `values` must be finite and equally many, but got {g.size} and {h.size}; drop points "
            "where the run has diverged."
        )
    return g, h
