"""Starting one process per agent: with torchrun on one machine, with a supervisor of our own on several."""

import contextlib
import importlib.util
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from digrad import checks, graphs
from digrad.errors import ArgumentError
from digrad.torch.addresses import check_interface, check_trust, endpoint_parts, listen_at, published_address
from digrad.torch.agent_output import AgentOutput
from digrad.torch.failure_records import FAILURES_VARIABLE
from digrad.torch.failure_story import Story
from digrad.torch.launch_folder import GRACE, ask_to_end
from digrad.torch.machines.key_file import read_key
from digrad.torch.machines.machine import Machine, Plan
from digrad.torch.machines.supervisor import Supervisor
from digrad.torch.tied import PARENT_VARIABLE

GRAPH_VARIABLE = "DIGRAD_GRAPH"
METRICS_VARIABLE = "DIGRAD_METRICS"  # the folder where agents write what steps have cost

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
CHECK = Path(__file__).parent / "machines" / "check.py"  # the script of `digrad launch --check`
REJOIN = 300.0  # seconds to wait for a machine

_PREFIX = "digrad-launch-"  # of the name of a private folder
_SOCKET_NAME, _REST = 108, 20  # bytes for the name of a Unix socket, and for what follows the prefix
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
    node_rank: int | None = None,
    rejoin_timeout: float = REJOIN,
    key_file: str | Path | None = None,
    insecure: bool = False,
    metrics: str | Path | None = None,
) -> int:
    """Run a training script as one process per agent, and start all of them again if one fails.

    Every line that an agent writes begins with its number. Bad settings are not tried again, nor an error that has
    happened before at the same place and step. If the run fails and an agent knows why, its traceback is
    shown, those of the others are one line each, and the last line on standard error says it again. When this process
    is told to end, the agents end first, and so do those of other machines; if it is killed, they end with it.

    Args:
        script: A Python file that constructs a :class:`digrad.torch.ProcessNetwork`.
        arguments: Of the script.
        agents: Processes on this machine; over all machines the number of agents of the graph.
        graph: A graph file, which ``ProcessNetwork()`` reads; by default the script names its graph.
        max_restarts: How often to start again after a failure.
        nodes: Machines; run the same command on each.
        endpoint: ``host:port`` of one of the machines, required for more than one.
        interface: The network interface to use; by default loopback on a single machine, and the one through which
            the endpoint is reached on several.
        node_rank: The number of this machine: agents are numbered machine by machine. By default a free one.
        rejoin_timeout: Seconds to wait for machines that have not come, or have gone, before the run is given up.
        key_file: A file of ``digrad keygen`` that all machines have. Nobody else can
            take part, and all that travels between machines is encrypted and authenticated.
        insecure: Do without a key: whoever reaches the endpoint or an agent can read, disturb or join the run. Several
            machines need one of the two, unless the endpoint is loopback.
        metrics: A folder where every agent writes a JSON line for each step: its seconds, those spent waiting for
            others, bytes sent, and messages that were late; in its folder ``tensorboard`` the same for TensorBoard,
            where that is installed.

    Returns:
        0 if all agents succeeded, 2 if a setting was wrong, 128 + the signal that ended it, else another number.

    Raises:
        ArgumentError: A file or torch is missing, settings contradict each other, or the endpoint cannot be used.
        KeyboardInterrupt: Ctrl-C was pressed; all agents have ended.
    """
    require_torch("launch")
    _check_machines(nodes, endpoint, node_rank, rejoin_timeout, key_file, interface)
    secret = None if key_file is None else read_key(key_file)
    environment = launch_environment(
        graph=graph, agents=agents, nodes=nodes, interface=interface, has_key=secret is not None
    )
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=_base()) as folder, _ending_signals() as received:
        output = AgentOutput(Path(folder))
        variables = {**environment, **output.variables, FAILURES_VARIABLE: folder}
        if metrics is not None:
            variables[METRICS_VARIABLE] = str(Path(metrics).resolve())
        if endpoint is None:
            command = launch_command(
                script, arguments, agents=agents, max_restarts=max_restarts, folder=folder
            )
            code = _run_here(command, variables, Path(folder), agents, output, received)
        else:
            host, port = endpoint_parts(endpoint)
            check_trust(host, has_key=secret is not None, insecure=insecure)
            listener, is_taken = listen_at(host, port, interface)
            if listener is not None:
                host, port = listener.getsockname()[:2]
            plan = Plan(
                host, port, is_taken, secret, nodes, node_rank, agents, _hash(graph), max_restarts, rejoin_timeout,
                published_address(interface), agent_command(script, arguments), variables,
            )  # fmt: skip
            code = _run_with_others(plan, listener, Path(folder), output, received)
    if received:
        if received[0] == signal.SIGINT:
            raise KeyboardInterrupt
        return 128 + received[0]
    return code


def _base() -> str:
    """Return where the private folder is made: the usual place, unless names of sockets in it would be too long."""
    usual = tempfile.gettempdir()
    return usual if len(usual) + len(_PREFIX) + _REST < _SOCKET_NAME else "/tmp"


def _run_here(
    command: Sequence[str],
    variables: Mapping[str, str],
    folder: Path,
    agents: int,
    output: AgentOutput,
    received: list[int],
) -> int:
    """Run the agents of a single machine under torchrun; return its exit code, or ours if we know better."""
    with output.of_torchrun() as errors:
        # In a session of its own torchrun gets one signal, from here; a terminal sends Ctrl-C to everybody.
        process = subprocess.Popen(
            command,
            env={**variables, PARENT_VARIABLE: str(os.getpid())},
            stderr=errors,
            start_new_session=True,
        )
    story = Story(output, folder)
    code = _wait(process, story, received, lambda: ask_to_end(folder, agents))
    if code != 0:
        _end_remaining(str(folder))
    output.close(_PATIENCE if received else None)
    return code if received else story.end(code)


def _run_with_others(
    plan: Plan, listener: socket.socket | None, folder: Path, output: AgentOutput, received: list[int]
) -> int:
    """Run the agents of one machine of several; the one that listens at the endpoint also supervises all."""
    supervisor = None
    if listener is not None:
        supervisor = Supervisor(
            listener,
            plan.secret,
            nodes=plan.nodes,
            max_restarts=plan.max_restarts,
            rejoin_timeout=plan.rejoin_timeout,
        )
    try:
        code = Machine(plan, folder, output, received).run()
    finally:
        if supervisor is not None:
            supervisor.close()
    output.close(_PATIENCE if received else None)
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
    folder: str | Path = "",
) -> list[str]:
    """Return the torchrun command of :func:`launch` on one machine, where processes meet in a file of ``folder``.

    Example:
        >>> launch_command(__file__, ["--steps", "5"], agents=5)[1:7]
        ['-m', 'digrad.torch.tied', 'torch.distributed.run', '--nnodes=1', '--nproc-per-node=5', '--max-restarts=3']
    """
    checks.count(agents, "agents", "launch")
    checks.count(max_restarts, "max_restarts", "launch", minimum=0)
    return [
        sys.executable,
        "-m",
        "digrad.torch.tied",
        "torch.distributed.run",
        "--nnodes=1",
        f"--nproc-per-node={agents}",
        f"--max-restarts={max_restarts}",
        "--rdzv-backend=c10d",
        "--rdzv-conf=store_type=file",
        f"--rdzv-endpoint={Path(folder) / 'rendezvous'}",
        "--local-addr=127.0.0.1",
        "--module",
        *agent_command(script, arguments)[2:],
    ]


def agent_command(script: str | Path, arguments: Sequence[str] = ()) -> list[str]:
    """Return the command of one agent.

    Raises:
        ArgumentError: There is no such script.
    """
    if not Path(script).is_file():
        raise ArgumentError(f"`script` of launch must be a Python file, but `{script}` does not exist.")
    return [sys.executable, "-m", "digrad.torch.agent", str(script), *arguments]


def _check_machines(
    nodes: int,
    endpoint: str | None,
    node_rank: int | None,
    rejoin_timeout: float,
    key_file: str | Path | None,
    interface: str | None,
) -> None:
    checks.count(nodes, "nodes", "launch")
    checks.positive(rejoin_timeout, "rejoin_timeout", "launch")
    if interface is not None:
        check_interface(interface, "launch")
    if nodes > 1 and endpoint is None:
        raise ArgumentError(
            f"`endpoint` of launch is required for {nodes} nodes; give host:port of one of the machines."
        )
    if nodes == 1 and endpoint is not None:
        raise ArgumentError("`endpoint` of launch is where several nodes meet; leave it out for one.")
    if nodes == 1 and key_file is not None:
        raise ArgumentError("`key_file` of launch is what several nodes share; leave it out for one.")
    if node_rank is not None:
        checks.count(node_rank, "node_rank", "launch", minimum=0, maximum=nodes - 1)


def _hash(graph: str | Path | None) -> str | None:
    return None if graph is None else graphs.read(graph).content_hash


def launch_environment(
    *,
    graph: str | Path | None,
    agents: int,
    nodes: int = 1,
    interface: str | None = None,
    has_key: bool = False,
) -> Mapping[str, str]:
    """Return the environment of :func:`launch`; settings that the user has made are kept.

    Raises:
        ArgumentError: The graph does not have one agent per process.
    """
    environment = {**SETTINGS, **os.environ}
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    for name in _INTERFACES:
        # Between machines digrad has connections of its own: those of torch, which nobody can seal, stay at home.
        environment[name] = "lo" if has_key else interface or os.environ.get(name, "lo")
    if nodes > 1:
        environment["TORCH_GLOO_LAZY_INIT"] = "1"  # connect with whom there is something to say
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


def _wait(
    process: subprocess.Popen[bytes], story: Story, received: list[int], ask: Callable[[], bool]
) -> int:
    """Return the exit code of torchrun, which is told once to end if this process is, or if retrying is in vain.

    If this process is told by SIGTERM, the agents are asked first to save and end by themselves.
    """
    told, patience = False, math.inf
    while True:
        try:
            code = process.wait(_PERIOD)
            return code if code >= 0 else 128 - code
        except subprocess.TimeoutExpired:
            story.go_on()
            if received and patience == math.inf:
                is_gentle = received[0] == signal.SIGTERM and ask()
                patience = time.monotonic() + (GRACE if is_gentle else 0.0)
            is_enough = len(received) > 1 or time.monotonic() > patience
            if not told and (is_enough or story.is_hopeless):
                process.terminate()
                told = True


def _end_remaining(token: str) -> None:
    """Kill the agents that torchrun has left: those it was starting when it ended itself."""
    mark = f"{FAILURES_VARIABLE}={token}".encode()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile, or somebody else's
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                os.kill(int(entry.name), signal.SIGKILL)
