"""Gradient sources: SAGA against its equations and the figures of the specification, and its memory."""

import numpy as np
import pytest

import digrad as dg
from digrad.errors import ArgumentError
from digrad.sampling import WithReplacement
from method_problems import Q5, Q5_GRAPH, Q5_SAMPLES, Q5_START, sample_loss

NETWORK = dg.Network(Q5_GRAPH)
A, B = Q5_SAMPLES
SAGA = {"batch_size": 1, "sampling": "saga", "x0": Q5_START}


@pytest.fixture(scope="module")
def problem():
    found = dg.problems.from_loss(sample_loss, list(zip(A, B, strict=True)), 2)
    np.testing.assert_allclose(found.local_gradients(Q5_START), Q5.gradient(Q5_START), atol=1e-13)
    return found


@pytest.fixture
def samples(monkeypatch):
    """The samples of the specification."""
    drawn = np.random.default_rng(0).integers(4, size=(500, 5)).astype(np.int32)
    monkeypatch.setattr(
        WithReplacement, "batches", lambda _, first, length: drawn[first : first + length, :, None]
    )
    return drawn


def transcribed(step_size, samples, *, push_sum):
    """Run AB-SAGA, or Push-SAGA, agent by agent."""
    R, C = NETWORK.R.matrix.toarray(), NETWORK.C.matrix.toarray()
    n, mixing = 5, C if push_sum else R
    x, w, y, s = Q5_START.copy(), np.ones(n), np.zeros((n, 2)), np.zeros((n, 2))
    table = np.zeros((n, 4, 2))
    for drawn in samples:
        z, before = x / w[:, None], s
        s = np.zeros((n, 2))
        for i, j in enumerate(drawn):
            g = A[i, j] * z[i] - B[i, j]
            s[i] = g - table[i, j] + table[i].mean(axis=0)
            table[i, j] = g
        y = np.array([sum(C[i, j] * (y[j] + s[j] - before[j]) for j in range(n)) for i in range(n)])
        x = np.array([sum(mixing[i, j] * (x[j] - step_size * y[j]) for j in range(n)) for i in range(n)])
        w = C @ w if push_sum else w
    return x / w[:, None]


@pytest.mark.parametrize(
    ("method", "third", "ends"),
    [
        (dg.AugPushPull(0.02), [(8.126737, -7.814245), (8.401643, -7.900020)], (2.43e-2, 5.49e-5, 2.36e-10)),
        (dg.PushSAGA(0.02), [(8.252421, -7.901432), (8.357296, -7.802062)], (2.46e-2, 5.70e-5, 2.46e-10)),
    ],
    ids=["AB-SAGA", "Push-SAGA"],
)
def test_saga_is_its_equations_and_ends_as_the_specification_says(method, third, ends, problem, samples):
    def end(steps):
        return dg.simulate(method, problem, NETWORK, steps=steps, record_every=100, **SAGA).final_x

    np.testing.assert_allclose(end(3)[[0, 4]], third, atol=5e-7)
    for steps, error in zip((100, 200, 400), ends, strict=True):
        assert np.abs(end(steps) - Q5.minimum).max() == pytest.approx(error, rel=5e-3)
    is_push_sum = isinstance(method, dg.PushSAGA)
    np.testing.assert_allclose(end(60), transcribed(0.02, samples[:60], push_sum=is_push_sum), atol=1e-12)


def test_memory_of_saga_is_stored_and_kept_of_sleeping_agents(problem, tmp_path):
    method, whole = dg.AugPushPull(0.02), {"record_every": 7, **SAGA}
    alone = dg.simulate(method, problem, NETWORK, steps=40, **whole)
    dg.simulate(method, problem, NETWORK, steps=17, checkpoint=dg.Checkpoint(tmp_path / "run.npz"), **whole)
    resumed = dg.Checkpoint(tmp_path / "run.npz", resume=True)
    again = dg.simulate(method, problem, NETWORK, steps=40, checkpoint=resumed, **whole)
    np.testing.assert_array_equal(again.final_x, alone.final_x)
    # Agents that sleep now and then still reach the exact minimum.
    sleepy = dg.Network(Q5_GRAPH, links=dg.Links(awake=0.7))
    assert dg.simulate(method, problem, sleepy, steps=1500, record_every=500, **SAGA).verdict == "converged"


def test_saga_of_several_seeds_and_of_a_sweep_are_the_single_runs(problem):
    method, options = dg.AB(0.02), {"steps": 20, "record_every": 10, **SAGA}
    together = dg.compare([method], problem, NETWORK, seeds=2, **options)["AB"]
    alone = dg.simulate(method, problem, NETWORK, seed=1, **options)
    np.testing.assert_allclose(together.traces[1].final_x, alone.final_x, rtol=0, atol=1e-13)
    found = dg.sweep(
        dg.AB, problem, NETWORK, grid={"step_size": [0.02]}, common_random_numbers=True, seed=1, **options
    )
    assert found.table["final_loss"][0] == pytest.approx(alone.final["loss"], rel=1e-9)


def test_saga_takes_one_sample(problem):
    for batch_size in (None, 2):
        with pytest.raises(ArgumentError, match="`batch_size` must be 1 with sampling='saga'"):
            dg.simulate(dg.AB(0.02), problem, NETWORK, steps=2, **{**SAGA, "batch_size": batch_size})
    with pytest.raises(ArgumentError, match="no samples to draw from"):
        dg.simulate(dg.AB(0.02), dg.problems.example_quadratic(), NETWORK, steps=2, **SAGA)
