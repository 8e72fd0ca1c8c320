"""Trouble ends in one clear line on every agent, within the timeout, and never in a hang."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from digrad.torch.checkpoint.checkpoint_files import committed_steps, step_folder
from torch_processes import Agents, Ended

pytestmark = pytest.mark.long

MARGIN = 15.0  # seconds that a busy machine may add to a timeout


def lines(ended: Ended) -> dict[str, dict[str, Any]]:
    """Return what a process reported, by attempt."""
    found = [json.loads(line) for line in ended.output.splitlines() if line.startswith("{")]
    assert found, ended.output
    return {line["attempt"]: line for line in found}


def test_disagreement_is_an_error_on_every_agent_within_seconds(tmp_path: Path) -> None:
    with Agents("failing.py", 3, "disagree", str(tmp_path)) as agents:
        reports = [lines(ended) for ended in agents.wait(120).values()]
    for report in reports:
        network = {"graph", "version", "direct", "links"}
        assert set(report) == network | {"dtype", "model", "method", "lr", "weight decay", "k"}
        for attempt, line in report.items():
            assert line["error"].startswith("DisagreementError"), (attempt, line)
            assert "the agents disagree on" in line["error"]
            assert attempt in line["error"]
            assert "agent 1 " in line["error"]
            assert "\n" not in line["error"]
            assert line["seconds"] < 5 + MARGIN


def test_missing_rank_is_an_error_on_all_others(tmp_path: Path) -> None:
    with Agents("failing.py", 3, "missing", str(tmp_path), ranks=range(2)) as agents:
        reports = [lines(ended) for ended in agents.wait(90).values()]
    for report in reports:
        assert "the 3 agents did not all join within 4 s (missing: agent 2); " in report["join"]["error"]
        assert report["join"]["seconds"] < 4 + MARGIN


def test_rank_that_builds_no_optimizer_is_named(tmp_path: Path) -> None:
    with Agents("failing.py", 3, "absent", str(tmp_path)) as agents:
        reports = [lines(ended) for rank, ended in agents.wait(90).items() if rank != 2]
    for report in reports:
        assert "nothing was heard from agent 2 within 3.0 s" in report["absent"]["error"]


def test_wrong_number_of_processes_is_an_error(tmp_path: Path) -> None:
    with Agents("failing.py", 3, "wrong_size", str(tmp_path)) as agents:
        reports = [lines(ended) for ended in agents.wait(90).values()]
    assert all("has 4 agents, but 3 processes were started" in report["size"]["error"] for report in reports)


@pytest.mark.parametrize("blow", [signal.SIGSTOP, signal.SIGKILL], ids=["stopped", "killed"])
@pytest.mark.parametrize("way", ["train", pytest.param("train_over_zeromq", marks=pytest.mark.slow)])
def test_silent_peer_is_an_error_on_all_others_that_names_a_neighbour(
    way: str, blow: int, tmp_path: Path
) -> None:
    with Agents("failing.py", 3, way, str(tmp_path)) as agents:
        deadline = time.monotonic() + 90
        while not all((tmp_path / f"training-{rank}").exists() for rank in range(3)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(agents.processes[1].pid, blow)
        struck = time.monotonic()
        reports = {rank: lines(ended) for rank, ended in agents.wait(60, [0, 2]).items()}
        assert time.monotonic() - struck < 2 * 4 + MARGIN
    for rank, report in reports.items():
        error = report["train"]["error"]
        assert error.startswith("CommunicationError: step "), error
        assert any(f"agent {other}" in error for other in {0, 1, 2} - {rank}), error
    assert any("agent 1" in report["train"]["error"] for report in reports.values())


def test_processes_end_soon_after_a_sum_that_an_agent_does_not_join(tmp_path: Path) -> None:
    with Agents("failing.py", 3, "average", str(tmp_path)) as agents:
        deadline = time.monotonic() + 90
        while not all((tmp_path / f"training-{rank}").exists() for rank in range(3)):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(agents.processes[1].pid, signal.SIGSTOP)
        struck = time.monotonic()
        reports = [lines(ended) for ended in agents.wait(60, [0, 2]).values()]
        assert time.monotonic() - struck < 2 * 4 + MARGIN  # not the minute that the group allows
    assert all("the sum over all agents did not pass agent" in one["train"]["error"] for one in reports)


def play(mode: str, n: int, folder: Path, *args: str) -> list[dict[str, dict[str, Any]]]:
    with Agents("failing.py", n, mode, str(folder), *args) as agents:
        return [lines(ended) for ended in agents.wait(90).values()]


@pytest.mark.parametrize("culprit", [0, 1])  # agent 0 keeps the store in which the others find the reason
def test_gradient_that_is_not_finite_is_an_error_on_every_agent_and_spoils_nothing(
    culprit: int, tmp_path: Path
) -> None:
    reports = play("poisoned", 4, tmp_path, str(culprit))
    for report in reports:
        error = report["poisoned"]["error"]
        assert error.startswith(f"NonFiniteError: step 7: the gradient of agent {culprit} is not finite"), (
            error
        )
        assert report["poisoned"]["seconds"] < MARGIN  # nobody waits for the timeout of 30 s
        assert report["state"]["finite"]
    assert reports[culprit]["state"]["k"] == 7
    assert all(7 <= report["state"]["k"] <= 8 for report in reports)  # step 8 needs the checkpoint of all
    steps = committed_steps(tmp_path / "steps")
    assert steps == [2, 4, 6]
    for path in step_folder(tmp_path / "steps", 6).glob("agent-*"):
        assert all(value.isfinite().all() for name, value in load_file(path).items() if name != "rng")


def test_gradient_that_is_not_finite_is_replaced_by_the_one_before_on_request(tmp_path: Path) -> None:
    reports = play("repeated", 3, tmp_path)
    assert [report["same"]["same"] for report in reports] == [False, True, False]


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("save", "Checkpoints.save()"),
        pytest.param("consensus_error", "DecentralizedOptimizer.consensus_error()", marks=pytest.mark.slow),
        pytest.param(
            "averaged_parameters", "DecentralizedOptimizer.averaged_parameters()", marks=pytest.mark.slow
        ),
    ],
)
def test_call_that_only_one_agent_makes_is_named_on_every_agent(call: str, name: str, tmp_path: Path) -> None:
    found = [report["alone"] for report in play("alone", 3, tmp_path, call)]
    # Not the minutes that a slow agent gets.
    assert all(one["seconds"] < 12 + 12 + 2 + MARGIN for one in found)
    reports = [one["error"] for one in found]
    step = "DecentralizedOptimizer.step()"
    for agent in (0, 2):
        wanted = f"DisagreementError: {step}: this agent waits here, but agent 1 in {name}; "
        assert reports[agent].startswith(wanted), reports
    wanted = f"DisagreementError: {name}: this agent waits here, but agents 0, 2 in {step}; "
    assert reports[1].startswith(wanted), reports


@pytest.mark.parametrize(("name", "shown"), [("lr", "lr"), ("weight_decay", "weight decay")])
def test_rates_that_differ_between_agents_are_an_error_on_every_agent(
    name: str, shown: str, tmp_path: Path
) -> None:
    reports = play("rates", 3, tmp_path, name)
    for report in reports:
        error = report["rates"]["error"]
        assert error.startswith("DisagreementError: "), error
        assert f"the agents disagree on {shown}: agents 0, 2 [0.0" in error
        assert "agent 1 [0.125]" in error
        assert report["k"]["k"] == 40
    assert not committed_steps(tmp_path)


def test_optimizers_that_are_dropped_with_messages_under_way_do_not_disturb_the_next(tmp_path: Path) -> None:
    with Agents("failing.py", 3, "abandon", str(tmp_path)) as agents:
        reports = [lines(ended) for ended in agents.wait(90).values()]
    for report in reports:
        assert report["small"]["error"] is None
        assert report["large"]["error"] is None
        assert "cannot connect a second time; keep it open" in report["again"]["error"]


def test_truncated_checkpoint_is_an_error_on_every_agent_and_tracking_restart_survives_it(
    tmp_path: Path,
) -> None:
    with Agents("failing.py", 3, "checkpoint", str(tmp_path)) as agents:
        reports = [lines(ended) for ended in agents.wait(90).values()]
    for report in reports:
        assert report["truncated"]["error"].startswith("CheckpointError: Checkpoints.resume(): agent 1:")
        assert "truncated" in report["truncated"]["error"]
        assert report["tracking restart"]["error"] is None
