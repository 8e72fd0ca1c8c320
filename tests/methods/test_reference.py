"""Every method against its agent-by-agent transcription, step by step, on random digraphs."""

import itertools

import numpy as np
import pytest

from digrad.methods import METHODS, AugPushPull
from digrad.testing.numpy_net import network, run, weights
from method_cases import AGENTS, CASES, LABELS, Case
from method_problems import random_problem
from method_transcriptions import TRANSCRIPTIONS

STEPS = 25


def test_every_method_has_a_transcription() -> None:
    assert set(TRANSCRIPTIONS) == {method.__name__ for method in METHODS.values()}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("case", CASES, ids=LABELS)
def test_method_follows_its_transcription(case: Case, seed: int) -> None:
    graph, problem, start = random_problem(AGENTS, 3, seed)
    method = case.method
    states = run(method, network(graph), problem.gradient, start, STEPS)
    naive = TRANSCRIPTIONS[type(method).__name__](
        method, *weights(graph), lambda i, x: problem.a[i] * x - problem.b[i], list(start)
    )
    for k, (state, expected) in enumerate(zip(states, itertools.islice(naive, STEPS + 1), strict=True)):
        np.testing.assert_allclose(method.estimate(state), expected, rtol=0, atol=1e-12, err_msg=f"step {k}")


def test_aug_push_pull_has_the_limit_of_the_start_of_the_paper() -> None:
    graph, problem, start = random_problem(AGENTS, 2, 0)
    R, C, _ = weights(graph)
    x, y = start, problem.gradient(start)
    for _ in range(2000):
        new = R @ (x - 0.05 * y)
        x, y = new, C @ (y + problem.gradient(new) - problem.gradient(x))
    state = run(AugPushPull(0.05), network(graph), problem.gradient, start, 2000)[-1]
    np.testing.assert_allclose(state.x, x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(x, np.tile(problem.minimum, (AGENTS, 1)), rtol=0, atol=1e-12)
