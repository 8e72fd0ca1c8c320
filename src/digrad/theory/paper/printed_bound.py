r"""The paper's constants, verbatim, for comparison only: several are invalid (see the errata of docs/theory.md).

c is the paper's free constant, taken as 1; L0 and L1 are those of F given by its Lemma 3, in every place where
the paper prints L0 and L1. The reference step is :math:`\bar\alpha_k = \alpha \min(1, c_0/(\|v\| \|\nabla F\|))`.
The theorem needs c0 = 1/sqrt(K).

The constants depend on a bound G of the gradient, and G depends on the constants: the potential V0 bounds F along the
run, and a function Phi turns that into a bound of the gradient. G is the least fixed point of the increasing map
T: G -> Phi(V0(G)). Read literally, the paper's supremum is infinite (erratum A13).
"""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from digrad.problems import Problem
from digrad.theory.arguments import check_start
from digrad.theory.bisection import last_step
from digrad.theory.constants.assumptions import Smoothness
from digrad.theory.constants.closed_form import candidates
from digrad.theory.constants.norms import Norms

Floats = npt.NDArray[np.floating]

LARGEST_CURVATURE = 1e60  # beyond this it is treated as infinite: products of constants would overflow
A, B = 2.0, math.e - 1  # 1 + e^c - (e^c - 1)/c and (e^c - 1)/c of the paper's Lemmas 1 and 2 at c = 1
ITERATIONS = 400
INFLATION = 1e-9  # by which each iterate is enlarged, so that the iteration ends above the fixed point
TOLERANCE = 0.005  # relative, of the largest step
LARGEST_STEP, SMALLEST_STEP = 1e6, 1e-24


@dataclass(frozen=True, eq=False)
class Setting:
    """A run before its step size is chosen, reduced to the numbers that the constants need.

    Attributes:
        norms: Of the network.
        smoothness: Of the losses.
        threshold: c0; infinite only if all L1 vanish.
        X0: Consensus error of the start in the R-norm.
        Y0: Gradient heterogeneity of the start in the C-norm.
        D0: F at the average start, above the lower bound.
    """

    norms: Norms
    smoothness: Smoothness
    threshold: float
    X0: float
    Y0: float
    D0: float

    @property
    def n(self) -> int:
        """Number of agents."""
        return self.norms.n

    @property
    def v_norm(self) -> float:
        """||v||_2."""
        return float(np.linalg.norm(self.norms.v))

    @property
    def kappa_v(self) -> float:
        """||v||_2 over the smallest v_i."""
        return self.v_norm / float(self.norms.v.min())

    @property
    def kappa_uv(self) -> float:
        """The largest u_i/v_i."""
        return float((self.norms.u / self.norms.v).max())

    def reach(self, step_size: float) -> float:
        """Return alpha c0, how far an agent moves by itself in one step."""
        return step_size * self.threshold


def make_setting(
    problem: Problem, norms: Norms, smoothness: Smoothness, threshold: float, x0: Floats
) -> Setting:
    """Return the numbers that the constants need of a problem started at x0 ``[n, d]``."""
    losses, gradients = check_start(problem, smoothness.lower_bound, norms.average(x0), x0)
    return Setting(
        norms,
        smoothness,
        float(threshold),
        X0=float(norms.R.of(norms.consensus(x0))),
        Y0=float(norms.C.of(norms.tracking(gradients))),
        D0=max(0.0, float(losses.mean()) - smoothness.lower_bound),
    )


def gradient_bound(setting: Setting, gap: float) -> float:
    """Return 2 L1 D + sqrt(4 L1^2 D^2 + 2 L0 D) with the L0 and L1 of Lemma 3."""
    L0, L1 = _lemma3(setting)
    slope = 2 * L1 * gap
    return slope + math.hypot(slope, math.sqrt(2 * L0 * gap))


def evaluate(setting: Setting, step_size: float, grad_bound: float) -> dict[str, float]:
    """Return the printed constants, with V0, Sbar and the sums if all are finite."""
    k = local_constants(setting, step_size, grad_bound)
    if is_moderate(k, step_size) and math.isfinite(k["Cf"]):
        Y0_2 = setting.Y0 * setting.Y0  # infinite where a power would raise
        k["V0"] = setting.D0 + step_size**3 * k["Cf"]
        k["Sbar"] = 6 * setting.n / setting.norms.uv * setting.D0 + k["R_grad1"] * Y0_2
        k["sum_X"] = k["R_x1"] * setting.D0 + k["R_x2"] * Y0_2
        k["sum_Y"] = k["R_y1"] * setting.D0 + k["R_y2"] * Y0_2
    return k


def conditions_hold(constants: dict[str, float], step_size: float) -> bool:
    """Return whether alpha <= C_1, ..., C_5 as printed, and V0 and Sbar are finite."""
    is_finite = math.isfinite(constants.get("V0", math.inf) + constants.get("Sbar", math.inf))
    return is_finite and all(step_size <= constants[f"C_{i}"] for i in range(1, 6))


def local_constants(setting: Setting, step_size: float, grad_bound: float) -> dict[str, float]:
    """Return the constants of the paper's Lemmas 9 to 14 and of its theorem, as printed."""
    smooth, n, nv, kuv, uv = setting.smoothness, setting.n, setting.v_norm, setting.kappa_uv, setting.norms.uv
    k = _mixing_constants(setting)
    gap_C, a = k["gap_C"], step_size
    k["A"], k["B"] = (A, B) if smooth.L1.any() else (1.0, 1.0)
    L0, L1 = _lemma3(setting)
    lip = k["A"] * L0 + k["B"] * L1 * smooth.b + k["B"] * L1 * smooth.ell * grad_bound
    k["Lhat"], k["L"], k["G"] = lip, k["A"] * L0 + k["B"] * L1 * grad_bound, grad_bound
    if not is_moderate(k, step_size):
        return k
    k["C1"] = 2 * lip**2 * (2 * n + (1 + 2 * k["sR"] ** 2) * k["Cx"])
    k["Cy"] = 2 * (1 + k["sC"] ** 2) * k["spread_C"] / gap_C**2 * k["C1"]
    k["Gamma"] = 3 * k["L"] * kuv**2 * nv**2 * a / n + 2 * kuv**2 * nv**2 / (n * uv)
    k["Cf"] = k["Gamma"] * (2 * k["Cy"] + 2 * k["L"] ** 2 * nv**2 * k["Cx"])
    k["Cy2"] = 12 * n * (1 + k["sC"] ** 2) * k["spread_C"] * nv**2 * setting.kappa_v**2 * lip**2 / gap_C
    k["P"] = 6 * k["L"] * kuv * nv / n + 4 * kuv**2 * nv**2 / (n * uv)
    k["Q"] = (6 * k["L"] * kuv * nv**3 / n**2 + 4 * kuv**2 * nv**4 / (n**2 * uv)) * lip**2
    _add_steps(setting, k, lip)
    _add_sums(setting, k, a)
    return k


def is_moderate(constants: dict[str, float], step_size: float) -> bool:
    """Return whether curvatures and step are far enough from overflow for products of their powers."""
    return max(constants["Lhat"], constants["L"], step_size) < LARGEST_CURVATURE


def smallest_gradient(setting: Setting, total: float, step_size: float, steps: Any) -> Any:
    """Return eps_K = max(sqrt(E), ||v||/c0 E), E = Sbar/(alpha K): claimed of the smallest of K gradient norms."""
    mean = total / step_size / np.asarray(steps, np.float64)
    ratio = setting.v_norm / setting.threshold
    return np.maximum(np.sqrt(mean), ratio * mean if ratio else 0.0)  # without clipping, whatever the mean


def _lemma3(setting: Setting) -> tuple[float, float]:
    """Return L0 and L1 of F by the paper's Lemma 3: the means of L0_i + b L1_i and of ell L1_i."""
    smooth = setting.smoothness
    return float(np.mean(smooth.L0 + smooth.b * smooth.L1)), float(smooth.ell * np.mean(smooth.L1))


def _mixing_constants(setting: Setting) -> dict[str, float]:
    R, C, n, nv = setting.norms.R, setting.norms.C, setting.n, setting.v_norm
    spread_R, spread_C = R.tau**2 * R.delta**2, C.tau**2 * C.delta**2
    gap_R, gap_C = 1 - R.sigma**2, 1 - C.sigma**2
    ripple = (1 + 2 * C.sigma**2) * gap_C * nv**2 / (12 * n)
    return {
        "sR": R.sigma,
        "sC": C.sigma,
        "gap_R": gap_R,
        "gap_C": gap_C,
        "spread_C": spread_C,
        "Cx": 2 * n * R.sigma**2 * (1 + R.sigma**2) * spread_R / gap_R**2,
        "Cx1": 12 * (1 + 2 * R.sigma**2) * spread_R * setting.kappa_v**2 / gap_R,
        "Cx2": 3 * n * (1 + R.sigma**2) * spread_R * nv**2 / gap_R,
        "Cy1": (1 + 2 * C.sigma**2) * spread_C / gap_C * (2 * R.sigma**2 + ripple),
    }


def _add_steps(setting: Setting, k: dict[str, float], lip: float) -> None:
    R, C, n, nv, kuv = setting.norms.R, setting.norms.C, setting.n, setting.v_norm, setting.kappa_uv
    uv, kv = setting.norms.uv, setting.kappa_v
    k["C_1"] = _ratio(k["gap_R"] * math.sqrt(n), 6 * math.sqrt(2) * nv * kv * R.tau * R.delta * lip)
    k["C_2"] = _ratio(k["gap_C"], 12 * math.sqrt(2) * kv * C.delta * C.tau * lip)
    k["C_3"] = math.sqrt(_ratio(k["gap_R"] * k["gap_C"], 8 * k["Cx1"] * k["Cy1"]))
    k["C_4"] = _ratio(uv, 9 * k["L"] * n * nv**2)
    weight = 144 * k["L"] * kuv * uv + 96 * kuv**2 * nv
    k["C_5"] = math.sqrt(_ratio(n * uv**2 * k["gap_R"], k["Cx2"] * nv**3 * weight * lip**2))


def _add_sums(setting: Setting, k: dict[str, float], a: float) -> None:
    n, nv, kuv, uv = setting.n, setting.v_norm, setting.kappa_uv, setting.norms.uv
    both = k["gap_R"] * k["gap_C"]
    tail = (6 * k["L"] * nv**2 + 4 * kuv * nv**3 / uv) * 8 * a**5 * k["Cx1"] * k["L"] ** 2 / both
    k["R_grad1"] = 6 * kuv * nv / uv * ((6 * k["L"] + 4 * kuv * nv / uv) * 4 * a / k["gap_C"] + tail)
    k["R_x1"] = 24 * n * k["Cx2"] / (uv * k["gap_R"]) * a
    k["R_x2"] = 4 * k["R_grad1"] * k["Cx2"] / k["gap_R"] * a + 8 * k["Cx1"] / both * a**2
    drive = 8 * k["Cx2"] * k["Cy1"] / both + 4 * k["Cy2"] / k["gap_C"]
    k["R_y1"] = 6 * n / uv * drive * a
    k["R_y2"] = k["R_grad1"] * drive * a + 4 / k["gap_C"]


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else math.inf


class Closed(NamedTuple):
    """The printed constants at one step size, with their gradient bound."""

    step_size: float
    grad_bound: float  # G with Phi(V0(G)) <= G if ``holds``; else the last G tried, which bounds nothing
    constants: dict[str, float]  # at that G
    holds: bool  # whether such a G was found and all conditions hold at it, as printed


def close(setting: Setting, step_size: float) -> Closed:
    """Return the least fixed point of the gradient bound, and whether all conditions hold there."""
    grad_bound = gradient_bound(setting, setting.D0)
    constants = evaluate(setting, step_size, grad_bound)
    for _ in range(ITERATIONS):
        if not conditions_hold(constants, step_size):
            break
        image = gradient_bound(setting, constants["V0"])
        if image <= grad_bound:
            return Closed(step_size, grad_bound, constants, True)
        grad_bound = image * (1 + INFLATION)
        constants = evaluate(setting, step_size, grad_bound)
    return Closed(step_size, grad_bound, constants, holds=False)


def largest_step(setting: Setting) -> Closed | None:
    """Return the printed constants at the largest step that they allow, or None: such steps form an interval from 0."""
    step = last_step(
        lambda step: close(setting, step).holds, SMALLEST_STEP, LARGEST_STEP, tolerance=TOLERANCE
    )
    found = close(setting, step)
    return found if found.holds else None


def largest_printed_step(
    problem: Problem, norms: Norms, threshold: float, x0: Floats, constants: Smoothness | None = None
) -> tuple[Setting, Closed | None]:
    """Return the setting whose free parameter L1 allows the largest step, and the printed constants at that step.

    Args:
        problem: The losses.
        norms: Of the network.
        threshold: c0.
        x0: The start, ``[n, d]``.
        constants: Constants of losses that are not built in.
    """
    options = [constants] if constants else candidates(problem)
    first = make_setting(problem, norms, options[0], threshold, x0)
    settings = [replace(first, smoothness=option) for option in options]  # their lower bound of F is one
    best, found = settings[len(settings) // 2], None
    for setting in settings:
        # Most are dismissed by one look: they do not allow a slightly larger step.
        if found and not close(setting, found.step_size * (1 + 2 * TOLERANCE)).holds:
            continue
        if (closed := largest_step(setting)) and (not found or closed.step_size > found.step_size):
            best, found = setting, closed
    return best, found
