"""A checkpoint comes back as it was, or is refused in one line on every agent."""

import fcntl
import json
import os
import shutil
from collections import Counter, OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from digrad import CGT
from digrad.errors import ArgumentError, CheckpointError
from digrad.graphs import ring
from digrad.links import Links, compressors
from digrad.network import Network
from digrad.torch import Checkpoints, Replicas
from digrad.torch.checkpoint.checkpoint_files import MARKER, delete_file, step_folder
from digrad.torch.checkpoint.serialization import decode, encode
from digrad.torch.engines.replica_engine import SingleProcess
from torch_processes import Agents, run

Lines = list[dict[str, Any]]  # what each agent printed, by agent


def play(mode: str, n: int, folder: Path, *args: str) -> dict[str, Lines]:
    """Run the worker on every agent; return what each printed, by attempt."""
    with Agents("checkpoints.py", n, mode, str(folder), *args) as agents:
        ended = agents.wait(120)
    attempts: dict[str, Lines] = {}
    for one in ended.values():
        assert one.code == 0, one.output
        for line in one.output.splitlines():
            if line.startswith("{"):
                found = json.loads(line)
                attempts.setdefault(found.pop("attempt"), []).append(found)
    assert all(len(lines) == n for lines in attempts.values())
    return attempts


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def attempts(folder: Path) -> dict[str, Lines]:
    return play("three_agents", 3, folder)


def errors(lines: Lines) -> list[str]:
    """Return the error of each agent; they must be one and the same line."""
    found = [line["error"] for line in lines]
    assert all(error is not None and "\n" not in error for error in found), found
    assert len(set(found)) == 1, found
    return found


def results(lines: Lines) -> list[Any]:
    assert all(line["error"] is None for line in lines), lines
    return [line["result"] for line in lines]


# --- what is stored --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        {10: 1, "10": 2, (1, "a"): 3, None: 4},
        Counter({10: 1, 30: 2}),
        OrderedDict([("b", 1), ("a", [1, (2, 3)])]),
        {"nested": [({1, 2}, [], {}, ()), True, None, 1, 1.0, "1", 0.1, 2**70, float("inf")]},
        {"list": [1], "tensor": "value/0", "dict": {}},  # keys that look like our own
    ],
)
def test_state_comes_back_with_its_types_and_keys(value: Any) -> None:
    found = decode(json.loads(json.dumps(encode(value, "state", {}))), {})
    assert repr(found) == repr(value)  # tells 1 from True and 1.0, a list from a tuple, a dict from a Counter


@pytest.mark.parametrize("factory", [int, list, None])
def test_defaultdict_comes_back_with_its_factory(factory: Any) -> None:
    value = defaultdict(factory, {3: 4})
    assert repr(decode(json.loads(json.dumps(encode(value, "state", {}))), {})) == repr(value)


def test_tensors_and_numpy_numbers_come_back_equal() -> None:
    tensors: dict[str, torch.Tensor] = {}
    value = {"ema": torch.arange(3.0), "milestones": Counter({np.int64(3): 1}), "best": np.float64(0.1)}
    found = decode(json.loads(json.dumps(encode(value, "state", tensors))), tensors)
    assert torch.equal(found.pop("ema"), torch.arange(3.0))
    assert found == {"milestones": Counter({3: 1}), "best": 0.1}


@pytest.mark.parametrize("value", [len, object(), np.float32(1), np.ones(2), 1j, torch.Size([1]), b"x"])
def test_what_would_not_come_back_the_same_is_refused(value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"`others\['mine'\]\['inner'\]\[0\]` is of type"):
        encode({"inner": [value]}, "others['mine']", {})


def test_schedulers_go_on_as_if_uninterrupted(attempts: dict[str, Lines]) -> None:
    public = set(lr_scheduler.__all__) - {"LRScheduler"}
    names = public | {"LambdaLR with an object", "GradScaler"}
    assert names <= set(attempts)
    for name in sorted(names):
        for line in attempts[name]:
            assert line["resumed"] == line["uninterrupted"][-6:], name
            assert len(set(line["resumed"])) > 1, name  # else nothing was tested


@pytest.mark.parametrize("name", ["function", "object", "numpy", "itself"])
def test_unstorable_entry_is_an_error_on_every_agent_before_anything_is_written(
    name: str, attempts: dict[str, Lines]
) -> None:
    for error in errors(attempts[f"refused {name}"]):
        assert error.startswith("CheckpointError: Checkpoints.save(): agent 1: `others['mine']['inner'][0]")
    assert results(attempts[f"written {name}"]) == [False] * 3


def test_agent_that_cannot_write_is_an_error_on_every_agent_and_nothing_is_committed(
    attempts: dict[str, Lines],
) -> None:
    for error in errors(attempts["unwritable"]):
        assert error.startswith("CheckpointError: Checkpoints.save(): agent 1: ")
        assert "cannot be written" in error
    assert results(attempts["marker"]) == [False] * 3


def test_saving_at_different_steps_is_an_error_on_every_agent(attempts: dict[str, Lines]) -> None:
    assert all("different steps ([5, 7, 5])" in error for error in errors(attempts["different steps"]))


def test_saving_needs_no_copy_of_the_state(attempts: dict[str, Lines]) -> None:
    assert max(results(attempts["memory"])) < 0.5  # flat buffers; the state has three


# --- resuming --------------------------------------------------------------------------------------------------


def check_taken_over(attempts: dict[str, Lines], attempt: str) -> None:
    """Require that an attempt reached the last step with everything as it was when it was saved."""
    for saved, found in zip(results(attempts["saved"]), results(attempts[attempt]), strict=True):
        assert found["k"] == 3
        assert found["x"] != found["new"]
        for name in ("x", "lr", "scheduler", "mean", "rng"):
            assert found[name] == saved[name], name


@pytest.mark.parametrize("mode", ["exact", "tracking restart"])
@pytest.mark.parametrize("scene", ["untouched", "old folder"])
def test_resume_takes_everything_over(scene: str, mode: str, attempts: dict[str, Lines]) -> None:
    check_taken_over(attempts, f"{scene}, {mode}")


@pytest.mark.parametrize(
    ("scene", "reason"),
    [
        ("truncated marker", ("COMMITTED` is damaged", "delete the folder of step 3")),
        ("list as marker", ("COMMITTED` is damaged", "delete the folder of step 3")),
        (
            "other format",
            ("has format 1, but this version reads 3; resume with the version", "another folder."),
        ),
    ],
)
def test_damaged_marker_is_an_error_and_tracking_restart_takes_the_step_before(
    scene: str, reason: tuple[str, str], attempts: dict[str, Lines]
) -> None:
    for error in errors(attempts[f"{scene}, exact"]):
        assert error.startswith("CheckpointError: Checkpoints.resume(): agents 0, 1, 2: ")
        assert all(part in error for part in reason)
        assert ("tracking restart" in error) == (scene != "other format")
    assert [found["k"] for found in results(attempts[f"{scene}, tracking restart"])] == [1] * 3


@pytest.mark.parametrize(
    ("scene", "reason"),
    [
        ("new entry", "others: {'scaler': 'absent'} there, {'scaler': 'GradScaler'} here"),
        ("new buffer", "buffers: {'extra': 'absent'} there, {'extra': [2]} here"),
        ("other dtype", "dtype: torch.float32 there, torch.float64 here"),
        ("other graph", "graph and weights: "),
    ],
)
def test_other_network_or_program_is_an_error_and_tracking_restart_keeps_what_fits(
    scene: str, reason: str, attempts: dict[str, Lines]
) -> None:
    for error in errors(attempts[f"{scene}, exact"]):
        assert error.startswith("CheckpointError: Checkpoints.resume(): agents 0, 1, 2: ")
        assert reason in error
        assert error.endswith("use resume('tracking restart').")
    check_taken_over(attempts, f"{scene}, tracking restart")


@pytest.mark.parametrize("mode", ["exact", "tracking restart"])
@pytest.mark.parametrize("scene", ["other model", "other method"])
def test_other_model_or_method_is_an_error_in_both_modes(
    scene: str, mode: str, attempts: dict[str, Lines]
) -> None:
    for error in errors(attempts[f"{scene}, {mode}"]):
        assert "belongs to another run" in error
        assert error.endswith("give another folder.")


def test_agent_without_a_file_keeps_its_new_model(attempts: dict[str, Lines]) -> None:
    assert all("no committed step in common" in error for error in errors(attempts["lost files, exact"]))
    saved, found = results(attempts["saved"]), results(attempts["lost files, tracking restart"])
    assert [one["k"] for one in found] == [3] * 3
    assert [found[agent]["x"] == saved[agent]["x"] for agent in range(3)] == [True, False, True]
    assert found[1]["x"] == found[1]["new"]
    assert all(
        found[1][name] == saved[0][name] for name in ("scheduler", "lr")
    )  # or it would leave the others


@pytest.mark.parametrize("mode", ["exact", "tracking restart"])
def test_nothing_readable_is_an_error_in_both_modes(mode: str, attempts: dict[str, Lines]) -> None:
    for error in errors(attempts[f"nothing readable, {mode}"]):
        assert all(f"agent {agent}: " in error for agent in range(3))
        assert "truncated" in error


def test_tracking_restart_goes_on_with_the_schedule_of_the_method(attempts: dict[str, Lines]) -> None:
    assert all(rate == scheduled for rate, scheduled in results(attempts["schedule"]))


def test_other_number_of_agents_is_an_error_and_tracking_restart_accepts_it(
    folder: Path, attempts: dict[str, Lines]
) -> None:
    again = play("two_agents", 2, folder)
    for error in errors(again["exact"]):
        assert "agents: 3 there, 2 here" in error
        assert error.endswith("use resume('tracking restart').")
    for saved, found in zip(results(attempts["saved"]), results(again["tracking restart"]), strict=False):
        assert (found["k"], found["x"]) == (3, saved["x"])


def test_agents_that_are_groups_of_processes_resume_bitwise(tmp_path: Path) -> None:
    first = play("groups", 4, tmp_path, "uninterrupted")
    assert results(first["exact"]) == [None] * 4
    step = tmp_path / "steps" / "step-0000000004"
    names = ["agent-0-process-1.safetensors", "agent-0.safetensors"]
    names += ["agent-1-process-1.safetensors", "agent-1.safetensors"]
    assert sorted(path.name for path in step.glob("agent-*")) == names
    # One process of agent 0 lost its file of step 6: both processes of both agents go back to step 4.
    second = play("groups", 4, tmp_path, "resumed")
    assert results(second["exact"]) == [4] * 4
    for agent in range(2):
        ends = []
        for process in range(2):
            resumed = (tmp_path / f"resumed-{agent}-{process}.safetensors").read_bytes()
            assert resumed == (tmp_path / f"uninterrupted-{agent}-{process}.safetensors").read_bytes()
            ends.append(resumed)
        assert ends[0] != ends[1]  # their random numbers and buffers differ
    # In a tracking restart the process without a file reads that of the other.
    for attempts in (first, second):
        restarted = results(attempts["tracking restart"])
        assert [k for k, _ in restarted] == [6] * 4
        assert restarted[0] == restarted[1] != restarted[2] == restarted[3]


# --- replicas --------------------------------------------------------------------------------------------------


def test_run_that_is_preempted_goes_on_as_if_nothing_had_happened(tmp_path: Path) -> None:
    """Whatever the order of the loop body."""
    run("preempted.py", 2, str(tmp_path))
    for agent in range(2):
        found = json.loads((tmp_path / f"agent-{agent}.json").read_text())
        assert len(found) == 4
        assert all(same and all(same) for same in found.values()), found


def replicas_with(folder: Path, links: Any = None) -> tuple[Replicas, Checkpoints]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5), nn.Linear(3, 1))
    replicas = Replicas(model, CGT(step_size=0.1, threshold=1.0), Network(ring(3), links=links))
    scheduler = lr_scheduler.StepLR(replicas, 3)
    return replicas, Checkpoints(folder, replicas, others={"scheduler": scheduler}, keep=2)


def train(replicas: Replicas, checkpoints: Checkpoints, last: int) -> None:
    while replicas.k < last:
        replicas.zero_grad()
        for model in replicas.models:
            model(torch.randn(6, 4)).square().mean().backward()
        replicas.step()
        checkpoints._others["scheduler"].step()  # pyright: ignore
        if replicas.k % 2 == 0:
            checkpoints.save()


@pytest.mark.parametrize("links", [None, Links(compressor=compressors.bfloat16())])
def test_replicas_resume_bitwise(links: Any, tmp_path: Path) -> None:
    first, checkpoints = replicas_with(tmp_path, links)
    assert checkpoints.resume() is None
    train(first, checkpoints, 7)
    second, checkpoints = replicas_with(tmp_path, links)
    assert checkpoints.resume() == 6
    train(second, checkpoints, 7)
    assert all(torch.equal(a, b) for a, b in zip(first.state_fields, second.state_fields, strict=True))
    assert first.bytes_sent == second.bytes_sent > 0
    for one, other in zip(first.models, second.models, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one.buffers(), other.buffers(), strict=True))
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == ["step-0000000004", "step-0000000006"]


def test_replicas_with_other_links_go_on_by_a_tracking_restart_only(tmp_path: Path) -> None:
    first, checkpoints = replicas_with(tmp_path)
    train(first, checkpoints, 2)
    second, checkpoints = replicas_with(tmp_path, Links(compressor=compressors.bfloat16()))
    with pytest.raises(
        CheckpointError,
        match=r"links: None there, Links\(compressor=bfloat16\(\)\) here; use resume\('tracking",
    ):
        checkpoints.resume()
    assert checkpoints.resume("tracking restart") == 2
    assert torch.equal(second.estimate(), first.estimate())


def test_state_that_is_not_finite_is_not_stored(tmp_path: Path) -> None:
    replicas, checkpoints = replicas_with(tmp_path)
    train(replicas, checkpoints, 2)
    before = {path: path.read_bytes() for path in tmp_path.glob("*/*")}
    replicas.state_fields.y[1, 0] = float("inf")
    with pytest.raises(CheckpointError, match=r"Checkpoints.save\(\): y of the state are not finite"):
        checkpoints.save()
    assert {path: path.read_bytes() for path in tmp_path.glob("*/*")} == before


def test_checkpoints_of_something_else_are_refused(tmp_path: Path) -> None:
    plain: Any = torch.optim.SGD(nn.Linear(2, 1).parameters(), lr=0.1)
    with pytest.raises(ArgumentError, match="must be a DecentralizedOptimizer or Replicas, but got SGD"):
        Checkpoints(tmp_path, plain)


def test_last_file_of_a_step_takes_its_folder_along_whoever_was_faster(tmp_path: Path) -> None:
    folder = step_folder(tmp_path, 4)
    folder.mkdir()
    names = [MARKER, "agent-0.safetensors", "agent-1.safetensors"]
    for name in names:
        (folder / name).touch()
    delete_file(folder / "agent-0.safetensors")
    assert sorted(path.name for path in folder.iterdir()) == sorted({MARKER, "agent-1.safetensors"})
    delete_file(folder / "agent-1.safetensors")
    assert not folder.exists()
    delete_file(folder / "agent-0.safetensors")  # as by an agent that finds the folder gone


def test_folder_that_cannot_be_written_is_an_error_before_the_first_step(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    replicas = Replicas(torch.nn.Linear(2, 1), CGT(step_size=0.1, threshold=1.0), ring(3))
    for folder in (Path("/proc/digrad"), tmp_path / "file" / "below"):
        with pytest.raises(CheckpointError, match=f"`{folder}` cannot be written .*; give another folder"):
            Checkpoints(folder, replicas)


def test_disk_without_room_for_one_state_is_an_error_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    replicas = Replicas(torch.nn.Linear(2, 1), CGT(step_size=0.1, threshold=1.0), ring(3))
    with pytest.raises(CheckpointError, match="has 0 MB left, but one state needs"):
        Checkpoints(tmp_path, replicas)


def test_disk_without_room_for_the_states_of_all_who_share_it_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas = Replicas(torch.nn.Linear(2, 1), CGT(step_size=0.1, threshold=1.0), ring(3))
    size = sum(value.nbytes for value in replicas.state_fields)
    full = shutil.disk_usage(tmp_path)._replace(free=3 * size)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    others: dict[str, Any] = {}
    monkeypatch.setattr(SingleProcess, "exchange", lambda self, facts, _: [facts, *[{**facts, **others}] * 4])
    with pytest.raises(CheckpointError, match="but the states of 5 processes on that disk need"):
        Checkpoints(tmp_path, replicas)
    others |= {"disk": ["elsewhere", 0]}  # of another machine, but the very folder, as a network has it
    with pytest.raises(CheckpointError, match="but the states of 5 processes on that disk need"):
        Checkpoints(tmp_path, replicas)
    others |= {"token": "another"}  # of a folder of the same name
    Checkpoints(tmp_path, replicas)


def test_folder_of_a_run_that_is_alive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("digrad.torch.checkpoint.checkpoint_files._PATIENCE", 0.0)
    replicas = Replicas(torch.nn.Linear(2, 1), CGT(step_size=0.1, threshold=1.0), ring(3))
    held = os.open(tmp_path / ".agent-all.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(held, fcntl.LOCK_EX)
    with pytest.raises(CheckpointError, match="another run uses"):
        Checkpoints(tmp_path, replicas)
    os.close(held)
    for _ in range(2):  # this process may use it as often as it likes
        Checkpoints(tmp_path, replicas).save()
