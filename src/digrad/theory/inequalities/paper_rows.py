r"""The rows of the paper's proof along a run, with its constants as printed, and those of its assumptions.

Rows with errata may FAIL although their conditions hold, which says something of the constants, not of the run.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from digrad.theory.inequalities.rows import ESTIMATES, UNCONDITIONAL, Row, Terms, worst_agent
from digrad.theory.paper.bound import Closed
from digrad.theory.paper.printed import is_moderate, local_constants, smallest_gradient
from digrad.theory.paper.setting import LARGEST_CURVATURE, Setting, scaled
from digrad.theory.trajectory import Trajectory

Floats = npt.NDArray[np.floating]

EPS = float(np.finfo(np.float64).eps)
INVARIANT_TOLERANCE = 1e-9
CHAIN = "paper"
EXPONENT = 700.0  # exp of more than this is treated as infinite


@dataclass(frozen=True, eq=False)
class Measured:
    """A trajectory seen through the norms of its network; arrays have one entry per k = 0, ..., K."""

    path: Trajectory = field(repr=False)
    setting: Setting = field(repr=False)

    @cached_property
    def lengths(self) -> Floats:
        """||y_i||, ``[K + 1, n]``."""
        return np.linalg.norm(self.path.y, axis=-1)

    @cached_property
    def steps(self) -> Floats:
        """alpha_i = alpha min(1, c0/||y_i||)."""
        return self._clipped(self.lengths)

    @cached_property
    def references(self) -> Floats:
        """abar_i = alpha min(1, c0/(v_i ||grad F||))."""
        return self._clipped(self.setting.norms.v * self.g[:, None])

    @cached_property
    def reference(self) -> Floats:
        """abar_k = alpha min(1, c0/(||v|| ||grad F||)), ``[K + 1]``."""
        return self._clipped(self.setting.v_norm * self.g)

    def _clipped(self, length: Floats) -> Floats:
        return self.path.step_size / np.maximum(1.0, length / self.path.threshold)

    @cached_property
    def X(self) -> Floats:  # noqa: N802
        """Consensus error in the R-norm."""
        return self.setting.norms.R.of(self.setting.norms.consensus(self.path.x))

    @cached_property
    def Y(self) -> Floats:  # noqa: N802
        """Tracking error in the C-norm."""
        return self.setting.norms.C.of(self.setting.norms.tracking(self.path.y))

    @cached_property
    def g(self) -> Floats:
        """Norm of the gradient of F at the average."""
        return np.linalg.norm(self.path.grad_F, axis=-1)

    @cached_property
    def w(self) -> Floats:
        """w_i = ||y_i - v_i grad F||, ``[K + 1, n]``."""
        ideal = self.setting.norms.v[:, None] * self.path.grad_F[:, None]
        return np.linalg.norm(self.path.y - ideal, axis=-1)

    @property
    def G(self) -> float:  # noqa: N802
        """The largest gradient norm of the run."""
        return float(self.g.max())

    @cached_property
    def s(self) -> Floats:
        """||alpha_k y||_F: the length of the step of all agents."""
        return np.linalg.norm(self.steps * self.lengths, axis=-1)

    @cached_property
    def gradient_change(self) -> Floats:
        """||grad f(x_{k+1}) - grad f(x_k)||_F, ``[K]``."""
        return np.linalg.norm(np.diff(self.path.grad, axis=0), axis=(-2, -1))

    @cached_property
    def descent(self) -> Floats:
        """F_{k+1} - F_k, ``[K]``."""
        return np.diff(self.path.loss)

    @cached_property
    def x_rounding(self) -> Floats:
        """What rounding can do to a difference of iterates in the R-norm, ``[K + 1]``: a few units of all of them."""
        lengths = np.linalg.norm(self.path.x, axis=(-2, -1))
        largest = np.maximum(lengths, np.append(lengths[:1], lengths[:-1]))
        return 64 * EPS * self.setting.norms.R.delta * largest

    @cached_property
    def loss_rounding(self) -> Floats:
        """What rounding can do to F, ``[K + 1]``: a few units of F, and of the terms that make it up.

        They are not known of every loss; of a quadratic they are at most |F|, ||x|| ||grad f|| and L0 ||x||^2.
        """
        size = np.linalg.norm(self.path.average, axis=-1)
        slopes = np.linalg.norm(self.path.local, axis=-1).mean(axis=-1)
        return 16 * EPS * (np.abs(self.path.loss) + size * (slopes + self.setting.smoothness.L0_F * size))

    @cached_property
    def descent_rounding(self) -> Floats:
        """What rounding can do to F_{k+1} - F_k, ``[K]``."""
        return self.loss_rounding[1:] + self.loss_rounding[:-1]

    @cached_property
    def grad_rounding(self) -> Floats:
        """What rounding can do to a difference of gradients or trackers, ``[K + 1]``: a few units of all of them.

        A gradient is a sum of terms that may cancel: L ||x||, and (L |F|)^(1/2), which is what a slope costs in F. A
        tracker keeps what rounding did to it in every step before.
        """
        smooth, path = self.setting.smoothness, self.path
        largest = np.maximum(np.linalg.norm(path.grad, axis=-1), np.linalg.norm(path.local, axis=-1))
        curvature = np.minimum(smooth.L0 + smooth.L1 * largest, LARGEST_CURVATURE)
        length = np.linalg.norm(path.x, axis=-1) + np.linalg.norm(path.average, axis=-1)[:, None]
        terms = largest + curvature * length + np.sqrt(curvature * np.abs(path.loss)[:, None])
        size = terms.sum(axis=-1)
        return EPS * (64 * np.maximum(size, np.append(size[:1], size[:-1])) + np.cumsum(size))

    @property
    def y_rounding(self) -> Floats:
        """The same in the C-norm."""
        return self.setting.norms.C.delta * self.grad_rounding


def squared(length: Floats, rounding: Floats) -> Floats:
    """Return what rounding does to the square of a length that it can change by ``rounding``."""
    return 2 * length * rounding + rounding**2


def phi1(c: float | Any) -> Any:
    """Return (e^c - 1)/c, and 1 at c = 0: how much the gradient may grow over a distance c/L1.

    >>> float(phi1(0.0)), round(float(phi1(1.0)), 6)
    (1.0, 1.718282)
    """
    c = np.asarray(c, np.float64)
    safe = np.where(c > 1e-8, c, 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        direct = np.where(safe < EXPONENT, np.expm1(safe) / safe, np.inf)
        return np.where(c > 1e-8, direct, 1 + c / 2)


def phi2(c: float | Any) -> Any:
    """Return 2 (e^c - 1 - c)/c^2, and 1 at c = 0: the same for the quadratic upper bound.

    >>> float(phi2(0.0)), round(float(phi2(1.0)), 6)
    (1.0, 1.436564)
    """
    c = np.asarray(c, np.float64)
    safe = np.where(c > 1e-3, c, 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        direct = np.where(safe < EXPONENT, 2 * (np.expm1(safe) - safe) / safe**2, np.inf)
    return np.where(c > 1e-3, direct, 1 + c / 3 + c**2 / 12 + c**3 / 50)  # 1/60 rounded up: an upper bound


def paper_rows(measured: Measured, closed: Closed, reason: str) -> list[Row]:
    """Return the rows of the assumptions, and those of the proof with the printed constants.

    Args:
        measured: The run.
        closed: The printed constants at its step size.
        reason: Why nothing may be claimed of G, or an empty string.
    """
    bound, label = measured.G, "measured"
    if closed.holds and not reason and closed.grad_bound >= measured.G:
        bound, label = closed.grad_bound, "certified"
    k = local_constants(measured.setting, measured.path.step_size, bound)
    given = Terms(f"g <= G, {label}", is_moderate(k, measured.path.step_size))
    return [
        *assumption_rows(measured),
        *_uniform_bounds(measured, k, given),
        *_recursions(measured, k, given),
        *_claims(measured, closed, reason),
    ]


def assumption_rows(measured: Measured) -> list[Row]:
    """Return the rows of what is assumed of the losses (dissimilarity, pre3, pre4), and of clipping (pre1)."""
    path, smooth, v, g = measured.path, measured.setting.smoothness, measured.setting.norms.v, measured.g
    blur, move = measured.grad_rounding, np.diff(path.average, axis=0)
    distance = np.linalg.norm(move, axis=-1)
    curve = measured.descent - np.einsum("kd,kd->k", path.grad_F[:-1], move)
    bend = phi2(smooth.L1_F * distance) * (smooth.L0_F + smooth.L1_F * g[:-1]) * distance**2 / 2
    moved = np.max(measured.steps * measured.lengths + measured.references * v * g[:, None], axis=1)
    moved *= 16 * EPS
    clipped = np.abs(measured.steps - measured.references) * measured.lengths
    apart = np.linalg.norm(path.local - path.grad_F[:, None], axis=-1).max(axis=-1)
    drift = np.linalg.norm(path.y.sum(axis=1) - path.grad.sum(axis=1), axis=-1)
    known = UNCONDITIONAL if smooth.is_certifiable else Terms(ESTIMATES, is_met=False)
    size = INVARIANT_TOLERANCE * np.maximum.accumulate(np.linalg.norm(path.grad, axis=-1).sum(axis=-1))
    now, following = _against_average(measured, 0), _against_average(measured, 1)
    pre1 = worst_agent(clipped, measured.references * measured.w, moved)
    lowest = np.full_like(path.loss, smooth.lower_bound)
    return [
        Row("lower bound: f_inf <= F_k", "all", lowest, path.loss, known, measured.loss_rounding),
        Row("dissimilarity (Assumption 3)", "all", apart, (smooth.ell - 1) * g + smooth.b, rounding=blur),
        Row("pre4: grad f_i, x_i^k against the average", "all", *now, rounding=blur),
        Row("pre4: grad f_i, x_i^{k+1} against the average", "all", *following, rounding=blur[1:]),
        Row("pre3: quadratic upper bound of F", "all", curve, bend, rounding=measured.descent_rounding),
        Row("pre1: clipped steps", "all", *pre1, Terms("v_i > 0"), moved),
        Row("invariant: the y_i sum to the gradients", "all", drift, size, Terms("y_0 = grad f(x_0)"), blur),
    ]


def _against_average(measured: Measured, lag: int) -> tuple[Floats, Floats]:
    """Return both sides of pre4 for the iterates ``lag`` steps after the average."""
    smooth, path = measured.setting.smoothness, measured.path
    states = len(path.x) - lag
    distance = np.linalg.norm(path.x[lag:] - path.average[:states, None], axis=-1)
    level = smooth.L0 + smooth.L1 * np.linalg.norm(path.local[:states], axis=-1)
    lhs = np.linalg.norm(path.grad[lag:] - path.local[:states], axis=-1)
    return worst_agent(lhs, phi1(smooth.L1 * distance) * level * distance, measured.grad_rounding[lag:])


def _uniform_bounds(measured: Measured, k: dict[str, float], given: Terms) -> list[Row]:
    """Return the bounds of squares along the whole run, in units of (alpha c0)^2, and (temp10) and pre2a."""
    setting, path = measured.setting, measured.path
    n, uv, size = setting.n, setting.norms.uv, setting.v_norm
    reach = setting.reach(path.step_size)
    bound_x, bound_y, change = (scaled(k.get(name, 0.0), reach * reach) for name in ("Cx", "Cy", "C1"))
    moved = np.einsum("i,ki,kid->kd", setting.norms.u / n, measured.steps, path.y)
    weight = 2 * setting.kappa_uv**2 * size**2 / (n * uv)
    w2 = np.sum(measured.w**2, axis=1)
    inner = -np.einsum("kd,kd->k", path.grad_F, moved)
    inner_bound = measured.reference * (weight * w2 - uv / (2 * n) * measured.g**2)
    length = 6 * (setting.kappa_v * measured.reference) ** 2 * w2
    length += 3 * n * (measured.reference * size * measured.g) ** 2
    X, Y, grown, s = measured.X, measured.Y, measured.gradient_change, measured.s
    x_noise, y_noise = squared(X, measured.x_rounding), squared(Y, measured.y_rounding)
    grown_noise = squared(grown, measured.grad_rounding[1:])
    return [
        Row("unibound_x", CHAIN, X**2, bound_x, UNCONDITIONAL, x_noise),
        Row("gradient difference C_1", CHAIN, grown**2, change, given, grown_noise),
        Row("unibound_y", CHAIN, Y**2, bound_y, given, y_noise),
        Row("inner product (temp10)", CHAIN, inner, inner_bound, UNCONDITIONAL, 16 * EPS * measured.g * s),
        Row("pre2a: step length", CHAIN, s**2, length, UNCONDITIONAL, 16 * EPS * s**2),
    ]


def _recursions(measured: Measured, k: dict[str, float], given: Terms) -> list[Row]:
    """Return the recursions (x) and (y) of Lemma 11 and the descent (d) of Lemma 12, as squares."""
    X2, Y2 = measured.X**2, measured.Y**2
    if not given.is_met:
        nothing = given._replace(needs="exp(c) finite")
        sides = {"x-recursion": X2[1:], "y-recursion": Y2[1:], "descent": measured.descent}
        return [Row(name, CHAIN, lhs, np.inf, nothing) for name, lhs in sides.items()]
    a, n, uv = measured.path.step_size, measured.setting.n, measured.setting.norms.uv
    progress = measured.reference * measured.g**2
    x_next = (1 + k["sR"] ** 2) / 2 * X2 + a**2 * k["Cx1"] * Y2 + a * k["Cx2"] * progress
    y_next = k["Cy1"] * X2 + (1 + k["sC"] ** 2) / 2 * Y2 + a * k["Cy2"] * progress
    descent = uv / (3 * n) * progress[:-1] + measured.descent
    errors = (measured.reference * (k["P"] * Y2 + k["Q"] * X2))[:-1]
    x_noise, y_noise = squared(measured.X, measured.x_rounding), squared(measured.Y, measured.y_rounding)
    under = {
        bound: Terms(f"{given.needs}, alpha <= {bound}", a <= k[bound]) for bound in ("C_1", "C_2", "C_4")
    }
    return [
        Row("x-recursion", CHAIN, X2[1:], x_next[:-1], under["C_1"], x_noise[1:], 1),
        Row("y-recursion", CHAIN, Y2[1:], y_next[:-1], under["C_2"], y_noise[1:], 1),
        Row("descent", CHAIN, descent, errors, under["C_4"], measured.descent_rounding),
    ]


def _claims(measured: Measured, closed: Closed, reason: str) -> list[Row]:
    """Return the claims of the theorem, which needs a threshold of at most 1/sqrt(K)."""
    setting, path = measured.setting, measured.path
    needs, is_given = "; ".join(filter(None, ("conditions as printed", reason))), closed.holds and not reason
    if setting.threshold * setting.threshold * path.steps > 1 + 1e-12:
        is_given, needs = False, f"{needs}, c0 <= 1/sqrt(K)"
    given = Terms(needs, is_given)
    k = (
        dict.fromkeys(("V0", "Sbar", "sum_X", "sum_Y"), np.inf) | closed.constants
    )  # if they fail early, no claim
    noise = squared(measured.g, measured.grad_rounding)
    x_noise, y_noise = squared(measured.X, measured.x_rounding), squared(measured.Y, measured.y_rounding)
    progress = np.cumsum((measured.reference * measured.g**2)[:-1])
    blur = np.cumsum((measured.reference * noise)[:-1])
    best = smallest_gradient(setting, k["Sbar"], path.step_size, np.arange(1, path.steps + 1))
    least = np.minimum.accumulate(measured.g[:-1])
    gap, grad_noise = path.loss - setting.smoothness.lower_bound, measured.grad_rounding
    sum_X, sum_Y = np.cumsum(measured.X**2), np.cumsum(measured.Y**2)
    return [
        Row("gradient bound: g_k <= G", CHAIN, measured.g, closed.grad_bound, given, grad_noise),
        Row("potential: F_k - f_inf <= V0", CHAIN, gap, k["V0"], given, measured.loss_rounding),
        Row("sum of abar g^2 <= Sbar", CHAIN, progress, k["Sbar"], given, blur, 1),
        Row("sum of X^2", CHAIN, sum_X, k["sum_X"], given, np.cumsum(x_noise)),
        Row("sum of Y^2", CHAIN, sum_Y, k["sum_Y"], given, np.cumsum(y_noise)),
        Row("smallest gradient <= eps_K", CHAIN, least, best, given, grad_noise[:-1], 1),
    ]
