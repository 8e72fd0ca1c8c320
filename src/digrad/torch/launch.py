"""Starting one process per agent with torchrun, with the settings that make a restart work."""

import contextlib
import errno
import fcntl
import importlib.util
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from digrad import checks, graphs
from digrad.errors import ArgumentError, CheckpointError, CommunicationError, DigradError, DisagreementError
from digrad.files import write_atomically

GRAPH_VARIABLE = "DIGRAD_GRAPH"
FAILURES_VARIABLE = "DIGRAD_FAILURES"  # the folder where agents leave the reason of their failure

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
_SIOCGIFADDR = 0x8915  # the Linux request for the IPv4 address of an interface
# A foreign server accepts the connection and never answers; the alarm ends the process then.
_CONNECT_TO_STORE = (
    "import signal, sys; from torch.distributed import TCPStore; signal.alarm(5); "
    "TCPStore(sys.argv[1], int(sys.argv[2]), is_master=False)"
)


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
        _check_endpoint(endpoint)
    with tempfile.TemporaryDirectory(prefix="digrad-launch-") as folder, _ending_signals() as received:
        # In a session of its own torchrun gets one signal, from here; a terminal sends Ctrl-C to everybody.
        process = subprocess.Popen(
            command, env={**environment, FAILURES_VARIABLE: folder}, start_new_session=True
        )
        code = _wait(process, Path(folder), received, retry_always=nodes > 1)
        if code != 0:
            _end_remaining(folder)
        failures = _read_failures(Path(folder))
    if received:
        if received[0] == signal.SIGINT:
            raise KeyboardInterrupt
        return 128 + received[0]
    if code != 0 and failures:
        cause = _cause(failures)
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


def record_failure() -> None:
    """Let an uncaught error of this agent be known to :func:`launch`, if that has started it."""
    # Taken out, so that it happens once and processes started by the script do not report as the agent.
    folder = os.environ.pop(FAILURES_VARIABLE, None)
    if folder is None:
        return
    agent, attempt = os.environ.get("RANK", "0"), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    show = sys.excepthook

    def show_and_record(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        show(kind, error, traceback)
        entry = {
            "agent": int(agent),
            "attempt": int(attempt),
            "reason": f"{kind.__name__}: {' '.join(str(error).split())}",
            "is_final": _is_final(error),
            "is_own": not isinstance(error, CommunicationError),  # not the silence of others
        }
        with contextlib.suppress(OSError):  # launch has gone, and nobody will ask
            write_atomically(Path(folder) / f"{attempt}-{agent}.json", json.dumps(entry))

    sys.excepthook = show_and_record


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
    local = "127.0.0.1" if nodes == 1 else _published_address(interface)
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


def check_interface(interface: str, owner: str) -> None:
    """Require a network interface of this machine.

    Raises:
        ArgumentError: There is none of this name.
    """
    names = [name for _, name in socket.if_nameindex()]
    if interface not in names:
        raise ArgumentError(
            f"`interface` of {owner} must be one of {', '.join(names)}, but got {interface!r}."
        )


def _published_address(interface: str | None) -> str | None:
    """Return the address under which the others reach this machine; None leaves it to torch: the host name."""
    if interface is None or sys.platform != "linux":
        return None
    request = struct.pack("256s", interface.encode())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, request)
        except OSError as error:
            raise ArgumentError(
                f"`interface` of launch is {interface!r}, which has no IPv4 address that other machines could use; "
                "give it one, or name another interface."
            ) from error
    return socket.inet_ntoa(answer[20:24])  # the address in struct ifreq


def _check_endpoint(endpoint: str) -> None:
    """Refuse an endpoint that nobody can listen on; torchrun would try for minutes."""
    host, _, port = endpoint.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ArgumentError(
            f"`endpoint` of launch must be host:port, as in 10.8.0.1:29400, but got {endpoint!r}."
        )
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ArgumentError(
            f"`endpoint` of launch names the unknown host {host!r}; give the address of the first machine."
        ) from error
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:  # also when the address is another machine's, which is as it should be
            if error.errno == errno.EADDRINUSE and not _is_store(host, port):
                raise ArgumentError(
                    f"`endpoint` of launch is {endpoint!r}, but another program listens on this port; choose another."
                ) from error


def _is_store(host: str, port: str) -> bool:
    """Return whether torchrun listens there: a second node on one machine finds that of the first."""
    command = [sys.executable, "-c", _CONNECT_TO_STORE, host, port]
    return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0


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
            in_vain = not retry_always and any(failure["is_final"] for failure in _read_failures(folder))
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


def _is_final(error: BaseException) -> bool:
    """Return whether all attempts would end in this error: bad input, different settings, a damaged checkpoint."""
    final = ValueError | DisagreementError | CheckpointError
    return isinstance(error, DigradError) and isinstance(error, final)


def _read_failures(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def _cause(failures: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the failure of the last attempt that explains the others."""
    last = max(failure["attempt"] for failure in failures)
    candidates = [failure for failure in failures if failure["attempt"] == last]
    return min(candidates, key=lambda one: (not one["is_final"], not one["is_own"], one["agent"]))
