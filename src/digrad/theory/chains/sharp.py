r"""The sharp chain: a tightened proof that covers any fixed threshold, with ten times larger certified steps.

It differs from the paper's proof in four places: clipping is used as a projection (non-expansive), the
consensus and tracking errors are followed as norms rather than squares (a positive 2 by 2 system), the
reference step uses max v_i instead of ||v||, and the descent line applies Young's inequality per agent.
Section numbers are those of docs/theory.md, where every formula below is printed.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from digrad.theory.chains.clipping import best_of, clipped_step, count_steps
from digrad.theory.chains.closure import Evaluation
from digrad.theory.chains.setting import LARGEST_CURVATURE, Setting, scaled
from digrad.theory.constants.exponentials import phi1, phi2

Floats = npt.NDArray[np.floating]

name = "sharp"


def gradient_bound(setting: Setting, gap: float) -> float:
    """Return Phi(D) = (4/3) L1 D + sqrt(((4/3) L1 D)^2 + 2 L0 D) (section 4.1; the paper has 2 for 4/3)."""
    slope = 4 / 3 * setting.smoothness.L1_F * gap
    return slope + math.hypot(slope, math.sqrt(2 * setting.smoothness.L0_F * gap))


def reference_steps(setting: Setting, step_size: float, grad_norm: Any) -> Any:
    """Return abar_k = alpha min(1, c0/(max v ||grad F||)) for each gradient norm."""
    return clipped_step(step_size, setting.threshold, setting.v_max * np.asarray(grad_norm))


def noise_weight(u: Floats, v: Floats) -> float:
    """Return Nw = (1/N) max_i u_i (4/v_i + 1/(2 max v)): what an error w^2 of the trackers costs the descent.

    >>> noise_weight(np.array([1.0, 1.0]), np.array([1.5, 0.5]))  # (4/0.5 + 1/3)/2
    4.166666666666667
    """
    return float(np.max(u * (4 / v + 0.5 / v.max()))) / len(v)


def evaluate(setting: Setting, step_size: float, grad_bound: float) -> Evaluation:
    """Return the constants of section 4.2 and the conditions of section 4.3."""
    k = local_constants(setting, step_size, grad_bound)
    conditions = {"descent: 4 alpha LF max v": 4 * step_size * k["LF"] * setting.v_max}
    if not (k["Lhat"] < LARGEST_CURVATURE and k["LF"] < LARGEST_CURVATURE and k["rho_M"] < 1):
        return Evaluation(k, {**conditions, "contraction: rho(M) < 1": k["rho_M"]}, math.inf, math.inf)
    system, source, output = _system(setting, k, step_size)
    inverse = np.linalg.inv(np.eye(2) - system)
    start = np.array([setting.X0, setting.Y0])
    k["gamma"] = float(output @ inverse @ source)
    k["tau0"] = _energy(system, output, start, k["Lhat"])
    k["tau_X"] = _energy(system, np.array([1.0, 0.0]), start, k["Lhat"])
    k["tau_Y"] = _energy(system, np.array([0.0, 1.0]), start, k["Lhat"])
    k["gamma_X"], k["gamma_Y"] = (float(row @ source) for row in inverse)
    n, uv = setting.n, setting.norms.uv
    conditions["contraction: rho(M) < 1"] = k["rho_M"]
    conditions["feedback: 8 alpha^2 N^2 Nw gamma^2 max v/uv"] = (
        8 * _square(step_size * k["gamma"] * n) * k["Nw"] * setting.v_max / uv
    )
    k["V0"] = setting.D0 + 2 * step_size * k["Nw"] * _square(k["tau0"])
    k["Sbar"] = 4 * n / uv * k["V0"]
    drive = math.sqrt(step_size * n * setting.v_max * k["Sbar"])
    k["sum_X"] = _square(k["tau_X"] + k["gamma_X"] * drive)
    k["sum_Y"] = _square(k["tau_Y"] + k["gamma_Y"] * drive)
    return Evaluation(k, conditions, k["V0"], k["Sbar"])


def local_constants(setting: Setting, step_size: float, grad_bound: float) -> dict[str, float]:
    """Return the constants that need no contraction: they also serve runs whose step is not certified."""
    smooth, norms, reach = setting.smoothness, setting.norms, setting.reach(step_size)
    k = {"kR": norms.R.kappa, "kC": norms.C.kappa, "sR": norms.R.sigma, "sC": norms.C.sigma}
    k["Ex"] = max(setting.X0, scaled(k["kR"] * math.sqrt(setting.n) / (1 - k["sR"]), reach))
    k["c"] = scaled(float(smooth.L1.max()), max(k["Ex"], scaled(k["sR"], k["Ex"]) + reach))
    k["cF"] = scaled(smooth.L1_F, reach)
    with np.errstate(over="ignore", invalid="ignore"):
        bounds = phi1(k["c"]) * smooth.local_bounds(grad_bound)
        k["LF"] = float(phi2(k["cF"]) * (smooth.L0_F + smooth.L1_F * grad_bound))
        k["Lhat"], k["Lq"] = float(bounds.max()), float(np.sqrt(np.mean(bounds**2)))
    k["beta"] = setting.v_norm * k["Lq"] / math.sqrt(setting.n)
    k["Nw"] = noise_weight(norms.u, norms.v)
    k["rho_M"] = math.inf
    if k["Lhat"] < LARGEST_CURVATURE:
        (a, b), (c, d) = _system(setting, k, step_size, balanced=True)[0].tolist()
        root = math.hypot(a - d, 2 * math.sqrt(b) * math.sqrt(c))  # a square could overflow
        k["rho_M"] = (a + d + root) / 2  # of a nonnegative 2 by 2 matrix
    k["G"] = grad_bound
    return k


def iterations(setting: Setting, total: float, step_size: float, eps: float) -> float:
    """Return K(eps) = ceil((Sbar/alpha) max(1/eps^2, max v/(c0 eps))) (section 4.5)."""
    return count_steps(total / step_size, eps, setting.v_max / setting.threshold)


def smallest_gradient(setting: Setting, total: float, step_size: float, steps: Any) -> Any:
    """Return eps_K, which the smallest of K gradient norms does not exceed (section 4.5)."""
    return best_of(total / step_size, steps, setting.v_max / setting.threshold)


def _system(
    setting: Setting, k: dict[str, float], step_size: float, *, balanced: bool = False
) -> tuple[Any, Any, Any]:
    """Return M, n and q of section 4.2; ``balanced`` measures Y in units of Lhat."""
    unit = k["Lhat"] if balanced and k["Lhat"] > 0 else 1.0
    pull, push, lip = k["kR"] * step_size, k["kC"] * k["Lhat"], k["beta"]
    system = np.array(
        [
            [k["sR"] + pull * lip, pull * unit],
            [push * (1 + k["sR"] + step_size * lip) / unit, k["sC"] + push * step_size],
        ]
    )
    return system, np.array([k["kR"], push / unit]), np.array([lip, unit])


def _energy(system: Any, output: Any, start: Any, unit: float) -> float:
    """Return (z0' Q z0)^(1/2), Q = M'QM + qq': the l2 norm of the free response, in balanced units."""
    if not start.any():
        return 0.0
    scale = np.array([1.0, unit if unit > 0 else 1.0])
    balanced = system * scale / scale[:, None]
    weight = output * scale
    size = float(np.abs(weight).max()) or 1.0
    if not math.isfinite(size):
        return math.inf
    stein = np.eye(4) - np.kron(balanced.T, balanced.T)  # vec(M'QM) = (M' x M') vec(Q)
    gram = np.linalg.solve(stein, np.outer(weight, weight).ravel() / size**2).reshape(2, 2)
    state = start / scale
    with np.errstate(over="ignore", invalid="ignore"):
        energy = float(state @ gram @ state)
    if not math.isfinite(energy):
        return math.inf
    return size * math.sqrt(max(0.0, energy))  # rounding may leave a zero slightly negative


def _square(value: float) -> float:
    return value * value  # becomes infinite where a power would raise
