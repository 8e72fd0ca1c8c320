import numpy as np

import digrad as dg
from digrad.testing import convergence


def test_the_last_iterates_come_from_one_run(monkeypatch):
    runs = []
    simulator = dg.Simulator
    monkeypatch.setattr(
        convergence, "Simulator", lambda *given, **more: runs.append(1) or simulator(*given, **more)
    )
    method, network = dg.NSGDm(0.1), dg.Network(dg.graphs.example5())  # never comes to rest
    assert convergence.measure(method, "mean", 300).outcome == "neighbourhood"
    assert len(runs) == 2  # one for each step size
    found = convergence._last_iterates(method, network, 30, 2)
    for steps, iterate in zip((29, 30), found, strict=True):
        trace = dg.simulate(
            method, dg.problems.example_quadratic(), network, steps=steps, x0=np.array([10.0, -10.0])
        )
        np.testing.assert_array_equal(iterate, trace.final_x)
