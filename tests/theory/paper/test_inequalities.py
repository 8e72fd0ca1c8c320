"""Both sides of every row of a checked run, transcribed naively from docs/theory.md: the rows must be the same.

The transcription starts from R, C and the losses. Of the library it takes the constants of the losses, and of a
certified run its G, after a test that this G solves its equation.
"""

import dataclasses
from functools import cache, partial
from math import exp, inf, sqrt
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pytest

from digrad import graphs, problems
from digrad.network import Network, row_stochastic
from digrad.problems import Problem
from digrad.theory import Row, RunCheck, check_run

check_paper = partial(check_run, paper=True)

Floats = npt.NDArray[np.floating]

RNG = np.random.default_rng(2)
CENTER, SCALE = 0.4 * RNG.normal(size=(5, 3)), RNG.uniform(0.5, 2, 5)
APART = 0.3 * RNG.normal(size=(5, 3))
TREE = row_stochastic(graphs.from_edges(5, [(0, 1), (1, 2), (1, 3), (3, 4)]))
RELATIVE = 1e-9
VOID = 1e-12  # bounds below it are made of rounding
DISTANCES = ("pre3", "pre4")  # their right sides subtract iterates, and lose digits when steps are small
NODES, WEIGHTS = np.polynomial.legendre.leggauss(30)
NODES, WEIGHTS = (NODES + 1) / 2, WEIGHTS / 2  # of integrals from 0 to 1


class Case(NamedTuple):
    problem: Problem
    network: Network
    x0: Floats
    threshold: float
    step_size: float
    steps: int
    holds: bool  # whether the printed conditions do


COSH = problems.cosh(center=CENTER, scale=SCALE)
QUARTIC = problems.quartic(center=CENTER, scale=SCALE)
EXAMPLE, WITH_ZEROS = Network(graphs.example5()), Network(graphs.example5(), R=TREE)
# At a practical step G is measured and the clipping ends on the way; at the smallest the printed conditions hold.
CASES = {
    "cosh": Case(COSH, EXAMPLE, 0.1 * APART + 0.5, 0.8, 0.02, 60, holds=False),
    "cosh, small": Case(COSH, EXAMPLE, 0.1 * APART + 0.5, 1.5, 4e-6, 30, holds=True),
    "quartic on a tree": Case(QUARTIC, WITH_ZEROS, APART + 0.5, 0.9, 0.02, 60, holds=False),
    "quartic on a tree, small": Case(QUARTIC, WITH_ZEROS, 0.1 * APART + 0.5, 1.5, 4e-8, 15, holds=True),
}


class Sides(NamedTuple):
    """Both sides of a row; rhs is None where the page promises nothing, is_met None where it is not compared."""

    lhs: Floats
    rhs: Floats | None
    is_met: bool | None = True


# The network and the run


def perron(matrix: Floats) -> Floats:
    """Return the right eigenvector of eigenvalue 1, with sum N."""
    n = len(matrix)
    equations = np.vstack([matrix - np.eye(n), np.ones(n)])
    vector = np.linalg.lstsq(equations, np.append(np.zeros(n), n), rcond=None)[0]
    return np.where(np.abs(vector) < 1e-12, 0.0, vector)


def norm_of(M: Floats, projection: Floats, diagonal: Floats | None) -> SimpleNamespace:
    """Return the norm of section 2 with the smallest kappa/(1 - sigma) and its figures."""
    rho = max(abs(np.linalg.eigvals(M)))
    squares = [] if diagonal is None else [np.diag(diagonal)]
    for f in (0.02, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9, 1, 1.3, 1.8, 3):
        P, power = np.zeros_like(M), np.eye(len(M))
        for _ in range(3000):
            P, power = P + power.T @ power, power @ M / (rho + f * (1 - rho))
        squares.append(P)
    found = []
    for P in squares:
        values, vectors = np.linalg.eigh(P / np.linalg.eigvalsh(P)[0])
        T = vectors @ np.diag(np.sqrt(values)) @ vectors.T
        inverse = np.linalg.inv(T)
        found.append(
            SimpleNamespace(
                T=T,
                sigma=np.linalg.norm(T @ M @ inverse, 2),
                tau=np.linalg.norm(T @ projection @ inverse, 2),
                kappa=np.linalg.norm(T @ projection, 2),
                delta=np.linalg.norm(T, 2),
            )
        )
    return min((norm for norm in found if norm.sigma < 1), key=lambda norm: norm.kappa / (1 - norm.sigma))


@cache
def network_figures(network: Network) -> dict[str, object]:
    R, C = network.R.toarray(), network.C.toarray()
    N, u, v = len(R), perron(R.T), perron(C)
    one = np.ones(N)
    pi_R, pi_C = np.eye(N) - np.outer(one, u) / N, np.eye(N) - np.outer(v, one) / N
    of_R = norm_of(R - np.outer(one, u) / N, pi_R, u if (u > 0).all() else None)
    of_C = norm_of(C - np.outer(v, one) / N, pi_C, 1 / v)
    return {
        "R": R, "C": C, "N": N, "u": u, "v": v, "T_R": of_R.T @ pi_R, "T_C": of_C.T @ pi_C,
        "sR": of_R.sigma, "tR": of_R.tau, "kR": of_R.kappa, "dR": of_R.delta,
        "sC": of_C.sigma, "tC": of_C.tau, "kC": of_C.kappa, "dC": of_C.delta,
        "uv": u @ v, "nv": sqrt(v @ v), "vh": max(v), "kv": sqrt(v @ v) / min(v),
        "kuv": max(u / v), "kuvp": max(u / v**2),
    }  # fmt: skip


def clipped(alpha: float, c0: float, length: Floats) -> Floats:
    return np.array([alpha * min(1.0, c0 / value) for value in length.ravel()]).reshape(length.shape)


def measure(case: Case, smooth) -> SimpleNamespace:
    """Run the algorithm and return what the rows speak about; arrays begin with one entry per k."""
    r = SimpleNamespace(
        smooth=smooth, alpha=case.step_size, c0=case.threshold, **network_figures(case.network)
    )
    gradients = case.problem.local_gradients
    x, y = case.x0, gradients(case.x0)
    xs, ys, steps = [], [], []
    for _ in range(case.steps + 1):
        xs.append(x)
        ys.append(y)
        steps.append(clipped(r.alpha, r.c0, np.linalg.norm(y, axis=1)))
        following = r.R @ x - steps[-1][:, None] * y
        x, y = following, r.C @ y + gradients(following) - gradients(x)
    r.x, r.y, r.steps = np.array(xs), np.array(ys), np.array(steps)
    r.grad = np.array([gradients(x) for x in r.x])
    r.mean = np.array([r.u @ x / r.N for x in r.x])
    r.local = np.array([gradients(np.tile(mean, (r.N, 1))) for mean in r.mean])
    r.F = np.array([np.mean(case.problem.local_losses(np.tile(mean, (r.N, 1)))) for mean in r.mean])
    r.grad_F = r.local.mean(axis=1)
    r.g = np.linalg.norm(r.grad_F, axis=1)
    r.w_i = np.linalg.norm(r.y - np.array([np.outer(r.v, grad) for grad in r.grad_F]), axis=2)
    r.w = np.sqrt((r.w_i**2).sum(axis=1))
    r.own = np.array([clipped(r.alpha, r.c0, r.v * g) for g in r.g])  # abar_i
    r.moves = r.steps[:, :, None] * r.y  # alpha_i y_i
    r.s = np.sqrt((r.moves**2).sum(axis=(1, 2)))
    r.m = np.array([r.u @ moves / r.N for moves in r.moves])
    r.X = np.array([np.linalg.norm(r.T_R @ x) for x in r.x])
    r.Y = np.array([np.linalg.norm(r.T_C @ y) for y in r.y])
    r.X0, r.Y0, r.D0 = r.X[0], r.Y[0], r.F[0] - smooth.lower_bound
    r.change = np.sqrt((np.diff(r.grad, axis=0) ** 2).sum(axis=(1, 2)))
    r.K = case.steps
    return r


# Constants: those of the paper


def phi1(c):
    """Return (e^c - 1)/c, the integral of e^(ct) over 0 < t < 1."""
    return np.exp(np.multiply.outer(c, NODES)) @ WEIGHTS


def phi2(c):
    """Return 2 (e^c - 1 - c)/c^2, twice the integral of (1 - t) e^(ct)."""
    return 2 * np.exp(np.multiply.outer(c, NODES)) @ (WEIGHTS * (1 - NODES))


def printed_constants(r: SimpleNamespace, G: float) -> SimpleNamespace:
    """The paper's Lemmas 9 to 14 and its theorem, with c = 1 and its L0 and L1 those of F by its Lemma 3."""
    a, N, nv, kv, kuv, uv, sR2, sC2 = r.alpha, r.N, r.nv, r.kv, r.kuv, r.uv, r.sR**2, r.sC**2
    spread_R, spread_C, d = (r.tR * r.dR) ** 2, (r.tC * r.dC) ** 2, (1 - sR2) * (1 - sC2)
    L0, L1 = np.mean(r.smooth.L0 + r.smooth.b * r.smooth.L1), r.smooth.ell * np.mean(r.smooth.L1)
    B = exp(1) - 1
    A = 1 + exp(1) - B
    L, Lhat = A * L0 + B * L1 * G, A * L0 + B * L1 * r.smooth.b + B * L1 * r.smooth.ell * G
    k = SimpleNamespace(Cx=2 * N * sR2 * (1 + sR2) * spread_R / (1 - sR2) ** 2)
    k.C1 = 2 * Lhat**2 * (2 * N + (1 + 2 * sR2) * k.Cx)
    k.Cy = 2 * (1 + sC2) * spread_C / (1 - sC2) ** 2 * k.C1
    k.Cx1 = 12 * (1 + 2 * sR2) * spread_R * kv**2 / (1 - sR2)
    k.Cx2 = 3 * N * (1 + sR2) * spread_R * nv**2 / (1 - sR2)
    inside = 2 * sR2 + (1 + 2 * sC2) * (1 - sC2) * nv**2 / (12 * N)
    k.Cy1 = (1 + 2 * sC2) * spread_C / (1 - sC2) * inside
    k.Cy2 = 12 * N * (1 + sC2) * spread_C * nv**2 * kv**2 * Lhat**2 / (1 - sC2)
    k.S1 = (1 - sR2) * sqrt(N) / (6 * sqrt(2) * nv * kv * sqrt(spread_R) * Lhat)
    k.S2 = (1 - sC2) / (12 * sqrt(2) * kv * sqrt(spread_C) * Lhat)
    k.S4 = uv / (9 * L * N * nv**2)
    C_3 = sqrt(d / (8 * k.Cx1 * k.Cy1))
    C_5 = sqrt(N * uv**2 * (1 - sR2) / (k.Cx2 * nv**3 * (144 * L * kuv * uv + 96 * kuv**2 * nv) * Lhat**2))
    Cf = (3 * L * kuv**2 * nv**2 * a / N + 2 * kuv**2 * nv**2 / (N * uv)) * (
        2 * k.Cy + 2 * L**2 * nv**2 * k.Cx
    )
    k.P = 6 * L * kuv * nv / N + 4 * kuv**2 * nv**2 / (N * uv)
    k.Q = (6 * L * kuv * nv**3 / N**2 + 4 * kuv**2 * nv**4 / (N**2 * uv)) * Lhat**2
    R_grad = 6 * kuv * nv / uv * (
        (6 * L + 4 * kuv * nv / uv) * 4 * a / (1 - sC2)
        + (6 * L * nv**2 + 4 * kuv * nv**3 / uv) * 8 * a**5 * k.Cx1 * L**2 / d
    )  # fmt: skip
    R_x1 = 24 * N * k.Cx2 / (uv * (1 - sR2)) * a
    R_x2 = 4 * R_grad * k.Cx2 / (1 - sR2) * a + 8 * k.Cx1 / d * a**2
    R_y1 = 6 * N / uv * (8 * k.Cx2 * k.Cy1 / d + 4 * k.Cy2 / (1 - sC2)) * a
    R_y2 = R_grad * (8 * k.Cx2 * k.Cy1 / d + 4 * k.Cy2 / (1 - sC2)) * a + 4 / (1 - sC2)
    k.V0, k.Sbar = r.D0 + a**3 * Cf, 6 * N / uv * r.D0 + R_grad * r.Y0**2
    k.sum_X, k.sum_Y = R_x1 * r.D0 + R_x2 * r.Y0**2, R_y1 * r.D0 + R_y2 * r.Y0**2
    k.Phi = 2 * L1 * k.V0 + sqrt(4 * L1**2 * k.V0**2 + 2 * L0 * k.V0)
    k.holds = a <= min(k.S1, k.S2, C_3, k.S4, C_5)
    return k


def least_bound(r: SimpleNamespace) -> float | None:
    """Return the least fixed point G of Phi(V0(G)) by plain iteration, None if a condition fails on the way."""
    G = 0.0
    for _ in range(1000):
        k = printed_constants(r, G)
        if not k.holds:
            return None
        if k.Phi <= G * (1 + 1e-13):
            return G
        G = k.Phi
    return None


# The rows of section 5


def local_rows(r: SimpleNamespace) -> dict[tuple[str, str], Sides]:
    """The rows that use no chain; those per agent have one column for each."""
    L0, L1, norm = r.smooth.L0, r.smooth.L1, np.linalg.norm
    level = L0 + L1 * norm(r.local, axis=2)
    here, there = norm(r.x - r.mean[:, None], axis=2), norm(r.x[1:] - r.mean[:-1, None], axis=2)
    moved = np.diff(r.mean, axis=0)
    t = norm(moved, axis=1)
    rows = {
        "dissimilarity (Assumption 3)": Sides(
            norm(r.local - r.grad_F[:, None], axis=2).max(axis=1), (r.smooth.ell - 1) * r.g + r.smooth.b
        ),
        "pre4: grad f_i, x_i^k against the average": Sides(
            norm(r.grad - r.local, axis=2), phi1(L1 * here) * level * here
        ),
        "pre4: grad f_i, x_i^{k+1} against the average": Sides(
            norm(r.grad[1:] - r.local[:-1], axis=2), phi1(L1 * there) * level[:-1] * there
        ),
        "pre3: quadratic upper bound of F": Sides(
            np.diff(r.F) - (r.grad_F[:-1] * moved).sum(axis=1),
            phi2(r.smooth.L1_F * t) * (r.smooth.L0_F + r.smooth.L1_F * r.g[:-1]) * t**2 / 2,
        ),
        "pre1: clipped steps": Sides(abs(r.steps - r.own) * norm(r.y, axis=2), r.own * r.w_i),
    }
    return {("all", name): sides for name, sides in rows.items()}


def proof_rows(r: SimpleNamespace, k: SimpleNamespace) -> dict[str, Sides]:
    """The recursions and the descent, with the printed constants."""
    a, abar = r.alpha, clipped(r.alpha, r.c0, r.nv * r.g)
    p, X2, Y2 = abar * r.g**2, r.X**2, r.Y**2
    x_next = (1 + r.sR**2) / 2 * X2 + a**2 * k.Cx1 * Y2 + a * k.Cx2 * p
    y_next = k.Cy1 * X2 + (1 + r.sC**2) / 2 * Y2 + a * k.Cy2 * p
    return {
        "x-recursion": Sides(X2[1:], x_next[:-1], a <= k.S1),
        "y-recursion": Sides(Y2[1:], y_next[:-1], a <= k.S2),
        "descent": Sides(
            r.uv / (3 * r.N) * p[:-1] + np.diff(r.F), (abar * (k.P * Y2 + k.Q * X2))[:-1], a <= k.S4
        ),
    }


def paper_rows(r: SimpleNamespace, G: float) -> dict[str, Sides]:
    k, reach = printed_constants(r, G), r.alpha * r.c0
    abar = clipped(r.alpha, r.c0, r.nv * r.g)
    weight = 2 * r.kuv**2 * r.nv**2 / (r.N * r.uv)
    inner = -r.uv / (2 * r.N) * abar * r.g**2 + weight * abar * r.w**2
    length = 6 * r.kv**2 * abar**2 * r.w**2 + 3 * r.N * r.nv**2 * abar**2 * r.g**2
    return {
        "unibound_x": Sides(r.X**2, np.full(r.K + 1, k.Cx * reach**2)),
        "gradient difference C_1": Sides(r.change**2, np.full(r.K, k.C1 * reach**2)),
        "unibound_y": Sides(r.Y**2, np.full(r.K + 1, k.Cy * reach**2)),
        "inner product (temp10)": Sides(-(r.grad_F * r.m).sum(axis=1), inner),
        "pre2a: step length": Sides(r.s**2, length),
        **proof_rows(r, k),
    }


def claims(r: SimpleNamespace, G: float | None) -> dict[str, Sides]:
    """The claims of a certificate; without one (G is None) nothing is promised."""
    p = clipped(r.alpha, r.c0, r.nv * r.g) * r.g**2
    lhs = {
        "gradient bound: g_k <= G": r.g,
        "potential: F_k - f_inf <= V0": r.F - r.smooth.lower_bound,
        "sum of abar g^2 <= Sbar": np.cumsum(p[:-1]),
        "sum of X^2": np.cumsum(r.X**2),
        "sum of Y^2": np.cumsum(r.Y**2),
        "smallest gradient <= eps_K": np.array([min(r.g[:j]) for j in range(1, r.K + 1)]),
    }
    if G is None:
        return {name: Sides(values, None, False) for name, values in lhs.items()}
    k = printed_constants(r, G)
    eps = [max(sqrt(k.Sbar / (r.alpha * j)), r.nv * k.Sbar / (r.alpha * r.c0 * j)) for j in range(1, r.K + 1)]
    rhs = (G, k.V0, k.Sbar, k.sum_X, k.sum_Y, np.array(eps))
    return {
        name: Sides(values, np.broadcast_to(bound, values.shape), None)
        for (name, values), bound in zip(lhs.items(), rhs, strict=True)
    }


# The comparison


class Compared(NamedTuple):
    check: RunCheck
    run: SimpleNamespace
    expected: dict[tuple[str, str], Sides]
    bound: float | None  # the least G


@cache
def compared(name: str) -> Compared:
    case = CASES[name]
    check = check_paper(
        case.problem,
        case.network,
        step_size=case.step_size,
        threshold=case.threshold,
        x0=case.x0,
        steps=case.steps,
    )
    r = measure(case, check.paper.smoothness)
    bound = least_bound(r)
    reported = float(check.row("gradient bound", "paper").rhs[0])
    is_certified = "certified" in check.row("y-recursion", "paper").terms.needs
    promised = claims(r, None if bound is None else reported)
    mine = paper_rows(r, reported if is_certified else float(max(r.g))) | promised
    expected = local_rows(r) | {("paper", row): sides for row, sides in mine.items()}
    return Compared(check, r, expected, bound)


def of_worst_agent(found: Row, sides: Sides) -> Sides:
    """Return both sides of the agent reported for each k; any of those with the largest ratio will do."""
    assert sides.rhs is not None
    is_void = sides.rhs < VOID  # the root of a tree is its own average
    ratio = np.where(is_void, 0.0, sides.lhs / np.where(is_void, 1.0, sides.rhs))
    is_worst = ratio >= (1 - RELATIVE) * ratio.max(axis=1, keepdims=True)
    distance = abs(found.lhs[:, None] - sides.lhs) + abs(found.rhs[:, None] - sides.rhs)
    agent = np.argmin(np.where(is_worst, distance, inf), axis=1)[:, None]
    return Sides(
        np.take_along_axis(sides.lhs, agent, 1)[:, 0],
        np.take_along_axis(sides.rhs, agent, 1)[:, 0],
        sides.is_met,
    )


@pytest.mark.parametrize("name", CASES)
def test_both_sides_of_every_row_are_those_of_the_page(name):
    check, r, expected, _ = compared(name)
    check = dataclasses.replace(check, rows=tuple(row for row in check.rows if row.chain != "certificate"))
    assert [(row.chain, row.name) for row in check.rows if (row.chain, row.name) not in expected] == []
    assert len(check.rows) == len(expected)
    unit = 1e-14 * (1 + max(abs(r.F)) + np.linalg.norm(r.grad, axis=2).sum(axis=1).max())
    for row in check.rows:
        label, sides = f"{row.chain}: {row.name}", expected[row.chain, row.name]
        if sides.lhs.ndim == 2:
            sides = of_worst_agent(row, sides)
        np.testing.assert_allclose(row.lhs, sides.lhs, rtol=RELATIVE, atol=unit, err_msg=label)
        if sides.rhs is not None:
            loss = unit if row.name.startswith(DISTANCES) else r.alpha * unit
            np.testing.assert_allclose(row.rhs, sides.rhs, rtol=RELATIVE, atol=loss, err_msg=label)
        if sides.is_met is not None:
            assert row.terms.is_met == sides.is_met, label
        assert np.max(row.rounding) <= 100 * unit * (1 + np.max(row.lhs)), label


def test_every_right_side_is_compared_in_some_run_and_every_precondition_met():
    compared_rows = {name: compared(name).expected for name in CASES}
    names = set.union(*(set(rows) for rows in compared_rows.values()))
    with_bound = {
        key
        for name, rows in compared_rows.items()
        for key, sides in rows.items()
        if sides.rhs is not None
        and (
            not key[1].startswith(DISTANCES) or CASES[name].step_size > 0.01
        )  # else they are as small as rounding
    }
    met = {key for rows in compared_rows.values() for key, sides in rows.items() if sides.is_met}
    assert names - with_bound == set()
    assert {key for key in names - met if key[0] != "paper"} == set()


@pytest.mark.parametrize("name", CASES)
def test_certified_gradient_bound_is_the_least_solution_of_its_equation(name):
    check, _, _, least = compared(name)
    assert (least is not None) == CASES[name].holds
    if least is not None:
        reported = check.row("gradient bound", "paper").rhs[0]
        assert least * (1 - 1e-12) <= reported <= least * (1 + 1e-6)


@pytest.mark.parametrize("name", CASES)
def test_runs_start_apart_and_clip_a_part_of_the_steps(name):
    _, r, _, _ = compared(name)
    is_clipped = r.steps < r.alpha
    assert r.X0 > 0.1
    assert 0.1 < is_clipped.mean() < 0.9
    assert (r.u == 0).any() == (CASES[name].network is WITH_ZEROS)
    if r.alpha > 0.01:
        assert 5 < is_clipped.any(axis=1).sum() < r.K  # from some k on, nobody is clipped
        assert min(r.g) < r.c0 / r.nv < max(r.g)  # both branches of abar_k
