"""The level below ``simulate``: the same numbers, however a run is cut, and one list of options for all."""

import inspect

import jax
import numpy as np
import pytest

import digrad as dg
from digrad.links import Join, Leave

METHOD, QUADRATIC = dg.CGT(step_size=0.05, threshold=2.0), dg.problems.example_quadratic()
NETWORKS = {
    "perfect": dg.Network(dg.graphs.example5()),
    "churn": dg.Network(
        dg.graphs.complete(5), links=dg.Links(loss=0.2, churn=[Leave(1, at=4), Join(1, at=9)])
    ),
}
START = [10.0, -10.0]


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_a_run_in_parts_is_that_of_simulate_to_the_last_bit(network):
    whole = dg.simulate(METHOD, QUADRATIC, network, steps=13, x0=START, record_every=3)
    simulator = dg.Simulator(METHOD, QUADRATIC, network, record_every=3)
    state, found = simulator.init(START), []
    for steps in (1, 3, 6, 3):
        state, rows = simulator.run(state, steps)
        found.append(rows)
    assert int(state.k) == 13
    found.append(simulator.measure(state))
    assert np.concatenate([rows["k"] for rows in found]).tolist() == whole.k.tolist() == [0, 3, 6, 9, 12, 13]
    for name, column in whole.columns.items():
        np.testing.assert_array_equal(np.concatenate([rows[name] for rows in found]), column, err_msg=name)
    np.testing.assert_array_equal(simulator.estimate(state), whole.final_x)


def test_a_state_can_be_changed_on_the_way():
    simulator = dg.Simulator(METHOD, QUADRATIC, NETWORKS["perfect"])
    state, _ = simulator.run(simulator.init(START), 5)
    moved = state._replace(method_state=jax.tree.map(np.zeros_like, state.method_state))
    again, rows = simulator.run(moved, 5)
    alone, of_alone = simulator.run(simulator.init("zeros"), 5)
    np.testing.assert_array_equal(rows["loss"], of_alone["loss"])
    np.testing.assert_array_equal(simulator.estimate(again), simulator.estimate(alone))


def test_what_is_kept_takes_the_place_of_the_usual_columns():
    def keep(method, before, after, grad):
        return {"tracker": after.y}

    simulator = dg.Simulator(METHOD, QUADRATIC, NETWORKS["perfect"], keep=keep)
    _, rows = simulator.run(simulator.init(START), 4)
    assert set(rows) == {"k", "tracker"}
    start = np.tile(START, (5, 1))
    np.testing.assert_allclose(rows["tracker"][0], QUADRATIC.local_gradients(start), rtol=1e-14)


def test_a_run_that_diverges_says_where_and_records_nothing_more():
    quartic = dg.problems.example_quartic()
    simulator = dg.Simulator(dg.AB(step_size=0.05), quartic, NETWORKS["perfect"])
    state, rows = simulator.run(simulator.init([10.0, 10.0]), 50)
    assert (bool(state.alive), int(state.k), rows["k"].tolist()) == (False, 4, [0, 1, 2, 3])
    assert simulator.run(state, 10)[1] == {}


def keywords(function):
    return [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    ]


def test_help_lists_the_options_of_a_run_and_simulate_has_few():
    options = set(dg.RunOptions.__annotations__)
    assert len(keywords(dg.simulate)) <= 13  # group rare ones, as Record does
    for function in (dg.simulate, dg.compare, dg.sweep, dg.tune):
        assert options <= set(keywords(function))
    assert set(dg.SimulatorOptions.__annotations__) == options & set(keywords(dg.Simulator))
