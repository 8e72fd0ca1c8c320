"""Starting one process per agent with torchrun, with the settings that make a restart work."""

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from digrad import checks, graphs
from digrad.errors import ArgumentError
from digrad.torch.addresses import (
    check_interface,
    check_trust,
    endpoint_parts,
    is_address,
    listen_at,
    published_address,
)
from digrad.torch.agent_output import AgentOutput
from digrad.torch.failure_records import FAILURES_VARIABLE
from digrad.torch.failure_story import Story

GRAPH_VARIABLE = "DIGRAD_GRAPH"

SETTINGS = {
    # Without it restarted agents read the addresses of the previous attempt and never connect (torch 2.13).
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    "OMP_NUM_THREADS": "1",  # several agents share the cores
    "OMP_WAIT_POLICY": "PASSIVE",
    # Keep freed memory: a step allocates arrays of the size of the model, whose pages would be faulted in anew.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
}

_INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")  # which interface they use

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PERIOD = 0.1  # seconds between two looks at torchrun
_PATIENCE = 2.0  # seconds that a reader of our output gets once we are told to end


def launch(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    agents: int,
    graph: str | Path | None = None,
    max_restarts: int = 3,
    nodes: int = 1,
    endpoint: str | None = None,
    interface: str | None = None,
    insecure: bool = False,
) -> int:
    """Run a training script as one process per agent, and start all of them again if one fails.

    Every line that an agent writes begins with its number. On one machine bad settings are not tried again, nor an
    error that has happened before at the same place and step. If the run fails and an agent knows why, its traceback is
    shown, those of the others are one line each, and the last line on standard error says it again. When this process
    is told to end, the agents end first.

    Args:
        script: A Python file that constructs a :class:`digrad.torch.ProcessNetwork`.
        arguments: Of the script.
        agents: Processes on this machine; over all machines the number of agents of the graph.
        graph: A graph file, which ``ProcessNetwork()`` reads; by default the script names its graph.
        max_restarts: How often to start again after a failure.
        nodes: Machines; run the same command on each.
        endpoint: ``host:port`` of the first machine, required for more than one.
        interface: The network interface to use; by default loopback on a single machine. Between machines its
            IPv4 address is the one that the others are told.
        insecure: Only trusted machines reach the endpoint. Whoever reaches it can run programs as you on all
            machines, so that several are refused without this word, unless the endpoint is loopback.

    Returns:
        0 if all agents succeeded, 2 if a setting was wrong, 128 + the signal that ended it, else the exit code of
        torchrun.

    Raises:
        ArgumentError: A file or torch is missing, settings contradict each other, or the endpoint cannot be used.
        KeyboardInterrupt: Ctrl-C was pressed; all agents have ended.
    """
    require_torch("launch")
    environment = launch_environment(graph=graph, agents=agents, nodes=nodes, interface=interface)
    with tempfile.TemporaryDirectory(prefix="digrad-launch-") as folder, _ending_signals() as received:
        command = launch_command(
            script, arguments, agents=agents, max_restarts=max_restarts, nodes=nodes, endpoint=endpoint,
            interface=interface, folder=folder,
        )  # fmt: skip
        store = None if endpoint is None else _host(endpoint, insecure)
        output = AgentOutput(Path(folder))
        variables = {**environment, **output.variables, FAILURES_VARIABLE: folder}
        with output.of_torchrun() as errors:
            # In a session of its own torchrun gets one signal, from here; a terminal sends Ctrl-C to everybody.
            process = subprocess.Popen(command, env=variables, stderr=errors, start_new_session=True)
        story = Story(output, Path(folder), may_give_up=nodes == 1)
        code = _wait(process, story, received)
        del store
        if code != 0:
            _end_remaining(folder)
        output.close(_PATIENCE if received else None)
        if not received:
            code = story.end(code)
    if received:
        if received[0] == signal.SIGINT:
            raise KeyboardInterrupt
        return 128 + received[0]
    return code


def require_torch(owner: str) -> None:
    """Raise unless torch is installed; digrad does not install it by itself.

    Raises:
        ArgumentError: It is not; the message says how to install it.
    """
    if importlib.util.find_spec("torch") is None:
        raise ArgumentError(
            f"{owner} needs PyTorch, which is not installed; install it with `pip install 'digrad[torch]'`, or "
            "`pip install '.[torch]'` in a checkout."
        )


def launch_command(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    agents: int,
    max_restarts: int = 3,
    nodes: int = 1,
    endpoint: str | None = None,
    interface: str | None = None,
    folder: str | Path = "",
) -> list[str]:
    """Return the torchrun command of :func:`launch`; on one machine its processes meet in a file of ``folder``.

    Example:
        >>> launch_command(__file__, ["--steps", "5"], agents=5)[1:6]
        ['-m', 'torch.distributed.run', '--nnodes=1', '--nproc-per-node=5', '--max-restarts=3']
    """
    checks.count(agents, "agents", "launch")
    checks.count(nodes, "nodes", "launch")
    checks.count(max_restarts, "max_restarts", "launch", minimum=0)
    if not Path(script).is_file():
        raise ArgumentError(f"`script` of launch must be a Python file, but `{script}` does not exist.")
    if nodes > 1 and endpoint is None:
        raise ArgumentError(
            f"`endpoint` of launch is required for {nodes} nodes; give host:port of the first machine."
        )
    if nodes == 1 and endpoint is not None:
        raise ArgumentError("`endpoint` of launch is where several nodes meet; leave it out for one.")
    if interface is not None:
        check_interface(interface, "launch")
    local = "127.0.0.1" if nodes == 1 else published_address(interface)
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nnodes={nodes}",
        f"--nproc-per-node={agents}",
        f"--max-restarts={max_restarts}",
        "--rdzv-backend=c10d",
        *_meeting_place(endpoint, folder),
        *([f"--local-addr={local}"] if local else []),
        "--module",
        "digrad.torch.agent",
        str(script),
        *arguments,
    ]


def _meeting_place(endpoint: str | None, folder: str | Path) -> list[str]:
    if endpoint is None:
        return ["--rdzv-conf=store_type=file", f"--rdzv-endpoint={Path(folder) / 'rendezvous'}"]
    hosted = is_address(endpoint_parts(endpoint)[0])  # by launch, on this address only
    return [f"--rdzv-endpoint={endpoint}", *(["--rdzv-conf=is_host=0"] if hosted else [])]


def _host(endpoint: str, insecure: bool) -> Any:
    """Host the store of several machines if this is the first of them; it lives as long as what is returned.

    Of a name torchrun is the host, on all interfaces: here it may mean another address than elsewhere.
    """
    host, port = endpoint_parts(endpoint)
    check_trust(host, insecure=insecure)
    from digrad.torch.bound_store import (
        host_store,
    )  # loads torch: before others connect, who would wait for it

    listener = listen_at(host, port)
    if listener is not None and is_address(host):
        return host_store(listener)
    return None if listener is None else listener.close()


def launch_environment(
    *, graph: str | Path | None, agents: int, nodes: int = 1, interface: str | None = None
) -> Mapping[str, str]:
    """Return the environment of :func:`launch`; settings that the user has made are kept.

    Raises:
        ArgumentError: The graph does not have one agent per process.
    """
    environment = {**SETTINGS, **os.environ}
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    for name in _INTERFACES if interface is not None or nodes == 1 else ():
        environment[name] = interface or os.environ.get(name, "lo")
    if graph is not None:
        found = graphs.read(graph).n
        if found != agents * nodes:
            raise ArgumentError(
                f"`graph` of launch has {found} agents, but {agents * nodes} processes were asked for; they must "
                "agree."
            )
        environment[GRAPH_VARIABLE] = str(Path(graph).resolve())
    return environment


@contextlib.contextmanager
def _ending_signals() -> Iterator[list[int]]:
    """Collect the signals that ask this process to end; those it was started to ignore stay ignored."""
    received: list[int] = []
    caught = [number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN]
    if threading.current_thread() is not threading.main_thread():
        caught = []  # only the main thread may
    before = {number: signal.signal(number, lambda n, _: received.append(n)) for number in caught}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(process: subprocess.Popen[bytes], story: Story, received: list[int]) -> int:
    """Return the exit code of torchrun, which is told once to end if this process is, or if retrying is in vain."""
    told = False
    while True:
        try:
            code = process.wait(_PERIOD)
            return code if code >= 0 else 128 - code
        except subprocess.TimeoutExpired:
            story.go_on()
            if not told and (received or story.is_hopeless):
                process.terminate()
                told = True


def _end_remaining(token: str) -> None:
    """Kill the agents that torchrun has left: those it was starting when it ended itself."""
    mark = f"{FAILURES_VARIABLE}={token}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile, or somebody else's
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
