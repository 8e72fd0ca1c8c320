"""Kills at random moments, of every role, on several hosts and on one: every run ends right, or restarts right."""

import collections
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from digrad.torch.checkpoint.checkpoint_files import committed_steps
from host_runs import WORKER, Run, check_result, until
from namespaces import Host, hosts, needs_namespaces

pytestmark = [*needs_namespaces, pytest.mark.slow]

PACE = 0.05  # seconds that a step takes; a checkpoint takes six times as long
STEPS = 2.0  # seconds that twelve steps and four checkpoints take, and an attempt to start somewhat more
IMPORTS = 5.0
TIMEOUT = 20.0  # of the agents
# Role: whether there are several machines. Of several the first one has the endpoint, and with it the store.
ROLES = {
    "agent": True,
    "launch": True,
    "launch with the store": True,
    "machine with the store": True,
    "agent of torchrun": True,
    "torchrun with the store": True,
    "agent of one machine": False,
    "launch of one machine": False,
}
WAITING = "digrad: waiting for"
MOMENTS = ("start", "step", "save", "end")
FIRST = int(os.environ.get("DIGRAD_SOAK_FIRST", "0"))  # trial; those of several machines can be put together
TRIALS = range(FIRST, FIRST + int(os.environ.get("DIGRAD_SOAK", "8")))


@dataclass
class Trial:
    """Target and result of one kill."""

    number: int
    role: str
    hosts: int
    moment: str = ""
    killed: int = 0
    restarts: int = 0
    relaunches: int = 0
    seconds: float = 0.0
    right: bool = False
    orphans: int = -1
    ports: int = -1
    memory: int = -1


@pytest.fixture(scope="module")
def journal(request: pytest.FixtureRequest) -> Iterator[list[Trial]]:
    """A line for each trial as it ends, and in the end a table of roles and moments."""
    trials: list[Trial] = []
    yield trials
    table = collections.Counter((one.role, one.moment) for one in trials if one.killed)
    moments = sorted({moment for _, moment in table})
    lines = ["", f"{'killed':24}" + "".join(f"{moment:>10}" for moment in (*moments, "all"))]
    for role in ROLES:
        counts = [table[role, moment] for moment in moments]
        lines.append(f"{role:24}" + "".join(f"{count:10}" for count in (*counts, sum(counts))))
    write(request, "\n".join(lines))


def write(request: pytest.FixtureRequest, text: str) -> None:
    capture: Any = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        print(text, flush=True)


@pytest.mark.parametrize("number", TRIALS)
def test_any_process_of_any_host_may_be_killed_at_any_moment(
    number: int, tmp_path: Path, journal: list[Trial], request: pytest.FixtureRequest
) -> None:
    """Also while it starts, saves and ends; the bits of the result do not depend on it, and nothing is left."""
    rng = random.Random(number)
    role = list(ROLES)[number % len(ROLES)]
    trial = Trial(number, role, rng.choice((2, 3)) if ROLES[role] else 1)
    journal.append(trial)
    memory, began = shared_memory(), time.monotonic()
    try:
        with hosts(trial.hosts) as machines:
            script = (WORKER, str(tmp_path), str(TIMEOUT), str(PACE))
            run = Run(
                machines, tmp_path, script=script, agents=1 if ROLES[role] else 2, torchrun="torchrun" in role
            )
            run.go()
            run.start_all(TMPDIR=str(tmp_path))
            await_moment(run, rng.choice(MOMENTS), rng)
            kill(run, trial, rng)
            codes = run.codes()
            trial.restarts = max(int(path.name.split("-")[2]) for path in run.files("started-*"))
            assert all(code in (0, -9, 137) for code in codes), run.logs()
            check_result(run)
            trial.right = True
            trial.orphans = sum(len(host.pids()) for host in machines)
            trial.ports = sum(len(host.listening()) for host in machines)
            trial.memory = len(shared_memory() - memory)
            assert (trial.orphans, trial.ports, trial.memory) == (0, 0, 0), trial
    finally:
        trial.seconds = round(time.monotonic() - began, 1)
        write(request, json.dumps(asdict(trial)))


def await_moment(run: Run, moment: str, rng: random.Random) -> None:
    """Wait for a kind of moment, and then for one within it."""
    first = 3 * rng.randrange(4)  # the checkpoint before the one that is hit
    steps = run.folder / "steps"
    signs = {
        "start": (lambda: all(host.pids() for host in run.machines), IMPORTS),
        "step": (lambda: run.files("started-*"), STEPS),
        "save": (
            lambda: first in (0, *committed_steps(steps)) and (run.files("saving-*") or run.files("final-*")),
            3 * PACE,
        ),
        "end": (lambda: run.files("final-*"), 0.2),
    }
    sign, seconds = signs[moment]
    until(sign, f"{moment}: {run.logs()}")
    time.sleep(rng.uniform(0.0, seconds))


def kill(run: Run, trial: Trial, rng: random.Random) -> None:
    """Kill the victim of a trial; as its user would, start again what does not start again by itself."""
    machine = rng.randrange(len(run.machines)) if trial.role == "agent" else 0
    if trial.role == "launch":
        machine = rng.randrange(1, len(run.machines))
    host = run.machines[machine]
    if trial.role.startswith("agent") and moment_of(run) == "start":
        until(
            lambda: victims_of(trial.role, host, rng), f"agent: {run.logs()}"
        )  # launch may not have come so far
    victims, waits = victims_of(trial.role, host, rng), run.logs().count(WAITING)
    trial.moment, trial.killed = moment_of(run), len(victims)
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    if not victims or trial.role.startswith("agent"):
        return
    if trial.hosts == 1:
        code = run.processes[0].wait(TIMEOUT)
        assert code != 0 or trial.moment == "end", run.logs()
    until(lambda: not host.pids(), "end of the agents of a killed launch", 10)
    others = [process for i, process in run.processes.items() if i != machine]

    def have_ended() -> bool:
        return all(process.poll() is not None for process in others)

    until(lambda: have_ended() or run.logs().count(WAITING) > waits, f"word of others: {run.logs()}")
    if trial.hosts == 1 or not have_ended():
        run.start(machine, TMPDIR=str(run.folder))
        trial.relaunches = 1


def victims_of(role: str, host: Host, rng: random.Random) -> list[int]:
    """Return the processes that are to be killed, as far as there are any."""
    words = {pid: words_of(pid) for pid in host.pids()}
    if role == "machine with the store":
        return list(words)
    launches = [
        pid for pid, found in words.items() if b"launch" in found or b"torch.distributed.run" in found
    ]
    agents = [pid for pid, found in words.items() if WORKER.encode() in found and pid not in launches]
    if role.startswith("agent"):
        return [rng.choice(agents)] if agents else []
    return launches


def moment_of(run: Run) -> str:
    """Return what the agents are doing."""
    if run.files("saving-*"):
        return "save"
    if run.files("final-*"):
        return "end"
    return "step" if run.files("started-*") else "start"


def words_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:  # it has ended
        return []


def shared_memory() -> set[str]:
    """Return what torch or gloo would leave if it were killed; sealed memory files end with their processes."""
    return {name for name in os.listdir("/dev/shm") if name.startswith(("torch", "gloo", "digrad"))}
