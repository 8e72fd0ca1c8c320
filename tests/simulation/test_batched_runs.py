"""Batched runs are the runs themselves."""

import signal
import warnings

import numpy as np
import pytest

import digrad as dg
from digrad.errors import ArgumentError
from digrad.sampling import WithReplacement
from digrad.simulation import batched_runs
from digrad.simulation.run_options import complete
from digrad.simulation.simulate import drive_batch

NETWORK = dg.Network(dg.graphs.example5())
QUARTIC = dg.problems.example_quartic()


def batch(simulators, share_samples=False, **options):
    given = complete({"steps": 60, "record_every": 10, **options}, "test")
    return drive_batch(simulators, [given] * len(simulators), share_samples=share_samples)


def same(trace, alone):
    assert (trace.verdict, trace.diverged_at, trace.steps) == (alone.verdict, alone.diverged_at, alone.steps)
    np.testing.assert_array_equal(trace.k, alone.k)
    np.testing.assert_array_equal(trace.bytes_sent, alone.bytes_sent)
    for column in ("loss", "grad_norm", "consensus_error", "tracking_error", "fraction_clipped"):
        np.testing.assert_allclose(trace.columns[column], alone.columns[column], rtol=1e-9, atol=1e-12)


def test_step_sizes_in_a_batch_end_and_diverge_as_they_do_alone():
    sizes, x0 = (0.001, 0.05, 0.2), np.full((5, 2), 10.0)
    runs = [dg.Simulator(dg.AB(step_size=size), QUARTIC, NETWORK, record_every=10) for size in sizes]
    traces = batch(runs, x0=x0)
    assert [trace.verdict for trace in traces] == ["not converged", "diverged", "diverged"]
    for size, trace in zip(sizes, traces, strict=True):
        alone = dg.simulate(dg.AB(step_size=size), QUARTIC, NETWORK, steps=60, x0=x0, record_every=10)
        same(trace, alone)


def test_schedules_and_seeds_in_a_batch_are_those_of_single_runs():
    problem = dg.problems.logistic(data="digits", agents=5, reg_weight=1e-3, reg_power=4)
    methods = [dg.CGT(step_size=dg.schedules.Inverse(scale, 10), threshold=1.0) for scale in (0.5, 2.0)]
    options = {"batch_size": 4, "record_every": 10}
    runs = [
        dg.Simulator(method, problem, NETWORK, seed=seed, **options) for seed, method in enumerate(methods)
    ]
    for seed, (method, trace) in enumerate(zip(methods, batch(runs, steps=20), strict=True)):
        same(trace, dg.simulate(method, problem, NETWORK, steps=20, seed=seed, **options))


def test_batched_runs_in_float32_compute_in_float32():
    problem, sizes = dg.problems.example_quadratic(), (0.02, 0.1)
    options = {"dtype": "float32", "record_every": 10}
    runs = [dg.Simulator(dg.CGT(size, 0.5), problem, NETWORK, **options) for size in sizes]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # JAX warns when float64 is written into float32
        traces = batch(runs, x0=[10.0, -10.0])
    for size, trace in zip(sizes, traces, strict=True):
        alone = dg.simulate(dg.CGT(size, 0.5), problem, NETWORK, steps=60, x0=[10.0, -10.0], **options)
        np.testing.assert_array_equal(trace.final_x, alone.final_x)


def test_shared_samples_are_those_of_the_first_run():
    problem = dg.problems.logistic(data="digits", agents=5, reg_weight=1e-3, reg_power=4)
    options = {"batch_size": 4, "record_every": 10}
    methods = [dg.AB(step_size=size) for size in (0.1, 0.2)]
    runs = [
        dg.Simulator(method, problem, NETWORK, seed=seed, **options) for seed, method in enumerate(methods)
    ]
    traces = batch(runs, share_samples=True, steps=20)
    same(traces[1], dg.simulate(methods[1], problem, NETWORK, steps=20, seed=0, **options))


@pytest.mark.usefixtures("interruptible")
def test_sigint_ends_batched_runs_between_calls_and_begins_no_other(monkeypatch):
    first_rows = batched_runs.first_rows

    def press(*args):
        monkeypatch.undo()
        signal.raise_signal(signal.SIGINT)
        return first_rows(*args)

    methods = [dg.AB(step_size=0.01), dg.CGT(step_size=0.01, threshold=1.0)]
    options = {"steps": 2500, "record_every": 10, "seeds": 2, "x0": "normal"}
    whole = dg.compare(methods[:1], QUARTIC, NETWORK, **options)["AB"]
    monkeypatch.setattr(batched_runs, "first_rows", press)
    found = dg.compare(methods, QUARTIC, NETWORK, **options)
    assert list(found) == ["AB"]
    for trace, full in zip(found["AB"].traces, whole.traces, strict=True):
        assert (trace.interrupted, trace.steps, full.steps) == (True, 1000, 2500)
        np.testing.assert_array_equal(trace.loss[:100], full.loss[:100])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("pressed", [0, 1])
def test_sigint_while_a_run_of_a_batch_is_run_alone_begins_no_other(monkeypatch, pressed):
    run, begun = dg.Simulator.run, []

    def press(simulator, *args):
        begun.append(simulator.options["seed"])
        if begun[-1] == pressed:
            signal.raise_signal(signal.SIGINT)
        return run(simulator, *args)

    problem = dg.problems.example_quadratic()
    x0 = np.full((5, 2), 1e-14)  # from which all runs go far, and have not diverged there
    methods = [dg.AB(step_size=0.01), dg.CGT(step_size=0.01, threshold=1.0)]
    monkeypatch.setattr(dg.Simulator, "run", press)
    found = dg.compare(methods, problem, NETWORK, steps=100, seeds=3, x0=x0)
    assert list(found) == ["AB"]
    assert [trace.interrupted for trace in found["AB"].traces] == [seed >= pressed for seed in range(3)]
    assert set(begun) == set(range(pressed + 1))


def test_what_batched_runs_cannot_do_is_refused():
    lossy = dg.Network(dg.graphs.example5(), links=dg.Links(loss=0.3))
    runs = [dg.Simulator(dg.AB(0.01), QUARTIC, lossy, seed=seed) for seed in (0, 1)]
    with pytest.raises(ArgumentError, match="neither stop at the tolerance"):
        batch(runs, stop_at_tolerance=True)
    with pytest.raises(ArgumentError, match="share one network"):
        batch(runs)


def test_samples_and_weights_are_made_once_for_each_call_whatever_is_scheduled(monkeypatch):
    problem = dg.problems.logistic(data="digits", agents=5, reg_weight=1e-3, reg_power=4)
    network = dg.Network(dg.graphs.random_edges(dg.graphs.example5(), 0.5))
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
