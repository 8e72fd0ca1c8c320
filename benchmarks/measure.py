"""Measuring of times and memory."""

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy
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
NEVER = 1 << 40  # a record_every that no run reaches


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


class Loop:
    """The compiled loop of a simulator, with the inputs of all steps made beforehand: only steps are timed.

    Args:
        simulator: A :class:`digrad.Simulator`.
        x0: The start.
        steps: As many as one call may take.
    """

    def __init__(self, simulator: Any, x0: Any, steps: int) -> None:
        import jax

        from digrad.simulation.loop import advance_of

        simulator = self.simulator = copy(simulator)
        simulator.length = steps + 1
        self.start = simulator.init(x0)._replace(x0=None)
        self._advance = advance_of(simulator.static, *self.start.grad.shape)
        with jax.enable_x64(True):
            self._inputs = jax.device_put(simulator.inputs(0, steps + 1))

    def run(self, steps: int) -> Any:
        """Take steps of which none is recorded, from iteration 1 on: 0 always is, which is not what a step costs."""
        start = self.start._replace(k=self.start.k + 1, reached=self.start.reached + 1)
        return self.record(1 + steps, NEVER, start)[0]

    def record(self, end: int, every: int, start: Any = None) -> Any:
        """Return the state at iteration ``end``, and the buffer of the rows recorded on the way."""
        import jax

        simulator, start = self.simulator, self.start if start is None else start
        with jax.enable_x64(True):
            done = self._advance(
                simulator.params[0], start, end, every, self._inputs, static=simulator.static
            )
            return jax.block_until_ready(done)


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
