"""Starting one process per agent: ``digrad launch`` is torchrun with digrad's rendezvous, and says why a run failed."""

import contextlib
import importlib.util
import logging
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from digrad import checks, graphs
from digrad.errors import ArgumentError
from digrad.torch.transport.addresses import check_interface

GRAPH_VARIABLE = "DIGRAD_GRAPH"
METRICS_VARIABLE = "DIGRAD_METRICS"  # the folder where agents write what steps have cost
# Set by the rendezvous for the workers of a round:
ROUND_VARIABLE = "DIGRAD_ROUND"  # the number of the attempt, the same on all machines
STORE_VARIABLE = "DIGRAD_STORE"  # host:port of the endpoint, if there are several machines
ADDRESS_VARIABLE = "DIGRAD_ADDRESS"  # of this machine, where its agents listen

SETTINGS = {
    "OMP_NUM_THREADS": "1",  # several agents share the cores
    "OMP_WAIT_POLICY": "PASSIVE",
}
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")  # which interface they use
CHECK = Path(__file__).parent / "link_check.py"  # the script of `digrad launch --check`
REJOIN = 300.0  # seconds to wait for machines that have not come, or have gone
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


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

    The process that calls it becomes the agent of torchelastic, as torchrun is. Every line that an agent writes begins
    with its number. Bad settings are not tried again, nor an error that has happened before at the same place and step.
    If the run fails and an agent knows why, its traceback is shown, those of the others are one line each, and the last
    line on standard error says it again. When this process is preempted, the agents end first, and so do those of other
    machines; if it is killed, they end with it.

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
        key_file: A file of ``digrad keygen`` that all machines have. Nobody else can take part, and all that travels
            between machines is encrypted and authenticated.
        insecure: Do without a key: whoever reaches the endpoint or an agent can read, disturb or join the run. Several
            machines need one of the two, unless the endpoint is loopback.
        metrics: A folder where every agent writes a JSON line for each step: its seconds, those spent waiting for
            others, bytes sent and messages that were late; in its folder ``tensorboard`` the same for TensorBoard,
            where that is installed.

    Returns:
        0 if all agents succeeded, 2 if a setting was wrong, 128 + the signal that ended it, else another number.

    Raises:
        ArgumentError: A file or torch is missing, settings contradict each other, or the endpoint cannot be used.
        KeyboardInterrupt: Ctrl-C was pressed; all agents have ended.
    """
    require_torch("launch")
    checks.count(agents, "agents", "launch")
    checks.count(max_restarts, "max_restarts", "launch", minimum=0)
    checks.count(nodes, "nodes", "launch")
    checks.positive(rejoin_timeout, "rejoin_timeout", "launch")
    if node_rank is not None:
        checks.count(node_rank, "node_rank", "launch", minimum=0, maximum=nodes - 1)
    if interface is not None:
        check_interface(interface, "launch")
    if not Path(script).is_file():
        raise ArgumentError(f"`script` of launch must be a Python file, but `{script}` does not exist.")
    if nodes > 1 and endpoint is None:
        raise ArgumentError(
            f"`endpoint` of launch is required for {nodes} nodes; give host:port of one of the machines."
        )
    for name, value in {"endpoint": endpoint, "key_file": key_file}.items():
        if nodes == 1 and value is not None:
            raise ArgumentError(f"`{name}` of launch is for several nodes; leave it out for one.")
    facts = {"graph": _hash_of(graph, agents * nodes), "max_restarts": max_restarts}
    with _supervising(_environment(graph, nodes, interface, metrics)) as received:
        from digrad.torch.launch.elastic_agent import Agent  # imports torch

        code = Agent(
            ["-m", "digrad.torch.launch.worker", str(script), *arguments], agents=agents, received=received,
            nodes=nodes, endpoint=endpoint, rank=node_rank, timeout=rejoin_timeout, interface=interface,
            key_file=None if key_file is None else str(key_file), insecure=insecure, facts=facts,
        ).supervise()  # fmt: skip
    if signal.SIGINT in received[:1]:
        raise KeyboardInterrupt
    return 128 + received[0] if received else code


def attempt() -> int:
    """Return the number of this worker's attempt; torchelastic's own count may differ between machines."""
    return int(os.environ.get(ROUND_VARIABLE, os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))


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


def _hash_of(graph: str | Path | None, processes: int) -> str | None:
    """Return the hash of a graph, which must have one agent per process."""
    if graph is None:
        return None
    found = graphs.read(graph)
    if found.n != processes:
        raise ArgumentError(
            f"`graph` of launch has {found.n} agents, but {processes} processes were asked for; the two must be equal."
        )
    return found.content_hash


def _environment(
    graph: str | Path | None, nodes: int, interface: str | None, metrics: str | Path | None
) -> dict[str, str]:
    """Return the environment of the agents; settings that the user has made are kept."""
    defaults = SETTINGS | (dict.fromkeys(INTERFACES, "lo") if nodes == 1 else {})
    # Signals are ours: after SIGTERM the agents save before they end.
    options = {"TORCHELASTIC_SIGNALS_TO_HANDLE": ""}
    if interface is not None:
        options |= dict.fromkeys(INTERFACES, interface)
    for name, path in {GRAPH_VARIABLE: graph, METRICS_VARIABLE: metrics}.items():
        if path is not None:
            options[name] = str(Path(path).resolve())
    return {**defaults, **os.environ, **options}


@contextlib.contextmanager
def _supervising(variables: dict[str, str]) -> Iterator[list[int]]:
    """Set the environment and collect the signals that ask this process to end, for a while.

    Those that it was started to ignore stay ignored. torchelastic leaves it to launch to say what happens, unless the
    user wants more by LOGLEVEL.
    """
    received: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()  # only there can signals be caught
    caught = [number for number in _ENDING if is_main and signal.getsignal(number) is not signal.SIG_IGN]
    logger, nobody = logging.getLogger("torch.distributed.elastic"), logging.NullHandler()
    before = dict(os.environ), logger.propagate
    handlers = {number: signal.signal(number, lambda n, _: received.append(n)) for number in caught}
    os.environ.update(variables)
    logger.addHandler(nobody)
    logger.propagate = "LOGLEVEL" in os.environ
    try:
        yield received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.environ.clear()
        os.environ.update(before[0])
        logger.removeHandler(nobody)
        logger.propagate = before[1]
