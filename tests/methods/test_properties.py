"""Invariants of every method on random strongly connected digraphs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from digrad.arrays import clip_rows
from digrad.methods import METHODS
from digrad.testing.numpy_net import network, run, weights
from method_cases import CASES, Case
from method_problems import random_problem

TOLERANCE = 1e-11  # sums of a few numbers of order 1 to 10, accumulated over a dozen steps
STEPS = 12


class Run:
    """A trajectory on a random digraph with everything that an invariant speaks about."""

    def __init__(self, method: Any, n: int, d: int, seed: int) -> None:
        self.graph, self.problem, start = random_problem(n, d, seed)
        self.method, self.n = method, n
        self.R, self.C, self.W = weights(self.graph)
        self.u = _perron(self.R)
        self.weights = self.u if getattr(method, "mixing", "sinkhorn") == "row" else np.ones(n)
        self.states = run(method, network(self.graph), self.problem.gradient, start, STEPS)
        self.gradients = [self.problem.gradient(method.query(state)) for state in self.states]

    def steps(self) -> Any:
        return zip(self.states, self.gradients, self.states[1:], strict=False)


def _perron(R: np.ndarray) -> np.ndarray:
    """Return u with u R = u and sum n, from the equations."""
    n = len(R)
    return np.linalg.lstsq(np.vstack([R.T - np.eye(n), np.ones(n)]), np.r_[np.zeros(n), n], rcond=None)[0]


def close(first: Any, second: Any) -> None:
    np.testing.assert_allclose(first, second, rtol=TOLERANCE, atol=TOLERANCE)


def sums_agree(tracker: str, stored: str) -> Callable[[Run], None]:
    """The weighted sum of the tracker is that of what it tracks (weights: ones, or u for mixing with R)."""

    def invariant(r: Run) -> None:
        for state in r.states[1:]:
            close(r.weights @ getattr(state, tracker), r.weights @ getattr(state, stored))

    return invariant


def stored_gradient_is_the_last(r: Run) -> None:
    for _, grad, after in r.steps():
        np.testing.assert_array_equal(after.g, grad)


def push_sum_weights(r: Run) -> None:
    for state in r.states:
        close(state.w.sum(), r.n)
        assert (state.w > 0).all()


def perron_average_moves_at_most(bound: Callable[[Any], float]) -> Callable[[Run], None]:
    def invariant(r: Run) -> None:
        for before, _, after in r.steps():
            move = r.u @ (after.x - before.x) / r.n
            assert np.linalg.norm(move) <= bound(r.method) * (1 + 1e-9)

    return invariant


def mean_moves_by(step: Callable[[Any, np.ndarray, Any], np.ndarray]) -> Callable[[Run], None]:
    def invariant(r: Run) -> None:
        for before, grad, after in r.steps():
            close(r.weights @ after.x, r.weights @ (before.x + step(r.method, grad, after)))

    return invariant


def perron_sum_moves_by(step: Callable[[Any, Any], np.ndarray]) -> Callable[[Run], None]:
    """The law of u'x for methods that mix x with R: only the steps move it, because u'R = u'."""

    def invariant(r: Run) -> None:
        for before, _, after in r.steps():
            close(r.u @ after.x, r.u @ (before.x - r.method.step_size * step(r.method, after.y)))

    return invariant


def mean_moves_by_the_agreed_steps(r: Run) -> None:
    """The second moment that divides m is the mixed tracker, of the step before when delayed."""
    P = r.R if r.method.mixing == "row" else r.W
    for before, _, after in r.steps():
        agreed = np.maximum(P @ before.u if r.method.delayed else after.u, r.method.epsilon)
        move = r.method.step_size * after.m / np.sqrt(agreed)
        close(r.weights @ after.x, r.weights @ (before.x - move))


def step_lengths(r: Run) -> np.ndarray:
    return np.array([np.linalg.norm(after.x - before.x, axis=1) for before, _, after in r.steps()])


def every_step_has_the_length_of_the_step_size(r: Run) -> None:
    close(step_lengths(r), r.method.step_size)


def no_step_is_longer_than_a_clipped_one(r: Run) -> None:
    assert (step_lengths(r) <= r.method.step_size * r.method.threshold + TOLERANCE).all()


def frost_tracks_scaled_gradients(r: Run) -> None:
    for before, grad, after in r.steps():
        close(after.g, grad / np.diag(before.z)[:, None])
        close(r.u @ after.y, r.u @ after.g)
        close(after.z.sum(axis=1), np.ones(r.n))


def second_moment_never_decreases(r: Run) -> None:
    for before, _, after in r.steps():
        assert (after.vhat >= before.vhat).all()
        assert (after.vhat >= r.method.epsilon).all()


def counts_steps(r: Run) -> None:
    assert [float(state.t[0, 0]) for state in r.states] == list(range(STEPS + 1))


def rows_are_equal(r: Run) -> None:
    for state in r.states:
        for field in state:
            close(field, np.broadcast_to(field[:1], field.shape))


def mean_moves_by_the_momentum_and_the_gradient(r: Run) -> None:
    for before, grad, after in r.steps():
        step = r.method.step_size * (r.method.momentum * before.m + grad)
        close(r.weights @ after.x, r.weights @ (before.x - step))


def outer_steps_move_the_mean(r: Run) -> None:
    m = r.method
    for before, grad, after in r.steps():
        if before.t[0, 0] > 0:  # a local step
            np.testing.assert_array_equal(after.z, before.z)
            continue
        np.testing.assert_array_equal(after.x, after.z)
        way = before.x - m.step_size * grad - before.z
        if hasattr(after, "m"):
            close(r.weights @ after.m, r.weights @ (m.momentum * before.m + m.outer_step * way))
        else:
            close(r.weights @ after.z, r.weights @ (after.h + m.momentum * (after.h - before.h)))
            close(after.h, before.z + m.outer_step * way)


def clipped_step(m: Any, grad: np.ndarray, after: Any) -> np.ndarray:
    return -m.step_size * clip_rows(grad, m.threshold)


def common_step(m: Any, grad: np.ndarray, after: Any) -> np.ndarray:
    return -m.step_size * min(1, m.threshold / np.linalg.norm(grad.mean(axis=0))) * grad


def plain_step(m: Any, grad: np.ndarray, after: Any) -> np.ndarray:
    return -m.step_size * grad


def velocity(m: Any, grad: np.ndarray, after: Any) -> np.ndarray:
    return after.v


def soft(m: Any, y: np.ndarray) -> np.ndarray:
    return y * m.threshold / (m.threshold + np.linalg.norm(y, axis=1, keepdims=True))


def unit(m: Any, y: np.ndarray) -> np.ndarray:
    return y / np.linalg.norm(y, axis=1, keepdims=True)


tracked = (sums_agree("y", "g"), stored_gradient_is_the_last)
capped = perron_average_moves_at_most(lambda m: m.step_size * np.max(m.threshold))
INVARIANTS: dict[str, tuple[Callable[[Run], None], ...]] = {
    "CGT": (*tracked, capped, perron_sum_moves_by(lambda m, y: clip_rows(y, m.threshold))),
    "SoftCGT": (*tracked, capped, perron_sum_moves_by(soft)),
    "AB": (*tracked, perron_sum_moves_by(lambda m, y: y)),
    "PushPull": (*tracked, perron_sum_moves_by(lambda m, y: y)),
    "AugPushPull": (*tracked, perron_sum_moves_by(lambda m, y: y)),
    "NormalizedAB": (
        *tracked,
        perron_average_moves_at_most(lambda m: m.step_size),
        perron_sum_moves_by(unit),
    ),
    "FROST": (frost_tracks_scaled_gradients,),
    "PushDIGing": (*tracked, push_sum_weights),
    "PushSAGA": (*tracked, push_sum_weights),
    "ADDOPT": (*tracked, push_sum_weights),
    "SONATA": (sums_agree("s", "g"), stored_gradient_is_the_last, push_sum_weights),
    "SGP": (push_sum_weights, mean_moves_by(plain_step)),
    "SubgradientPush": (push_sum_weights, mean_moves_by(plain_step)),
    "DSGT": tracked,
    "MomentumTracking": (sums_agree("y", "u"),),
    "QGDSGDm": (mean_moves_by_the_momentum_and_the_gradient,),
    "DGD": (mean_moves_by(plain_step),),
    "DGDATC": (mean_moves_by(plain_step),),
    "DGDClip": (mean_moves_by(clipped_step),),
    "CDSGDPolyak": (mean_moves_by(velocity),),
    "CDSGDNesterov": (mean_moves_by(velocity),),
    "DAMSGrad": (
        sums_agree("u", "vhat"),
        second_moment_never_decreases,
        mean_moves_by_the_agreed_steps,
    ),
    "DAdaGrad": (sums_agree("u", "vhat"), counts_steps, mean_moves_by_the_agreed_steps),
    "DNSGD": (sums_agree("v", "g"), stored_gradient_is_the_last),
    "GTNSGDm": (sums_agree("y", "v"),),
    "DeMuon": (sums_agree("y", "m"),),
    "DiLoCo": (outer_steps_move_the_mean,),
    "NoLoCo": (outer_steps_move_the_mean,),
    "JiangClip": (mean_moves_by(common_step),),
    "GD": (rows_are_equal, mean_moves_by(plain_step)),
    "ClippedGD": (rows_are_equal, no_step_is_longer_than_a_clipped_one),
    "NSGDm": (rows_are_equal, every_step_has_the_length_of_the_step_size),
    "Adam": (rows_are_equal, counts_steps),
}
# The case with one threshold per agent is tied to its number of agents and is covered by the reference test.
FREE = [case for case in CASES if case.label != "CGT-agents"]


def test_every_method_has_an_invariant() -> None:
    assert set(INVARIANTS) == {method.__name__ for method in METHODS.values()}


@pytest.mark.parametrize("case", FREE, ids=[case.label for case in FREE])
@settings(max_examples=12, deadline=None)
@given(n=st.integers(1, 7), d=st.integers(1, 4), seed=st.integers(0, 2**16))
def test_invariants_hold_on_random_digraphs(case: Case, n: int, d: int, seed: int) -> None:
    trajectory = Run(case.method, n, d, seed)
    for invariant in INVARIANTS[type(case.method).__name__]:
        invariant(trajectory)


@settings(max_examples=25, deadline=None)
@given(n=st.integers(1, 7), d=st.integers(1, 4), seed=st.integers(0, 2**16), rounds=st.integers(1, 5))
def test_chebyshev_gossip_preserves_the_mean_for_every_number_of_rounds(
    n: int, d: int, seed: int, rounds: int
) -> None:
    method = METHODS["DNSGD"](0.05, gossip_rounds=rounds, chebyshev=0.3)
    sums_agree("v", "g")(Run(method, n, d, seed))


@settings(max_examples=25, deadline=None)
@given(n=st.integers(2, 6), seed=st.integers(0, 2**16), threshold=st.floats(0.1, 10))
def test_clipped_step_size_lemma_holds_along_cgt(n: int, seed: int, threshold: float) -> None:
    r = Run(METHODS["CGT"](0.05, threshold), n, 2, seed)
    v = _perron(r.C.T)
    for before, _, after in r.steps():  # y_k is in the state after step k
        mean = r.u @ before.x / n
        gradient = r.problem.gradient(np.tile(mean, (n, 1))).mean(axis=0)
        size = max(np.linalg.norm(gradient), 1e-300)
        y = np.linalg.norm(after.y, axis=1)
        own = 0.05 * np.minimum(1, threshold / np.maximum(y, 1e-300))
        per_agent = 0.05 * np.minimum(1, threshold / (v * size))
        common = 0.05 * min(1, threshold / (np.linalg.norm(v) * size))
        gap = np.linalg.norm(after.y - v[:, None] * gradient, axis=1)
        assert (abs(own - per_agent) * y <= np.linalg.norm(v) / v * common * gap + 1e-12).all()
