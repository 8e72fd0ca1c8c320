"""V never rises along any run that the theorem is about, and never falls below n F."""

import numpy as np
import pytest

from digrad import graphs, problems
from digrad.network import Network
from digrad.theory.certificates.curvature_bounds import Losses
from digrad.theory.certificates.frequency_responses import Matrices, Taps
from digrad.theory.certificates.instance import Instance, Start
from digrad.theory.certificates.proof import Proof
from digrad.theory.certificates.prove_step_size import close, largest
from digrad.theory.certificates.storage_function import supply
from digrad.theory.potential import potentials


def random_problem(rng: np.random.Generator, n: int, kind: int) -> problems.Problem:
    d = int(rng.integers(1, 4))
    if kind == 0:
        curvature = np.where(rng.random((n, d)) < 0.3, 0.0, rng.uniform(0, 3, (n, d)))
        curvature[0] += 0.1
        return problems.quadratic(
            curvature=curvature, linear=rng.normal(size=(n, d)), quartic=rng.choice([0.0, 0.5])
        )
    if kind == 1:
        return problems.cosh(
            center=rng.normal(size=(n, d)), scale=rng.uniform(0.3, 2, n), sharpness=rng.uniform(0.5, 1.5, n)
        )
    return problems.quartic(center=rng.normal(size=(n, d)), scale=rng.uniform(0.3, 2, n))


def factors(rng: np.random.Generator, kind: int, y: np.ndarray, threshold: float) -> np.ndarray:
    """Return 0 <= s_i <= 1 with |s_i y_i| <= c0: the clip, any factors, sleeping agents, smooth clipping."""
    clip = np.minimum(1, threshold / np.maximum(np.linalg.norm(y, axis=1), 1e-300))
    if kind == 1:
        return clip * rng.random(len(y))
    if kind == 2:
        return clip * (rng.random(len(y)) < 0.5)
    return threshold / (threshold + np.linalg.norm(y, axis=1)) if kind == 3 else clip


def random_network(seed: int, n: int) -> Network:
    """Return a ring, a complete graph or a random one; every fifth is periodic, with the rest of its edges."""
    graph = [
        graphs.ring(n),
        graphs.complete(n),
        graphs.k_out(n, min(2, n - 1), seed=seed) if n > 2 else graphs.ring(n),
    ][seed % 3]
    return Network(graphs.split(graph, 2 + seed % 2) if seed % 5 == 4 and n > 2 else graph)


def check_falls(seed: int, steps: int) -> int:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 7))
    network = random_network(seed, n)
    phases = Matrices.of(network)
    problem = random_problem(rng, n, seed % 3)
    losses = Losses.of(problem, None)._replace(convex=seed % 4 != 3)
    taps = 1 if not losses.convex or len(phases) > 1 else int(rng.integers(1, 5))
    x = rng.normal(size=problem.dim) + (0.2 if seed % 2 else 0.0) * rng.normal(size=(n, problem.dim))
    threshold = float(rng.choice([0.3, 2.0, 10.0]))
    instance = Instance(problem, network, taps=taps)
    instance.__dict__["losses"] = losses  # convex ones are also no more than smooth
    start = Start(instance, x, problem.local_gradients(x), np.full(n, threshold))
    proof = largest(start)
    assert proof is not None
    if seed % 5 == 0:  # steps below the certified one have proofs of their own
        proof = close(start, 0.5 * proof.step_size)
        assert proof is not None
    xs, ys, gs, decreases = [x], [start.y], [problem.local_gradients(x)], []
    for k in range(steps):
        now = phases[k % len(phases)]
        p = factors(rng, seed % 4, ys[-1], threshold)[:, None] * ys[-1]
        decreases.append(proof.kept * proof.step_size * np.sum(now.ratio[:, None] * p * ys[-1]))
        xs.append(now.R @ xs[-1] - proof.step_size * p)
        gs.append(problem.local_gradients(xs[-1]))
        ys.append(now.C @ ys[-1] + gs[-1] - gs[-2])
    x, y = np.array(xs), np.array(ys)
    V, rounding = potentials(problem, phases, proof, x, y, np.array(gs))
    weights = np.array([phases[k % len(phases)].u for k in range(steps + 1)])
    average = np.einsum("ki,kid->kd", weights / n, x)
    F = np.array([problem.local_losses(point).mean() for point in average[:: max(1, steps // 20)]])
    scale = 100 * (rounding.max() + 1e-13 * np.abs(V).max())
    assert (np.diff(V) + decreases <= scale).all()
    assert (n * F <= V[:: max(1, steps // 20)] + scale).all()
    assert (proof.level + scale >= F).all()
    assert (np.linalg.norm(x - average[:, None], axis=2) <= proof.width * (1 + 1e-9) + 1e-12).all()
    assert V[0] <= proof.potential
    return steps


@pytest.mark.parametrize("seed", [0, 1, 3, 4, 6])
def test_potential_never_rises_and_bounds_the_loss(seed):
    check_falls(seed, 60)


@pytest.mark.slow
def test_potential_never_rises_along_very_many_random_steps():
    assert sum(check_falls(seed, 500) for seed in range(100, 300)) == 100_000


@pytest.mark.parametrize(
    ("taps", "convex", "phases"), [(1, True, 1), (3, True, 1), (1, False, 1), (1, True, 3), (1, False, 3)]
)
def test_form_is_the_change_of_the_potential_where_every_inequality_is_tight(taps, convex, phases):
    """Quadratics as curved as assumed, and steps of 0 or y: V changes by alpha Psi exactly, for any storage."""
    rng = np.random.default_rng(taps + phases)
    graph = graphs.k_out(5, 2, seed=3)
    matrices = Matrices.of(Network(graphs.split(graph, phases) if phases > 1 else graph))
    L, alpha, kept, slack = rng.uniform(0.5, 2.0, 5), 0.3, 0.1, 0.2
    a, b = rng.uniform(0, 1, (2, taps))
    a[0] = 1 + b[0] - np.arange(2, taps + 1) @ (a - b)[1:]
    multipliers = Taps(a if convex else np.zeros(1), b, 0.0)
    proof = Proof(alpha, multipliers, L, convex, kept, slack)
    forms = [supply(one, proof) for one in matrices]
    states = len(forms[0].step.value)
    storages = tuple(M + M.T for M in rng.normal(size=(phases, states, states)))
    problem = problems.quadratic(curvature=np.outer(L, [1.0, 1.0]), linear=rng.normal(size=(5, 2)))
    xs = [rng.normal(size=(5, 2))]
    gs = [problem.local_gradients(xs[0])]
    ys, expected, paid = [gs[0]], [], []
    for k in range(3 * phases + taps):
        now, P = matrices[k % phases], storages[k % phases]
        p = (rng.random((5, 1)) < 0.6) * ys[-1]
        xs.append(now.R @ xs[-1] - alpha * p)
        gs.append(problem.local_gradients(xs[-1]))
        ys.append(now.C @ ys[-1] + gs[-1] - gs[-2])
        apart = xs[-2] - now.u @ xs[-2] / 5
        tracked = ys[-2] - np.outer(now.v, ys[-2].mean(axis=0))
        before = [max(len(xs) - 2 - j, 0) for j in range(1, taps)]
        history = [(xs[-2] - xs[j]) / alpha for j in before] + [gs[-2] - gs[j] for j in before]
        sigma = np.concatenate([apart[:-1] / alpha, tracked[:-1], *history, p, gs[-1] - gs[-2]])
        form = forms[k % phases]
        psi = form.form.value + form.step.value.T @ storages[(k + 1) % phases] @ form.step.value
        psi[:states, :states] -= P
        expected.append(alpha * np.sum(sigma * (psi @ sigma)))
        paid.append(kept * alpha * np.sum(now.ratio[:, None] * p * ys[-2]) + slack / alpha * np.sum(apart**2))
    proof = proof._replace(storages=storages)
    V, _ = potentials(problem, matrices, proof, np.array(xs), np.array(ys), np.array(gs))
    np.testing.assert_allclose(np.diff(V) + paid, expected, rtol=1e-9, atol=1e-9 * np.abs(V).max())


def test_potential_of_the_start_allows_for_what_rounding_does_to_gradients_and_to_their_mean():
    """e_y of agent 0 is off by 1 + v_0/3 times as much as the gradients, if the others are off the other way."""
    problem = problems.quadratic(curvature=np.ones((3, 1)), linear=[[1.0], [-1.0], [2.0]])
    instance = Instance(problem, Network(graphs.from_edges(3, [(0, 1), (1, 0), (2, 0), (0, 2)])), taps=1)
    x, off = np.zeros((3, 1)), 1e-3
    y = problem.local_gradients(x)
    start = Start(instance, x, y, np.full(3, 1.0))
    start.__dict__["errors"] = (np.zeros(3), np.full(3, off))  # instead of the last digits
    P = np.zeros((4, 4))
    P[2, 2] = 1.0
    for sign in (-1, 1):
        moved = y + sign * off * np.array([[1.0], [-1.0], [-1.0]])
        exact = 0.1 * (moved[0, 0] - start.matrices.v[0] * moved.mean()) ** 2
        assert problem.local_losses(x).sum() + exact <= start.potential(0.1, P)


def test_level_of_the_start_is_rounded_up():
    """F at the minimum, where its terms are far larger than their sum, against extended precision."""
    rng = np.random.default_rng(0)
    network = Network(graphs.example5())
    for _ in range(5):
        curvature, linear = rng.uniform(0.1, 1, (5, 3)), 1e6 * rng.normal(size=(5, 3))
        problem = problems.quadratic(curvature=curvature, linear=linear)
        x = np.tile(problem.solve(tolerance=np.inf).x, (5, 1))
        start = Start(Instance(problem, network), x, problem.local_gradients(x), np.full(5, 1.0))
        exact = x[0].astype(np.longdouble)
        terms = curvature.astype(np.longdouble) * exact**2 / 2 - linear.astype(np.longdouble) * exact
        assert start.level >= terms.sum(axis=1).mean()
