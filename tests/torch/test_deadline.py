"""Late is tolerated: a neighbour that is slow or stopped costs steps of progress, never the run or the answer."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from digrad.torch.checkpoint.checkpoint_files import committed_steps
from digrad.torch.launch.preemption import SAVE
from torch_processes import Agents

pytestmark = pytest.mark.long

EXACT = 1e-10  # of a quadratic in float64 after the steps that are taken here
STARTUP = 200.0  # seconds for the interpreters to load torch on a busy machine


def run(folder: Path, worker: str = "deadline.py", n: int = 5, **plan: Any) -> list[dict[str, Any]]:
    """Return what each agent found, and what it wrote; all must succeed."""
    with Agents(worker, n, str(folder), json.dumps({"n": n, **plan})) as agents:
        found = agents.wait(200)
    for rank, ended in found.items():
        assert ended.code == 0, f"agent {rank}: {ended.output}"
        (folder / f"output-{rank}").write_text(ended.output)
    return [json.loads((folder / f"agent-{rank}.json").read_text()) for rank in range(n)]


def test_stopped_agent_costs_steps_and_undelivered_mass_survives_the_end_of_a_run(tmp_path: Path) -> None:
    """One agent is slow, one stops for a second, then all are preempted: every save checks that nothing is lost."""
    plan = {"n": 3, "bits": 4, "deadline": 0.02, "compute": 0.002, "slow": 1, "factor": 3, "save": 60}
    plan |= {"stop_at": 40, "seconds": 1.0, "steps": 10**9}
    launch = {agent: {"TORCHELASTIC_RUN_ID": "test"} for agent in range(3)}
    with Agents("deadline.py", 3, str(tmp_path), json.dumps(plan), extra=launch) as agents:
        until = time.monotonic() + STARTUP
        while len(list(tmp_path.glob("reached-*-100"))) < 3:
            assert time.monotonic() < until
            time.sleep(0.05)
        for process in agents.processes.values():
            os.kill(process.pid, SAVE)  # as launch does after SIGTERM
        ended = agents.wait(60)
    assert [one.code for one in ended.values()] == [0, 0, 0], ended
    (last,) = committed_steps(tmp_path / "steps")[-1:]
    found = run(tmp_path, **{**plan, "steps": last + 250, "deadline": 0.002})
    assert [one["resumed"] for one in found] == [last] * 3
    assert all(one["error"] < 1e-5 and one["own"] < 1e-5 for one in found), found
    assert sum(one["late"] for one in found) > 0


@pytest.mark.parametrize(
    "plan",
    [
        # Its parameters are not its state: the mixing of those who wait for a save moves both.
        {"method": "PushDIGing", "bits": 4, "save": 100, "deadline": 1.0, "stop_at": 99, "seconds": 0.5},
        pytest.param({"method": "AB"}, marks=pytest.mark.slow),
        pytest.param({"method": "PushDIGing"}, marks=pytest.mark.slow),
        pytest.param({"every": 10, "bits": 4, "steps": 8000, "deadline": 1.0}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_other_methods_and_changing_networks_are_exact_too(plan: dict[str, Any], tmp_path: Path) -> None:
    found = run(tmp_path, **{"steps": 500, "deadline": 0.1, **plan})
    assert all(one["error"] < EXACT for one in found), found


@pytest.mark.slow
def test_slow_agent_does_not_slow_down_the_others(tmp_path: Path) -> None:
    """The time to a given accuracy is at least 1.8 times shorter when one agent is three times as slow."""
    reached = {}
    for name, deadline in (("synchronous", None), ("deadline", 0.04)):
        (tmp_path / name).mkdir()
        found = run(
            tmp_path / name, steps=300, deadline=deadline, compute=0.04, slow=1, factor=3, max_lag=None
        )
        reached[name] = max(one["reached"] for one in found)
    assert reached["synchronous"] > 1.8 * reached["deadline"], reached


def test_agents_wait_by_default_for_one_that_is_stopped_and_name_it(tmp_path: Path) -> None:
    """Else a model that is trained for a fixed number of steps forgets the data of that agent."""
    found = run(tmp_path, n=3, steps=150, deadline=0.01, compute=0.001, stop_at=60, seconds=2.0)
    assert found[2]["ahead"] <= 100  # when it woke up: 20 steps more than the one before it at most
    (line,) = [one for one in (tmp_path / "output-0").read_text().splitlines() if one.startswith("digrad: ")]
    assert line.startswith("digrad: late: agent 2 was up to 20 steps behind"), line


def test_agents_that_may_not_run_ahead_come_together_at_the_end(tmp_path: Path) -> None:
    found = run(tmp_path, n=3, steps=300, deadline=0.01, compute=0.001, slow=1, factor=3, max_lag=2)
    assert all(one["error"] < 1e-3 for one in found), found


@pytest.mark.slow
def test_max_lag_bounds_how_far_agents_run_ahead(tmp_path: Path) -> None:
    found = run(tmp_path, steps=200, deadline=0.01, compute=0.005, slow=1, factor=5, max_lag=4)
    seconds = [one["seconds"] for one in found]
    assert min(seconds) > 0.7 * max(seconds), seconds


@pytest.mark.slow
def test_accuracy_of_a_network_does_not_suffer_from_an_agent_that_stops(tmp_path: Path) -> None:
    """A small CNN is as good as in the undisturbed run, up to one point."""
    accuracies = {}
    for name, disturbance in (("undisturbed", {}), ("stopped", {"stop_at": 100, "seconds": 5.0})):
        (tmp_path / name).mkdir()
        found = run(tmp_path / name, "deadline_cnn.py", 3, steps=800, **disturbance)
        accuracies[name] = found[0]["accuracy"]
    assert found[0]["late"] > 0
    assert accuracies["undisturbed"] > 0.9
    assert accuracies["stopped"] > accuracies["undisturbed"] - 0.01, accuracies
