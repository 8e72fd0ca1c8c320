r"""The inequalities of the paper's proof along a run, with its constants as printed, and those of its assumptions.

Rows with errata may FAIL although their conditions hold, which says something of the constants, not of the run.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import exprel, hyp1f1

from digrad.problems import Problem
from digrad.theory.constants.assumptions import Smoothness
from digrad.theory.inequality import ESTIMATES, UNCONDITIONAL, Row, Terms, worst_agent
from digrad.theory.paper.printed_bound import (
    LARGEST_CURVATURE,
    Setting,
    close,
    is_moderate,
    local_constants,
    smallest_gradient,
)
from digrad.theory.trajectory import Trajectory

Floats = npt.NDArray[np.floating]

EPS = float(np.finfo(np.float64).eps)
CHAIN = "paper"
INFINITE = 1e4  # exp of which is infinite; scipy does not end at infinity
REFUTED = "the run refutes the constants"


class PaperCheck(NamedTuple):
    """A run in the quantities of the paper's proof; arrays have one entry per k = 0, ..., K."""

    path: Trajectory
    setting: Setting
    local: Floats  # [K + 1, n, d] gradients of the f_i at the average
    lengths: Floats  # [K + 1, n] ||y_i||
    steps: Floats  # [K + 1, n] alpha_i = alpha min(1, c0/||y_i||)
    references: Floats  # [K + 1, n] abar_i = alpha min(1, c0/(v_i ||grad F||))
    reference: Floats  # abar = alpha min(1, c0/(||v|| ||grad F||))
    g: Floats  # ||grad F|| at the average
    w: Floats  # [K + 1, n] ||y_i - v_i grad F||
    X: Floats  # consensus error in the R-norm
    Y: Floats  # tracking error in the C-norm
    x_rounding: Floats  # of a difference of iterates in the R-norm
    grad_rounding: Floats  # of a difference of gradients or trackers
    loss_rounding: Floats  # of F

    @property
    def smoothness(self) -> Smoothness:
        """The constants of the losses."""
        return self.setting.smoothness

    @property
    def y_rounding(self) -> Floats:
        """Rounding error of a difference of trackers in the C-norm."""
        return self.setting.norms.C.delta * self.grad_rounding


def measure(problem: Problem, path: Trajectory, setting: Setting) -> PaperCheck:
    """Return a run in the quantities of the paper's proof."""
    local = np.array([problem.local_gradients(point) for point in path.average])
    norms, smooth, v = setting.norms, setting.smoothness, setting.norms.v

    def clipped(length: Floats) -> Floats:
        return path.step_size / np.maximum(1.0, length / path.threshold)

    g, lengths = np.linalg.norm(path.grad_F, axis=-1), np.linalg.norm(path.y, axis=-1)
    ideal = v[:, None] * path.grad_F[:, None]
    # Rounding of F: a few units of its terms, which of a quadratic are at most |F|, ||x|| ||grad f|| and L0 ||x||^2.
    size, steep = np.linalg.norm(path.average, axis=-1), np.linalg.norm(local, axis=-1)
    loss_terms = np.abs(path.loss) + size * (steep.mean(axis=-1) + smooth.L0_F * size)
    # Of a gradient, whose terms may cancel: L ||x|| and (L |F|)^(1/2), which is what a slope costs in F. A tracker
    # keeps what rounding did to it in every step before.
    largest = np.maximum(np.linalg.norm(path.grad, axis=-1), steep)
    curvature = np.minimum(smooth.L0 + smooth.L1 * largest, LARGEST_CURVATURE)
    apart = np.linalg.norm(path.x, axis=-1) + size[:, None]
    terms = largest + curvature * apart + np.sqrt(curvature * np.abs(path.loss)[:, None])
    grad_terms, x_terms = terms.sum(axis=-1), np.linalg.norm(path.x, axis=(-2, -1))
    return PaperCheck(
        path,
        setting,
        local,
        lengths,
        steps=clipped(lengths),
        references=clipped(v * g[:, None]),
        reference=clipped(setting.v_norm * g),
        g=g,
        w=np.linalg.norm(path.y - ideal, axis=-1),
        X=norms.R.of(norms.consensus(path.x)),
        Y=norms.C.of(norms.tracking(path.y)),
        x_rounding=64 * EPS * norms.R.delta * _with_previous(x_terms),
        grad_rounding=EPS * (64 * _with_previous(grad_terms) + np.cumsum(grad_terms)),
        loss_rounding=16 * EPS * loss_terms,
    )


def _with_previous(size: Floats) -> Floats:
    """Return the larger of each entry and the one before it."""
    return np.maximum(size, np.append(size[:1], size[:-1]))


def paper_rows(run: PaperCheck, *, is_refuted: bool) -> list[Row]:
    """Return the rows of the assumptions, and those of the proof with the printed constants at the step of the run.

    Args:
        run: The run.
        is_refuted: Whether another row already shows that the constants are wrong.
    """
    path, setting, G = run.path, run.setting, float(run.g.max())
    assumed = assumption_rows(run)
    reason = "" if run.smoothness.is_certifiable else ESTIMATES
    if not reason and (is_refuted or any(row.status == "FAIL" for row in assumed)):
        reason = REFUTED
    closed, label = close(setting, path.step_size), "measured"
    is_given = closed.holds and not reason
    if is_given and closed.grad_bound >= G:
        G, label = closed.grad_bound, "certified"
    k = local_constants(setting, path.step_size, G)
    bounded = Terms(f"g <= G, {label}", is_moderate(k, path.step_size))
    needs = "; ".join(filter(None, ("conditions as printed", reason)))
    if setting.threshold * setting.threshold * path.steps > 1 + 1e-12:  # the theorem needs c0 <= 1/sqrt(K)
        is_given, needs = False, f"{needs}, c0 <= 1/sqrt(K)"
    claimed = dict.fromkeys(("V0", "Sbar", "sum_X", "sum_Y"), np.inf)  # if conditions fail early, no claim
    claimed |= closed.constants | {"G": closed.grad_bound}
    return [
        *assumed,
        *_uniform_bounds(run, k, bounded),
        *_recursions(run, k, bounded),
        *_claims(run, claimed, Terms(needs, is_given)),
    ]


def assumption_rows(run: PaperCheck) -> list[Row]:
    """Return the rows of what is assumed of the losses (dissimilarity, pre3, pre4), and of clipping (pre1)."""
    path, smooth, g, blur = run.path, run.smoothness, run.g, run.grad_rounding
    move = np.diff(path.average, axis=0)
    distance = np.linalg.norm(move, axis=-1)
    curve = np.diff(path.loss) - np.einsum("kd,kd->k", path.grad_F[:-1], move)
    bend = _phi2(smooth.L1_F * distance) * (smooth.L0_F + smooth.L1_F * g[:-1]) * distance**2 / 2
    ideal = run.references * run.setting.norms.v * g[:, None]
    moved = 16 * EPS * np.max(run.steps * run.lengths + ideal, axis=1)
    clipped = np.abs(run.steps - run.references) * run.lengths
    apart = np.linalg.norm(run.local - path.grad_F[:, None], axis=-1).max(axis=-1)
    pre1 = worst_agent(clipped, run.references * run.w, moved)
    now, following = _against_average(run, 0), _against_average(run, 1)
    return [
        Row("dissimilarity (Assumption 3)", "all", apart, (smooth.ell - 1) * g + smooth.b, rounding=blur),
        Row("pre4: grad f_i, x_i^k against the average", "all", *now, rounding=blur),
        Row("pre4: grad f_i, x_i^{k+1} against the average", "all", *following, rounding=blur[1:]),
        Row("pre3: quadratic upper bound of F", "all", curve, bend, rounding=_pairs(run.loss_rounding)),
        Row("pre1: clipped steps", "all", *pre1, Terms("v_i > 0"), moved),
    ]


def _against_average(run: PaperCheck, lag: int) -> tuple[Floats, Floats]:
    """Return both sides of pre4 for the iterates ``lag`` steps after the average."""
    smooth, path = run.smoothness, run.path
    states = len(path.x) - lag
    distance = np.linalg.norm(path.x[lag:] - path.average[:states, None], axis=-1)
    level = smooth.L0 + smooth.L1 * np.linalg.norm(run.local[:states], axis=-1)
    lhs = np.linalg.norm(path.grad[lag:] - run.local[:states], axis=-1)
    with np.errstate(over="ignore", invalid="ignore"):
        rhs = exprel(smooth.L1 * distance) * level * distance  # phi1(c) = (e^c - 1)/c
    return worst_agent(lhs, rhs, run.grad_rounding[lag:])


def _phi2(c: Floats) -> Floats:
    """Return 2 (e^c - 1 - c)/c^2, and 1 at c = 0: how much faster than a parabola F may grow over a distance c/L1."""
    with np.errstate(over="ignore", invalid="ignore"):
        return hyp1f1(1, 3, np.minimum(c, INFINITE))


def _uniform_bounds(run: PaperCheck, k: dict[str, float], given: Terms) -> list[Row]:
    """Return the bounds of squares along the whole run, in units of (alpha c0)^2, and (temp10) and pre2a."""
    setting, path = run.setting, run.path
    n, uv, size = setting.n, setting.norms.uv, setting.v_norm
    reach = setting.reach(path.step_size)
    bound_x, bound_y, change = (scaled(k.get(name, 0.0), reach * reach) for name in ("Cx", "Cy", "C1"))
    moved = np.einsum("i,ki,kid->kd", setting.norms.u / n, run.steps, path.y)
    weight = 2 * setting.kappa_uv**2 * size**2 / (n * uv)
    w2, s = np.sum(run.w**2, axis=1), np.linalg.norm(run.steps * run.lengths, axis=-1)
    inner = -np.einsum("kd,kd->k", path.grad_F, moved)
    inner_bound = run.reference * (weight * w2 - uv / (2 * n) * run.g**2)
    length = 6 * (setting.kappa_v * run.reference) ** 2 * w2
    length += 3 * n * (run.reference * size * run.g) ** 2
    grown = np.linalg.norm(np.diff(path.grad, axis=0), axis=(-2, -1))
    x_noise, y_noise = _squared(run.X, run.x_rounding), _squared(run.Y, run.y_rounding)
    grown_noise = _squared(grown, run.grad_rounding[1:])
    return [
        Row("unibound_x", CHAIN, run.X**2, bound_x, UNCONDITIONAL, x_noise),
        Row("gradient difference C_1", CHAIN, grown**2, change, given, grown_noise),
        Row("unibound_y", CHAIN, run.Y**2, bound_y, given, y_noise),
        Row("inner product (temp10)", CHAIN, inner, inner_bound, UNCONDITIONAL, 16 * EPS * run.g * s),
        Row("pre2a: step length", CHAIN, s**2, length, UNCONDITIONAL, 16 * EPS * s**2),
    ]


def _recursions(run: PaperCheck, k: dict[str, float], given: Terms) -> list[Row]:
    """Return the recursions (x) and (y) of Lemma 11 and the descent (d) of Lemma 12, as squares."""
    X2, Y2, descent = run.X**2, run.Y**2, np.diff(run.path.loss)
    if not given.is_met:
        nothing = given._replace(needs="exp(c) finite")
        sides = {"x-recursion": X2[1:], "y-recursion": Y2[1:], "descent": descent}
        return [Row(name, CHAIN, lhs, np.inf, nothing) for name, lhs in sides.items()]
    a, n, uv = run.path.step_size, run.setting.n, run.setting.norms.uv
    progress = run.reference * run.g**2
    x_next = (1 + k["sR"] ** 2) / 2 * X2 + a**2 * k["Cx1"] * Y2 + a * k["Cx2"] * progress
    y_next = k["Cy1"] * X2 + (1 + k["sC"] ** 2) / 2 * Y2 + a * k["Cy2"] * progress
    lhs, errors = uv / (3 * n) * progress[:-1] + descent, (run.reference * (k["P"] * Y2 + k["Q"] * X2))[:-1]
    x_noise, y_noise = _squared(run.X, run.x_rounding), _squared(run.Y, run.y_rounding)
    under = {
        bound: Terms(f"{given.needs}, alpha <= {bound}", a <= k[bound]) for bound in ("C_1", "C_2", "C_4")
    }
    return [
        Row("x-recursion", CHAIN, X2[1:], x_next[:-1], under["C_1"], x_noise[1:], 1),
        Row("y-recursion", CHAIN, Y2[1:], y_next[:-1], under["C_2"], y_noise[1:], 1),
        Row("descent", CHAIN, lhs, errors, under["C_4"], _pairs(run.loss_rounding)),
    ]


def _claims(run: PaperCheck, k: dict[str, float], given: Terms) -> list[Row]:
    """Return the claims of the theorem."""
    setting, path, noise = run.setting, run.path, run.grad_rounding
    progress = np.cumsum((run.reference * run.g**2)[:-1])
    blur = np.cumsum((run.reference * _squared(run.g, noise))[:-1])
    best = smallest_gradient(setting, k["Sbar"], path.step_size, np.arange(1, path.steps + 1))
    least = np.minimum.accumulate(run.g[:-1])
    gap = path.loss - setting.smoothness.lower_bound
    x_noise, y_noise = np.cumsum(_squared(run.X, run.x_rounding)), np.cumsum(_squared(run.Y, run.y_rounding))
    return [
        Row("gradient bound: g_k <= G", CHAIN, run.g, k["G"], given, noise),
        Row("potential: F_k - f_inf <= V0", CHAIN, gap, k["V0"], given, run.loss_rounding),
        Row("sum of abar g^2 <= Sbar", CHAIN, progress, k["Sbar"], given, blur, 1),
        Row("sum of X^2", CHAIN, np.cumsum(run.X**2), k["sum_X"], given, x_noise),
        Row("sum of Y^2", CHAIN, np.cumsum(run.Y**2), k["sum_Y"], given, y_noise),
        Row("smallest gradient <= eps_K", CHAIN, least, best, given, noise[:-1], 1),
    ]


def _pairs(rounding: Floats) -> Floats:
    """Return what rounding can do to the change of a figure in each step."""
    return rounding[1:] + rounding[:-1]


def _squared(length: Floats, rounding: Floats) -> Floats:
    """Return what rounding can do to the square of a length that it can change by ``rounding``."""
    return 2 * length * rounding + rounding**2


def scaled(factor: float, length: float) -> Any:
    """Return factor times length, and 0 if the factor vanishes, whatever the length."""
    return factor * length if factor else 0.0
