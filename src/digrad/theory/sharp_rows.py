"""The rows of the sharp chain: sections 4.4, 4.5 and 4.7 of docs/theory.md."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from digrad.theory import pointwise, repaired, sharp
from digrad.theory.closure import Closed
from digrad.theory.constants import Smoothness
from digrad.theory.measured import EPS, Measured, squared
from digrad.theory.rows import ESTIMATES, Row, Terms, terms
from digrad.theory.setting import LARGEST_CURVATURE, scaled

Floats = npt.NDArray[np.floating]


def sharp_rows(run: Measured, closed: Closed) -> list[Row]:
    """Return the rows with the constants of the sharp chain; G is certified, or else measured."""
    bound, label = usable_bound(run, closed)
    k = sharp.local_constants(run.setting, run.path.step_size, bound)
    return [
        Row("unibound_x", "sharp", run.X, np.full_like(run.X, k["Ex"]), rounding=run.x_rounding),
        _radius(run, k),
        *_recursions(run, k, terms(k["Lhat"] < LARGEST_CURVATURE, "g <= G, exp(c) finite", label)),
        _descent(run, k, label),
        _tracker_energy(run, bound, label),
        *global_rows(run, closed, "sharp"),
    ]


def usable_bound(run: Measured, closed: Closed) -> tuple[float, str]:
    """Return the certified G if there is one and the run respects it, else the measured one, and which it is."""
    if closed.certified and closed.grad_bound >= run.G:
        return closed.grad_bound, "certified"
    return run.G, "measured"


def a_posteriori(run: Measured, options: Sequence[Smoothness]) -> Row:
    """Return the certificate of a finished run (section 4.7): the sum of abar_k g^2 against what was measured.

    Args:
        run: The run.
        options: Constants that all hold, as those of the setting do; the ones that give F the smallest curvature along
            the run are used.
    """
    setting, path = run.setting, run.path
    n, top = setting.n, setting.v_max
    options = (*options, setting.smoothness)
    curvature = min(_curvature(option, setting.reach(path.step_size), run.G) for option in options)
    noise = sharp.noise_weight(setting.norms.u, setting.norms.v)
    progress = path.loss[0] - path.loss[1:]
    budget = progress + path.step_size * noise * np.cumsum(run.w[:-1] ** 2)
    reference = sharp.reference_steps(setting, path.step_size, run.g[:-1])
    is_small, needs = 4 * path.step_size * curvature * top <= 1, "alpha <= 1/(4 LF(G_m) max v)"
    if not all(option.is_certifiable for option in options):
        is_small, needs = False, f"{needs}; {ESTIMATES}"
    return Row(
        "a-posteriori: sum of abar g^2",
        "sharp",
        np.cumsum(reference * run.g[:-1] ** 2),
        2 * n / setting.norms.uv * budget,
        terms(is_small, needs, "measured"),
        rounding=2 * n / setting.norms.uv * (run.loss_rounding[:1] + run.loss_rounding[1:]),
        first=1,
    )


def _curvature(smooth: Smoothness, reach: float, grad_norm: float) -> float:
    """Return LF = phi2(L1_F alpha c0)(L0_F + L1_F G)."""
    radius = scaled(smooth.L1_F, reach)
    return float(sharp.phi2(radius)) * (smooth.L0_F + smooth.L1_F * grad_norm) if radius < 700 else math.inf


def global_rows(run: Measured, closed: Closed, chain: str) -> list[Row]:
    """Return the claims of a certificate: bounds of the gradient, of F, of three sums and of the best iterate."""
    setting, path, k = run.setting, run.path, closed.evaluation.constants
    needs = "conditions as printed" if chain == "paper" else "certified"
    needs = f"{needs}; {closed.caveat}" if closed.caveat else needs
    given = terms(closed.certified, needs, "certified")
    if "Sbar" not in k:  # a chain that fails early has no global claims
        k = {**k, "V0": math.inf, "Sbar": math.inf, "sum_X": math.inf, "sum_Y": math.inf}
    scale, formulas = (setting.v_max, sharp) if chain == "sharp" else (setting.v_norm, repaired)
    reference = run.states.reference(scale)[:-1]
    best = formulas.smallest_gradient(setting, k["Sbar"], path.step_size, np.arange(1, path.steps + 1))
    gap = path.loss - setting.smoothness.lower_bound
    noise = run.grad_rounding
    progress, progress_noise = reference * run.g[:-1] ** 2, reference * squared(run.g, noise)[:-1]
    sums = {"X": np.cumsum(squared(run.X, run.x_rounding)), "Y": np.cumsum(squared(run.Y, run.y_rounding))}

    def row(name: str, lhs: Floats, rhs: float | Floats, rounding: Floats, first: int = 0) -> Row:
        return Row(name, chain, lhs, np.broadcast_to(rhs, lhs.shape).astype(float), given, rounding, first)

    return [
        row("gradient bound: g_k <= G", run.g, closed.grad_bound, noise),
        row("potential: F_k - f_inf <= V0", gap, k["V0"], run.loss_rounding),
        row("sum of abar g^2 <= Sbar", np.cumsum(progress), k["Sbar"], np.cumsum(progress_noise), 1),
        row("sum of X^2", np.cumsum(run.X**2), k["sum_X"], sums["X"]),
        row("sum of Y^2", np.cumsum(run.Y**2), k["sum_Y"], sums["Y"]),
        row("smallest gradient <= eps_K", np.minimum.accumulate(run.g[:-1]), best, noise[:-1], 1),
    ]


def _radius(run: Measured, k: dict[str, float]) -> Row:
    x, average = run.path.x, run.path.average
    after = np.linalg.norm(x[1:] - average[:-1, None], axis=-1).max(axis=-1)
    before = np.linalg.norm(x[:-1] - average[:-1, None], axis=-1).max(axis=-1)
    steepest = float(run.setting.smoothness.L1.max())
    lhs = steepest * np.maximum(after, before)
    rounding = steepest * run.x_rounding[1:]
    return Row("radius of the smoothness lemmas", "sharp", lhs, np.full_like(lhs, k["c"]), rounding=rounding)


def _recursions(run: Measured, k: dict[str, float], given: Terms) -> list[Row]:
    a, X, Y, s = run.path.step_size, run.X, run.Y, run.s
    k = {
        name: min(value, LARGEST_CURVATURE) for name, value in k.items()
    }  # an infinite Lhat times X = 0 is not a number
    top, push = run.setting.v_max, k["kC"] * k["Lhat"]
    h = np.sqrt(a * run.setting.n * top * run.states.reference(top)) * run.g
    change = k["Lhat"] * ((1 + k["sR"]) * X + s)[:-1]
    tracked = k["sC"] * Y[:-1] + k["kC"] * change
    x_next = (k["sR"] + k["kR"] * a * k["beta"]) * X + k["kR"] * a * Y + k["kR"] * h
    y_next = push * (1 + k["sR"] + a * k["beta"]) * X + (k["sC"] + push * a) * Y + push * h

    def row(name: str, lhs: Floats, rhs: Floats, rounding: Floats) -> Row:
        return Row(name, "sharp", lhs, rhs, given, rounding[1:], 1)

    x_noise, y_noise = run.x_rounding, run.y_rounding
    one_step = (k["sR"] * X + k["kR"] * s)[:-1]
    return [
        Row("gradient difference", "sharp", run.gradient_change, change, given, run.grad_rounding[1:]),
        Row("pre2a: step length", "sharp", *pointwise.step_length(run.states), given, 16 * EPS * s),
        Row(
            "pre2b: distance to the ideal tracker",
            "sharp",
            run.w,
            Y + k["beta"] * X,
            given,
            run.grad_rounding,
        ),
        Row("x-recursion, one step", "sharp", X[1:], one_step, rounding=x_noise[1:], first=1),
        row("y-recursion, one step", Y[1:], tracked, y_noise),
        row("x-recursion, system", X[1:], x_next[:-1], x_noise),
        row("y-recursion, system", Y[1:], y_next[:-1], y_noise),
    ]


def _tracker_energy(run: Measured, bound: float, label: str) -> Row:
    """Return sum w^2 <= (tau0 + gamma (alpha N max v sum p)^(1/2))^2: the impulse response of the 2 by 2 system."""
    evaluation = sharp.evaluate(run.setting, run.path.step_size, bound)
    k, top = evaluation.constants, run.setting.v_max
    progress = np.cumsum(run.states.reference(top)[:-1] * run.g[:-1] ** 2)
    drive = np.sqrt(run.path.step_size * run.setting.n * top * progress)
    w = run.w[:-1]
    rounding = np.cumsum(squared(w, run.grad_rounding[:-1]))
    contracts = "gamma" in k
    rhs = (k["tau0"] + k["gamma"] * drive) ** 2 if contracts else np.full_like(w, np.inf)
    given = terms(contracts, "g <= G, rho(M) < 1", label)
    return Row("sum of w^2", "sharp", np.cumsum(w**2), rhs, given, rounding, first=1)


def _descent(run: Measured, k: dict[str, float], label: str) -> Row:
    n, uv, a, top = run.setting.n, run.setting.norms.uv, run.path.step_size, run.setting.v_max
    reference = run.states.reference(top)[:-1]
    return Row(
        "descent",
        "sharp",
        uv / (2 * n) * reference * run.g[:-1] ** 2 + run.descent,
        a * k["Nw"] * run.w[:-1] ** 2,
        terms(4 * a * k["LF"] * top <= 1, "alpha <= 1/(4 LF max v), g <= G", label),
        rounding=run.descent_rounding,
    )
