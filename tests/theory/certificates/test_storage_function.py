"""The frequency formula, the storage behind it, and the proof that it falls."""

import dataclasses

import numpy as np
import pytest

from digrad import graphs
from digrad.network import Network
from digrad.theory.certificates.frequency_responses import Matrices, largest_step
from digrad.theory.certificates.proof import Proof
from digrad.theory.certificates.storage_function import (
    find_storages,
    is_negative,
    perron_error,
    prove_storages,
    supply,
)
from digrad.theory.certificates.tap_search import TapSearch

NETWORKS = {
    "example5": graphs.example5(),
    "ring6": graphs.ring(6),
    "k_out": graphs.k_out(8, 2, seed=1),
    "exponential": graphs.exponential(8),
}


def averaging(n: int) -> Matrices:
    return Matrices(np.full((n, n), 1 / n), np.full((n, n), 1 / n), *[np.ones(n)] * 4)


def test_one_agent_may_take_twice_the_inverse_curvature():
    alone = averaging(1)
    assert largest_step(alone, np.array([4.0]), taps=1).step_size == pytest.approx(0.5, rel=1e-3)


def test_equal_averaging_allows_half_the_inverse_curvature_and_less_without_convexity():
    assert largest_step(averaging(4), np.full(4, 3.0), taps=1).step_size == pytest.approx(1 / 6, rel=1e-3)
    nonconvex = largest_step(averaging(4), np.full(4, 3.0), taps=1, convex=False)
    assert nonconvex.step_size == pytest.approx(0.309 / 3, rel=5e-3)


@pytest.mark.parametrize(("taps", "convex"), [(1, True), (2, True), (4, True), (1, False)])
@pytest.mark.parametrize("name", NETWORKS)
def test_storage_exists_just_below_the_formula_and_not_above(name, taps, convex):
    phases = Matrices.of(Network(NETWORKS[name]))
    L = np.random.default_rng(0).uniform(0.3, 2.0, phases[0].n)
    found = largest_step(phases[0], L, taps=taps, convex=convex)
    for part, expected in ((0.5, True), (0.98, True), (0.999, True), (1.01, False)):
        asked = Proof(part * found.step_size, found, L, convex)
        proven = prove_storages(phases, asked, relative=perron_error(phases))
        assert (proven is not None) is expected


def test_more_taps_certify_more():
    matrices = Matrices.of(Network(graphs.example5()))[0]
    steps = [largest_step(matrices, np.ones(5), taps=taps).step_size for taps in (1, 2, 4)]
    assert steps == pytest.approx([0.25, 0.30, 0.41], rel=0.03)
    assert steps == sorted(steps)


def test_search_remembers_what_is_known_of_smaller_and_larger_curvatures():
    search = TapSearch(Matrices.of(Network(graphs.example5())), 2, convex=True)
    found = search.best(np.ones(5))
    assert search.reaching(np.full(5, 2.0), 0.4 * found.step_size).step_size == pytest.approx(
        found.step_size / 2
    )
    assert search.reaching(np.full(5, 2.0), 0.6 * found.step_size).step_size == pytest.approx(
        found.step_size / 2
    )
    assert len(search.known) == 1


def test_form_that_is_barely_positive_is_not_taken_for_negative():
    matrices = Matrices.of(Network(graphs.example5()))[0]
    found = largest_step(matrices, np.ones(5), taps=1)
    form = supply(matrices, Proof(0.9 * found.step_size, found, np.ones(5)))
    storages = find_storages([form])
    assert storages is not None
    (P,) = storages
    assert is_negative(form, P, P, relative=1e-14)
    assert not is_negative(form, P, P, relative=1e-3)  # had the matrices been known to three digits only
    assert not is_negative(form, P, P, relative=np.inf)


def test_perron_vectors_are_known_to_the_last_digits():
    for graph in NETWORKS.values():
        assert perron_error(Matrices.of(Network(graph))) < 1e-12


def test_weights_that_miss_a_sum_of_one_are_known_as_well_as_they_sum():
    (matrices,) = Matrices.of(Network(graphs.example5()))
    off = dataclasses.replace(matrices, R=matrices.R * (1 + 5e-11))  # a network allows 1e-10
    assert 5e-11 < perron_error((off,)) < 1e-8


def test_negative_form_is_proved_in_ball_arithmetic():
    """Every entry of Psi again, in 160-bit balls from rational matrices: the eigenvalues are below zero."""
    flint = pytest.importorskip("flint")
    matrices = Matrices.of(Network(graphs.example5()))[0]
    L = np.array([5.0, 4.0, 3.0, 4.0, 5.0])
    found = largest_step(matrices, L, taps=1)
    step = 0.95 * found.step_size
    storages = find_storages([supply(matrices, Proof(step, found, L))])
    assert storages is not None
    (P,) = storages
    assert _ball_check(flint, matrices, L, step, found, P)
    assert not _ball_check(flint, matrices, L, 1.2 * step, found, P)


def flat(rows: list) -> list:
    return [entry for row in rows for entry in row]


def _ball_check(flint, matrices, L, step, taps, P) -> bool:
    """Prove -Psi > 0 for J = 1 by Gaussian elimination in balls: all pivots are positive."""
    n, k = matrices.n, matrices.n - 1
    flint.ctx.prec = 160
    number, fraction = flint.arb, flint.fmpq

    def exact(M):
        """Return the exactly stochastic matrix of which the stored one is the rounding: uniform weights."""
        counts = [round(1 / w) if w else 0 for w in np.ravel(M)]
        return [
            [fraction(1, counts[i * n + j]) if counts[i * n + j] else fraction(0) for j in range(n)]
            for i in range(n)
        ]

    R, C = exact(matrices.R), exact(matrices.C)

    def perron(M):
        rows = [[M[i][j] - (1 if i == j else 0) for j in range(n)] for i in range(n - 1)] + [
            [fraction(1)] * n
        ]
        solved = flint.fmpq_mat(n, n, [x for row in rows for x in row]).solve(
            flint.fmpq_mat(n, 1, [fraction(0)] * (n - 1) + [fraction(n)])
        )
        return [solved[i, 0] for i in range(n)]

    u, v = perron([[R[j][i] for j in range(n)] for i in range(n)]), perron(C)

    def mat(rows):
        return flint.arb_mat([[number(x) for x in row] for row in rows])

    size = 4 * n - 2
    unit = [[fraction(int(i == j)) for j in range(size)] for i in range(size)]
    a, b = flint.fmpq_mat(k, size, flat(unit[:k])), flint.fmpq_mat(k, size, flat(unit[k : 2 * k]))
    p, q = (
        flint.fmpq_mat(n, size, flat(unit[2 * k : 2 * k + n])),
        flint.fmpq_mat(n, size, flat(unit[2 * k + n :])),
    )
    onto = [[fraction(int(i == j)) for j in range(k)] for i in range(k)]
    M = flint.fmpq_mat(n, k, flat([*onto, [-u[j] / u[k] for j in range(k)]]))
    N = flint.fmpq_mat(n, k, flat([*onto, [fraction(-1)] * k]))
    one = flint.fmpq_mat(n, n, [fraction(int(i == j)) for i in range(n) for j in range(n)])
    Rm, Cm = flint.fmpq_mat(n, n, flat(R)), flint.fmpq_mat(n, n, flat(C))
    PR = one - flint.fmpq_mat(n, n, [u[j] / n for _ in range(n) for j in range(n)])
    PC = one - flint.fmpq_mat(n, n, [v[i] / n for i in range(n) for _ in range(n)])
    ex, ey = M * a, N * b
    dx, exn, eyn = (Rm - one) * ex - p, Rm * ex - PR * p, Cm * ey + PC * q
    D = flint.fmpq_mat(n, n, [u[i] / v[i] if i == j else fraction(0) for i in range(n) for j in range(n)])

    def ball(x):
        return number(float(x))

    def lift(m):
        return mat([[m[i, j] for j in range(m.ncols())] for i in range(m.nrows())])

    tau = ball(taps.b[0])
    form = flint.arb_mat(size, size)
    weight = flint.arb_mat(
        [[number(1) / ball(L[i]) if i == j else number(0) for j in range(n)] for i in range(n)]
    )
    for left, right, factor in (
        (lift(p), lift(D * p), number(-1)),
        (lift(p), lift(D * ey), number(1)),
        (lift(q), lift(dx), 1 + tau),
        (lift(q), lift(exn), number(-1)),
        (lift(q), weight * lift(q), -(number(1) / 2 + tau) / ball(step)),
    ):
        product = left.transpose() * right * (factor / 2)
        form = form + product + product.transpose()
    following = flint.arb_mat(
        [[lift(exn)[i, j] for j in range(size)] for i in range(k)]
        + [[lift(eyn)[i, j] for j in range(size)] for i in range(k)]
    )
    now = flint.arb_mat([[number(int(i == j)) for j in range(size)] for i in range(2 * k)])
    stored = flint.arb_mat([[ball(x) for x in row] for row in P])
    psi = form + following.transpose() * stored * following - now.transpose() * stored * now
    rest = [[-psi[i, j] for j in range(size)] for i in range(size)]
    for i in range(size):
        if not rest[i][i] > 0:
            return False
        for row in range(i + 1, size):
            factor = rest[row][i] / rest[i][i]
            rest[row] = [x - factor * y for x, y in zip(rest[row], rest[i], strict=True)]
    return True
