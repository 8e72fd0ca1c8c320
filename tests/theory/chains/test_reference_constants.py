"""The formulas of docs/theory.md, transcribed once more and naively: the chains must give the same numbers."""

import re
from math import exp, log, sqrt
from pathlib import Path

import numpy as np
import pytest

from digrad import graphs, problems
from digrad.network import Network, row_stochastic
from digrad.theory import Smoothness, check_run, closed_form, network_norms
from digrad.theory.certificates.certificate import REFERENCES
from digrad.theory.chains import repaired, sharp
from digrad.theory.chains.setting import make_setting

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")

RNG = np.random.default_rng(11)
CENTER, SCALE = RNG.normal(size=(5, 3)), RNG.uniform(0.5, 2, 5)
TREE = row_stochastic(graphs.from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 4)]))
COSH = problems.cosh(center=CENTER, scale=SCALE)
QUARTIC = problems.quartic(center=CENTER, scale=0.1 * SCALE)
GIVEN = Smoothness(
    L0=[1.0, 2.0, 3.0, 4.0, 5.0], L1=[0.1, 0.5, 0.2, 0.4, 0.3], ell=1.7, b=0.6, lower_bound=-2.0
)
# problem, network, constants, start, threshold, step size, G
SETTINGS = {
    "identical starts": (
        COSH,
        Network(graphs.example5()),
        closed_form(COSH),
        np.ones((5, 3)),
        5.0,
        1e-5,
        1.7,
    ),
    "different starts": (COSH, Network(graphs.ring(5)), closed_form(COSH), CENTER, 1.0, 1e-6, 2.3),
    "R with a root only": (
        QUARTIC,
        Network(graphs.example5(), R=TREE),
        closed_form(QUARTIC),
        0.1 * CENTER,
        0.3,
        1e-7,
        0.9,
    ),
    "constants of F by Lemma 3": (
        COSH,
        Network(graphs.random_digraph(5, 0.3, seed=1)),
        GIVEN,
        -CENTER,
        40.0,
        3e-5,
        11.0,
    ),
}


def inputs(name):
    """Return the named numbers that both chains start from, and the setting of the library."""
    problem, network, smooth, x0, c0, alpha, G = SETTINGS[name]
    norms = network_norms(network)
    R, C, u, v, N = network.R.toarray(), network.C.toarray(), network.u, network.v, 5
    pi_R, pi_C = np.eye(N) - np.outer(np.ones(N), u) / N, np.eye(N) - np.outer(v, np.ones(N)) / N
    T_R, T_C = norms.R.factor, norms.C.factor

    def induced(T, M):
        return np.linalg.norm(T @ M @ np.linalg.inv(T), 2)

    given = {
        "sR": induced(T_R, R @ pi_R), "sC": induced(T_C, C @ pi_C),
        "tR": induced(T_R, pi_R), "tC": induced(T_C, pi_C),
        "dR": np.linalg.norm(T_R, 2), "dC": np.linalg.norm(T_C, 2),
        "kR": np.linalg.norm(T_R @ pi_R, 2), "kC": np.linalg.norm(T_C @ pi_C, 2),
        "X0": np.linalg.norm(T_R @ pi_R @ x0),
        "Y0": np.linalg.norm(T_C @ pi_C @ problem.local_gradients(x0)),
        "D0": problem.loss(u @ x0 / N) - smooth.lower_bound,
        "N": N, "u": u, "v": v, "alpha": alpha, "c0": c0, "G": G,
    }  # fmt: skip
    return given, smooth, make_setting(problem, norms, smooth, c0, x0)


def phi1(c):
    return (exp(c) - 1) / c if c > 1e-3 else sum(c**k / np.prod(range(1, k + 2)) for k in range(6))


def phi2(c):
    if c > 0.1:
        return 2 * (exp(c) - 1 - c) / c**2
    return sum(2 * c**k / np.prod(range(1, k + 3), dtype=float) for k in range(12))


def section_3(i, smooth):
    """Return the constants and conditions of the repaired chain, in the order of section 3.1."""
    sR, sC, tR, tC, dR, dC = (i[key] for key in ("sR", "sC", "tR", "tC", "dR", "dC"))
    N, u, v, alpha, c0, G = (i[key] for key in ("N", "u", "v", "alpha", "c0", "G"))
    X0, Y0, D0 = i["X0"], i["Y0"], i["D0"]
    uv, nv, kuvp = float(u @ v), sqrt(float(v @ v)), max(u / v**2)
    kv = nv / min(v)
    Cx = 2 * N * (1 + sR**2) * tR**2 * dR**2 / (1 - sR**2) ** 2
    Ex = max(X0, sqrt(Cx) * alpha * c0)
    c = max(max(smooth.L1) * max(Ex, sR * Ex + alpha * c0), smooth.L1_F * alpha * c0)
    B = phi1(c)
    A = 1 + exp(c) - B
    Lhat = max(
        A * l0 + B * l1 * (smooth.b + smooth.ell * G) for l0, l1 in zip(smooth.L0, smooth.L1, strict=True)
    )
    L = A * smooth.L0_F + B * smooth.L1_F * G
    C1 = 2 * Lhat**2 * (2 * N + (1 + 2 * sR**2) * Cx)
    Cy = 2 * (1 + sC**2) * tC**2 * dC**2 / (1 - sC**2) ** 2 * C1
    Gamma = (kuvp * nv / N) * (2 + 3 * L * nv * alpha)
    Cf = Gamma * (2 * Cy + 2 * Lhat**2 * nv**2 * Cx / N)
    Cx1 = 12 * (1 + 2 * sR**2) * tR**2 * dR**2 * kv**2 / (1 - sR**2)
    Cx2 = 3 * N * (1 + 2 * sR**2) * tR**2 * dR**2 * nv**2 / (1 - sR**2)
    S2 = (1 - sC**2) / (12 * sqrt(2 * (1 + 2 * sC**2)) * kv * tC * dC * Lhat)
    S1 = (1 - sR**2) * sqrt(N) / (6 * sqrt(2 * (1 + 2 * sR**2)) * nv * kv * tR * dR * Lhat)
    Cy1 = (
        2 * Lhat**2 * (1 + 2 * sC**2) * tC**2 * dC**2 / (1 - sC**2)
        * (1 + 2 * sR**2 + 24 * S2**2 * nv**2 * kv**2 * Lhat**2 / N)
    )  # fmt: skip
    Cy2 = 12 * N * (1 + 2 * sC**2) * tC**2 * dC**2 * nv**2 * Lhat**2 / (1 - sC**2)
    d = (1 - sR**2) * (1 - sC**2)
    S3, S4 = sqrt(d / (8 * Cx1 * Cy1)), uv / (9 * L * N * nv**2)
    P, Q = 2 * Gamma, 2 * Gamma * nv**2 * Lhat**2 / N
    feedback = alpha * P * (
        8 * alpha * Cx2 * Cy1 / d + 4 * alpha * Cy2 / (1 - sC**2)
    ) + alpha * Q * (4 * alpha * Cx2 / (1 - sR**2) + 8 * alpha**3 * Cx1 * Cy2 / d)  # fmt: skip
    V0 = (
        D0
        + alpha * P * (4 * Y0**2 / (1 - sC**2) + 8 * Cy1 * X0**2 / d)
        + alpha * Q * (8 * alpha**2 * Cx1 * Y0**2 / d + 4 * X0**2 / (1 - sR**2))
    )
    Sbar = 6 * N / uv * V0
    sum_X = (
        4 * X0**2 / (1 - sR**2)
        + 8 * alpha**2 * Cx1 * Y0**2 / d
        + (4 * alpha * Cx2 / (1 - sR**2) + 8 * alpha**3 * Cx1 * Cy2 / d) * Sbar
    )
    sum_Y = (
        4 * Y0**2 / (1 - sC**2)
        + 8 * Cy1 * X0**2 / d
        + (8 * alpha * Cx2 * Cy1 / d + 4 * alpha * Cy2 / (1 - sC**2)) * Sbar
    )
    names = "Cx Ex c A B Lhat L C1 Cy Gamma Cf Cx1 Cx2 S1 S2 Cy1 Cy2 S3 S4 P Q V0 Sbar sum_X sum_Y sR sC G"
    found = locals()
    conditions = [alpha / S1, alpha / S2, alpha / S3, alpha / S4, feedback / (uv / (6 * N))]
    return {key: found[key] for key in names.split()}, conditions


def section_4(i, smooth):
    """Return the constants and conditions of section 4; the l2 norms of free responses are summed."""
    sR, sC, kR, kC, N, u, v = (i[key] for key in ("sR", "sC", "kR", "kC", "N", "u", "v"))
    alpha, c0, G, X0, D0 = (i[key] for key in ("alpha", "c0", "G", "X0", "D0"))
    uv, vh = float(u @ v), max(v)
    Ex = max(X0, kR * sqrt(N) * alpha * c0 / (1 - sR))
    c, cF = max(smooth.L1) * max(Ex, sR * Ex + alpha * c0), smooth.L1_F * alpha * c0
    each = [
        phi1(c) * (l0 + l1 * (smooth.ell * G + smooth.b)) for l0, l1 in zip(smooth.L0, smooth.L1, strict=True)
    ]
    Lhat, Lq = max(each), sqrt(sum(value**2 for value in each) / N)
    LF = phi2(cF) * (smooth.L0_F + smooth.L1_F * G)
    beta = sqrt(float(v @ v)) * Lq / sqrt(N)
    M = np.array(
        [
            [sR + kR * alpha * beta, kR * alpha],
            [kC * Lhat * (1 + sR + alpha * beta), sC + kC * Lhat * alpha],
        ]
    )
    n, q, z = np.array([kR, kC * Lhat]), np.array([beta, 1.0]), np.array([X0, i["Y0"]])
    gamma_X, gamma_Y = np.linalg.solve(np.eye(2) - M, n)
    gamma, rho_M = q @ [gamma_X, gamma_Y], max(abs(np.linalg.eigvals(M)))
    energy = np.zeros(3)
    for _ in range(int(log(1e-20) / log(rho_M))):
        energy += np.array([q @ z, z[0], z[1]]) ** 2
        z = M @ z
    tau0, tau_X, tau_Y = np.sqrt(energy)
    Nw = max(u * (4 / v + 1 / (2 * vh))) / N
    V0 = D0 + 2 * alpha * Nw * tau0**2
    Sbar = 4 * N / uv * V0
    sum_X = (tau_X + gamma_X * sqrt(alpha * N * vh * Sbar)) ** 2
    sum_Y = (tau_Y + gamma_Y * sqrt(alpha * N * vh * Sbar)) ** 2
    names = "kR kC sR sC Ex c cF Lhat Lq LF beta rho_M gamma gamma_X gamma_Y tau0 tau_X tau_Y Nw V0 Sbar sum_X sum_Y G"
    found = locals()
    conditions = [alpha / (1 / (4 * LF * vh)), rho_M, 2 * alpha**2 * Nw * gamma**2 * N * vh / (uv / (4 * N))]
    return {key: found[key] for key in names.split()}, conditions


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(
    ("chain", "reference", "intermediate"),
    [
        (repaired, section_3, {"gap_R", "gap_C", "from_X_to_Y", "from_Y_to_X", "drive_X", "drive_Y"}),
        (sharp, section_4, set()),
    ],
    ids=["repaired", "sharp"],
)
def test_chain_has_the_constants_and_conditions_of_the_page(name, chain, reference, intermediate):
    given, smooth, setting = inputs(name)
    found = chain.evaluate(setting, given["alpha"], given["G"])
    constants, conditions = reference(given, smooth)
    assert set(found.constants) == set(constants) | intermediate
    for key, value in constants.items():
        assert found.constants[key] == pytest.approx(value, rel=1e-12, abs=0), key
    assert list(found.conditions.values()) == pytest.approx(conditions, rel=1e-12, abs=0)
    assert (found.budget, found.total) == (found.constants["V0"], found.constants["Sbar"])


@pytest.mark.parametrize(("chain", "factor"), [(repaired, 2), (sharp, 4 / 3)], ids=["repaired", "sharp"])
@pytest.mark.parametrize("name", SETTINGS)
def test_gradient_bound_and_iterations_are_those_of_the_page(name, chain, factor):
    given, smooth, setting = inputs(name)
    slope = factor * smooth.L1_F * 3.0
    assert chain.gradient_bound(setting, 3.0) == pytest.approx(
        slope + sqrt(slope**2 + 2 * smooth.L0_F * 3.0), rel=1e-12
    )
    size = max(given["v"]) if chain is sharp else np.linalg.norm(given["v"])
    for eps in (1e-2, 100.0):
        expected = np.ceil(7.0 / 1e-3 * max(1 / eps**2, size / (given["c0"] * eps)))
        assert chain.iterations(setting, 7.0, 1e-3, eps) == expected


def test_example_of_the_page_runs_and_has_the_printed_figures(capsys):
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    names = {}
    exec(compile(block, "docs/theory.md", "exec"), names)
    assert capsys.readouterr().out.startswith("holds: alpha = ")
    certificate, check = names["certificate"], names["check"]
    assert check.verdict == "PASS"
    assert 0 < check.proven_from < 500
    assert f"Every step up to {certificate.alpha_max:.2g} is certified" in flat(PAGE)


def test_sections_that_the_code_cites_are_on_the_page():
    files = [
        ROOT / "src/digrad/theory" / f"{name}.py"
        for name in ("chains/repaired", "chains/sharp", "inequalities/sharp_rows")
    ]
    sources = [path.read_text(encoding="utf-8") for path in files]
    cited = set(re.findall(r"sections? (\d(?:\.\d)?)", "\n".join([*sources, *REFERENCES])))
    headings = set(re.findall(r"^#{2,3} (\d(?:\.\d)?)", PAGE, re.MULTILINE))
    assert {"1", "3", "6"} <= cited
    assert cited <= headings


def test_tests_that_the_page_cites_exist():
    written = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    cited = set(re.findall(r"`(test_[a-z0-9_]+)`", PAGE))
    assert len(cited) > 10
    assert [name for name in cited if f"def {name}(" not in written] == []


def test_rows_of_a_run_are_in_the_table_of_the_page():
    check = check_run(
        problems.example_quadratic(),
        Network(graphs.example5()),
        step_size=0.01,
        threshold=5.0,
        steps=3,
        paper=True,
    )
    table = PAGE[PAGE.index("## 5. ") : PAGE.index("## 6. ")]
    short = {re.split(r"[:,( <=]", row.name)[0] for row in check.rows}
    assert {name for name in short if name not in table} == set()


def flat(text):
    """Return the text without line breaks."""
    return " ".join(text.split())
