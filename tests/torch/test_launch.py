"""Agents of a `digrad launch` that is preempted, is set up wrongly, or runs on two machines."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from digrad import graphs
from digrad.cli.main import digrad
from digrad.errors import ArgumentError
from digrad.graphs import ring
from digrad.torch.checkpoint.checkpoint_files import committed_steps, step_folder
from digrad.torch.launch import CHECK, GRAPH_VARIABLE, launch
from torch_processes import SEARCHED, WORKERS, Agents, environment, free_port, listening

pytestmark = pytest.mark.long

WORKER = str(WORKERS / "launched.py")
WITHOUT_TORCH = str(WORKERS / "without_torch.py")
STARTUP = 60.0  # seconds for the interpreters to load torch on a busy machine
PATIENCE = 240.0  # seconds for agents to train where others have most of the cores; 55 were seen
GONE = 30.0  # seconds that torchrun gives the agents before it kills them


def remaining(token: str) -> list[int]:
    """Return the processes that carry the token in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if token.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.fixture
def without_zmq(tmp_path: Path) -> dict[str, str]:
    """Return the environment of processes that do not have pyzmq."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['zmq'] = None\n")
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path), SEARCHED])}


@contextmanager
def started(folder: Path, *words: str, **variables: str) -> Iterator[tuple[Agents, str]]:
    """Start `python -m` with words; its descendants are known by a token, and none of them is left behind."""
    token = f"digrad-test-{folder.name}-{os.getpid()}"
    with Agents("module.py", 1, *words, extra={0: {"DIGRAD_TEST_TOKEN": token, **variables}}) as process:
        try:
            yield process, token
        finally:
            for pid in remaining(token):
                with suppress(ProcessLookupError):  # it has ended with another one
                    os.kill(pid, signal.SIGKILL)


def run(folder: Path, *words: str, **variables: str) -> tuple[int, str]:
    """Return exit code and output of a command, and require that nothing remains."""
    with started(folder, *words, **variables) as (process, token):
        ended = process.wait(STARTUP + 90)[0]
        assert not remaining(token)
    return ended.code, ended.output


def signalled(process: Agents, number: int) -> tuple[int, str]:
    """Send a signal to a command, and return exit code and output."""
    os.kill(process.processes[0].pid, number)
    ended = process.wait(GONE)[0]
    return ended.code, ended.output


LAUNCH = ("digrad", "launch", "--agents", "2")


def wait_for(folder: Path, pattern: str, count: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while len(list(folder.glob(pattern))) < count:
        assert time.monotonic() < deadline, f"no {count} files {pattern}"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("script", "what", "number", "code"),
    [
        ("without_torch.py", "waits", signal.SIGINT, 130),
        ("without_torch.py", "waits", signal.SIGTERM, 143),  # it cannot save
        *(
            pytest.param("launched.py", *case, marks=pytest.mark.slow)
            for case in (
                ("forever", signal.SIGINT, 130),
                ("own group", signal.SIGTERM, 143),
                ("forever", signal.SIGHUP, 129),
            )
        ),
    ],
)
def test_no_process_survives_when_launch_is_preempted(
    script: str, what: str, number: signal.Signals, code: int, tmp_path: Path
) -> None:
    with started(tmp_path, *LAUNCH, str(WORKERS / script), what, str(tmp_path)) as (process, token):
        wait_for(tmp_path, "training-*", 2)
        assert len(remaining(token)) == 2
        found, output = signalled(process, number)
        assert found == code, output
        assert not remaining(token)
    assert "KeyboardInterrupt" not in output
    assert "digrad/torch" not in output  # no traceback of ours
    assert output.endswith("digrad: interrupted\n") == (number == signal.SIGINT)


def test_launch_that_is_preempted_at_once_leaves_nothing(tmp_path: Path) -> None:
    with started(tmp_path, *LAUNCH, WORKER, "forever", str(tmp_path)) as (process, token):
        deadline = time.monotonic() + STARTUP
        while not remaining(token) and time.monotonic() < deadline:
            time.sleep(0.05)
        code, output = signalled(process, signal.SIGTERM)
        assert code == 143, output
        assert not remaining(token)


@pytest.mark.parametrize(
    ("script", "what", "reason"),
    [
        ("without_torch.py", "disagree", "the agents disagree on"),
        pytest.param("launched.py", "dtype", "the agents disagree on", marks=pytest.mark.slow),
        pytest.param(
            "launched.py", "size", "has 3 agents, but 2 processes were started", marks=pytest.mark.slow
        ),
    ],
)
def test_wrong_settings_are_not_tried_again_and_the_reason_is_the_last_line(
    script: str, what: str, reason: str, tmp_path: Path
) -> None:
    code, output = run(tmp_path, *LAUNCH, str(WORKERS / script), what, str(tmp_path))
    assert code == 2, output
    last = output.splitlines()[-1]
    assert last.startswith(("digrad: agent 0 failed: ", "digrad: agent 1 failed: "))  # all fail at once
    assert reason in last
    assert output.count("Traceback (most recent call last)") == 1


def test_error_before_the_first_step_is_tried_once_more_and_the_last_line_says_so(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('begun')\nimport absent_module\n")
    code, output = run(tmp_path, "digrad", "launch", "--agents", "1", str(script))
    assert code == 1, output
    assert output.count("[0] begun\n") == 2
    assert output.endswith(
        "digrad: agent 0 failed: ModuleNotFoundError: No module named 'absent_module'; an earlier attempt failed in "
        "the same way before the first step, so it is not tried again\n"
    )


EARLY = "digrad: agent 1 failed: it ended with exit code 0 at step 3, before the others were done"
CRASHED = "digrad: agent 1 failed: ZeroDivisionError: agent 1 divides by zero"


def test_agent_that_leaves_early_is_named_and_an_error_that_repeats_at_the_same_step_is_not_tried_again(
    tmp_path: Path,
) -> None:
    code, output = run(tmp_path, *LAUNCH, WITHOUT_TORCH, "trouble", str(tmp_path))
    assert code == 1, output
    left, first, second = [line for line in output.splitlines() if line.startswith("digrad: ")]
    assert left.startswith(EARLY)
    assert left.endswith("; all agents have been started again")
    assert first == f"{CRASHED}; all agents have been started again"
    ending = "an earlier attempt failed in the same way at step 1, so it is not tried again"
    assert second == output.splitlines()[-1] == f"{CRASHED}; {ending}"
    # Of agent 1 in the two attempts in which it failed: others are folded.
    assert output.count("Traceback (most recent call last)") == 2


@pytest.mark.slow
def test_error_of_a_step_that_repeats_is_not_tried_again(tmp_path: Path) -> None:
    code, output = run(tmp_path, *LAUNCH, WORKER, "crash", str(tmp_path))
    assert code == 1, output
    assert output.splitlines()[-1].endswith("at step 1, so it is not tried again")
    assert output.splitlines().count(f"{CRASHED}; all agents have been started again") == 1
    assert output.count("Traceback (most recent call last)") == 2


@pytest.mark.slow
def test_agent_that_leaves_before_the_others_is_not_tried_for_ever(tmp_path: Path) -> None:
    code, output = run(tmp_path, "digrad", "launch", "--agents", "3", WORKER, "leaves", str(tmp_path))
    assert code == 1, output
    told = [line for line in output.splitlines() if line.startswith("digrad: ")]
    assert len(told) == 2, output
    assert all(line.startswith(f"{EARLY}; ") for line in told), output
    assert told[-1].endswith("an earlier attempt failed in the same way at step 3, so it is not tried again")


@pytest.mark.slow
def test_forgotten_collective_is_not_tried_again(tmp_path: Path) -> None:
    code, output = run(tmp_path, *LAUNCH, "--max-restarts", "9", WORKER, "alone", str(tmp_path))
    assert code == 2, output
    assert "agent 1 in DecentralizedOptimizer.consensus_error()" in output.splitlines()[-1]
    assert "all agents have been started again" not in output


@pytest.mark.slow
def test_traceback_of_the_cause_is_shown_and_those_of_the_others_are_folded(tmp_path: Path) -> None:
    words = ("digrad", "launch", "--agents", "3", "--max-restarts", "0", WORKER, "crash", str(tmp_path))
    code, output = run(tmp_path, *words)
    assert code == 1, output
    assert output.count("Traceback (most recent call last)") == 1
    lines = output.splitlines()
    first = lines.index("[1] Traceback (most recent call last):")
    assert WORKER in lines[first + 1]
    assert lines[-2:] == [
        "[1] ZeroDivisionError: agent 1 divides by zero.",
        "digrad: agent 1 failed: ZeroDivisionError: agent 1 divides by zero.",
    ]


CHATTER = """
import os, subprocess, sys
print(sys.argv[1:], __name__, os.path.basename(sys.path[0]))
for i in range(3000):
    print(f"line {i}")
    if i % 1000 == 0:
        print(f"error {i}", file=sys.stderr)
sys.stdout.write("a bar\\rover it\\n")
subprocess.run(["echo", "from a child"])
os.write(1, b"no line end")
"""


def test_lines_of_agents_carry_their_number_and_none_is_lost_or_torn(
    tmp_path: Path, without_zmq: dict[str, str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text(CHATTER)
    command = [sys.executable, "-m", *LAUNCH, str(script), "--epochs", "3"]
    done = subprocess.run(
        command, env=environment(**without_zmq), capture_output=True, timeout=STARTUP + 60, check=False
    )
    assert done.returncode == 0, done.stderr
    expected = [f"['--epochs', '3'] __main__ {tmp_path.name}".encode()]
    expected += [f"line {i}".encode() for i in range(3000)]
    expected += [b"a bar", b"over it", b"from a child", b"no line end"]
    for prefix in (b"[0] ", b"[1] "):
        own = [line for line in done.stdout.splitlines() if line.startswith(prefix)]
        assert own == [prefix + line for line in expected]
        errors = [line for line in done.stderr.splitlines() if line.startswith(prefix)]
        assert errors == [prefix + line for line in (b"error 0", b"error 1000", b"error 2000")]
    assert len(done.stdout.splitlines()) == 2 * len(expected)


@pytest.mark.slow
def test_two_machines_train_together(tmp_path: Path) -> None:
    folders = [tmp_path / "first", tmp_path / "second"]
    endpoint = f"127.0.0.1:{free_port()}"
    words = ("--nodes", "2", "--endpoint", endpoint, "--interface", "lo", WORKER, "short")
    for folder in folders:
        folder.mkdir()
    with (
        started(folders[0], *LAUNCH, *words, str(folders[0])) as (one, token),
        started(folders[1], *LAUNCH, *words, str(folders[1])) as (two, _),
    ):
        addresses = set()
        while one.processes[0].exitcode is None:
            addresses |= {address for address, _ in listening(remaining(token))}
            time.sleep(0.05)
        for process in (one, two):
            ended = process.wait(STARTUP + 60)[0]
            assert ended.code == 0, ended.output
    assert addresses == {"127.0.0.1"}
    averages = [[path.read_bytes() for path in folder.glob("average-*")] for folder in folders]
    assert [len(found) for found in averages] == [2, 2]
    assert len(set(averages[0] + averages[1])) == 1


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--standalone",)], ids=["static", "standalone"])
def test_plain_torchrun_restarts_the_agents_of_one_machine(options: tuple[str, ...], tmp_path: Path) -> None:
    words = ("torch.distributed.run", "--nproc-per-node=2", "--max-restarts=1", *options)
    port = (f"--master-port={free_port()}",) if not options else ()
    code, output = run(tmp_path, *words, *port, WORKER, "killed", str(tmp_path))
    assert code == 0, output
    assert len(list(tmp_path.glob("average-*"))) == 2


def test_attempts_that_share_the_store_of_a_plain_torchrun_keep_their_addresses_apart(tmp_path: Path) -> None:
    """Its store outlives an attempt; the processes here are those that it would start."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": str(store.port)}
    for attempt, codes in (("0", {1: -signal.SIGKILL}), ("1", {0: 0, 1: 0})):
        variables = {**shared, "TORCHELASTIC_RESTART_COUNT": attempt}
        with Agents(WORKER, 2, "killed", str(tmp_path), extra=dict.fromkeys(range(2), variables)) as agents:
            ended = agents.wait(PATIENCE, list(codes))
        assert {rank: one.code for rank, one in ended.items()} == codes, ended
    assert len(list(tmp_path.glob("average-*"))) == 2


SAVING = """
import logging, os, sys, torch, digrad as dg
from pathlib import Path
from digrad.torch import Checkpoints, DecentralizedOptimizer, ProcessNetwork
network = ProcessNetwork(dg.graphs.ring(2))
logging.basicConfig(format="agent %(agent)d step %(step)d: %(message)s")
model = torch.nn.Linear(4, 3)
optimizer = DecentralizedOptimizer(model.parameters(), dg.CGT(step_size=0.05, threshold=1.0), network)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.999)
for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):  # as docs/guides/other_tools.md has it
    os.environ.pop(name)
Checkpoints(sys.argv[1], optimizer, others={"scheduler": scheduler}).resume()
assert "torch._dynamo" not in sys.modules  # seconds of every agent, for nothing
while True:
    optimizer.zero_grad()
    model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    scheduler.step()
    assert scheduler.last_epoch == optimizer.k
    if optimizer.k % 20 == 0:
        logging.warning("twenty more")
        Path(sys.argv[1], f"training-{network.agent}").touch()
"""


def test_run_that_is_preempted_saves_the_same_step_on_all_agents_first(
    tmp_path: Path, without_zmq: dict[str, str]
) -> None:
    """Nothing listens beyond loopback before."""
    script = tmp_path / "train.py"
    script.write_text(SAVING)
    metrics = tmp_path / "metrics"
    words = (*LAUNCH, "--metrics", str(metrics), str(script), str(tmp_path))
    with started(tmp_path, *words, **without_zmq) as (process, token):
        wait_for(tmp_path, "training-*", 2)
        pids = [process.processes[0].pid, *remaining(token)]
        assert {address for address, _ in listening(pids)} == {"127.0.0.1"}
        code, output = signalled(process, signal.SIGTERM)
        assert code == 143, output
        assert not remaining(token)
    assert "Traceback" not in output
    for agent in range(2):
        assert f"[{agent}] agent {agent} step 20: twenty more\n" in output
    (last,) = committed_steps(tmp_path)
    names = {path.name for path in step_folder(tmp_path, last).glob("agent-*")}
    assert names == {"agent-0.safetensors", "agent-1.safetensors"}
    for agent in range(2):
        lines = [json.loads(line) for line in (metrics / f"agent-{agent}.jsonl").read_text().splitlines()]
        assert [line["step"] for line in lines] == list(range(1, last + 1))
        assert all(line["agent"] == agent and line["bytes"] > 0 and line["waited"] >= 0 for line in lines)


DEADLINE = """
import sys, time, torch, digrad as dg
from pathlib import Path
from digrad.torch import Checkpoints, DecentralizedOptimizer, ProcessNetwork
network = ProcessNetwork(dg.graphs.ring(2), deadline=0.01)
model = torch.nn.Linear(4, 3)
optimizer = DecentralizedOptimizer(model.parameters(), dg.CGT(step_size=0.05, threshold=1.0), network)
checkpoints = Checkpoints(sys.argv[1], optimizer)
checkpoints.resume()
while True:
    optimizer.zero_grad()
    model(torch.ones(2, 4)).square().mean().backward()
    time.sleep(0.002)
    optimizer.step()
    if optimizer.k == 50:
        Path(sys.argv[1], f"training-{network.agent}").touch()
    if optimizer.k % int(sys.argv[2]) == 0:
        checkpoints.save()
"""


@pytest.mark.parametrize(
    "every", [60, pytest.param(10**9, marks=pytest.mark.slow)], ids=["saves", "does not"]
)
def test_machine_that_is_preempted_ends_one_that_need_not_wait_for_it(every: int, tmp_path: Path) -> None:
    """Who was asked takes no step until the other one has learned of it, which may wait for it meanwhile."""
    script = tmp_path / "train.py"
    script.write_text(DEADLINE)
    words = ("digrad", "launch", "--agents", "1", "--nodes", "2", "--endpoint", f"127.0.0.1:{free_port()}")
    words = (*words, "--interface", "lo", "--node-rank")
    with (
        started(tmp_path, *words, "0", str(script), str(tmp_path), str(every)) as (first, _),
        started(tmp_path, *words, "1", str(script), str(tmp_path), str(every)) as (second, _),
    ):
        wait_for(tmp_path, "training-*", 2)
        code, output = signalled(second, signal.SIGTERM)
        other = first.wait(GONE)[0]
    assert (code, other.code) == (143, 1), (output, other.output)
    assert other.output.splitlines()[-1].endswith("was preempted; all agents have saved")
    assert "Traceback" not in output + other.output
    last = committed_steps(tmp_path)[-1]
    assert len(list(step_folder(tmp_path, last).glob("agent-*"))) == 2


def test_nothing_survives_a_launch_that_is_killed(tmp_path: Path) -> None:
    with started(tmp_path, *LAUNCH, WITHOUT_TORCH, "waits", str(tmp_path)) as (process, token):
        wait_for(tmp_path, "training-*", 2)
        assert signalled(process, signal.SIGKILL)[0] == -signal.SIGKILL
        deadline = time.monotonic() + GONE
        while remaining(token) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not remaining(token)


def test_worker_can_die_with_launch_before_it_imports_torch() -> None:
    """Importing takes seconds, in which it would outlive a launch that is killed."""
    code = "import sys, digrad.torch.launch.worker; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=environment(), check=False).returncode == 0


def test_check_tries_every_edge_in_both_directions(tmp_path: Path) -> None:
    """The script that launch runs then."""
    graphs.write(ring(3), tmp_path / "graph.json")
    variables = {GRAPH_VARIABLE: str(tmp_path / "graph.json")}
    with Agents(str(CHECK), 3, extra=dict.fromkeys(range(3), variables)) as agents:
        ended = agents.wait(PATIENCE)
    assert {one.code for one in ended.values()} == {0}, ended
    lines = ended[0].output.splitlines()
    assert [line.split(":")[0] for line in lines if "edge" in line] == [
        "edge 0 to 1, and back",
        "edge 1 to 2, and back",
        "edge 2 to 0, and back",
        "all 3 edges work in both directions",
    ]
    assert [line for line in lines if "listens on" in line] == [
        f"agent {agent} listens on 127.0.0.1 (lo)" for agent in range(3)
    ]


def test_check_is_shown_as_json_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(script: Path, arguments: tuple[str, ...], **options: Any) -> int:
        with Agents(str(script), options["agents"], *arguments) as agents:
            return max(one.code for one in agents.wait(PATIENCE).values())

    monkeypatch.setattr(sys.modules["digrad.torch.launch"], "launch", check)  # its name is that of a function
    done = CliRunner().invoke(digrad, [*LAUNCH[1:], "--check", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert set(found["versions"]) == {"digrad", "torch", "python"}
    assert found["agents"] == [{"address": "127.0.0.1", "interface": "lo"}] * 2
    assert [edge["edge"] for edge in found["edges"]] == [[0, 1], [1, 0]]
    assert all(0 < edge["latency"] < 60 and edge["bandwidth"] > 0 for edge in found["edges"])


def test_several_machines_say_that_they_need_pyzmq(monkeypatch: pytest.MonkeyPatch) -> None:
    """One machine does without: others here have none."""
    monkeypatch.setitem(sys.modules, "zmq", None)
    with pytest.raises(ArgumentError, match="`pip install pyzmq`"):
        launch(WORKER, agents=1, nodes=2, endpoint=f"127.0.0.1:{free_port()}")
