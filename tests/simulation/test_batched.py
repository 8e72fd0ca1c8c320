"""Runs side by side are the runs themselves."""

import signal

import jax
import numpy as np
import pytest

import digrad as dg
from digrad.errors import ArgumentError
from digrad.sampling import WithReplacement
from digrad.simulation import batched
from digrad.simulation.batched import drive_together
from digrad.simulation.driver import Plan
from digrad.simulation.setup import prepare

NETWORK = dg.Network(dg.graphs.example5())
QUARTIC = dg.problems.example_quartic()


def plan(**options):
    given = {
        "steps": 60,
        "record_every": 10,
        "tolerance": 1e-6,
        "stop_at_tolerance": False,
        "callback": None,
        "checkpoint": None,
        "chunk": None,
    }
    return Plan(**{**given, **options})


def same(trace, alone):
    assert (trace.verdict, trace.diverged_at, trace.steps) == (alone.verdict, alone.diverged_at, alone.steps)
    np.testing.assert_array_equal(trace.k, alone.k)
    np.testing.assert_array_equal(trace.bytes_sent, alone.bytes_sent)
    for column in ("loss", "grad_norm", "consensus_error", "tracking_error", "fraction_clipped"):
        np.testing.assert_allclose(trace.columns[column], alone.columns[column], rtol=1e-9, atol=1e-12)


def test_step_sizes_side_by_side_end_and_diverge_as_they_do_alone():
    sizes = (0.001, 0.05, 0.2)
    with jax.enable_x64(True):
        x0 = np.full((5, 2), 10.0)
        runs = [prepare(dg.AB(step_size=size), QUARTIC, NETWORK, x0, name="AB") for size in sizes]
        traces = drive_together(runs, plan())
    assert [trace.verdict for trace in traces] == ["not converged", "diverged", "diverged"]
    for size, trace in zip(sizes, traces, strict=True):
        alone = dg.simulate(dg.AB(step_size=size), QUARTIC, NETWORK, steps=60, x0=x0, record_every=10)
        same(trace, alone)


def test_schedules_and_seeds_side_by_side_are_those_of_single_runs():
    problem = dg.problems.logistic(data="digits", agents=5, reg_weight=1e-3, reg_power=4)
    methods = [dg.CGT(step_size=dg.schedules.Inverse(scale, 10), threshold=1.0) for scale in (0.5, 2.0)]
    with jax.enable_x64(True):
        runs = [
            prepare(
                method, problem, NETWORK, np.zeros((5, 64)), name="CGT",
                sampler=WithReplacement(problem.sizes, 4, seed),
            )
            for seed, method in enumerate(methods)
        ]  # fmt: skip
        traces = drive_together(runs, plan(steps=20))
    for seed, (method, trace) in enumerate(zip(methods, traces, strict=True)):
        same(trace, dg.simulate(method, problem, NETWORK, steps=20, batch_size=4, seed=seed, record_every=10))


def test_shared_samples_are_those_of_the_first_run():
    problem = dg.problems.logistic(data="digits", agents=5, reg_weight=1e-3, reg_power=4)
    with jax.enable_x64(True):
        runs = [
            prepare(
                dg.AB(step_size=size), problem, NETWORK, np.zeros((5, 64)), name="AB",
                sampler=WithReplacement(problem.sizes, 4, seed),
            )
            for seed, size in enumerate((0.1, 0.2))
        ]  # fmt: skip
        traces = drive_together(runs, plan(steps=20), share_samples=True)
    alone = dg.simulate(
        dg.AB(step_size=0.2), problem, NETWORK, steps=20, batch_size=4, seed=0, record_every=10
    )
    same(traces[1], alone)


@pytest.mark.usefixtures("interruptible")
def test_sigint_ends_runs_side_by_side_between_chunks_and_begins_no_other(monkeypatch):
    by_lane = batched._by_lane

    def press(*args):
        monkeypatch.undo()
        signal.raise_signal(signal.SIGINT)
        return by_lane(*args)

    methods = [dg.AB(step_size=0.01), dg.CGT(step_size=0.01, threshold=1.0)]
    options = {"steps": 2500, "record_every": 10, "seeds": 2, "x0": "normal"}
    whole = dg.compare(methods[:1], QUARTIC, NETWORK, **options)["AB"]
    monkeypatch.setattr(batched, "_by_lane", press)
    found = dg.compare(methods, QUARTIC, NETWORK, **options)
    assert list(found) == ["AB"]
    for trace, complete in zip(found["AB"].traces, whole.traces, strict=True):
        assert (trace.interrupted, trace.steps, complete.steps) == (True, 1000, 2500)
        np.testing.assert_array_equal(trace.loss[:100], complete.loss[:100])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_runs_side_by_side_cannot_do_is_refused():
    with pytest.raises(ArgumentError, match="do not stop at the tolerance"):
        drive_together([], plan(stop_at_tolerance=True))
    lossy = dg.Network(dg.graphs.example5(), links=dg.Links(loss=0.3))
    with jax.enable_x64(True):
        x0 = np.zeros((5, 2))
        runs = [prepare(dg.AB(0.01), QUARTIC, lossy.with_seed(seed), x0, name="AB") for seed in (0, 1)]
        with pytest.raises(ArgumentError, match="share one network"):
            drive_together(runs, plan())


def test_samples_and_weights_are_made_once_for_each_call_whatever_is_scheduled(monkeypatch):
    problem = dg.problems.logistic(data="digits", agents=5, reg_weight=1e-3, reg_power=4)
    network = dg.Network(dg.graphs.random_arcs(dg.graphs.example5(), 0.5))
    falling = dg.schedules.Inverse(0.5, 10)
    drawn = []
    batches = WithReplacement.batches

    def draw(sampler, first, length):
        drawn.append(first)
        return batches(sampler, first, length)

    monkeypatch.setattr(WithReplacement, "batches", draw)
    dg.sweep(
        dg.CGT(step_size=falling, threshold=falling), problem, network, steps=20, batch_size=4, seeds=1,
        grid={"threshold": [falling, dg.schedules.Inverse(1.0, 5), dg.schedules.Inverse(2.0, 5)]},
        common_random_numbers=True,
    )  # fmt: skip
    assert drawn == [0, 20]  # the steps, and the one that shows the last row
