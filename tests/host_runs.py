"""One command on several hosts in network namespaces, what it writes, and what must come out of it."""

import functools
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from digrad import CGT, graphs
from digrad.graphs import Digraph, ring
from digrad.torch import Replicas
from digrad.torch.transport.curve_keys import make_key
from namespaces import Host
from plugin_installs import announce_rendezvous
from torch_models import network_loss, network_model
from torch_processes import WORKERS

WORKER = str(WORKERS / "machines.py")
STARTUP = 300.0  # seconds for the interpreters to load torch on a busy machine
PORT = 29400


def until(found: Callable[[], object], what: str, seconds: float = STARTUP) -> None:
    deadline = time.monotonic() + seconds
    while not found():
        assert time.monotonic() < deadline, f"no {what} within {seconds} s"
        time.sleep(0.05)


class Run:
    """One command on every host, and what it writes."""

    def __init__(
        self,
        machines: Sequence[Host],
        folder: Path,
        *options: str,
        key: bool = True,
        graph: Digraph | None = None,
        script: Sequence[str] = (),
        agents: int = 1,
        torchrun: bool = False,
    ) -> None:
        self.machines, self.folder, self.n = machines, folder, agents * len(machines)
        self.script = script or (WORKER, str(folder))
        graphs.write(graph or ring(self.n), folder / "graph.json")
        self.torchrun = torchrun
        self.searched = announce_rendezvous(folder / "installed") if torchrun else ""
        start: tuple[str, ...] = (
            "-m",
            "digrad",
            "launch",
            "--agents",
            str(agents),
            "--graph",
            str(folder / "graph.json"),
        )
        if torchrun:
            start = ("-m", "torch.distributed.run", f"--nproc-per-node={agents}", "--max-restarts=3")
        self.words = (*start, *(self._endpoint_options(key) if len(machines) > 1 else ()), *options)
        self.processes: dict[int, subprocess.Popen[str]] = {}

    def _endpoint_options(self, key: bool) -> Sequence[str]:
        """Return the options by which several machines find and trust one another."""
        key_file = self.folder / "run.key"
        if key and not key_file.exists():
            make_key(key_file)
        if self.torchrun:
            endpoint = f"--rdzv-endpoint={self.machines[0].address}:{PORT}"
            return f"--nnodes={len(self.machines)}", "--rdzv-backend=digrad", endpoint
        trust = ("--key-file", str(key_file)) if key else ("--insecure",)
        return "--nodes", str(len(self.machines)), "--endpoint", f"{self.machines[0].address}:{PORT}", *trust

    def start(self, number: int, *options: str, **variables: str) -> None:
        """Start the launch of one host, as machine ``number``."""
        host = self.machines[number]
        rank: tuple[str, ...] = ("--node-rank", str(number))
        if self.torchrun:
            rank = (f"--rdzv-conf=key_file={self.folder / 'run.key'},node_rank={number}",)
            variables = {
                **variables,
                "DIGRAD_GRAPH": str(self.folder / "graph.json"),
                "PYTHONPATH": self.searched,
            }
        words = (*self.words, *rank, *options, *self.script)
        log = self.folder / f"log-{number}-{len(host.processes)}"
        self.processes[number] = host.start(*words, log=log, **variables)

    def start_all(self, **variables: str) -> None:
        for number in range(len(self.machines)):
            self.start(number, **variables)

    def files(self, pattern: str) -> list[Path]:
        return sorted(self.folder.glob(pattern))

    def holding(self, attempt: int = 0) -> None:
        """Wait until all agents of an attempt are at the step where they wait for a word."""
        until(lambda: len(self.files(f"holding-*-{attempt}")) == self.n, f"{self.n} agents: {self.logs()}")

    def go(self) -> None:
        (self.folder / "go").touch()

    def log(self, number: int) -> str:
        return "".join(path.read_text() for path in self.files(f"log-{number}-*"))

    def logs(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()}" for path in self.files("log-*"))

    def codes(self) -> list[int]:
        """Wait until all launches have ended, and return their exit codes."""
        for process in self.processes.values():
            try:
                process.wait(STARTUP)
            except subprocess.TimeoutExpired:
                pytest.fail(f"a launch has not ended: {self.logs()}")
        return [self.processes[number].returncode for number in sorted(self.processes)]

    def agent(self, number: int, attempt: int = 0) -> int:
        """Return the process of an agent."""
        return int((self.folder / f"started-{number}-{attempt}").read_text().split()[0])


@functools.cache
def expected(n: int) -> Replicas:
    """Return the run in one process, after all steps."""
    replicas = Replicas(network_model("mlp", torch.float32), CGT(step_size=0.05, threshold=1.0), ring(n))
    for k in range(12):
        replicas.zero_grad()
        for agent, model in enumerate(replicas.models):
            network_loss(model, agent, k, torch.float32).backward()
        replicas.step()
    return replicas


def check_result(run: Run) -> None:
    """Require the bits of the run in one process on every agent."""
    reference = expected(run.n)
    for agent in range(run.n):
        stored = load_file(run.folder / f"final-{agent}.safetensors")
        for name, value in reference.state_fields._asdict().items():
            assert torch.equal(stored[name], value[agent : agent + 1]), (agent, name)
        assert torch.allclose(stored["average"], reference.average(), atol=1e-6)
