"""How times and memory are taken."""

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.report import ROOT
from digrad.errors import DigradError

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "NPROC": "1",  # which XLA obeys
}


class Timing(NamedTuple):
    """Seconds of one call, or medians of several."""

    cpu: float
    wall: float


def interleave(candidates: Mapping[str, Callable[[], Any]], *, repeats: int) -> dict[str, Timing]:
    """Return the median times of each candidate, after one call of each that does not count.

    The candidates take turns, so that whatever else the machine does disturbs them alike.

    >>> sorted(interleave({"a": lambda: sum(range(1000)), "b": lambda: None}, repeats=3))
    ['a', 'b']
    """
    for run in candidates.values():
        run()
    samples: dict[str, list[Timing]] = {name: [] for name in candidates}
    for _ in range(repeats):
        for name, run in candidates.items():
            samples[name].append(timed(run))
    return {name: medians(times) for name, times in samples.items()}


def timed(run: Callable[[], Any]) -> Timing:
    """Return the times of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return Timing(time.process_time() - cpu, time.perf_counter() - wall)


def medians(times: Sequence[Timing]) -> Timing:
    """Return the medians of several calls."""
    return Timing(statistics.median(t.cpu for t in times), statistics.median(t.wall for t in times))


def unrecorded(start: Any) -> Any:
    """Return a run's start, counted from 1: the iteration 0 is always recorded, which is not what a step costs."""
    return start._replace(k=start.k + 1, reached=start.reached + 1)


def peak_memory() -> int:
    """Return the largest resident size of this process so far, in bytes."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    # ru_maxrss of a new process starts at the size of the process that started it; VmHWM does not.
    line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10


def in_fresh_process(module: str, *arguments: Any) -> Any:
    """Return what ``python -m MODULE ARGUMENTS`` prints, from JSON, with one thread.

    Raises:
        DigradError: The process failed; the message ends with its last line.
    """
    command = [sys.executable, "-m", module, *map(str, arguments)]
    environment = {**os.environ, **ONE_THREAD}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise DigradError(f"{' '.join(command[1:])} ended with exit code {done.returncode}: {reason}")
    return json.loads(done.stdout)
