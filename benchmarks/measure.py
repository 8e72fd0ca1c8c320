"""How times and memory are taken."""

import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Timing(NamedTuple):
    """Medians over the repeats, in seconds."""

    cpu: float
    wall: float


def interleave(candidates: Mapping[str, Callable[[], Any]], *, repeats: int) -> dict[str, Timing]:
    """Return the median times of each candidate, after one call of each that does not count.

    The candidates take turns, so that whatever else the machine does disturbs them alike.

    >>> sorted(interleave({"a": lambda: sum(range(1000)), "b": lambda: None}, repeats=3))
    ['a', 'b']
    """
    samples: dict[str, list[Timing]] = {name: [] for name in candidates}
    for run in candidates.values():
        run()
    for _ in range(repeats):
        for name, run in candidates.items():
            samples[name].append(timed(run))
    return {
        name: Timing(statistics.median(t.cpu for t in times), statistics.median(t.wall for t in times))
        for name, times in samples.items()
    }


def unrecorded(start: Any) -> Any:
    """Return a run's start, counted from 1: the iteration 0 is always recorded, which is not what a step costs."""
    return start._replace(k=start.k + 1, reached=start.reached + 1)


def fastest(times: Mapping[str, Timing]) -> tuple[str, Timing]:
    """Return the candidate with the least CPU time."""
    name = min(times, key=lambda candidate: times[candidate].cpu)
    return name, times[name]


def peak_memory() -> int:
    """Return the largest resident size of this process so far, in bytes."""
    # ru_maxrss of a new process starts at the size of the process that started it; VmHWM does not.
    return _status("VmHWM")


def resident_memory() -> int:
    """Return the resident size of this process, in bytes; where the system does not tell, the largest so far."""
    return _status("VmRSS")


def timed(run: Callable[[], Any]) -> Timing:
    """Return the times of one call."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return Timing(time.process_time() - cpu, time.perf_counter() - wall)


def _status(name: str) -> int:
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith(name))
        return int(line.split()[1]) << 10
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
