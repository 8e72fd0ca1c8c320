"""Estimates of every agent and the residual of the invariant, recorded on request."""

import numpy as np
import pytest

import digrad as dg
from digrad.simulation import Checkpoint

PROBLEM, NETWORK = dg.problems.example_quartic(), dg.Network(dg.graphs.example5())
OPTIONS = {"steps": 23, "record_every": 5, "x0": [10.0, 9.0]}


def paths(trace):
    return np.stack([[trace.columns[f"x[{i}][{j}]"] for j in range(2)] for i in range(5)])  # [n, d, K]


def test_paths_begin_at_the_start_end_at_the_end_and_change_nothing_else():
    without = dg.simulate(dg.CGT(0.05, 5.0), PROBLEM, NETWORK, **OPTIONS)
    trace = dg.simulate(dg.CGT(0.05, 5.0), PROBLEM, NETWORK, **OPTIONS, record=dg.Record(paths=True))
    np.testing.assert_array_equal(paths(trace)[:, :, 0], np.tile([10.0, 9.0], (5, 1)))
    np.testing.assert_array_equal(paths(trace)[:, :, -1], trace.final_x)
    for name, column in without.columns.items():
        np.testing.assert_array_equal(trace.columns[name], column)


def test_paths_go_on_after_a_resume(tmp_path):
    method = dg.CGT(0.05, 5.0)
    whole = dg.simulate(method, PROBLEM, NETWORK, **OPTIONS, record=dg.Record(paths=True))
    checkpoint = Checkpoint(tmp_path / "run.npz", every=5, resume=True)
    dg.simulate(
        method,
        PROBLEM,
        NETWORK,
        **{**OPTIONS, "steps": 10},
        record=dg.Record(paths=True),
        checkpoint=checkpoint,
    )
    resumed = dg.simulate(
        method, PROBLEM, NETWORK, **OPTIONS, record=dg.Record(paths=True), checkpoint=checkpoint
    )
    np.testing.assert_array_equal(paths(resumed), paths(whole))


@pytest.mark.parametrize(
    "method", [dg.CGT(0.05, 5.0), dg.SONATA(0.05), dg.DSGT(0.05)], ids=lambda one: type(one).__name__
)
def test_trackers_sum_to_the_gradients_to_rounding(method):
    trace = dg.simulate(method, PROBLEM, NETWORK, steps=40, x0=[2.0, 1.0], record=dg.Record(invariant=True))
    gradient = np.abs(PROBLEM.local_gradients(np.array([2.0, 1.0]))).sum()
    assert np.all(trace.columns["mass_error"] <= 1e-13 * gradient)
    assert trace.columns["mass_error"].max() > 0  # measured, not assumed


@pytest.mark.parametrize("method", [dg.DGD(0.05), dg.FROST(0.02), dg.DSGT(0.02, mixing="row")], ids=repr)
def test_method_whose_sums_do_not_stay_has_no_such_column(method):
    assert (
        "mass_error"
        not in dg.simulate(method, PROBLEM, NETWORK, steps=3, record=dg.Record(invariant=True)).columns
    )


def test_the_residual_grows_with_trackers_that_explode():
    trace = dg.simulate(
        dg.AB(0.05),
        dg.problems.example_quartic(),
        NETWORK,
        steps=60,
        x0=[10.0, 10.0],
        record=dg.Record(invariant=True),
    )
    assert trace.verdict == "diverged"
    residual = trace.columns["mass_error"]
    assert np.all(np.diff(residual[1:]) > 0), residual  # no row is 0 by rounding
    assert residual[-2] > 1.0


class Leaky(dg.CGT):
    """CGT that loses a tenth of what it pushes."""

    def step(self, state, grad, net):
        after = super().step(state._replace(y=0.9 * state.y), grad, net)
        return after._replace(g=grad)


def test_lost_mass_shows_in_the_residual():
    trace = dg.simulate(
        Leaky(0.05, 5.0), PROBLEM, NETWORK, steps=5, x0=[2.0, 1.0], record=dg.Record(invariant=True)
    )
    assert trace.columns["mass_error"].max() > 1e-3
