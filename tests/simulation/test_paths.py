"""Estimates of every agent, recorded on request."""

import numpy as np

import digrad as dg
from digrad.simulation import Checkpoint

PROBLEM, NETWORK = dg.problems.example_quartic(), dg.Network(dg.graphs.example5())
OPTIONS = {"steps": 23, "record_every": 5, "x0": [10.0, 9.0]}


def paths(trace):
    return np.stack([[trace.columns[f"x[{i}][{j}]"] for j in range(2)] for i in range(5)])  # [n, d, K]


def test_paths_begin_at_the_start_end_at_the_end_and_change_nothing_else():
    without = dg.simulate(dg.CGT(0.05, 5.0), PROBLEM, NETWORK, **OPTIONS)
    trace = dg.simulate(dg.CGT(0.05, 5.0), PROBLEM, NETWORK, **OPTIONS, paths=True)
    np.testing.assert_array_equal(paths(trace)[:, :, 0], np.tile([10.0, 9.0], (5, 1)))
    np.testing.assert_array_equal(paths(trace)[:, :, -1], trace.final_x)
    for name, column in without.columns.items():
        np.testing.assert_array_equal(trace.columns[name], column)


def test_paths_go_on_after_a_resume(tmp_path):
    method = dg.CGT(0.05, 5.0)
    whole = dg.simulate(method, PROBLEM, NETWORK, **OPTIONS, paths=True)
    checkpoint = Checkpoint(tmp_path / "run.npz", every=5, resume=True)
    dg.simulate(method, PROBLEM, NETWORK, **{**OPTIONS, "steps": 10}, paths=True, checkpoint=checkpoint)
    resumed = dg.simulate(method, PROBLEM, NETWORK, **OPTIONS, paths=True, checkpoint=checkpoint)
    np.testing.assert_array_equal(paths(resumed), paths(whole))
