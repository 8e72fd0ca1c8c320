"""Hosts with addresses of their own on one machine: network namespaces joined by a bridge."""

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from torch_processes import SEARCHED

_numbers = itertools.count()


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


def reason_against() -> str:
    """Return why hosts cannot be made here, or nothing."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "network namespaces need root and the program `ip`"
    probe = f"digrad-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False)
    return made.stderr.strip() and f"network namespaces cannot be made here ({made.stderr.strip()})"


needs_namespaces = [
    pytest.mark.namespaces,
    pytest.mark.skipif(bool(reason := reason_against()), reason=reason or "possible"),
]


class Host:
    """A namespace with one address on the bridge."""

    def __init__(self, hosts: "Hosts", number: int) -> None:
        self.name, self.address = f"{hosts.name}n{number}", f"10.77.{hosts.number % 250}.{number + 1}"
        self._outside = f"{hosts.name}v{number}"
        _run("ip", "netns", "add", self.name)
        _run("ip", "link", "add", self._outside, "type", "veth", "peer", "name", "eth0", "netns", self.name)
        _run("ip", "link", "set", self._outside, "master", hosts.name, "up")
        self.do("ip", "address", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            self.do("ip", "link", "set", device, "up")
        self.processes: list[subprocess.Popen[str]] = []

    def do(self, *words: str) -> None:
        """Run a command on this host."""
        _run("ip", "netns", "exec", self.name, *words)

    def start(self, *words: str, log: Path | None = None, **variables: str) -> subprocess.Popen[str]:
        """Start Python on this host; its output goes to ``log``, or is read from the process."""
        with contextlib.ExitStack() as stack:
            output = subprocess.PIPE if log is None else stack.enter_context(open(log, "w"))
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.name, sys.executable, *words],
                env={
                    **os.environ,
                    "OMP_NUM_THREADS": "1",
                    "PYTHONPATH": SEARCHED,
                    **variables,
                },
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def pids(self) -> list[int]:
        """Return all processes of this host."""
        found = subprocess.run(
            ["ip", "netns", "pids", self.name], capture_output=True, text=True, check=False
        )
        return [int(pid) for pid in found.stdout.split()]

    def signal_all(self, number: int) -> None:
        """Send a signal to all processes of this host: stop it, or let it go on."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def cut(self) -> None:
        """Pull the plug."""
        _run("ip", "link", "set", self._outside, "down")

    def mend(self) -> None:
        """Put it back in."""
        _run("ip", "link", "set", self._outside, "up")

    def limit(self, rate: str) -> None:
        """Make what this host sends no faster, as in ``10mbit``."""
        words = ("root", "tbf", "rate", rate, "burst", "32kbit", "latency", "400ms")
        self.do("tc", "qdisc", "add", "dev", "eth0", *words)

    def block(self, other: "Host") -> None:
        """Let nothing through between this host and another one, in either direction."""
        for here, there in ((self, other), (other, self)):
            here.do("ip", "route", "add", "blackhole", f"{there.address}/32")

    def listening(self) -> set[tuple[str, int]]:
        """Return the TCP addresses on which processes of this host listen, as ``ss`` shows them."""
        words = ["ip", "netns", "exec", self.name, "ss", "-ltnH"]
        lines = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
        found = (line.split()[3].rpartition(":") for line in lines)
        return {(address, int(port)) for address, _, port in found}

    def delete(self) -> None:
        self.signal_all(9)
        for process in self.processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        deadline = time.monotonic() + 5
        while self.pids() and time.monotonic() < deadline:
            time.sleep(0.02)
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True, check=False)


class Hosts:
    """Some hosts that reach one another; they are gone after the ``with`` block whatever happens."""

    def __init__(self, n: int) -> None:
        self.number = os.getpid() * 7 + next(_numbers)
        self.name = f"dg{self.number % 100000}"
        _run("ip", "link", "add", self.name, "type", "bridge")
        _run("ip", "link", "set", self.name, "up")
        self.all: list[Host] = []
        try:
            for i in range(n):
                self.all.append(Host(self, i))
        except subprocess.CalledProcessError:
            self.delete()
            raise

    def delete(self) -> None:
        for host in self.all:
            host.delete()
        subprocess.run(["ip", "link", "del", self.name], capture_output=True, check=False)


@contextlib.contextmanager
def hosts(n: int) -> Iterator[list[Host]]:
    """Give n hosts on one network."""
    made = Hosts(n)
    try:
        yield made.all
    finally:
        made.delete()
