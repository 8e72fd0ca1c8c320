"""Methods that must coincide, what remains of each with one agent, and equivariance under relabelling."""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from digrad.arrays import clip_rows
from digrad.methods import (
    AB,
    CDSGD,
    CGT,
    DGD,
    DGDATC,
    DNSGD,
    DSGT,
    GD,
    METHODS,
    SGP,
    SONATA,
    AugPushPull,
    CDSGDNesterov,
    CDSGDPolyak,
    ClippedGD,
    DGDClip,
    GTNSGDm,
    JiangClip,
    NormalizedAB,
    PushDIGing,
    PushPull,
    SoftCGT,
    SubgradientPush,
)
from digrad.testing.numpy_net import NumPyNet, network, run, weights
from method_cases import AGENTS, CASES, LABELS, Case
from method_problems import Q5, Q5_GRAPH, Q5_START, Quadratic, random_problem

R, C, W = weights(Q5_GRAPH)
NET = network(Q5_GRAPH)
ALL_W = NumPyNet(5, R=W, C=W, W=W)


def path(
    method: Any, net: NumPyNet = NET, problem: Quadratic = Q5, x0: Any = Q5_START, steps: int = 50
) -> Any:
    return np.array([method.estimate(state) for state in run(method, net, problem.gradient, x0, steps)])


def same(first: Any, second: Any) -> None:
    # The trajectories start 14 away from the minimum: 1e-12 is 14 digits of agreement.
    np.testing.assert_allclose(first, second, rtol=0, atol=1e-12)


def test_cgt_without_threshold_is_ab_bitwise() -> None:
    np.testing.assert_array_equal(path(CGT(0.05, math.inf)), path(AB(0.05)))
    np.testing.assert_array_equal(path(CGT(0.05, np.full((5, 1), math.inf))), path(AB(0.05)))


def test_cgt_with_equal_agent_thresholds_is_cgt_bitwise() -> None:
    np.testing.assert_array_equal(path(CGT(0.05, np.full((5, 1), 2.0))), path(CGT(0.05, 2.0)))


def test_soft_cgt_without_threshold_is_ab() -> None:
    same(path(SoftCGT(0.05, math.inf)), path(AB(0.05)))


def test_cgt_with_tiny_threshold_is_normalized_ab() -> None:
    same(path(CGT(0.05 / 1e-6, 1e-6)), path(NormalizedAB(0.05)))


def test_ab_with_one_doubly_stochastic_matrix_is_diging() -> None:
    x, y = Q5_START, Q5.gradient(Q5_START)
    for estimate in path(AB(0.05), ALL_W):
        same(estimate, x)
        new = W @ x - 0.05 * y
        x, y = new, W @ y + Q5.gradient(new) - Q5.gradient(x)


def test_push_pull_with_one_doubly_stochastic_matrix_is_dsgt() -> None:
    same(path(PushPull(0.05), ALL_W), path(DSGT(0.05)))


def test_sonata_is_push_diging() -> None:
    same(path(SONATA(0.05)), path(PushDIGing(0.05)))
    states = zip(*(run(m(0.05), NET, Q5.gradient, Q5_START, 20) for m in (SONATA, PushDIGing)), strict=True)
    for sonata, diging in states:
        same(sonata.w * sonata.x, diging.x)
        same(sonata.s, diging.y)


def test_push_diging_with_doubly_stochastic_weights_is_dsgt() -> None:
    same(path(PushDIGing(0.05), ALL_W), path(DSGT(0.05)))


def test_sgp_with_doubly_stochastic_weights_is_dgd_atc() -> None:
    same(path(SGP(0.05), ALL_W), path(DGDATC(0.05)))
    assert abs(run(SGP(0.05), ALL_W, Q5.gradient, Q5_START, 50)[-1].w - 1).max() < 1e-13


def test_subgradient_push_is_sgp_from_the_mixed_start() -> None:
    start = run(SubgradientPush(0.05), NET, Q5.gradient, Q5_START, 0)[0]
    method = SGP(0.05)
    state = method.init(Q5_START, NET)._replace(x=start.x, w=start.w)
    for estimate in path(SubgradientPush(0.05)):
        np.testing.assert_array_equal(method.estimate(state), estimate)
        state = method.step(state, Q5.gradient(method.query(state)), NET)


@pytest.mark.parametrize("mixing", ["sinkhorn", "row"])
def test_methods_without_tracking_reduce_to_dgd(mixing: Any) -> None:
    expected = path(DGD(0.05, mixing=mixing))
    for method in (
        CDSGDPolyak(0.05, 0.0, mixing=mixing),
        CDSGDNesterov(0.05, 0.0, mixing=mixing),
        DGDClip(0.05, math.inf, mixing=mixing),
        JiangClip(0.05, math.inf, mixing=mixing),
    ):
        same(path(method), expected)


def test_i_cdsgd_with_one_mixing_round_is_cdsgd() -> None:
    x, rounds = Q5_START, 1
    for estimate in path(CDSGD(0.05)):
        same(estimate, x)
        x = np.linalg.matrix_power(W, rounds) @ x - 0.05 * Q5.gradient(x)


def test_row_choice_is_the_same_method_with_r_for_w() -> None:
    for case in CASES:
        if case.label.endswith("-row"):
            doubly = dataclasses.replace(case.method, mixing="sinkhorn")
            np.testing.assert_array_equal(path(case.method), path(doubly, NumPyNet(5, W=R)))


def test_gt_nsgdm_without_momentum_is_dnsgd_with_plain_gossip() -> None:
    same(path(GTNSGDm(0.05, 0.0)), path(DNSGD(0.05)))


def test_aug_push_pull_with_exact_averaging_is_gd() -> None:
    J = np.full((5, 5), 0.2)
    same(path(AugPushPull(0.05), NumPyNet(5, R=J, C=J)), path(GD(0.05)))


def test_clipped_full_atc_tracking_with_exact_averaging_is_clipped_gd_but_cgt_is_not() -> None:
    J = np.full((5, 5), 0.2)
    central = path(ClippedGD(0.05, 2.0))
    x, y, g = Q5_START, 0 * Q5_START, 0 * Q5_START
    for expected in central:
        same(x, expected)
        grad = Q5.gradient(x)
        y, g = J @ (y + grad - g), grad
        x = J @ (x - 0.05 * clip_rows(y, 2.0))
    gap = abs(path(CGT(0.05, 2.0), NumPyNet(5, R=J, C=J))[-1].mean(axis=0) - central[-1][0]).max()
    assert 1e-6 < gap < 1e-2


def test_equal_losses_and_starts_stay_equal_with_rows_alone() -> None:
    alike = Quadratic(a=np.tile([1.0, 3.0], (5, 1)), b=np.tile([2.0, -1.0], (5, 1)))
    same(path(DGD(0.05, mixing="row"), problem=alike), path(GD(0.05), problem=alike))


# One agent: the centralized counterpart


def _heavy_ball(method: Any, problem: Quadratic, x: Any, look_ahead: float) -> Any:
    v = 0 * x
    while True:
        yield x
        v = method.momentum * v - method.step_size * problem.gradient(x + look_ahead * method.momentum * v)
        x = x + v


def _amsgrad(method: Any, problem: Quadratic, x: Any, *, average: bool) -> Any:
    """AMSGrad (or AdaGrad) without bias correction, with the second moment of the step before when delayed."""
    m, v, vhat, past = 0 * x, 0 * x, 0 * x + method.epsilon, []
    while True:
        yield x
        g = problem.gradient(x)
        past.append(g**2)
        m = method.momentum * m + (1 - method.momentum) * g
        if not average:
            v = method.second_momentum * v + (1 - method.second_momentum) * g**2
        new = np.mean(past, axis=0) if average else np.maximum(vhat, v)
        used = vhat if method.delayed else new
        x = x - method.step_size * m / np.sqrt(np.maximum(used, method.epsilon))
        vhat = new


def _soft(method: Any, problem: Quadratic, x: Any) -> Any:
    while True:
        yield x
        g = problem.gradient(x)
        x = x - method.step_size * g * method.threshold / (method.threshold + np.linalg.norm(g))


def _descent(method: Any, problem: Quadratic, x: Any) -> Any:
    while True:
        yield x
        x = x - method.step_size * problem.gradient(x)


def _clipped_descent(method: Any, problem: Quadratic, x: Any) -> Any:
    while True:
        yield x
        g = problem.gradient(x)
        x = x - method.step_size * min(1.0, method.threshold / np.linalg.norm(g)) * g


def _normalized_descent(method: Any, problem: Quadratic, x: Any) -> Any:
    beta, m = getattr(method, "momentum", 0.0), 0 * x
    while True:
        yield x
        m = beta * m + (1 - beta) * problem.gradient(x)
        x = x - method.step_size * m / np.linalg.norm(m)


def _adam(method: Any, problem: Quadratic, x: Any) -> Any:
    first, second, m, v = method.momentum, method.second_momentum, 0 * x, 0 * x
    for t in itertools.count(1):
        yield x
        g = problem.gradient(x)
        m = first * m + (1 - first) * g
        v = second * v + (1 - second) * g**2
        x = x - method.step_size * (m / (1 - first**t)) / (np.sqrt(v / (1 - second**t)) + method.epsilon)


def _quasi_global(method: Any, problem: Quadratic, x: Any) -> Any:
    m, beta = 0 * x, method.momentum
    while True:
        yield x
        step = beta * m + problem.gradient(x)
        x, m = x - method.step_size * step, beta * m + (1 - beta) * step


def _rounds(method: Any, problem: Quadratic, x: Any, *, nesterov: bool) -> Any:
    """Momentum, or that of Nesterov as torch has it, on the negative way of the local steps."""
    fast, b = x, 0 * x
    for k in itertools.count():
        yield x
        fast = fast - method.step_size * problem.gradient(fast)
        if k % method.local_steps == 0:
            b = method.momentum * b + (x - fast)
            x = fast = x - method.outer_step * (method.momentum * b + (x - fast) if nesterov else b)


COUNTERPARTS: dict[str, Callable[[Any, Quadratic, Any], Any]] = {
    **dict.fromkeys(("AB", "PushPull", "AugPushPull", "FROST", "PushDIGing", "PushSAGA", "ADDOPT"), _descent),
    **dict.fromkeys(("SONATA", "SGP", "SubgradientPush", "DSGT", "DGD", "DGDATC", "GD"), _descent),
    **dict.fromkeys(("CGT", "DGDClip", "JiangClip", "ClippedGD"), _clipped_descent),
    **dict.fromkeys(("NormalizedAB", "DNSGD", "GTNSGDm", "DeMuon", "NSGDm"), _normalized_descent),
    "SoftCGT": _soft,
    "Adam": _adam,
    "CDSGDPolyak": lambda m, problem, x: _heavy_ball(m, problem, x, 0.0),
    "MomentumTracking": lambda m, problem, x: _heavy_ball(m, problem, x, 0.0),
    "QGDSGDm": _quasi_global,
    "DiLoCo": lambda m, problem, x: _rounds(m, problem, x, nesterov=True),
    "NoLoCo": lambda m, problem, x: _rounds(m, problem, x, nesterov=False),
    "CDSGDNesterov": lambda m, problem, x: _heavy_ball(m, problem, x, 1.0),
    "DAMSGrad": lambda m, problem, x: _amsgrad(m, problem, x, average=False),
    "DAdaGrad": lambda m, problem, x: _amsgrad(m, problem, x, average=True),
}
# One threshold per agent has no counterpart with one agent.
REDUCIBLE = [case for case in CASES if case.label != "CGT-agents"]
# FROST rescales its gradients until it knows the Perron weights, so it starts differently even on equal agents.
EQUAL = [case for case in REDUCIBLE if case.label != "FROST"]


def test_every_method_has_a_centralized_counterpart() -> None:
    assert set(COUNTERPARTS) == {method.__name__ for method in METHODS.values()}


@pytest.mark.parametrize("case", REDUCIBLE, ids=[case.label for case in REDUCIBLE])
def test_one_agent_follows_the_centralized_counterpart(case: Case) -> None:
    one = np.ones((1, 1))
    problem, x0 = Quadratic(a=np.array([[1.0, 3.0]]), b=np.array([[2.0, -1.0]])), np.array([[4.0, -3.0]])
    expected = COUNTERPARTS[type(case.method).__name__](case.method, problem, x0)
    actual = path(case.method, NumPyNet(1, R=one, C=one, W=one), problem, x0, 50)
    same(actual, np.array(list(itertools.islice(expected, 51))))


@pytest.mark.parametrize("case", EQUAL, ids=[case.label for case in EQUAL])
def test_equal_agents_on_the_complete_graph_follow_the_centralized_counterpart(case: Case) -> None:
    J = np.full((4, 4), 0.25)
    one, x0 = Quadratic(a=np.array([[1.0, 3.0]]), b=np.array([[2.0, -1.0]])), np.array([[4.0, -3.0]])
    alike = Quadratic(a=np.tile(one.a, (4, 1)), b=np.tile(one.b, (4, 1)))
    actual = path(case.method, NumPyNet(4, R=J, C=J, W=J), alike, np.tile(x0, (4, 1)), 50)
    expected = COUNTERPARTS[type(case.method).__name__](case.method, one, x0)
    for x, y in zip(actual, expected, strict=False):
        same(x, np.tile(y, (4, 1)))


# Relabelling


@pytest.mark.parametrize("case", CASES, ids=LABELS)
def test_relabelling_the_agents_permutes_the_trajectory(case: Case) -> None:
    for seed in range(10):
        graph, problem, start = random_problem(AGENTS, 2, seed)
        order = np.random.default_rng(seed).permutation(AGENTS)
        method, relabelled = case.method, case.method
        if isinstance(getattr(method, "threshold", None), np.ndarray):
            relabelled = dataclasses.replace(method, threshold=method.threshold[order])
        matrices = {name: M[np.ix_(order, order)] for name, M in zip("RCW", weights(graph), strict=True)}
        moved = Quadratic(a=problem.a[order], b=problem.b[order])
        actual = path(relabelled, NumPyNet(AGENTS, **matrices), moved, start[order], 6)
        same(actual, path(method, network(graph), problem, start, 6)[:, order])


# Mini-batches: why the stored gradient is subtracted


def test_differences_on_the_same_batch_keep_the_first_noise_forever() -> None:
    rng = np.random.default_rng(0)
    first = rng.normal(0, 0.5, (5, 2))
    predicted = Q5.minimum - first.mean(axis=0) / Q5.a.mean(axis=0)
    np.testing.assert_allclose(predicted, (0.305642, 0.332798), atol=5e-7)
    x, y = Q5_START, Q5.gradient(Q5_START) + first
    for _ in range(3000):
        new = R @ x - 0.05 * y
        noise = rng.normal(0, 0.5, (5, 2))
        x, y = new, C @ y + (Q5.gradient(new) + noise) - (Q5.gradient(x) + noise)
    np.testing.assert_allclose(x, np.tile(predicted, (5, 1)), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("step_size", "rms"),
    [
        (0.1, 0.1264),
        pytest.param(0.05, 0.0628, marks=pytest.mark.slow),
        pytest.param(0.01, 0.0176, marks=pytest.mark.slow),
    ],
)
def test_stored_differences_hover_around_the_minimum_and_keep_the_invariant(
    step_size: float, rms: float
) -> None:
    rng = np.random.default_rng(0)
    states = run(
        CGT(step_size, 5.0), NET, lambda x: Q5.gradient(x) + rng.normal(0, 0.5, x.shape), Q5_START, 8000
    )
    x = np.array([state.x for state in states[4000:]])
    assert np.linalg.norm(x.mean(axis=(0, 1)) - Q5.minimum) < 1e-2
    assert np.sqrt(((x - Q5.minimum) ** 2).sum(axis=2).mean()) == pytest.approx(rms, rel=2e-2)
    same(states[-1].y.sum(axis=0), states[-1].g.sum(axis=0))
