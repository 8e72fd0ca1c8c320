"""Starting agents as real processes on loopback, and making sure that none is left over."""

import contextlib
import ctypes
import faulthandler
import ipaddress
import multiprocessing
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import digrad

WORKERS = Path(__file__).parent / "torch" / "workers"
# What processes of tests import: the modules that tests share, and the digrad that the test itself has imported.
SEARCHED = os.pathsep.join([str(Path(__file__).parent), str(Path(digrad.__file__).parents[1])])


@dataclass(frozen=True)
class Ended:
    """End of a process."""

    code: int
    output: str
    seconds: float


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def stop_for(seconds: float) -> None:
    """Stop this process, and let another one wake it up."""
    code = f"import os, signal, time; time.sleep({seconds}); os.kill({os.getpid()}, signal.SIGCONT)"
    with subprocess.Popen([sys.executable, "-c", code]):
        os.kill(os.getpid(), signal.SIGSTOP)


def listening_ports() -> set[int]:
    """Return the TCP ports on which this process listens."""
    return {port for _, port in listening([os.getpid()])}


def listening(processes: Iterable[int]) -> set[tuple[str, int]]:
    """Return the TCP addresses and ports on which processes listen."""
    inodes = set()
    for pid in processes:
        with contextlib.suppress(FileNotFoundError):  # ended meanwhile
            for descriptor in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                    inodes.add(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
    lines = [
        line.split()
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]
    ]
    sockets = [line[1].split(":") for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in inodes]
    return {(_address(words), int(port, 16)) for words, port in sockets}


def _address(words: str) -> str:
    """Return an address that the kernel shows as 32-bit words of this machine's byte order."""
    parts = [int(words[i : i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(words), 8)]
    return str(ipaddress.ip_address(b"".join(parts)))


def environment(**extra: str) -> dict[str, str]:
    base = {k: v for k, v in os.environ.items() if not k.startswith(("TORCHELASTIC", "DIGRAD_GRAPH"))}
    settings = {
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "PYTHONPATH": SEARCHED,
        "PYTHONFAULTHANDLER": "1",
    }
    return {**base, **settings, **extra}


class Agents:
    """The processes of one run, ended with the ``with`` block whatever happens.

    They are forked by a server that has imported torch already: importing it takes longer than most tests. They may be
    on hosts of their own, one each.
    """

    def __init__(
        self,
        worker: str,
        n: int,
        *args: str,
        ranks: range | None = None,
        extra: Mapping[int, Mapping[str, str]] | None = None,
        hosts: Sequence[Any] = (),
    ) -> None:
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(n)}
        if hosts:
            place |= {"MASTER_ADDR": hosts[0].address, "GLOO_SOCKET_IFNAME": "eth0"}
        self.started = time.monotonic()
        self._outputs = tempfile.TemporaryDirectory()
        self.processes = {
            rank: _SERVER.Process(
                target=_work,
                args=(
                    [str(WORKERS / worker), *args],
                    environment(
                        RANK=str(rank), LOCAL_RANK=str(rank), **{**place, **(extra or {}).get(rank, {})}
                    ),
                    self._output(rank),
                    hosts[rank].name if hosts else None,
                ),
            )
            for rank in ranks or range(n)
        }
        for process in self.processes.values():
            process.start()

    def _output(self, rank: int) -> str:
        return os.path.join(self._outputs.name, str(rank))

    def __enter__(self) -> "Agents":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            process.kill()
            process.join()
        self._outputs.cleanup()

    def wait(self, timeout: float, ranks: list[int] | None = None) -> dict[int, Ended]:
        """Return how the processes ended; fail if one has not after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        ended = {}
        for rank in ranks or list(self.processes):
            process = self.processes[rank]
            process.join(max(deadline - time.monotonic(), 0.1))
            output = Path(self._output(rank)).read_text()
            assert process.exitcode is not None, f"agent {rank} has not ended after {timeout} s:\n{output}"
            ended[rank] = Ended(process.exitcode, output, time.monotonic() - self.started)
        return ended


_CLONE_NEWNET = 0x40000000  # of Linux's setns
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    # DDP and the optimizers of torch itself import all of torch.compile.
    ["torch_models", "digrad.torch.process_network", "digrad.torch.checkpoint.checkpoints", "torch._dynamo"]
)


def _enter(namespace: str) -> None:
    """Become a process of a host in a network namespace; see `namespaces`."""
    with open(f"/var/run/netns/{namespace}") as file:
        assert ctypes.CDLL(None).setns(file.fileno(), _CLONE_NEWNET) == 0


def _work(command: list[str], variables: dict[str, str], output: str, namespace: str | None) -> None:
    """Be a process that runs a script, in a session of its own."""
    os.setsid()
    if namespace is not None:
        _enter(namespace)
    with open(output, "w") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())
    os.environ.clear()
    os.environ.update(variables)
    sys.path[:0] = [str(Path(command[0]).parent), *variables["PYTHONPATH"].split(os.pathsep)]
    sys.argv = command
    faulthandler.enable()
    import torch  # by the agents only

    torch.set_num_threads(1)  # the server's own variables were read when it imported torch
    runpy.run_path(command[0], run_name="__main__")


def run(worker: str, n: int, *args: str, timeout: float = 240, **options: Any) -> None:
    """Run a worker on every agent and require success."""
    with Agents(worker, n, *args, **options) as agents:
        for rank, ended in agents.wait(timeout).items():
            assert ended.code == 0, f"agent {rank} failed:\n{ended.output}"
