"""Several hosts, each a network namespace with its own address: what a new user does, and what goes wrong there."""

import contextlib
import json
import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from digrad.graphs import example5, ring
from digrad.torch.checkpoint.checkpoint_files import committed_steps
from digrad.torch.launch.rendezvous_endpoint import ANSWER_TIMEOUT
from digrad.torch.transport.curve_keys import make_key
from host_runs import PORT, STARTUP, WORKER, Run, check_result, until
from namespaces import Host, hosts, needs_namespaces
from torch_processes import SEARCHED, WORKERS, Agents
from torch_processes import run as run_agents

pytestmark = [*needs_namespaces, pytest.mark.long]


def test_hosts_train_as_documented_and_unauthenticated_peers_stay_out(tmp_path: Path) -> None:
    """A name that means 127.0.1.1, a clock behind, a blocked pair without an edge, a wrong key and a hostile host."""
    clock = tmp_path / "clock"
    clock.mkdir()
    (clock / "sitecustomize.py").write_text("import time; t = time.time; time.time = lambda: t() - 60.0\n")
    with hosts(5) as (*machines, intruder), named("first", machines[0], [*machines, intruder]):
        run = Run(machines, tmp_path, "--interface", "eth0")
        run.words = tuple(word.replace(f"{machines[0].address}:", "first:") for word in run.words)
        machines[1].block(machines[3])  # no edge of the ring joins them
        for number in (2, 0, 3, 1):
            late = {"PYTHONPATH": f"{clock}:{SEARCHED}"} if number == 2 else {}
            run.start(number, **late)
        run.holding()
        targets: set[tuple[str, int]] = set()
        for host in machines:
            beyond = {one for one in host.listening() if not one[0].startswith("127.")}
            assert {address for address, _ in beyond} == {host.address}
            assert len(beyond) == (2 if host is machines[0] else 1)  # the endpoint, and one port of the agent
            targets |= beyond
        attack(intruder, tmp_path, targets)
        check_wrong_key_is_refused(run, intruder)
        run.go()
        assert run.codes() == [0, 0, 0, 0], run.logs()
        check_result(run)
        for number in range(4):
            log = run.log(number)
            refusals = [line for line in log.splitlines() if "refused a connection from " in line]
            assert all(intruder.address in one or "an address that has gone" in one for one in refusals)
            # Each listening process names the unauthenticated peer once, perhaps after one whose address has gone.
            listening = 2 if number == 0 else 1  # launch and the agent, or the agent
            assert 1 <= len(refusals) <= 2 * listening, log
            assert "Traceback" not in log
            assert f"[{number}] step 0" in log  # agents are numbered as the machines were
        assert not [pid for host in machines for pid in host.pids()]


@contextlib.contextmanager
def named(name: str, host: Host, everyone: Sequence[Host]) -> Iterator[None]:
    """Give a host a name as Debian does in /etc/hosts: the others know the address, it itself 127.0.1.1."""
    folders = [Path("/etc/netns") / one.name for one in everyone]
    try:
        for one, folder in zip(everyone, folders, strict=True):
            folder.mkdir(parents=True)
            address = "127.0.1.1" if one is host else host.address
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n{address} {name}\n")
        yield
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def check_wrong_key_is_refused(run: Run, intruder: Host) -> None:
    """A machine with another key ends with one line that tells what to do."""
    places = {str(run.folder / "run.key"): str(make_key(run.folder / "other.key"))}
    places[f"first:{PORT}"] = f"{run.machines[0].address}:{PORT}"  # names are known to whole hosts only
    words = [places.get(word, word) for word in run.words[1:]]
    with Agents("module.py", 1, *words, *run.script, hosts=[intruder]) as launch:
        ended = launch.wait(STARTUP)[0]
    assert ended.code == 2, ended
    assert ended.output.startswith("digrad: `endpoint` of launch is ")
    assert "give all machines the same --key-file" in ended.output
    assert ended.output.count("\n") == 1


def attack(intruder: Host, folder: Path, targets: set[tuple[str, int]]) -> None:
    """Throw garbage at ports, and what torch's own store and pickle understand."""
    places = (f"{address}:{port}" for address, port in sorted(targets))
    run_agents("attack.py", 1, str(folder / "evil"), *places, hosts=[intruder])
    assert not (folder / "evil").exists()


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["agent", "launch", "endpoint"])
def test_killed_process_of_any_host_costs_steps_only(victim: str, tmp_path: Path) -> None:
    """An agent is started again with all others; so they are when the launch of a machine was, by its user."""
    with hosts(3) as machines:
        run = Run(machines, tmp_path)
        run.start_all()
        run.holding()
        number = 0 if victim == "endpoint" else 2
        if victim == "agent":
            os.kill(run.agent(number), signal.SIGKILL)
        else:
            launches = [pid for pid in machines[number].pids() if pid != run.agent(number)]
            for pid in launches:
                os.kill(pid, signal.SIGKILL)
            until(lambda: not machines[number].pids(), "end of the agents of a killed launch", 10)
            others = [i for i in range(3) if i != number]
            waits = (
                "waiting for the machine with"
                if victim == "endpoint"
                else f"waiting for machine 2 ({machines[2].address})"
            )
            until(lambda: all(waits in run.log(i) for i in others), f"line {waits}: {run.logs()}")
            run.start(number)
        run.holding(attempt=1)
        run.go()
        assert run.codes() == [0, 0, 0], run.logs()
        resumed = [(tmp_path / f"started-{agent}-1").read_text().split()[1] for agent in range(3)]
        assert resumed == ["3", "3", "3"]
        check_result(run)
        if victim == "agent":
            line = "digrad: agent 2 failed: it was ended by SIGKILL; all agents have been started again"
            assert all(line in run.log(i) for i in range(3)), run.logs()


@pytest.mark.slow
def test_killed_agent_is_started_again_and_a_machine_lost_for_good_ends_the_others(tmp_path: Path) -> None:
    with hosts(2) as machines:
        run = Run(machines, tmp_path, "--rejoin-timeout", "8")
        run.start_all()
        run.holding()
        os.kill(run.agent(1), signal.SIGKILL)
        run.holding(attempt=1)
        line = "digrad: agent 1 failed: it was ended by SIGKILL; all agents have been started again"
        assert all(line in run.log(number) for number in range(2)), run.logs()
        assert [(tmp_path / f"started-{agent}-1").read_text().split()[1] for agent in range(2)] == ["3", "3"]
        machines[1].signal_all(signal.SIGKILL)
        began = time.monotonic()
        assert run.codes()[0] == 1, run.logs()
        # A machine that is silent for so long is lost; then it has 8 s to rejoin.
        assert time.monotonic() - began < ANSWER_TIMEOUT + 8 + 20
        last = run.log(0).splitlines()[-1]
        assert last == f"digrad: machine 1 ({machines[1].address}) did not join within 8 s"


@pytest.mark.slow
@pytest.mark.parametrize("preempted", [0, 1], ids=["with the endpoint", "without"])
def test_lost_endpoint_is_waited_for_and_a_machine_that_is_preempted_ends_the_others(
    preempted: int, tmp_path: Path
) -> None:
    with hosts(2) as machines:
        paced = (WORKER, str(tmp_path), "20", "0.4")  # seconds per step: all learn of it before the last one
        run = Run(machines, tmp_path, script=paced)
        run.start_all()
        run.holding()
        machines[0].signal_all(signal.SIGKILL)
        until(lambda: "waiting for the machine with" in run.log(1), f"waiting line: {run.logs()}")
        run.start(0)
        run.holding(attempt=1)
        began = time.monotonic()
        run.processes[preempted].terminate()
        run.go()
        assert run.codes() == ([143, 1] if preempted == 0 else [1, 143]), run.logs()
        assert time.monotonic() - began < 60
        assert committed_steps(tmp_path / "steps")[-1] > 6  # all have saved the step at which they ended
        line = f"digrad: machine {preempted} ({machines[preempted].address}) was preempted; all agents have saved"
        assert run.log(1 - preempted).splitlines()[-1] == line


@pytest.mark.slow
def test_check_names_the_edges_that_carry_nothing_and_tries_the_others(tmp_path: Path) -> None:
    with hosts(3) as machines:
        run = Run(machines, tmp_path, script=("--check",))
        machines[1].block(machines[2])
        run.start_all()
        assert run.codes() == [1, 1, 1], run.logs()
        lines = run.log(0).splitlines()
    assert [f"[0] agent {i} listens on {machines[i].address} (eth0)" in lines for i in range(3)] == [True] * 3
    edges = [line.rpartition(": ")[2] for line in lines if line.startswith("[0] edge")]
    assert [edge.endswith("Mbit/s") for edge in edges] == [True, False, True], lines
    assert edges[1].startswith("nothing passes (")
    assert "1 of 3 edges carry nothing (1 to 2); look at firewalls" in lines[-1]


SLOW = """
import sys, torch, digrad as dg
from digrad.torch import DecentralizedOptimizer, ProcessNetwork
network = ProcessNetwork(timeout=6, deadline=float(sys.argv[1]) if sys.argv[1:] else None)
model = torch.nn.Linear(500, 500)
optimizer = DecentralizedOptimizer(model.parameters(), dg.CGT(step_size=0.1, threshold=1.0), network)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.ones(1, 500)).square().mean().backward()
    optimizer.step()
optimizer.close()
print("the end")
network.close()
"""


@pytest.mark.slow
@pytest.mark.parametrize("deadline", [[], ["0.5"]], ids=["synchronous", "deadline"])
def test_slow_link_is_not_called_silent(deadline: list[str], tmp_path: Path) -> None:
    """A message of 2 MB takes 16 seconds, the timeout is 6, but it makes progress."""
    (tmp_path / "slow.py").write_text(SLOW)
    with hosts(2) as machines:
        run = Run(machines, tmp_path, script=(str(tmp_path / "slow.py"), *deadline))
        for host in machines:
            host.limit("1mbit")
        run.start_all()
        assert run.codes() == [0, 0], run.logs()
        assert all("the end" in run.log(number) for number in range(2))
        assert "started again" not in run.logs()


DISTURBANCES = [
    pytest.param(["stop", "cut"], 1.5, id="stopped and cut for 1.5 s"),
    pytest.param(["stop"], 5.0, id="stopped for 5 s"),
    pytest.param(["stop"], 30.0, id="stopped for 30 s"),
    pytest.param(["cut"], 5.0, id="cut for 5 s"),
    pytest.param(["limit"], 5.0, id="10 Mbit/s"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("deeds", "seconds"), DISTURBANCES)
def test_disturbed_host_costs_steps_and_not_the_run_with_a_deadline(
    deeds: list[str], seconds: float, tmp_path: Path
) -> None:
    n, steps = (3, 600) if seconds < 5 else (5, 1200)
    plan = {"n": n, "steps": steps, "deadline": 0.05, "compute": 0.005, "save": steps // 3}
    script = (str(WORKERS / "deadline.py"), str(tmp_path), json.dumps(plan))
    with hosts(n) as machines:
        run = Run(machines, tmp_path, graph=example5() if n == 5 else ring(n), script=script)
        run.start_all()
        until(lambda: len(run.files("reached-*-50")) == n, f"training: {run.logs()}")
        victim = machines[2]
        before = len(run.files("reached-0-*"))
        for deed in deeds:
            do, undo = {
                "stop": (
                    lambda: victim.signal_all(signal.SIGSTOP),
                    lambda: victim.signal_all(signal.SIGCONT),
                ),
                "cut": (victim.cut, victim.mend),
                "limit": (lambda: victim.limit("10mbit"), lambda: None),
            }[deed]
            do()
            time.sleep(seconds)
            undo()
        assert len(run.files("reached-0-*")) > before  # the others have gone on meanwhile
        assert run.codes() == [0] * n, run.logs()
        found = [json.loads((tmp_path / f"agent-{agent}.json").read_text()) for agent in range(n)]
        assert all(one["error"] < 1e-6 and one["own"] < 1e-6 for one in found), found
        assert "started again" not in run.logs()


@pytest.mark.slow
def test_stopped_host_is_one_clear_error_and_an_exact_restart_without_a_deadline(tmp_path: Path) -> None:
    with hosts(3) as machines:
        run = Run(machines, tmp_path, script=(WORKER, str(tmp_path), "4"))
        run.start_all()
        run.holding()
        machines[2].signal_all(signal.SIGSTOP)
        run.go()
        time.sleep(15)
        machines[2].signal_all(signal.SIGCONT)
        assert run.codes() == [0, 0, 0], run.logs()
        assert "all agents have been started again" in run.log(0)
        check_result(run)


FLOOD = """
import os, socket, sys, threading, time
greeting = b"\\xff" + bytes(8) + b"\\x7f\\x03\\x01" + b"CURVE".ljust(20, b"\\0") + bytes(32)  # of ZMTP
magics = [b"", greeting[:12], greeting, b"GET / HTTP/1.1\\r\\n\\r\\n", os.urandom(64)]
def pester(address):
    kept, until = [], time.monotonic() + float(sys.argv[1])
    while time.monotonic() < until:
        for magic in magics:
            try:
                kept.append(socket.create_connection(address, timeout=5))
                kept[-1].sendall(magic)
            except OSError:
                pass
        time.sleep(0.05)
        del kept[:-200]  # the others stay open and say nothing more
targets = [(host, int(port)) for host, port in (word.rsplit(":", 1) for word in sys.argv[2:])]
threads = [threading.Thread(target=pester, args=(target,)) for target in targets]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


@pytest.mark.slow
def test_unauthenticated_peers_that_keep_connecting_to_every_port_disturb_no_run_with_a_deadline(
    tmp_path: Path,
) -> None:
    n, steps = 3, 400
    plan = {"n": n, "steps": steps, "deadline": 0.05, "compute": 0.005, "save": steps // 2}
    script = (str(WORKERS / "deadline.py"), str(tmp_path), json.dumps(plan))
    with hosts(n + 1) as (*machines, intruder):
        run = Run(machines, tmp_path, script=script)
        run.start_all()
        until(lambda: len(run.files("reached-*-50")) == n, f"training: {run.logs()}")
        beyond = [one for host in machines for one in host.listening() if not one[0].startswith("127.")]
        assert len(beyond) == 1 + n  # the endpoint, and a port of each agent
        intruder.start("-c", FLOOD, "8", *(f"{address}:{port}" for address, port in beyond))
        assert run.codes() == [0] * n, run.logs()
        found = [json.loads((tmp_path / f"agent-{agent}.json").read_text()) for agent in range(n)]
        assert all(one["error"] < 1e-6 and one["own"] < 1e-6 for one in found), found
        assert "started again" not in run.logs()
        lines = [line for line in run.logs().splitlines() if intruder.address in line]
        assert 1 <= len(lines) <= len(beyond), lines  # one for each listener, however often
