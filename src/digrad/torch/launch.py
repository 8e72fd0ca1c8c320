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

from digrad import checks, graphs
from digrad.errors import ArgumentError
from digrad.torch.addresses import check_endpoint, check_interface, published_address
from digrad.torch.failure_records import FAILURES_VARIABLE, cause_of, read_failures

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

BAD_INPUT = 2  # exit code
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PERIOD = 0.1  # seconds between two looks at torchrun


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
) -> int:
    """Run a training script as one process per agent, and start all of them again if one fails.

    Bad settings are not tried again: on one machine the first attempt is the last. If the run fails and an agent
    knows why, the last line on standard error says so. When this process is told to end, the agents end first.

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

    Returns:
        0 if all agents succeeded, 2 if a setting was wrong, 128 + the signal that ended it, else the exit code of
        torchrun.

    Raises:
        ArgumentError: A file or torch is missing, settings contradict each other, or the endpoint cannot be used.
        KeyboardInterrupt: Ctrl-C was pressed; all agents have ended.
    """
    require_torch("launch")
    command = launch_command(
        script, arguments, agents=agents, max_restarts=max_restarts, nodes=nodes, endpoint=endpoint, interface=interface
    )  # fmt: skip
    environment = launch_environment(graph=graph, agents=agents, nodes=nodes, interface=interface)
    if endpoint is not None:
        check_endpoint(endpoint)
    with tempfile.TemporaryDirectory(prefix="digrad-launch-") as folder, _ending_signals() as received:
        # In a session of its own torchrun gets one signal, from here; a terminal sends Ctrl-C to everybody.
        process = subprocess.Popen(
            command, env={**environment, FAILURES_VARIABLE: folder}, start_new_session=True
        )
        code = _wait(process, Path(folder), received, retry_always=nodes > 1)
        if code != 0:
            _end_remaining(folder)
        failures = read_failures(Path(folder))
    if received:
        if received[0] == signal.SIGINT:
            raise KeyboardInterrupt
        return 128 + received[0]
    if code != 0 and failures:
        cause = cause_of(failures)
        sys.stderr.write(f"digrad: agent {cause['agent']} failed: {cause['reason']}\n")
        return BAD_INPUT if cause["is_final"] else code
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
) -> list[str]:
    """Return the torchrun command of :func:`launch`.

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
        f"--rdzv-endpoint={endpoint or '127.0.0.1:0'}",
        *([f"--local-addr={local}"] if local else []),
        str(script),
        *arguments,
    ]


def launch_environment(
    *, graph: str | Path | None, agents: int, nodes: int = 1, interface: str | None = None
) -> Mapping[str, str]:
    """Return the environment of :func:`launch`; settings that the user has made are kept.

    Raises:
        ArgumentError: The graph does not have one agent per process.
    """
    environment = {**SETTINGS, **os.environ}
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    if interface is not None or nodes == 1:
        environment["GLOO_SOCKET_IFNAME"] = interface or os.environ.get("GLOO_SOCKET_IFNAME", "lo")
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


def _wait(process: subprocess.Popen[bytes], folder: Path, received: list[int], *, retry_always: bool) -> int:
    """Return the exit code of torchrun, which is told once to end if this process is, or if retrying is in vain."""
    told = False
    while True:
        try:
            code = process.wait(_PERIOD)
            return code if code >= 0 else 128 - code
        except subprocess.TimeoutExpired:
            # One of several machines may not leave alone: the others would wait for it for ten minutes.
            in_vain = not retry_always and any(failure["is_final"] for failure in read_failures(folder))
            if not told and (received or in_vain):
                process.terminate()
                told = True


def _end_remaining(token: str) -> None:
    """Kill the agents that torchrun has left: those it was starting when it ended itself."""
    mark = f"{FAILURES_VARIABLE}={token}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile, or somebody else's
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
