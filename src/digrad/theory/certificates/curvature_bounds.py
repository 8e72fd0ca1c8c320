r"""Bounds of the curvature where a run can go: :math:`L_i = \sup \|\nabla^2 f_i\|` near a sublevel set of F.

A certificate keeps the average in :math:`\{F \le \text{level}\}` and agent i within :math:`E_i` of it. What is returned
here is an upper bound of the Hessian norm of :math:`f_i` on that set widened by :math:`E_i`. For the built-in losses,
all convex, it is more: :math:`f_i` agrees on the set with a convex function that is :math:`L_i`-smooth on all of
:math:`R^d`, because each one-dimensional profile (a coordinate, a margin, a radius) is continued quadratically outside
its interval. That matters, because the interpolation inequality of the proof is false for functions that are smooth
and convex on a convex set only.

Everything is rounded outwards with the conventions of :mod:`digrad.theory.constants.closed_form`.
"""

import math
from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.sparse

from digrad.problems import Problem
from digrad.problems.analytic import Cosh, Polynomial, Quartic
from digrad.problems.logistic import Logistic
from digrad.theory.constants.assumptions import Smoothness
from digrad.theory.constants.closed_form import OUTWARD, closed_form, data_bounds, logistic_rounding, up
from digrad.theory.constants.gram_bounds import EPS, gram_bound

Floats = npt.NDArray[np.floating]

FINEST, WIDER, WIDENINGS = 1e-12, 8.0, 70  # relative lengths of intervals that are tried first
PARTS, REFINEMENTS = 32, 6  # into which the right one is divided, so many times
BISECTIONS = 30
GROWTH = 1.05  # by which widths of margins are enlarged in each round, so that they close from above
ROUNDS = 25
FAR = 6.0  # margins that may change by more than this gain nothing over the largest slope 1/4
USER_ROUNDING = 1e-10  # relative error of a user's loss and gradient, assumed
LARGEST_DIMENSION = 1000  # of the eigenvalues behind the local bound of logistic regression


class Losses(NamedTuple):
    """Facts about the losses that a certificate uses: from formulas if they are built in, else from given constants."""

    problem: Problem
    constants: Smoothness | None  # None: built-in
    convex: bool
    lower_bound: float
    modulus: float  # m of F everywhere
    near: "_NearMinimum | None" = None  # of logistic regression with regularisers

    @classmethod
    def of(cls, problem: Problem, constants: Smoothness | None) -> "Losses":
        """Return the losses of a problem; built-in ones are convex, others if their constants say so."""
        known = closed_form(problem) if constants is None else constants
        convex = constants is None or constants.convex
        local, near = problem.local, None
        if constants is None and isinstance(local, Logistic) and local.dim <= LARGEST_DIMENSION:
            near = _NearMinimum(local, problem) if local.reg_weight.any() else None
        return cls(problem, constants, convex, known.lower_bound, known.strong_convexity, near)

    def curvature(self, level: float, width: Floats, moved: float) -> Floats:
        """Return L_i, ``[n]``, on {F <= level} widened by ``width`` ``[n]``; infinite where nothing bounds it.

        Args:
            level: At least the infimum of F.
            width: E_i.
            moved: How far the average moves within the taps of the proof, at most; only convex losses with given
                constants need it.
        """
        if not math.isfinite(level):
            return np.full(self.problem.n_agents, np.inf)
        with np.errstate(over="ignore", invalid="ignore"):
            if self.constants is None:
                found = _curvature(self.problem.local, self, level, width)
            else:
                found = _given(self.constants, self.convex, level, width, moved)
        return np.where(np.isnan(found), np.inf, found)

    def strong_convexity(self, depth: float) -> float:
        """Return m with |grad F|^2 >= 2 m (F - inf F) where F <= inf F + ``depth``; 0 if none is known."""
        if self.modulus or self.near is None or math.isinf(depth):
            return self.modulus
        found = self.near.ellipsoid(depth)
        return found.modulus if found else 0.0

    def rounding(self, x: Floats) -> tuple[Floats, Floats]:
        """Return what rounding can do to f_i(x_i) and to its gradient, ``[n]`` each, for x ``[n, d]``."""
        local, size = self.problem.local, np.linalg.norm(x, axis=1)
        losses = np.abs(self.problem.local_losses(x))
        if isinstance(local, Logistic):
            return _logistic_rounding(local, losses, size)
        steep = np.linalg.norm(self.problem.local_gradients(x), axis=1)
        if isinstance(local, Polynomial):
            r = np.abs(x)
            pieces = local.curvature * r + np.abs(local.linear) + local.quartic * r**3
            return OUTWARD * np.sum(r * pieces, axis=1), OUTWARD * np.linalg.norm(pieces, axis=1)
        unit = OUTWARD if self.constants is None else USER_ROUNDING
        return unit * (losses + size * steep), unit * steep


def _given(constants: Smoothness, convex: bool, level: float, width: Floats, moved: float) -> Floats:
    """Return e^(L1 r) (L0 + L1 (ell G + b)), r the distance from a point where |grad F| <= G.

    For convex losses the interpolation inequality looks as far beyond the region as two points of it are apart.
    """
    gap = max(0.0, level - constants.lower_bound)
    slope = 4 / 3 * constants.L1_F * gap
    steepest = up(slope + math.hypot(slope, math.sqrt(2 * constants.L0_F * gap)))
    beyond = 3 * width + moved if convex else width
    far = np.where(constants.L1 > 0, constants.L1 * np.where(constants.L1 > 0, beyond, 0.0), 0.0)
    return up(np.exp(far) * constants.local_bounds(steepest))


@singledispatch
def _curvature(local: object, losses: Losses, level: float, width: Floats) -> Floats:
    raise TypeError(f"{type(local).__name__} is not built in")


@_curvature.register
def _polynomial(local: Polynomial, losses: Losses, level: float, width: Floats) -> Floats:
    a, b, q = local.curvature, local.linear, local.quartic
    if not q.any():
        return a.max(axis=1)
    mean_a, mean_b, mean_q = a.mean(axis=0), b.mean(axis=0), q.mean()
    slack = np.abs(b).mean(axis=0)

    def curve(x: Floats) -> tuple[Floats, Floats]:
        rising, falling = mean_a * x**2 / 2 + mean_q * x**4 / 4, mean_b * x
        return rising - falling, rising + slack * np.abs(x)

    low, high = _intervals(curve, losses, level)
    reach = np.maximum(np.abs(low), np.abs(high)) + width[:, None]
    return up(np.max(a + 3 * q * up(reach) ** 2, axis=1))


@_curvature.register
def _cosh(local: Cosh, losses: Losses, level: float, width: Floats) -> Floats:
    a, s, m = local.scale, local.sharpness, local.center

    def curve(x: Floats) -> tuple[Floats, Floats]:
        value = np.mean(a * np.cosh(s * (x[..., None, :] - m)), axis=-2)
        return value, value

    low, high = _intervals(curve, losses, level)
    size = np.maximum(np.abs(low), np.abs(high)) + np.abs(m) + width[:, None]
    reach = np.maximum(m - low, high - m) + width[:, None] + OUTWARD * size
    return up(np.max(a * s**2 * np.cosh(s * reach), axis=1))


def _intervals(
    curve: Callable[[Floats], tuple[Floats, Floats]], losses: Losses, level: float
) -> tuple[Floats, Floats]:
    """Return, for each coordinate of a separable convex F, an interval outside of which F exceeds ``level``.

    F = sum_c F_c, so that F_c(x_c) <= level - sum of the other minima <= level - f_inf + F_c at any point.
    """
    at = losses.problem.solve(tolerance=np.inf).x
    value, size = curve(at)
    gap = level - losses.lower_bound
    budget = value + gap + OUTWARD * (size + abs(level) + abs(gap))

    def is_outside(x: Floats) -> npt.NDArray[np.bool_]:
        here, terms = curve(x)
        return ~(here - OUTWARD * terms <= budget)

    sign = np.array([[-1.0], [1.0]])
    unit = FINEST * (1 + np.abs(at)) * np.ones((2, 1))
    low, high = np.zeros_like(unit), unit * WIDER**WIDENINGS
    # First lengths of all sizes, then equal parts of the one between which F exceeds its level.
    for parts in (
        WIDER ** np.arange(-float(WIDENINGS), 1.0),
        *[np.linspace(0, 1, PARTS + 1)[1:]] * REFINEMENTS,
    ):
        lengths = low + (high - low) * parts[:, None, None]
        outside = is_outside(at + sign * lengths)
        if not outside[-1].all():
            return np.full_like(at, -np.inf), np.full_like(at, np.inf)
        first = np.argmax(outside, axis=0)[None]
        below = np.take_along_axis(lengths, np.maximum(first - 1, 0), 0)[0]
        low, high = np.where(first[0] > 0, below, low), np.take_along_axis(lengths, first, 0)[0]
    left, right = at + sign * (high + OUTWARD * (np.abs(at) + high))
    return left, right


@_curvature.register
def _quartic(local: Quartic, losses: Losses, level: float, width: Floats) -> Floats:
    """3 a r^2, with r from F >= mean/4 |x - center|^4 (Jensen), or from strong convexity near the minimum."""
    a, m = local.scale[:, 0], local.center
    center = a @ m / a.sum()
    far = np.linalg.norm(m - center, axis=1) + (4 * max(level, 0.0) / a.mean()) ** 0.25
    minimum = losses.problem.solve(tolerance=np.inf)
    away = np.linalg.norm(m - minimum.x, axis=1)
    error = OUTWARD * float(np.max(a * (away + np.linalg.norm(m, axis=1)) ** 3))
    gap = level - minimum.loss + OUTWARD * abs(minimum.loss)

    def modulus(radius: float) -> float:
        return float(np.mean(a * np.maximum(away - radius, 0) ** 2)) * (1 - OUTWARD)

    near = away + _ball(gap, minimum.grad_norm + error, modulus, float(far.max()))
    slack = OUTWARD * np.linalg.norm(m, axis=1).max()
    return up(3 * a * (up(np.minimum(far, near) + slack) + width) ** 2)


def _ball(gap: float, steepness: float, modulus: Callable[[float], float], largest: float) -> float:
    """Return a radius r around a point beyond which a convex F exceeds its value there by more than ``gap``.

    On the sphere F - F(x) >= -steepness r + modulus(r) r^2/2, and F is convex. Infinite if none up to ``largest``.
    """
    for radius in np.geomspace(FINEST, 1.0, 240) * largest:
        if up(max(gap, 0.0) + steepness * radius) < modulus(radius) * radius**2 / 2:
            return float(radius)
    return math.inf


@_curvature.register
def _logistic(local: Logistic, losses: Losses, level: float, width: Floats) -> Floats:
    """Data term plus lambda p (p - 1) r^(p - 2): with the slope 1/4, or that of the margins near the minimum."""
    everywhere = data_bounds(local).smooth + _radial(local, _radius(local, level), width)
    near = losses.near
    found = near and near.ellipsoid(max(0.0, level - near.minimum.loss) + OUTWARD * abs(level))
    if not (near and found):
        return up(everywhere)
    columns = zip(local.features, near.margins, found.changes, near.lengths, width, strict=True)
    data = np.array(
        [
            gram_bound([_weighted(block, _steepest_slope(np.abs(t) - w - length * e))])
            for block, t, w, length, e in columns
        ]
    )
    return up(np.minimum(everywhere, data + _radial(local, found.radius, width)))


def _radial(local: Logistic, radius: float, width: Floats) -> Floats:
    weight, power = local.reg_weight, local.reg_power
    grown = np.where(power > 2, (radius + np.where(power > 2, width, 0.0)) ** (power - 2), 1.0)
    return np.where(weight > 0, weight * power * (power - 1) * grown, 0.0)


def _radius(local: Logistic, level: float) -> float:
    """Return r with mean lambda_i r^p_i >= level: F, whose data terms are positive, exceeds it beyond."""
    weight, power = local.reg_weight, local.reg_power
    if not weight.any():
        return math.inf
    low, high = 0.0, 1.0
    while np.mean(weight * high**power) < up(level):
        low, high = high, 2 * high
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if np.mean(weight * middle**power) < up(level) else (low, middle)
    return up(high)


class _Ellipsoid(NamedTuple):
    """Bounds on a set around the minimum of logistic regression."""

    radius: float  # the largest |x|
    modulus: float  # Hess F >= modulus
    changes: Sequence[Floats]  # of the margins of each agent


class _NearMinimum:
    """Ellipsoids around the sublevel sets of logistic regression: what they need of the data is computed once."""

    def __init__(self, local: Logistic, problem: Problem) -> None:
        self.local, self.minimum, self.fails_at = local, problem.solve(tolerance=np.inf), math.inf
        self.size = float(np.linalg.norm(self.minimum.x))
        squares = [block.power(2) if scipy.sparse.issparse(block) else block**2 for block in local.features]
        self.lengths = [up(np.sqrt(np.asarray(each.sum(axis=1)).ravel())) for each in squares]  # |h|
        self.margins = [np.asarray(block @ self.minimum.x).ravel() for block in local.features]
        everyone = np.ones(local.n_agents)
        errors = _logistic_rounding(local, self.minimum.loss * everyone, self.size * everyone)
        self.loss_error, self.grad_error = (float(error.mean()) for error in errors)

    def ellipsoid(self, depth: float) -> _Ellipsoid | None:
        """Return an ellipsoid around {F <= F(x) + depth}, x the computed minimum.

        Where every margin s changes by at most w_s and |x| stays above r, Hess F >= A(w), the Gram matrix with the
        smallest slopes plus the least curvature of the regulariser. If the ellipsoid of A(w) at this depth keeps to the
        same w and r, F exceeds it on its surface, hence outside of it too. None if w grows too far before it closes,
        and for larger depths too.
        """
        if depth < self.fails_at and (found := self._closed(depth)):
            return found
        self.fails_at = min(depth, self.fails_at)
        return None

    def _closed(self, depth: float) -> _Ellipsoid | None:
        local, n = self.local, self.local.n_agents
        gap, steepness = depth + self.loss_error, self.minimum.grad_norm + self.grad_error
        inexact = 4 * EPS * local.dim * self.size  # of a margin, relative to |h|
        changes, moved = [np.zeros(len(t)) for t in self.margins], 0.0
        for _ in range(ROUNDS):
            bent = local.reg_weight * local.reg_power * max(self.size - moved, 0.0) ** (local.reg_power - 2)
            gram = float(np.mean(bent)) * np.eye(local.dim)
            for block, t, w in zip(local.features, self.margins, changes, strict=True):
                scaled = _weighted(block, _slope(np.abs(t) + w) / n)
                part = scaled.T @ scaled / block.shape[0]
                gram += part.toarray() if scipy.sparse.issparse(part) else part
            values, vectors = np.linalg.eigh(gram)
            values = values - 8 * EPS * (max(local.sizes) + local.dim) * float(np.trace(gram))
            least = float(values[0])
            if least <= 0:
                return None
            # F - F(x) >= -steepness |d| + d'A d/2, so d'A d/2 <= gap + steepness |d|, and |d|^2 <= d'A d/least.
            longest = (steepness + math.sqrt(steepness**2 + 2 * gap * least)) / least
            energy = up(2 * (gap + steepness * longest))
            radius = up(math.sqrt(energy / least))
            whitened, slip = vectors / np.sqrt(values), OUTWARD * math.sqrt(float(np.sum(1 / values)))
            new = []
            for block, length in zip(local.features, self.lengths, strict=True):
                turned = np.linalg.norm(block @ whitened, axis=1) + slip * length
                new.append(up(math.sqrt(energy) * turned + inexact * length))
            if radius <= moved and all((n <= w).all() for n, w in zip(new, changes, strict=True)):
                return _Ellipsoid(up(self.size + moved), least, changes)
            changes = [GROWTH * np.maximum(n, w) for n, w in zip(new, changes, strict=True)]
            moved = GROWTH * max(radius, moved)
            if all(np.median(w) > FAR for w in changes):
                return None
        return None


def _slope(t: Floats) -> Floats:
    """Return a lower bound of the derivative of the logistic function at -t and t, t >= 0."""
    decay = np.exp(-t)
    return decay / (1 + decay) ** 2 * (1 - OUTWARD) - 1e-300


def _steepest_slope(t: Floats) -> Floats:
    """Return an upper bound of its largest value beyond t, and of 1/4 if t is negative."""
    decay = np.exp(-np.maximum(t, 0.0))
    return up(decay / (1 + decay) ** 2)


def _weighted(block: Any, weights: Floats) -> Any:
    root = np.sqrt(np.maximum(weights, 0.0))[:, None]
    return block.multiply(root).tocsr() if scipy.sparse.issparse(block) else block * root


def _logistic_rounding(local: Logistic, losses: Floats, size: Floats) -> tuple[Floats, Floats]:
    """Return errors of losses and gradients."""
    relative, pull = logistic_rounding(local, size)
    return relative * np.abs(losses), relative * (data_bounds(local).steep + pull)
