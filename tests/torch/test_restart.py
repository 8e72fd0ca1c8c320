"""An agent that is killed costs a few steps, never the run or a bit of the result."""

import json
import os
import random
import socket
from pathlib import Path
from typing import Any

import pytest

from digrad import graphs
from digrad.graphs import example5, ring
from torch_processes import WORKERS, Agents

pytestmark = pytest.mark.long

STARTUP = 60.0  # seconds for five interpreters to load torch on a busy machine


def launch(folder: Path, plan: dict[str, Any], agents: int) -> str:
    """Run the worker under ``launch`` in a process of its own; require success and no remains; return the output."""
    words = ("--agents", str(agents), "--graph", write_graph(folder, agents), "--max-restarts", "1")
    token = f"digrad-test-{folder.name}-{os.getpid()}"
    variables = {"KILL": json.dumps(plan), "DIGRAD_TEST_TOKEN": token}
    script = (str(WORKERS / "restart.py"), str(folder))
    with Agents("module.py", 1, "digrad", "launch", *words, *script, extra={0: variables}) as process:
        done = process.wait(240)[0]
    assert done.code == 0, done.output
    assert not orphans(token)
    ports = {int(port) for started in folder.glob("started-*") for port in started.read_text().split()[1:]}
    assert len(ports) > agents  # gloo listens in every process, the store in one
    for port in ports:
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0, f"port {port} is still open"
    return done.output


def write_graph(folder: Path, agents: int) -> str:
    """Make the folder of a run, with its graph."""
    folder.mkdir()
    graphs.write(example5() if agents == 5 else ring(agents), folder / "graph.json")
    return str(folder / "graph.json")


def orphans(token: str) -> list[str]:
    """Return the processes that carry the token in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if token.encode() in (entry / "environ").read_bytes():
                    found.append(entry.name)
            except OSError:
                continue
    return found


def final_states(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.glob("final-*.safetensors"))]


def uninterrupted_run(folder: Path, agents: int) -> list[bytes]:
    variables = {"DIGRAD_GRAPH": write_graph(folder, agents)}
    with Agents(
        "restart.py", agents, str(folder), extra=dict.fromkeys(range(agents), variables)
    ) as processes:
        for rank, ended in processes.wait(240).items():
            assert ended.code == 0, f"agent {rank} failed:\n{ended.output}"
    kept = sorted(path.parent.name for path in folder.glob("steps/*/COMMITTED"))
    assert kept == ["step-0000000016", "step-0000000020"]
    states = final_states(folder)
    assert len(states) == agents
    return states


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    return uninterrupted_run(tmp_path_factory.mktemp("reference") / "run", 2)


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    return uninterrupted_run(tmp_path_factory.mktemp("reference") / "run", 5)


def check_kill(folder: Path, plan: dict[str, Any], expected: list[bytes], resumed_at: set[int]) -> None:
    agents = len(expected)
    errors = launch(folder, plan, agents)
    # torchrun blames the agent that it finds first; others may have noticed the loss before it looks.
    blamed = (
        f"agent {plan['agent']} failed: it was ended by SIGKILL",
        f"connection to agent {plan['agent']} is lost",
    )
    lines = [line for line in errors.splitlines() if line.endswith("; all agents have been started again")]
    assert len(lines) == 1
    assert any(reason in lines[0] for reason in blamed) or agents > 2, errors
    killed = float((folder / "killed").read_text())
    restarted = [float((folder / f"started-1-{agent}").read_text().split()[0]) for agent in range(agents)]
    assert max(restarted) - killed < 20 + STARTUP
    found = folder / "resumed-0"
    assert (int(found.read_text()) if found.exists() else 0) in resumed_at
    assert final_states(folder) == expected


def test_killed_agent_is_restarted_and_the_result_is_bitwise_the_same(
    tmp_path: Path, two: list[bytes]
) -> None:
    check_kill(tmp_path / "run", {"agent": 0, "k": 10, "direct": True}, two, {8})


@pytest.mark.slow
def test_agent_killed_while_writing_a_checkpoint_resumes_from_the_one_before(
    tmp_path: Path, two: list[bytes]
) -> None:
    check_kill(tmp_path / "run", {"agent": 1, "k": 12, "inside": "agent"}, two, {8})


@pytest.mark.slow
@pytest.mark.parametrize("trial", range(20))
def test_any_agent_may_be_killed_at_any_step(trial: int, tmp_path: Path, five: list[bytes]) -> None:
    rng = random.Random(trial)
    plan: dict[str, Any] = {"agent": trial % 5, "k": rng.randrange(20), "direct": trial % 2 == 1}
    resumed = {plan["k"] // 4 * 4}
    if trial % 4 == 1:
        plan = {**plan, "k": rng.randrange(8), "seconds": rng.uniform(0.0, 0.01)}
        resumed = set(range(plan["k"] // 4 * 4, 17, 4))
    if trial % 4 == 3:
        plan = {**plan, "k": 4 * rng.randrange(1, 6), "inside": rng.choice(["agent", "COMMITTED"])}
        # Whether the step counts depends on how far the others were with its marker.
        resumed = {plan["k"] - 4} if plan["inside"] == "agent" else {plan["k"] - 4, plan["k"]}
    check_kill(tmp_path / "run", plan, five, resumed)


def test_torchrun_on_several_machines_fails_early_with_the_reason_when_its_restart_cannot_work() -> None:
    variables = {"GROUP_WORLD_SIZE": "2", "TORCHELASTIC_RESTART_COUNT": "1"}
    with Agents("failing.py", 3, "missing", ".", ranks=range(1), extra={0: variables}) as agents:
        (line,) = agents.wait(60)[0].output.splitlines()
    assert "`torchrun --rdzv-backend digrad`" in json.loads(line)["error"]
    assert json.loads(line)["seconds"] < 4  # not those that it waits for others
