"""The rows of the sharp chain: sections 4.4, 4.5 and 4.7 of docs/theory.md."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from digrad.theory.chains import repaired, sharp
from digrad.theory.chains.closure import Closed
from digrad.theory.chains.setting import LARGEST_CURVATURE, scaled
from digrad.theory.constants.assumptions import Smoothness
from digrad.theory.constants.exponentials import EXPONENT, phi2
from digrad.theory.inequalities import pointwise
from digrad.theory.inequalities.measured import EPS, Measured, squared
from digrad.theory.inequalities.rows import ESTIMATES, Row, Terms, terms

Floats = npt.NDArray[np.floating]


def sharp_rows(measured: Measured, closed: Closed) -> list[Row]:
    """Return the rows with the constants of the sharp chain; G is certified, or else measured."""
    bound, label = usable_bound(measured, closed)
    k = sharp.local_constants(measured.setting, measured.path.step_size, bound)
    return [
        Row(
            "unibound_x", "sharp", measured.X, np.full_like(measured.X, k["Ex"]), rounding=measured.x_rounding
        ),
        _radius(measured, k),
        *_recursions(measured, k, terms(k["Lhat"] < LARGEST_CURVATURE, "g <= G, exp(c) finite", label)),
        _descent(measured, k, label),
        _tracker_energy(measured, bound, label),
        *global_rows(measured, closed, "sharp"),
    ]


def usable_bound(measured: Measured, closed: Closed) -> tuple[float, str]:
    """Return the certified G if there is one and the run respects it, else the measured one, and which it is."""
    if closed.certified and closed.grad_bound >= measured.G:
        return closed.grad_bound, "certified"
    return measured.G, "measured"


def a_posteriori(measured: Measured, options: Sequence[Smoothness]) -> Row:
    """Return the certificate of a finished run (section 4.7): the sum of abar_k g^2 against what was measured.

    Args:
        measured: The run.
        options: Constants that all hold, as those of the setting do; the ones that give F the smallest curvature along
            the run are used.
    """
    setting, path = measured.setting, measured.path
    n, top = setting.n, setting.v_max
    options = (*options, setting.smoothness)
    curvature = min(_curvature(option, setting.reach(path.step_size), measured.G) for option in options)
    noise = sharp.noise_weight(setting.norms.u, setting.norms.v)
    progress = path.loss[0] - path.loss[1:]
    budget = progress + path.step_size * noise * np.cumsum(measured.w[:-1] ** 2)
    reference = sharp.reference_steps(setting, path.step_size, measured.g[:-1])
    is_small, needs = 4 * path.step_size * curvature * top <= 1, "alpha <= 1/(4 LF(G_m) max v)"
    if not all(option.is_certifiable for option in options):
        is_small, needs = False, f"{needs}; {ESTIMATES}"
    return Row(
        "a-posteriori: sum of abar g^2",
        "sharp",
        np.cumsum(reference * measured.g[:-1] ** 2),
        2 * n / setting.norms.uv * budget,
        terms(is_small, needs, "measured"),
        rounding=2 * n / setting.norms.uv * (measured.loss_rounding[:1] + measured.loss_rounding[1:]),
        first=1,
    )


def _curvature(smooth: Smoothness, reach: float, grad_norm: float) -> float:
    """Return LF = phi2(L1_F alpha c0)(L0_F + L1_F G)."""
    radius = scaled(smooth.L1_F, reach)
    return float(phi2(radius)) * (smooth.L0_F + smooth.L1_F * grad_norm) if radius < EXPONENT else math.inf


def global_rows(measured: Measured, closed: Closed, chain: str) -> list[Row]:
    """Return the claims of a certificate: bounds of the gradient, of F, of three sums and of the best iterate."""
    setting, path, k = measured.setting, measured.path, closed.evaluation.constants
    needs = "conditions as printed" if chain == "paper" else "certified"
    needs = f"{needs}; {closed.caveat}" if closed.caveat else needs
    given = terms(closed.certified, needs, "certified")
    if "Sbar" not in k:  # a chain that fails early has no global claims
        k = {**k, "V0": math.inf, "Sbar": math.inf, "sum_X": math.inf, "sum_Y": math.inf}
    scale, formulas = (setting.v_max, sharp) if chain == "sharp" else (setting.v_norm, repaired)
    reference = measured.states.reference(scale)[:-1]
    best = formulas.smallest_gradient(setting, k["Sbar"], path.step_size, np.arange(1, path.steps + 1))
    gap = path.loss - setting.smoothness.lower_bound
    noise = measured.grad_rounding
    progress, progress_noise = reference * measured.g[:-1] ** 2, reference * squared(measured.g, noise)[:-1]
    sums = {
        "X": np.cumsum(squared(measured.X, measured.x_rounding)),
        "Y": np.cumsum(squared(measured.Y, measured.y_rounding)),
    }

    def row(name: str, lhs: Floats, rhs: float | Floats, rounding: Floats, first: int = 0) -> Row:
        return Row(name, chain, lhs, np.broadcast_to(rhs, lhs.shape).astype(float), given, rounding, first)

    return [
        row("gradient bound: g_k <= G", measured.g, closed.grad_bound, noise),
        row("potential: F_k - f_inf <= V0", gap, k["V0"], measured.loss_rounding),
        row("sum of abar g^2 <= Sbar", np.cumsum(progress), k["Sbar"], np.cumsum(progress_noise), 1),
        row("sum of X^2", np.cumsum(measured.X**2), k["sum_X"], sums["X"]),
        row("sum of Y^2", np.cumsum(measured.Y**2), k["sum_Y"], sums["Y"]),
        row("smallest gradient <= eps_K", np.minimum.accumulate(measured.g[:-1]), best, noise[:-1], 1),
    ]


def _radius(measured: Measured, k: dict[str, float]) -> Row:
    x, average = measured.path.x, measured.path.average
    after = np.linalg.norm(x[1:] - average[:-1, None], axis=-1).max(axis=-1)
    before = np.linalg.norm(x[:-1] - average[:-1, None], axis=-1).max(axis=-1)
    steepest = float(measured.setting.smoothness.L1.max())
    lhs = steepest * np.maximum(after, before)
    rounding = steepest * measured.x_rounding[1:]
    return Row("radius of the smoothness lemmas", "sharp", lhs, np.full_like(lhs, k["c"]), rounding=rounding)


def _recursions(measured: Measured, k: dict[str, float], given: Terms) -> list[Row]:
    a, X, Y, s = measured.path.step_size, measured.X, measured.Y, measured.s
    k = {
        name: min(value, LARGEST_CURVATURE) for name, value in k.items()
    }  # an infinite Lhat times X = 0 is not a number
    top, push = measured.setting.v_max, k["kC"] * k["Lhat"]
    h = np.sqrt(a * measured.setting.n * top * measured.states.reference(top)) * measured.g
    change = k["Lhat"] * ((1 + k["sR"]) * X + s)[:-1]
    tracked = k["sC"] * Y[:-1] + k["kC"] * change
    x_next = (k["sR"] + k["kR"] * a * k["beta"]) * X + k["kR"] * a * Y + k["kR"] * h
    y_next = push * (1 + k["sR"] + a * k["beta"]) * X + (k["sC"] + push * a) * Y + push * h

    def row(name: str, lhs: Floats, rhs: Floats, rounding: Floats) -> Row:
        return Row(name, "sharp", lhs, rhs, given, rounding[1:], 1)

    x_noise, y_noise = measured.x_rounding, measured.y_rounding
    one_step = (k["sR"] * X + k["kR"] * s)[:-1]
    return [
        Row(
            "gradient difference",
            "sharp",
            measured.gradient_change,
            change,
            given,
            measured.grad_rounding[1:],
        ),
        Row("pre2a: step length", "sharp", *pointwise.step_length(measured.states), given, 16 * EPS * s),
        Row(
            "pre2b: distance to the ideal tracker",
            "sharp",
            measured.w,
            Y + k["beta"] * X,
            given,
            measured.grad_rounding,
        ),
        Row("x-recursion, one step", "sharp", X[1:], one_step, rounding=x_noise[1:], first=1),
        row("y-recursion, one step", Y[1:], tracked, y_noise),
        row("x-recursion, system", X[1:], x_next[:-1], x_noise),
        row("y-recursion, system", Y[1:], y_next[:-1], y_noise),
    ]


def _tracker_energy(measured: Measured, bound: float, label: str) -> Row:
    """Return sum w^2 <= (tau0 + gamma (alpha N max v sum p)^(1/2))^2: the impulse response of the 2 by 2 system."""
    evaluation = sharp.evaluate(measured.setting, measured.path.step_size, bound)
    k, top = evaluation.constants, measured.setting.v_max
    progress = np.cumsum(measured.states.reference(top)[:-1] * measured.g[:-1] ** 2)
    drive = np.sqrt(measured.path.step_size * measured.setting.n * top * progress)
    w = measured.w[:-1]
    rounding = np.cumsum(squared(w, measured.grad_rounding[:-1]))
    contracts = "gamma" in k
    rhs = (k["tau0"] + k["gamma"] * drive) ** 2 if contracts else np.full_like(w, np.inf)
    given = terms(contracts, "g <= G, rho(M) < 1", label)
    return Row("sum of w^2", "sharp", np.cumsum(w**2), rhs, given, rounding, first=1)


def _descent(measured: Measured, k: dict[str, float], label: str) -> Row:
    n, uv, a, top = (
        measured.setting.n,
        measured.setting.norms.uv,
        measured.path.step_size,
        measured.setting.v_max,
    )
    reference = measured.states.reference(top)[:-1]
    return Row(
        "descent",
        "sharp",
        uv / (2 * n) * reference * measured.g[:-1] ** 2 + measured.descent,
        a * k["Nw"] * measured.w[:-1] ** 2,
        terms(4 * a * k["LF"] * top <= 1, "alpha <= 1/(4 LF max v), g <= G", label),
        rounding=measured.descent_rounding,
    )
