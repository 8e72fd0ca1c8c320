"""Late is tolerated: a neighbour that is slow or stopped costs steps of progress, never the run or the answer."""

import json
from pathlib import Path
from typing import Any

import pytest

from torch_processes import Agents

EXACT = 1e-10  # of a quadratic in float64 after the steps that are taken here


def run(folder: Path, **plan: Any) -> list[dict[str, Any]]:
    """Return what each agent found; all must succeed."""
    with Agents("deadline.py", 5, str(folder), json.dumps(plan)) as agents:
        for rank, ended in agents.wait(200).items():
            assert ended.code == 0, f"agent {rank}: {ended.output}"
    return [json.loads((folder / f"agent-{rank}.json").read_text()) for rank in range(5)]


def test_stopped_agent_costs_steps_and_checkpoints_stay_consistent(tmp_path: Path) -> None:
    """Every save checks that nothing that was pushed is lost or counted twice."""
    found = run(tmp_path, steps=500, deadline=0.05, stop_at=50, seconds=2.0, save=100)
    assert all(one["error"] < EXACT and one["own"] < EXACT for one in found), found
    assert sum(one["late"] for one in found) > 0


def test_resumed_run_owes_what_the_stored_one_owed(tmp_path: Path) -> None:
    plan = {
        "steps": 500,
        "deadline": 0.02,
        "compute": 0.002,
        "slow": 1,
        "factor": 3,
        "save": 60,
        "end_at": 120,
    }
    with Agents("deadline.py", 5, str(tmp_path), json.dumps(plan)) as agents:
        agents.wait(200)
    found = run(tmp_path, **plan)
    assert [one["resumed"] for one in found] == [120] * 5
    assert all(one["error"] < EXACT and one["own"] < EXACT for one in found), found


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan", [{"method": "AB"}, {"method": "PushDIGing"}, {"every": 3, "steps": 1500}], ids=str
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
        found = run(tmp_path / name, steps=300, deadline=deadline, compute=0.04, slow=1, factor=3)
        reached[name] = max(one["reached"] for one in found)
    assert reached["synchronous"] > 1.8 * reached["deadline"], reached


@pytest.mark.slow
def test_max_lag_bounds_how_far_agents_run_ahead(tmp_path: Path) -> None:
    found = run(tmp_path, steps=200, deadline=0.01, compute=0.005, slow=1, factor=5, max_lag=4)
    seconds = [one["seconds"] for one in found]
    assert min(seconds) > 0.7 * max(seconds), seconds


REFUSED = {
    "doubly": ("DSGT(step_size=0.1)", {}, "needs a method that pulls or pushes"),
    "links": ("CGT(step_size=0.1, threshold=1.0)", {"links": True}, "leave `links` out"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_late_is_refused(case: str, tmp_path: Path) -> None:
    method, options, reason = REFUSED[case]
    script = tmp_path / "refused.py"
    script.write_text(
        "import torch, digrad as dg\n"
        "from digrad.torch import DecentralizedOptimizer, ProcessNetwork\n"
        f"links = dg.links.rounded('bfloat16') if {options!r} else None\n"
        "graph = dg.graphs.from_edges(1, [])\n"
        "network = ProcessNetwork(dg.Network(graph, links=links), deadline=0.1)\n"
        f"DecentralizedOptimizer(torch.nn.Linear(1, 1).parameters(), dg.{method}, network)\n"
    )
    with Agents(str(script), 1) as agents:
        ended = agents.wait(120)[0]
    assert ended.code != 0
    assert reason in ended.output.splitlines()[-1]
