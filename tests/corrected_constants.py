"""The constants of the paper's proof put right, each with the erratum that it repairs (docs/theory.md, section 4).

They certify steps some thousand times smaller than section 1 does and are kept here only to show that the printed
constants fail where these hold.
"""

import math

import numpy as np

from digrad.theory.paper.inequalities import scaled
from digrad.theory.paper.printed_bound import Setting, is_moderate


def gradient_bound(setting: Setting, gap: float) -> float:
    """Return Phi(D) = 2 L1 D + sqrt(4 L1^2 D^2 + 2 L0 D), the solution of the paper's Lemma 14 (A14)."""
    slope = 2 * setting.smoothness.L1_F * gap
    return slope + math.hypot(slope, math.sqrt(2 * setting.smoothness.L0_F * gap))


def zhang(c: float) -> tuple[float, float]:
    """Return A = 1 + e^c - (e^c - 1)/c and B = (e^c - 1)/c of the paper's Lemmas 1 and 2; both 1 at c = 0.

    >>> zhang(0.0)
    (1.0, 1.0)
    """
    if c > 700:
        return math.inf, math.inf
    slope = math.expm1(c) / c if c > 1e-8 else 1 + c / 2
    return 1 + math.exp(c) - slope, slope


def gamma_weights(u: np.ndarray, v: np.ndarray) -> tuple[float, float]:
    """Return (2||v||/N) kuvp and (3||v||^2/N) kuvp with kuvp = max_i u_i/v_i^2: Gamma = first + second L alpha.

    The first is what w^2 costs the inner product of the descent (A4), the second what it costs the quadratic term (C5).

    >>> gamma_weights(np.full(16, 1.0), np.full(16, 1.0))
    (0.5, 3.0)
    """
    size, worst = float(np.linalg.norm(v)), float((u / v**2).max())
    return 2 * size / len(v) * worst, 3 * size**2 / len(v) * worst


def local_constants(setting: Setting, step_size: float, grad_bound: float) -> dict[str, float]:
    """Return the constants of the recursions and of the descent, in the order of the proof."""
    smooth, norms, n, reach = setting.smoothness, setting.norms, setting.n, setting.reach(step_size)
    k = _network_constants(setting)
    k["Ex"] = max(setting.X0, scaled(math.sqrt(k["Cx"]), reach))  # A3
    radius = max(k["Ex"], scaled(norms.R.sigma, k["Ex"]) + reach)
    k["c"] = max(scaled(float(smooth.L1.max()), radius), scaled(smooth.L1_F, reach))  # A11: not free
    k["A"], k["B"] = zhang(k["c"])
    k["Lhat"] = float(
        (k["A"] * smooth.L0 + k["B"] * smooth.L1 * (smooth.b + smooth.ell * grad_bound)).max()
    )  # A12
    k["L"] = k["A"] * smooth.L0_F + k["B"] * smooth.L1_F * grad_bound
    k["G"] = grad_bound
    if not is_moderate(k, step_size):
        return k
    lip, s_C = k["Lhat"], norms.C.sigma
    spread_C = norms.C.tau**2 * norms.C.delta**2
    k["C1"] = 2 * lip**2 * (2 * n + (1 + 2 * norms.R.sigma**2) * k["Cx"])
    k["Cy"] = 2 * (1 + s_C**2) * spread_C / k["gap_C"] ** 2 * k["C1"]
    inner, quadratic = gamma_weights(norms.u, norms.v)
    k["Gamma"] = inner + quadratic * k["L"] * step_size  # A4, C5
    k["Cf"] = k["Gamma"] * (2 * k["Cy"] + 2 * lip**2 * setting.v_norm**2 * k["Cx"] / n)
    k["S1"], k["S2"] = _recursion_steps(setting, lip, k)
    is_tracking = math.isfinite(k["S2"])  # a single agent tracks itself without error
    ripple = 24 * k["S2"] ** 2 * setting.v_norm**2 * setting.kappa_v**2 * lip**2 / n if is_tracking else 0.0
    k["Cy1"] = (
        2 * lip**2 * (1 + 2 * s_C**2) * spread_C / k["gap_C"] * (1 + 2 * norms.R.sigma**2 + ripple)
    )  # A5
    k["Cy2"] = 12 * n * (1 + 2 * s_C**2) * spread_C * setting.v_norm**2 * lip**2 / k["gap_C"]  # A9
    coupling = 8 * k["Cx1"] * k["Cy1"]
    k["S3"] = math.sqrt(k["gap_R"] * k["gap_C"] / coupling) if coupling > 0 else math.inf
    k["S4"] = norms.uv / (9 * k["L"] * n * setting.v_norm**2) if k["L"] > 0 else math.inf
    k["P"] = 2 * k["Gamma"]  # A10
    k["Q"] = 2 * k["Gamma"] * setting.v_norm**2 * lip**2 / n
    return k


def _network_constants(setting: Setting) -> dict[str, float]:
    R, C, n = setting.norms.R, setting.norms.C, setting.n
    spread = R.tau**2 * R.delta**2
    gap_R, gap_C = 1 - R.sigma**2, 1 - C.sigma**2
    return {
        "sR": R.sigma,
        "sC": C.sigma,
        "gap_R": gap_R,
        "gap_C": gap_C,
        "Cx": 2 * n * (1 + R.sigma**2) * spread / gap_R**2,  # A2
        "Cx1": 12 * (1 + 2 * R.sigma**2) * spread * setting.kappa_v**2 / gap_R,
        "Cx2": 3 * n * (1 + 2 * R.sigma**2) * spread * setting.v_norm**2 / gap_R,  # A9
    }


def _recursion_steps(setting: Setting, lip: float, k: dict[str, float]) -> tuple[float, float]:
    """Return S1 and S2, with the factor sqrt(1 + 2 sigma^2) that the paper lacks (A8)."""
    R, C = setting.norms.R, setting.norms.C
    denominator_R = (
        6 * math.sqrt(2 * (1 + 2 * R.sigma**2)) * setting.v_norm * setting.kappa_v * R.tau * R.delta * lip
    )
    denominator_C = 12 * math.sqrt(2 * (1 + 2 * C.sigma**2)) * setting.kappa_v * C.tau * C.delta * lip
    first = k["gap_R"] * math.sqrt(setting.n) / denominator_R if denominator_R > 0 else math.inf
    second = k["gap_C"] / denominator_C if denominator_C > 0 else math.inf
    return first, second
