r"""Smoothness constants of the built-in problems, in closed form.

Most come with a free parameter: a loss that grows like a power is (L0, L1)-smooth for *every* L1 > 0, with an L0
that falls as L1 grows. Which L1 certifies the largest step depends on everything else, so certificates try a
grid (:func:`candidates`). Constants of F are derived from F itself, which is far better than averaging.

Every bound here is a proven upper bound: suprema of one real variable are taken over intervals with monotone
parts (:func:`_supremum`), and the minimum of F is lowered by what its computed gradient leaves open. All are computed
in float64 and rounded outwards: what is sums and products of positive numbers by the relative ``OUTWARD``, which is
more than a thousand roundings can do; what subtracts by as much of all its terms; sums over samples by their number
(:mod:`digrad.theory.constants.gram_bounds`).
"""

from collections.abc import Callable
from functools import singledispatch
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from digrad import checks
from digrad.errors import ArgumentError
from digrad.problems import Problem
from digrad.problems.analytic import Cosh, Polynomial, Quartic
from digrad.problems.exact_minimum import Minimum
from digrad.problems.logistic import Logistic
from digrad.theory.constants.assumptions import Smoothness
from digrad.theory.constants.gram_bounds import EPS, gram_bound, row_lengths

Floats = npt.NDArray[np.floating]
Curve = Callable[[Floats], Floats]

L1_GRID = tuple(float(value) for value in np.geomspace(0.03, 30.0, 25))
INTERVALS = 20_000  # of a one-dimensional supremum; the bound is too large by about 1/INTERVALS of itself
OUTWARD = 1e-12  # relative rounding outwards: of 500 agents, powers up to the 1000th, exponents up to 700
BISECTIONS = 60
QUARTIC_EXCESS = (0.25, 1.0, 3.0)  # how far ell - 1 is chosen above the spread of the leading coefficients


def closed_form(problem: Problem, *, L1: float | None = None, excess: float = 1.0) -> Smoothness:
    r"""Return constants of a built-in problem that hold everywhere.

    Args:
        problem: Made by ``quadratic``, ``cosh``, ``quartic`` or ``logistic``.
        L1: The free parameter, for problems that have one (1 by default); ignored by the others.
        excess: For ``quartic``: ell - 1 exceeds the relative spread of the scales by this, which lowers b.

    Raises:
        ArgumentError: The problem is made of a user's loss (pass :class:`Smoothness` to ``certify`` instead), or a
            parameter is not positive.

    Example:
        >>> from digrad.problems import cosh
        >>> constants = closed_form(cosh(center=[[0.0], [1.0]], scale=2.0))
        >>> constants.L0.round(9).tolist(), constants.L1.tolist(), round(constants.ell, 3)
        ([2.0, 2.0], [1.0, 1.0], 1.462)
    """
    if L1 is not None:
        checks.positive(L1, "L1", "closed_form")
    checks.positive(excess, "excess", "closed_form")
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # Smoothness refuses what is not finite
            return _constants(problem.local, problem, 1.0 if L1 is None else float(L1), float(excess))
    except (np.linalg.LinAlgError, OverflowError):
        raise ArgumentError(
            f"the constants of {problem.name} are beyond double precision; scale its losses, or its coordinates."
        ) from None


def candidates(problem: Problem) -> list[Smoothness]:
    """Return closed-form constants for every value of the free parameters worth trying; one if there are none."""
    local = problem.local
    if isinstance(local, Quartic):
        return [closed_form(problem, L1=value, excess=extra) for value in L1_GRID for extra in QUARTIC_EXCESS]
    is_free = (isinstance(local, Polynomial) and bool(local.quartic.any())) or (
        isinstance(local, Logistic) and bool(((local.reg_power > 2) & (local.reg_weight > 0)).any())
    )
    return [closed_form(problem, L1=value) for value in L1_GRID] if is_free else [closed_form(problem)]


def has_closed_form(problem: Problem) -> bool:
    """Return whether :func:`closed_form` knows the problem."""
    return isinstance(problem.local, Cosh | Quartic | Logistic | Polynomial)


@singledispatch
def _constants(local: object, problem: Problem, L1: float, excess: float) -> Smoothness:
    raise ArgumentError(
        f"`problem` {problem.name!r} has no closed-form smoothness constants; pass smoothness=... with "
        'bounds you can prove, or smoothness="empirical" for an indication.'
    )


@_constants.register
def _cosh(local: Cosh, problem: Problem, L1: float, excess: float) -> Smoothness:
    """L0_i = a s^2, L1_i = s, because cosh <= 1 + |sinh|; F'' is compared with f_i'' at equal sharpness."""
    a, s = local.scale[:, 0], local.sharpness[:, 0]
    minimum = problem.solve(tolerance=np.inf)
    at_minimum = problem.local_gradients(minimum.x)  # [n, d]
    steep = local.scale * local.sharpness * np.cosh(local.sharpness * (minimum.x - local.center))
    error = OUTWARD * _largest_length(steep)
    if np.ptp(s) == 0:
        average = np.sqrt(
            np.mean(a[:, None] * np.exp(s[0] * local.center), axis=0)
            * np.mean(a[:, None] * np.exp(-s[0] * local.center), axis=0)
        )  # [d]: F is the sum over c of average_c cosh(s (x_c - mu_c))
        spread = _cosh_spread(local, average)
        smooth_F = s[0] ** 2 * average.max()
    else:
        spread = max(1, local.n_agents - 1) if local.n_agents > 1 else 0.0
        heterogeneity = np.abs(at_minimum).mean(axis=0).max() + minimum.grad_norm + error
        smooth_F = np.mean(a * s**2) + s.max() * heterogeneity
    return Smoothness(
        L0=up(a * s**2),
        L1=s,
        L0_F=up(float(smooth_F)),
        L1_F=float(s.max()),
        ell=1 + float(spread),
        b=_dissimilarity_at(at_minimum, float(spread), minimum.grad_norm, error),
        lower_bound=_strongly_convex_bound(minimum, float(np.mean(a * s**2)), abs(minimum.loss), error),
        strong_convexity=down(float(np.mean(a * s**2))),
        source="closed form",
    )


def _cosh_spread(local: Cosh, average: Floats) -> float:
    """Return the largest |f_i''/F'' - 1|: the ratio lies between its limits at plus and minus infinity."""
    a, s = local.scale, local.sharpness[0, 0]
    shift = np.log(np.mean(a * np.exp(s * local.center), axis=0) / average) / s  # mu, [d]
    ratios = [a * np.exp(sign * s * (shift - local.center)) / average for sign in (1, -1)]
    return float(max(np.max(np.abs(ratio - 1) + OUTWARD * ratio) for ratio in ratios))


@_constants.register
def _polynomial(local: Polynomial, problem: Problem, L1: float, excess: float) -> Smoothness:
    """Separable: Hessian a + 3 q x^2 against gradient a x - b + q x^3, coordinate by coordinate."""
    a, b, q = local.curvature, local.linear, local.quartic
    free = L1 if q.any() else 0.0
    minimum = problem.solve(tolerance=np.inf)
    x = np.abs(minimum.x)
    error = OUTWARD * _largest_length(a * x + np.abs(b) + q * x**3)
    terms = float(np.sum(np.mean(a * x**2 / 2 + np.abs(b) * x + q * x**4 / 4, axis=0)))
    spread = _relative_spread(a)
    spread = max(spread, _relative_spread(q)) if q.any() else spread
    mean_a, mean_q = a.mean(axis=0), q.mean(axis=0)
    mean_b = np.abs(b.mean(axis=0)) + OUTWARD * np.abs(b).mean(axis=0)
    return Smoothness(
        L0=np.array([_polynomial_level(*row, free) for row in zip(a, b, q, strict=True)]),
        L1=np.full(local.n_agents, free),
        L0_F=up(_polynomial_level(mean_a, mean_b, mean_q, free)),
        L1_F=free,
        ell=1 + spread,
        b=_dissimilarity_at(problem.local_gradients(minimum.x), spread, minimum.grad_norm, error),
        lower_bound=_strongly_convex_bound(minimum, float(mean_a.min()), terms, error),
        strong_convexity=down(float(mean_a.min())),
        source="closed form",
    )


def _polynomial_level(a: Floats, b: Floats, q: Floats, L1: float) -> float:
    """Return sup_x max_c a + 3 q x^2 - L1 |a x - b + q x^3|, bounding the last term below by (q r^3 + a r - |b|)_+.

    It grows until r = near, where that term sets in, and has one more peak, r = far, where 6 q r = L1 (3 q r^2 + a).
    """
    if not q.any():
        return float(a.max())
    low, near = np.zeros_like(a), np.cbrt(np.abs(b) / q[0]) * (1 + OUTWARD)
    for _ in range(BISECTIONS):
        middle = (low + near) / 2
        is_before = q[0] * middle**3 + a * middle < np.abs(b)
        low, near = np.where(is_before, middle, low), np.where(is_before, near, middle)
    far = (1 + np.sqrt(np.maximum(0, 1 - L1**2 * a / (3 * q[0])))) / L1
    paid = L1 * (q[0] * far**3 + a * far)
    grown = a + 3 * q[0] * far**2 + L1 * np.abs(b)
    beyond = np.where(far >= near, grown - paid + OUTWARD * (grown + paid), 0)
    return float(max(up(np.max(a + 3 * q[0] * near**2)), beyond.max()))


@_constants.register
def _quartic(local: Quartic, problem: Problem, L1: float, excess: float) -> Smoothness:
    """L0_i = 4 a/L1^2; F and the dissimilarity by expanding the cubes around the weighted centre of the agents."""
    a, m = local.scale[:, 0], local.center
    mean = a.mean()
    is_shared = bool((m == m[0]).all())
    center = m[0] if is_shared else a @ m / a.sum()
    delta = _coordinates(m - center)  # [n, min(n + 1, d)], and the mean of a_i delta_i vanishes
    length = np.linalg.norm(delta, axis=1)
    slack = 0.0 if is_shared else OUTWARD * _largest_length(m)  # what rounding moves the centre by
    square = (length + slack) ** 2
    outer = delta[:, :, None] * delta[:, None, :]
    linear = a[:, None, None] * (np.square(length)[:, None, None] * np.eye(delta.shape[1]) + 2 * outer)
    constant = (a * length**2)[:, None] * delta
    # Rounding of linear and constant: by slack in each delta, and of their own sums.
    rough_error = 3 * a * ((length + slack) ** 2 - length**2) + OUTWARD * 3 * a * square
    rest_error = a * ((length + slack) ** 3 - length**3) + OUTWARD * a * square * (length + slack)
    slope = max(0.0, float(np.linalg.eigvalsh(linear.mean(axis=0))[0] - rough_error.mean()))
    offset = float(np.linalg.norm(constant.mean(axis=0)) + rest_error.mean())
    ell = 1 + up(float(np.abs(a - mean).max() / mean) + OUTWARD) + (0.0 if is_shared else excess)

    def steepness(r: Floats) -> Floats:
        return np.maximum((1 - OUTWARD) * mean * r**3 + slope * r - offset, 0)

    def dissimilarity(i: int) -> float:
        rough = np.linalg.norm(linear[i] - linear.mean(axis=0), 2) + rough_error[i] + rough_error.mean()
        rest = np.linalg.norm(constant[i] - constant.mean(axis=0)) + rest_error[i] + rest_error.mean()
        lead, bend = abs(a[i] - mean) + OUTWARD * mean, 3 * a[i] * (length[i] + slack)
        room = (ell - 1) * mean * (1 - OUTWARD) - lead  # positive, because the agents do not share one centre
        # Beyond it each of three terms is at most a third of room r^3.
        until = max(
            3 * bend / room, (3 * rough / room) ** 0.5, (3 * (rest + (ell - 1) * offset) / room) ** (1 / 3)
        )
        until *= 1 + OUTWARD
        return _supremum(
            lambda r: lead * r**3 + bend * r**2 + rough * r + rest, lambda r: (ell - 1) * steepness(r), until
        )

    return Smoothness(
        L0=up(4 * a / L1**2),
        L1=np.full(local.n_agents, L1),
        L0_F=_supremum(
            lambda r: 3 * mean * r**2 + 3 * np.mean(a * square),
            lambda r: L1 * steepness(r),
            _until(3, L1, offset / mean),
        ),
        L1_F=L1,
        ell=ell,
        b=0.0 if is_shared else max(dissimilarity(i) for i in range(local.n_agents)),
        lower_bound=_quartic_bound(problem, local, center, slack),
        strong_convexity=down(float(np.mean(a * np.maximum(length - slack, 0) ** 2))),  # mean a |x - m|^2
        source="closed form",
    )


def _coordinates(rows: Floats) -> Floats:
    """Return few coordinates ``[n, min(n + 1, d)]`` of many: those in the span of the rows, and one outside it."""
    n, d = rows.shape
    if d <= n + 1:
        return rows
    return np.hstack([np.linalg.qr(rows.T)[1].T, np.zeros((n, 1))])


def _quartic_bound(problem: Problem, local: Quartic, center: Floats, slack: float) -> float:
    minimum = problem.solve(tolerance=np.inf)
    radius = (4 * minimum.loss / local.scale.mean()) ** 0.25  # F(y) >= mean/4 ||y - center||^4 by Jensen
    distance = up(radius + float(np.linalg.norm(minimum.x - center)) + slack)
    away = np.linalg.norm(minimum.x - local.center, axis=1) + _largest_length(local.center)
    error = OUTWARD * float(np.max(local.scale[:, 0] * away**3))
    return _convex_bound(minimum, distance, error)


@_constants.register
def _logistic(local: Logistic, problem: Problem, L1: float, excess: float) -> Smoothness:
    """Data term: bounded Hessian and gradient; regulariser: L0 = lambda p ((p - 2)/L1)^(p - 2) for any L1."""
    weight, power, n = local.reg_weight, local.reg_power, local.n_agents
    free = L1 if ((power > 2) & (weight > 0)).any() else 0.0
    bounds = data_bounds(local)
    smooth_D, smooth_DF, steep_D, steep_DF = bounds.smooth, bounds.smooth_F, bounds.steep, bounds.steep_F
    level = [_radial_level(weight[i : i + 1], power[i : i + 1], free) for i in range(n)]
    return Smoothness(
        L0=up(smooth_D + level + free * steep_D),
        L1=np.full(n, free),
        L0_F=up(smooth_DF + _radial_level(weight, power, free) + free * steep_DF),
        L1_F=free,
        ell=float(n),
        b=up((n - 1) * steep_DF + float((steep_D + steep_DF).max())) if n > 1 else 0.0,
        lower_bound=_logistic_bound(problem, local),
        strong_convexity=down(float(np.mean(np.where(power == 2, 2 * weight, 0.0)))),
        source="closed form",
    )


class DataBounds(NamedTuple):
    """Bounds of Hessian and gradient of the data terms, per agent and of their mean: L_D, L_DF, G_D, G_DF."""

    smooth: Floats  # [n]
    smooth_F: float  # noqa: N815
    steep: Floats  # [n]
    steep_F: float  # noqa: N815
    longest: float  # the length of the longest sample


_KNOWN_BOUNDS: WeakKeyDictionary[Logistic, DataBounds] = WeakKeyDictionary()  # as long as their data live


def data_bounds(local: Logistic) -> DataBounds:
    """Return the bounds of the data terms, computed once."""
    if local not in _KNOWN_BOUNDS:
        _KNOWN_BOUNDS[local] = _compute_data_bounds(local)
    return _KNOWN_BOUNDS[local]


def _compute_data_bounds(local: Logistic) -> DataBounds:
    largest = np.array([gram_bound([block]) for block in local.features])
    largest_F = min(up(float(largest.mean())), gram_bound(local.features))
    mean, longest = np.transpose([row_lengths(block) for block in local.features])
    steep = np.minimum(mean, up(np.sqrt(largest)))
    steep_F = float(min(up(steep.mean()), up(np.sqrt(largest_F))))
    return DataBounds(largest / 4, largest_F / 4, steep, steep_F, float(longest.max()))


def _radial_level(weight: Floats, power: Floats, L1: float) -> float:
    """Return sup_r of the mean of lambda p (p - 1) r^(p - 2) - L1 lambda p r^(p - 1): exact for one agent."""
    flat = up(float(np.mean(np.where(power == 2, 2 * weight, 0.0))))
    growing = (power > 2) & (weight > 0)
    if not growing.any():
        return flat
    if len(weight) == 1:
        return up(float(weight[0] * power[0] * ((power[0] - 2) / L1) ** (power[0] - 2)))
    w, p = weight[:, None], power[:, None]
    return _supremum(
        lambda r: np.mean(w * p * (p - 1) * r ** (p - 2), axis=0),
        lambda r: L1 * np.mean(w * p * r ** (p - 1), axis=0),
        float((power[growing].max() - 1) / L1),
    )


def _logistic_bound(problem: Problem, local: Logistic) -> float:
    """Return a lower bound of F; its samples are rounded like m + d numbers, their margins relative to ||h|| ||x||.

    A margin that is wrong by e changes a loss by at most e times its residual, and that is at most the loss.
    """
    pulled = local.reg_weight > 0
    if not pulled.any():
        return 0.0  # the loss is positive, and may have no minimum to search for
    minimum = problem.solve(tolerance=np.inf)
    size = float(np.linalg.norm(minimum.x))
    radii = (local.n_agents * minimum.loss / local.reg_weight[pulled]) ** (1 / local.reg_power[pulled])
    relative, pull = logistic_rounding(local, size)
    error = relative * (float(data_bounds(local).steep.max()) + float(pull.max()))
    return max(0.0, _convex_bound(minimum, up(float(radii.min()) + size), error, relative))


def logistic_rounding(local: Logistic, size: Any) -> tuple[Any, Floats]:
    """Return the relative rounding of losses at points of that size, and the steepness of the regularisers, ``[n]``.

    A margin is rounded like d numbers, a mean like m of them.
    """
    relative = OUTWARD + 4 * EPS * (max(local.sizes) + local.dim) * (1 + data_bounds(local).longest * size)
    return relative, local.reg_weight * local.reg_power * size ** (local.reg_power - 1)


def _supremum(grows: Curve, pays: Curve, until: float) -> float:
    """Return an upper bound of sup over [0, until] of grows(r) - pays(r), both nondecreasing.

    On each of many intervals the difference is at most ``grows`` at its right end minus ``pays`` at its left.
    """
    edges = np.linspace(0.0, until, INTERVALS + 1)
    grown, paid = np.append(grows(edges[1:]), grows(edges[:1])), np.append(pays(edges[:-1]), pays(edges[:1]))
    return float(np.max(grown - paid + OUTWARD * (grown + paid)))


def _until(growth: float, L1: float, offset: float) -> float:
    """Return a radius, above 1/L1, beyond which growth r^2 <= L1 (r^3 - offset): the supremum is before it."""
    return 2 * max(growth / L1, offset ** (1 / 3))


def up(value: Any) -> Any:
    """Return a bound computed from positive terms, rounded up."""
    return value * (1 + OUTWARD)


def down(value: float) -> float:
    """Return a lower bound computed from positive terms, rounded down."""
    return value * (1 - OUTWARD)


def _largest_length(rows: Floats) -> float:
    return float(np.linalg.norm(rows, axis=1).max())


def _relative_spread(rows: Floats) -> float:
    mean = rows.mean(axis=0)
    return float(np.max((np.abs(rows - mean) + OUTWARD * (rows + mean)) / np.where(mean > 0, mean, 1.0)))


def _dissimilarity_at(gradients: Floats, spread: float, residual: float, error: float) -> float:
    """Return b = max_i ||grad f_i(x*)||, plus what x* misses: |f_i'' - F''| <= spread F'' integrates to this."""
    center = gradients.mean(axis=0)
    return up(_largest_length(gradients - center) + 2 * error + spread * (residual + error))


def _strongly_convex_bound(minimum: Minimum, modulus: float, terms: float, error: float) -> float:
    """Return a lower bound of F: its terms are rounded by OUTWARD, its gradient by ``error``."""
    return minimum.loss - up((minimum.grad_norm + error) ** 2 / (2 * modulus)) - OUTWARD * terms


def _convex_bound(minimum: Minimum, distance: float, error: float, relative: float = OUTWARD) -> float:
    return minimum.loss - up((minimum.grad_norm + error) * distance) - relative * abs(minimum.loss)
