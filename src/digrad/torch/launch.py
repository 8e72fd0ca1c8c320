"""Starting one process per agent with torchrun, with the settings that make a restart work."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from digrad import checks, graphs
from digrad.errors import ArgumentError

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

    Args:
        script: A Python file that constructs a :class:`digrad.torch.ProcessNetwork`.
        arguments: Of the script.
        agents: Processes on this machine; over all machines the number of agents of the graph.
        graph: A graph file, which ``ProcessNetwork()`` reads; by default the script names its graph.
        max_restarts: How often to start again after a failure.
        nodes: Machines; run the same command on each.
        endpoint: ``host:port`` of the first machine, required for more than one.
        interface: The network interface to use; by default loopback on a single machine.

    Returns:
        The exit code of torchrun: 0 if all agents succeeded.

    Raises:
        ArgumentError: A file is missing or settings contradict each other.
    """
    command = launch_command(
        script, arguments, agents=agents, max_restarts=max_restarts, nodes=nodes, endpoint=endpoint
    )
    environment = launch_environment(graph=graph, agents=agents, nodes=nodes, interface=interface)
    process = subprocess.Popen(command, env=environment)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue  # torchrun has received it too and ends the agents first


def launch_command(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    agents: int,
    max_restarts: int = 3,
    nodes: int = 1,
    endpoint: str | None = None,
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
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nnodes={nodes}",
        f"--nproc-per-node={agents}",
        f"--max-restarts={max_restarts}",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={endpoint or '127.0.0.1:0'}",
        *(["--local-addr=127.0.0.1"] if nodes == 1 else []),
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
