"""The linear rate of certificates: no run falls more slowly, and nothing else is verified."""

import dataclasses
import math

import numpy as np
import pytest

from digrad import graphs, problems
from digrad.network import Network
from digrad.theory import Smoothness, certify, certify_state, closed_form, verify_proof
from digrad.theory.certificates.curvature_bounds import Losses
from digrad.theory.certificates.linearisation import hessians
from digrad.theory.potential import potentials

RNG = np.random.default_rng(3)
CENTER, SCALE = RNG.normal(size=(3, 2)), RNG.uniform(0.5, 2, 3)
TRIANGLE = graphs.from_edges(3, [(0, 1), (1, 2), (2, 0), (0, 2)])
FIXED, PERIODIC = Network(TRIANGLE), Network(graphs.split(TRIANGLE, 2))
QUADRATIC = problems.quadratic(curvature=SCALE[:, None] * np.ones((3, 2)), linear=3 * CENTER)
COSH = problems.cosh(center=CENTER, scale=SCALE)
LOGISTIC = problems.logistic(data="breast_cancer", agents=3, reg_weight=1e-2, reg_power=4, seed=0)
ASSERTED = Smoothness(L0=SCALE, strong_convexity=float(SCALE.mean()) * (1 - 1e-12), lower_bound=-50.0)
CASES = {
    "clipped quadratic": (QUADRATIC, FIXED, 0.5, None),
    "cosh": (COSH, FIXED, 5.0, None),
    "cosh without a clip": (COSH, FIXED, math.inf, None),
    "quartic": (problems.quartic(center=CENTER, scale=SCALE), FIXED, 2.0, None),
    "logistic, strongly convex near the minimum only": (LOGISTIC, FIXED, 2.0, None),
    "periodic network": (QUADRATIC, PERIODIC, 2.0, None),
    "nonconvex with given constants": (QUADRATIC, FIXED, 2.0, ASSERTED),
}


def run(problem, phases, step_size, threshold, steps):
    """Return x, y and the gradients of a run of CGT."""
    x = np.broadcast_to(problem.start, (problem.n_agents, problem.dim)).astype(float)
    y = grad = problem.local_gradients(x)
    found = [(x, y, grad)]
    for k in range(steps):
        lengths = np.linalg.norm(y, axis=1, keepdims=True)
        x = phases[k % len(phases)].R @ x - step_size * y / np.maximum(1, lengths / threshold)
        after = problem.local_gradients(x)
        y, grad = phases[k % len(phases)].C @ y + after - grad, after
        found.append((x, y, grad))
    return (np.array(each) for each in zip(*found, strict=True))


SLOW = ("cosh without a clip", "quartic")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in CASES]
)
def test_no_run_falls_more_slowly_than_the_promised_rate(name):
    problem, network, threshold, constants = CASES[name]
    largest = certify(problem, network, threshold, smoothness=constants).alpha_max
    start = np.broadcast_to(problem.start, (network.n, problem.dim))
    trackers = problem.local_gradients(start)
    found = certify_state(problem, network, start, trackers, 0.6 * largest, threshold, smoothness=constants)
    proof, phases, n = found.proof, found.start.phases, network.n
    assert found.rate is not None
    assert 0 < found.rate < 1
    x, y, grad = run(problem, phases, proof.step_size, threshold, 150)
    V, rounding = potentials(problem, phases, proof, x, y, grad)
    above = V - n * problem.solve(tolerance=1e-8).loss
    ratio = np.min([phase.ratio for phase in phases], axis=0)
    clipped = proof.kept * proof.step_size * ratio.min() * threshold**2
    promised = np.minimum(np.minimum(above[:-1], n * proof.depth) / proof.contraction, clipped)
    assert (above[:-1] - above[1:] >= promised - 2 * rounding[1:] - 1e-12 * above[0]).all()
    assert above[0] <= proof.budget
    slopes = np.linalg.norm(
        problem.local_gradients(np.einsum("i,kid->kd", phases[0].u / n, x)[0]).mean(axis=0)
    )
    assert found.iterations(slopes * 1e-6) < 20 * found.iterations(slopes * 1e-2)  # logarithmic, not 1/eps^2


def test_stored_rates_are_verified_and_forged_ones_are_not():
    stored = certify(COSH, FIXED, 5.0, step_size=0.01).to_dict()
    assert all(verify_proof(COSH, FIXED, stored["proof"], 5.0, step_size=0.01, promised=stored["K"]).values())
    for change in ({"contraction": 0.5}, {"modulus": 2.0}):
        forged = stored["proof"] | {name: factor * stored["proof"][name] for name, factor in change.items()}
        claims = verify_proof(COSH, FIXED, forged, 5.0, step_size=0.01)
        assert not claims["V falls at the linear rate, if the proof has one"], change


def test_strong_convexity_is_that_of_hessians_on_the_sublevel_set():
    losses, minimum, rng = Losses.of(LOGISTIC, None), LOGISTIC.solve(tolerance=1e-8), np.random.default_rng(0)
    assert losses.strong_convexity(math.inf) == 0
    for depth in (1e-4, 1e-3):
        modulus = losses.strong_convexity(depth)
        assert modulus > 0
        for direction in rng.normal(size=(10, LOGISTIC.dim)):
            x = minimum.x + direction / np.linalg.norm(direction)
            while LOGISTIC.local_losses(x).mean() > minimum.loss + depth:
                x = (x + minimum.x) / 2
            averaged = hessians(LOGISTIC, np.broadcast_to(x, (3, LOGISTIC.dim))).mean(axis=0)
            assert np.linalg.eigvalsh(averaged)[0] >= modulus


@pytest.mark.parametrize("name", ["clipped quadratic", "cosh", "quartic"])
def test_closed_forms_are_strongly_convex_everywhere(name):
    problem = CASES[name][0]
    modulus = closed_form(problem).strong_convexity
    for x in np.random.default_rng(1).normal(size=(20, 2)):
        averaged = hessians(problem, np.broadcast_to(x, (3, 2))).mean(axis=0)
        assert np.linalg.eigvalsh(averaged)[0] >= modulus > 0


def test_without_strong_convexity_no_rate_is_promised():
    smooth = dataclasses.replace(ASSERTED, strong_convexity=0.0)
    found = certify(QUADRATIC, FIXED, 2.0, step_size=0.01, smoothness=smooth)
    assert found.verdict == "holds"
    assert found.rate is None
