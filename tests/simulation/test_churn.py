"""Churn, agents that join, leave and crash: exact afterwards, in as many steps as the specification says."""

from dataclasses import replace

import numpy as np
import pytest

import digrad as dg
from digrad.errors import ArgumentError
from digrad.links import Crash, Join, Leave, Links
from digrad.simulation import simulator as simulated
from link_runs import EXAMPLE, METHODS, QUADRATIC

REMAIN = [0, 2, 3, 4]
WITHOUT_1 = np.array([5 / 13, 3 / 11])


def run(churn, steps, *, links=None, **options):
    network = dg.Network(EXAMPLE, links=replace(links or Links(loss=0.3), churn=churn))
    options = {"record_every": steps, "x0": [10.0, -10.0], **options}
    return dg.simulate(METHODS["CGT"], QUADRATIC, network, steps=steps, **options)


def simulator_of(churn):
    network = dg.Network(EXAMPLE, links=Links(loss=0.3, churn=churn))
    return dg.Simulator(METHODS["CGT"], QUADRATIC, network, record_every=1000)


def last_two(churn, steps):
    """Return the estimates after all steps but one, and after all."""
    simulator = simulator_of(churn)
    state, _ = simulator.run(simulator.init([10.0, -10.0]), steps - 1)
    return simulator.estimate(state), simulator.estimate(simulator.run(state, 1)[0])


def error(gaps):
    return np.linalg.norm(gaps, axis=1).max()


@pytest.mark.parametrize(
    ("event", "steps"),
    [(Leave(1, at=400), 137), (Crash(1, at=400), 159), (Crash(1, at=400, repair="restart"), 147)],
    ids=["leave", "undo", "restart"],
)
def test_those_who_remain_reach_their_minimum_in_the_steps_of_the_specification(event, steps):
    before, after = last_two([event], 400 + steps)
    assert error(after[REMAIN] - WITHOUT_1) <= 1e-8 < error(before[REMAIN] - WITHOUT_1)


@pytest.mark.parametrize(
    ("event", "peak"), [(Crash(1, at=400), 0.73), (Crash(1, at=400, repair="restart"), 0.29)]
)
def test_a_repair_throws_agents_as_far_as_the_specification_says(event, peak):
    simulator = simulator_of([event])
    state, errors = simulator.run(simulator.init([10.0, -10.0]), 400)[0], []
    for _ in range(40):
        state, _ = simulator.run(state, 1)
        errors.append(error(simulator.estimate(state)[REMAIN] - WITHOUT_1))
    assert max(errors) == pytest.approx(peak, rel=0.02)
    assert errors[-1] < peak / 2


def test_without_a_repair_those_who_remain_are_biased(monkeypatch):
    def forget(event, state, *links):
        state.y[event.agent] = state.g[event.agent] = 0

    monkeypatch.setattr(simulated, "repair", forget)
    error = np.linalg.norm(run([Leave(1, at=400)], 1500).final_x[REMAIN] - WITHOUT_1, axis=1).max()
    assert error == pytest.approx(0.079, rel=0.02)


def test_an_agent_that_joins_is_there_in_the_steps_of_the_specification():
    before, after = last_two([Join(1, at=300)], 300 + 119)
    assert error(after - 1 / 3) <= 1e-8 < error(before - 1 / 3)


LATE, ASLEEP = Links(loss=0.3, delay=3), Links(awake=0.7, delay=2, loss=0.2)


@pytest.mark.parametrize(
    ("links", "repair"),
    [
        (ASLEEP, "undo"),
        pytest.param(ASLEEP, "restart", marks=pytest.mark.slow),
        pytest.param(LATE, "undo", marks=pytest.mark.slow),
        pytest.param(LATE, "restart", marks=pytest.mark.slow),
    ],
    ids=repr,
)
def test_mass_is_that_of_the_agents_that_are_there(links, repair):
    first = Leave(1, at=40) if repair == "restart" else Crash(1, at=40)
    churn = [first, Join(1, at=60), Crash(2, at=90, repair=repair), Join(2, at=120)]
    graph = dg.graphs.complete(5)
    network = dg.Network(graph, links=replace(links, churn=churn))
    trace = dg.simulate(METHODS["CGT"], QUADRATIC, network, steps=2500, x0=[10.0, -10.0])
    assert trace.columns["mass_error"].max() <= 1e-11
    assert trace.verdict == "converged"
    np.testing.assert_allclose(trace.final_x, 1 / 3, rtol=0, atol=1e-7)


def test_loss_and_averages_are_those_of_the_agents_that_are_there():
    trace = run([Leave(1, at=400)], 800)
    local = QUADRATIC.local
    a, b = local.curvature[REMAIN].mean(axis=0), local.linear[REMAIN].mean(axis=0)
    assert trace.grad_norm[-1] < 1e-12
    assert trace.consensus_error[-1] < 1e-12
    assert trace.loss[-1] == pytest.approx(float(-0.5 * (b * b / a).sum()), abs=1e-12)


def test_chunks_and_a_resume_do_not_change_a_bit(tmp_path, chunks_of):
    churn, file = [Crash(1, at=20), Join(1, at=50)], tmp_path / "run.npz"
    whole = run(churn, 80, record_every=10)
    chunks_of(7)
    cut = run(churn, 80, record_every=10)
    run(churn, 20, record_every=10, checkpoint=dg.Checkpoint(file, every=20))
    resumed = run(churn, 80, record_every=10, checkpoint=dg.Checkpoint(file, every=20, resume=True))
    for other in (cut, resumed):
        np.testing.assert_array_equal(other.final_x, whole.final_x)


@pytest.mark.parametrize(
    ("churn", "words"),
    [
        ([Leave(0, at=5)], "cannot reach"),
        ([Leave(1, at=5), Join(1, at=5)], "two events at one iteration"),
        ([Leave(1, at=5), Leave(1, at=9)], "leaves, but is not there"),
        ([Leave(7, at=5)], "there is no agent 7"),
        ([Leave(1, at=5), Crash(4, at=9)], "left at 5 and took its part of what they exchanged along"),
        (["leave"], "must be a list of Leave, Crash and Join"),
        (Leave(1, at=5), "must be a list of Leave, Crash and Join"),
        (
            iter([Leave(1, at=5)]),
            "must be a list of Leave, Crash and Join",
        ),  # which would be empty afterwards
    ],
)
def test_impossible_events_are_refused(churn, words):
    with pytest.raises(ArgumentError, match=words):
        run(churn, 10)


def test_push_sum_cannot_repair_its_state():
    calm = dg.Network(EXAMPLE, links=Links(churn=[Leave(1, at=2)]))
    with pytest.raises(ArgumentError, match="whose state cannot be repaired"):
        dg.simulate(dg.SGP(step_size=0.05), QUADRATIC, calm, steps=5)


def test_churn_needs_links_that_keep_what_is_undelivered():
    with pytest.raises(ArgumentError, match="links that keep undelivered mass"):
        run([Leave(1, at=2)], 5, links=Links(push="keep"))


def test_seeds_and_sweeps_of_networks_whose_agents_leave_are_those_of_single_runs():
    network = dg.Network(EXAMPLE, links=Links(churn=[Leave(1, at=5)]))
    options = {"steps": 10, "x0": "normal", "record_every": 5}
    alone = dg.simulate(METHODS["CGT"], QUADRATIC, network, seed=1, **options)
    found = dg.compare([METHODS["CGT"]], QUADRATIC, network, seeds=2, **options)["CGT"].traces[1]
    np.testing.assert_array_equal(found.final_x, alone.final_x)
    table = dg.sweep(METHODS["CGT"], QUADRATIC, network, grid={"threshold": [2.0]}, seed=1, **options).table
    assert table["final_loss"].tolist() == [alone.loss[-1]]


@pytest.mark.parametrize(
    "churn", [[Leave(1, at=40)], [Join(1, at=30), Leave(1, at=60)]], ids=["leave", "join"]
)
def test_resuming_a_finished_run_changes_nothing(churn, tmp_path):
    network = dg.Network(EXAMPLE, links=Links(loss=0.3, churn=churn))
    checkpoint = dg.Checkpoint(tmp_path / "run.npz", every=50, resume=True)
    whole, again = (
        dg.simulate(METHODS["CGT"], QUADRATIC, network, steps=400, checkpoint=checkpoint) for _ in range(2)
    )
    assert again.verdict == whole.verdict == "converged"
    for name, column in whole.columns.items():
        np.testing.assert_array_equal(again.columns[name], column, err_msg=name)
