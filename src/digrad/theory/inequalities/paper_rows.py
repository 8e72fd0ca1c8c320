r"""The rows of the paper's proof along a run, with its constants as printed, and those of its assumptions.

Rows with errata may FAIL although their conditions hold, which says something of the constants, not of the run.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from digrad.theory.constants.exponentials import phi1, phi2
from digrad.theory.inequalities.rows import ESTIMATES, UNCONDITIONAL, Row, Terms, terms, worst_agent
from digrad.theory.paper.bound import Closed
from digrad.theory.paper.printed import is_moderate, local_constants, smallest_gradient
from digrad.theory.paper.setting import LARGEST_CURVATURE, Setting, scaled
from digrad.theory.trajectory import Trajectory

Floats = npt.NDArray[np.floating]

EPS = float(np.finfo(np.float64).eps)
INVARIANT_TOLERANCE = 1e-9
CHAIN = "paper"


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
        return (
            64 * EPS * self.setting.norms.R.delta * np.maximum(lengths, np.append(lengths[:1], lengths[:-1]))
        )

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
    given = terms(is_moderate(k, measured.path.step_size), "g <= G", label)
    return [
        *assumption_rows(measured),
        *_uniform_bounds(measured, k, given),
        *_recursions(measured, k, given),
        *_claims(measured, closed, reason),
    ]


def assumption_rows(measured: Measured) -> list[Row]:
    """Return the rows of what is assumed of the losses (dissimilarity, pre3, pre4), and of clipping (pre1)."""
    path, v, g = measured.path, measured.setting.norms.v, measured.g
    moved = (
        16 * EPS * np.max(measured.steps * measured.lengths + measured.references * v * g[:, None], axis=1)
    )
    clipped = np.abs(measured.steps - measured.references) * measured.lengths
    sides = worst_agent(clipped, measured.references * measured.w, moved)
    return [
        _lower_bound(measured),
        _dissimilarity(measured),
        _smoothness(measured, "pre4: grad f_i, x_i^k against the average", path.x, path.grad, last=None),
        _smoothness(
            measured, "pre4: grad f_i, x_i^{k+1} against the average", path.x[1:], path.grad[1:], last=-1
        ),
        _upper_bound(measured),
        Row("pre1: clipped steps", "all", *sides, terms(True, "v_i > 0"), moved),
        _invariant(measured),
    ]


def _lower_bound(measured: Measured) -> Row:
    smooth, loss = measured.setting.smoothness, measured.path.loss
    given = UNCONDITIONAL if smooth.is_certifiable else terms(False, ESTIMATES)
    lowest = np.full_like(loss, smooth.lower_bound)
    return Row("lower bound: f_inf <= F_k", "all", lowest, loss, given, measured.loss_rounding)


def _dissimilarity(measured: Measured) -> Row:
    smooth = measured.setting.smoothness
    distance = np.linalg.norm(measured.path.local - measured.path.grad_F[:, None], axis=-1).max(axis=-1)
    bound = (smooth.ell - 1) * measured.g + smooth.b
    return Row("dissimilarity (Assumption 3)", "all", distance, bound, rounding=measured.grad_rounding)


def _smoothness(measured: Measured, name: str, x: Floats, grad: Floats, last: int | None) -> Row:
    smooth, at_average = measured.setting.smoothness, measured.path.local[:last]
    distance = np.linalg.norm(x - measured.path.average[:last, None], axis=-1)
    lhs = np.linalg.norm(grad - at_average, axis=-1)
    level = smooth.L0 + smooth.L1 * np.linalg.norm(at_average, axis=-1)
    rounding = measured.grad_rounding[1:] if last else measured.grad_rounding
    sides = worst_agent(lhs, phi1(smooth.L1 * distance) * level * distance, rounding)
    return Row(name, "all", *sides, rounding=rounding)


def _upper_bound(measured: Measured) -> Row:
    smooth, path = measured.setting.smoothness, measured.path
    moved = np.diff(path.average, axis=0)
    distance = np.linalg.norm(moved, axis=-1)
    lhs = measured.descent - np.einsum("kd,kd->k", path.grad_F[:-1], moved)
    rhs = phi2(smooth.L1_F * distance) * (smooth.L0_F + smooth.L1_F * measured.g[:-1]) * distance**2 / 2
    return Row("pre3: quadratic upper bound of F", "all", lhs, rhs, rounding=measured.descent_rounding)


def _invariant(measured: Measured) -> Row:
    drift = np.linalg.norm(measured.path.y.sum(axis=1) - measured.path.grad.sum(axis=1), axis=-1)
    size = np.linalg.norm(measured.path.grad, axis=-1).sum(axis=-1)
    return Row(
        "invariant: the y_i sum to the gradients",
        "all",
        drift,
        INVARIANT_TOLERANCE * np.maximum.accumulate(size),
        terms(True, "y_0 = grad f(x_0)"),
        measured.grad_rounding,
    )


def _uniform_bounds(measured: Measured, k: dict[str, float], given: Terms) -> list[Row]:
    """Return the bounds of squares along the whole run, in units of (alpha c0)^2, and (temp10) and pre2a."""
    setting, path, states = measured.setting, measured.path, len(measured.X)
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

    def row(name: str, lhs: Floats, rhs: Floats, noise: Floats, needs: Terms = UNCONDITIONAL) -> Row:
        return Row(name, CHAIN, lhs, rhs, needs, noise)

    X, Y, grown = measured.X, measured.Y, measured.gradient_change
    return [
        row("unibound_x", X**2, np.full(states, bound_x), squared(X, measured.x_rounding)),
        row(
            "gradient difference C_1",
            grown**2,
            np.full(path.steps, change),
            squared(grown, measured.grad_rounding[1:]),
            given,
        ),
        row("unibound_y", Y**2, np.full(states, bound_y), squared(Y, measured.y_rounding), given),
        row("inner product (temp10)", inner, inner_bound, 16 * EPS * measured.g * measured.s),
        row("pre2a: step length", measured.s**2, length, 16 * EPS * measured.s**2),
    ]


def _recursions(measured: Measured, k: dict[str, float], given: Terms) -> list[Row]:
    """Return the recursions (x) and (y) of Lemma 11 and the descent (d) of Lemma 12, as squares."""
    X2, Y2 = measured.X**2, measured.Y**2
    if given.precondition == "not met":
        nothing = given._replace(needs="exp(c) finite")
        shapes = {"x-recursion": X2[1:], "y-recursion": Y2[1:], "descent": measured.descent}
        return [Row(name, CHAIN, lhs, np.full_like(lhs, np.inf), nothing) for name, lhs in shapes.items()]
    a, n, uv = measured.path.step_size, measured.setting.n, measured.setting.norms.uv
    progress = measured.reference * measured.g**2
    x_next = (1 + k["sR"] ** 2) / 2 * X2 + a**2 * k["Cx1"] * Y2 + a * k["Cx2"] * progress
    y_next = k["Cy1"] * X2 + (1 + k["sC"] ** 2) / 2 * Y2 + a * k["Cy2"] * progress

    def row(name: str, bound: str, lhs: Floats, rhs: Floats, first: int, rounding: Any) -> Row:
        granted = terms(a <= k[bound], f"g <= G, alpha <= {bound}", given.grad_bound)
        return Row(name, CHAIN, lhs, rhs, granted, rounding, first)

    x_noise, y_noise = squared(measured.X, measured.x_rounding), squared(measured.Y, measured.y_rounding)
    descent = uv / (3 * n) * progress[:-1] + measured.descent
    errors = (measured.reference * (k["P"] * Y2 + k["Q"] * X2))[:-1]
    return [
        row("x-recursion", "C_1", X2[1:], x_next[:-1], 1, x_noise[1:]),
        row("y-recursion", "C_2", Y2[1:], y_next[:-1], 1, y_noise[1:]),
        row("descent", "C_4", descent, errors, 0, measured.descent_rounding),
    ]


def _claims(measured: Measured, closed: Closed, reason: str) -> list[Row]:
    """Return the claims of the theorem, which needs a threshold of at most 1/sqrt(K)."""
    setting, path, k = measured.setting, measured.path, closed.evaluation.constants
    needs = f"conditions as printed; {reason}" if reason else "conditions as printed"
    is_given = closed.holds and not reason
    if setting.threshold * setting.threshold * path.steps > 1 + 1e-12:
        is_given, needs = False, f"{needs}, c0 <= 1/sqrt(K)"
    given = terms(is_given, needs, "certified")
    if "Sbar" not in k:  # constants that fail early claim nothing
        k = {**k, "V0": np.inf, "Sbar": np.inf, "sum_X": np.inf, "sum_Y": np.inf}
    progress = measured.reference[:-1] * measured.g[:-1] ** 2
    blur = measured.reference[:-1] * squared(measured.g, measured.grad_rounding)[:-1]
    best = smallest_gradient(setting, k["Sbar"], path.step_size, np.arange(1, path.steps + 1))
    gap, noise = path.loss - setting.smoothness.lower_bound, measured.grad_rounding
    x_noise = np.cumsum(squared(measured.X, measured.x_rounding))
    y_noise = np.cumsum(squared(measured.Y, measured.y_rounding))

    def row(name: str, lhs: Floats, rhs: float | Floats, rounding: Floats, first: int = 0) -> Row:
        return Row(name, CHAIN, lhs, np.broadcast_to(rhs, lhs.shape).astype(float), given, rounding, first)

    return [
        row("gradient bound: g_k <= G", measured.g, closed.grad_bound, noise),
        row("potential: F_k - f_inf <= V0", gap, k["V0"], measured.loss_rounding),
        row("sum of abar g^2 <= Sbar", np.cumsum(progress), k["Sbar"], np.cumsum(blur), 1),
        row("sum of X^2", np.cumsum(measured.X**2), k["sum_X"], x_noise),
        row("sum of Y^2", np.cumsum(measured.Y**2), k["sum_Y"], y_noise),
        row("smallest gradient <= eps_K", np.minimum.accumulate(measured.g[:-1]), best, noise[:-1], 1),
    ]
