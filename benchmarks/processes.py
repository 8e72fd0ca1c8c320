"""Five processes on loopback that measure something together, each of which prints one line of JSON."""

import json
import os
import socket
import subprocess
from collections.abc import Sequence
from typing import Any

from benchmarks.report import ROOT
from digrad.errors import DigradError

SECONDS = 600  # after which the processes are given up


def run_processes(command: Sequence[str], n: int) -> list[Any]:
    """Return what each of n processes printed, by rank.

    Raises:
        DigradError: A process failed; the message ends with its last line.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    # The allocator stays as DDP finds it under plain torchrun: `digrad launch` would speed up all_reduce as well.
    base = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "WORLD_SIZE": str(n)}
    processes = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env={**base, "RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(n)
    ]
    try:
        outputs = [process.communicate(timeout=SECONDS) for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    for process, (_, errors) in zip(processes, outputs, strict=True):
        if process.returncode:
            reason = (errors.strip().splitlines() or ["no message"])[-1]
            raise DigradError(f"the torch benchmark ended with exit code {process.returncode}: {reason}")
    return [json.loads(output) for output, _ in outputs]
