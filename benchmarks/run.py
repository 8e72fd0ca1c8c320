"""The benchmark as its users call it: fresh processes, one after the other, and a report."""

import importlib.metadata
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable

from benchmarks.history import remember
from benchmarks.report import ROOT, BenchReport, BenchRow
from benchmarks.sweeps import CASES as SWEEP_CASES
from benchmarks.sweeps import sweep_row
from digrad import checks
from digrad.errors import DigradError

SMALL = ("minibatch", "many_agents", "recording", "full_batch", "memory", "lossy")
LARGE = ("large", "two_threads", "growth", "networks", "converging", "large_memory")
CASES = (*SMALL, *LARGE)
SWEEPS = tuple(SWEEP_CASES)
STARTS = 5  # fresh processes per start-up time
IMPORT_SECONDS, HELP_SECONDS = 1.5, 0.5
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
}

TWO_THREADS = {name: value for name, value in ONE_THREAD.items() if name != "XLA_FLAGS"}  # of XLA alone


def run_bench(
    *,
    repeats: int = 7,
    data: str = "a9a",
    progress: Callable[[str], None] | None = None,
    history: str | os.PathLike[str] | None = None,
) -> BenchReport:
    """Measure digrad's promises of speed, memory and start-up time on this machine.

    Each comparison runs in a fresh process on one core with one thread, after a check that both sides compute
    the same numbers; both take turns, and medians of their process CPU time are compared. Compilation is not
    counted, and samples are drawn beforehand for both.

    Args:
        repeats: Turns per comparison.
        data: The data set; the promises are about ``a9a``.
        progress: Called with the name of each part before it starts.
        history: A file of JSON lines to which the figures are added; those of its last line are compared with.

    Raises:
        DigradError: the data set is missing, or the two sides of a comparison do not agree.
    """
    repeats = checks.count(repeats, "repeats", "run_bench")
    tell = progress or (lambda part: None)
    rows: list[BenchRow] = []
    for case in CASES:
        tell(case)
        rows.extend(_worker(case, data, repeats))
    for case in SWEEPS:
        tell(f"sweeps, {case}")
        rows.append(sweep_row(case, data, repeats))
    tell("start-up")
    rows.append(_start_up("import digrad", ["-c", "import digrad"], IMPORT_SECONDS))
    rows.append(_start_up("digrad --help", ["-m", "digrad", "--help"], HELP_SECONDS))
    versions = {name: importlib.metadata.version(name) for name in ("digrad", "jax", "numpy")}
    machine = {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()}
    facts = {"data": data, "repeats": repeats, "threads": 1, **versions, **machine}
    before = {} if history is None else remember(history, rows, facts)
    return BenchReport(tuple(rows), facts, before)


def _worker(case: str, data: str, repeats: int) -> list[BenchRow]:
    command = [sys.executable, "-m", "benchmarks.worker", case, data, str(repeats)]
    return [BenchRow(**row) for row in json.loads(_output(command, f"the benchmark `{case}`"))]


def _start_up(name: str, arguments: list[str], target: float) -> BenchRow:
    def cpu_seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        _output([sys.executable, *arguments], f"`{name}`")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    seconds = statistics.median(cpu_seconds() for _ in range(STARTS))
    return BenchRow(name=name, ours=seconds, unit="s CPU", target=target, note=f"median of {STARTS} starts")


def _output(command: list[str], name: str) -> str:
    result = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **(TWO_THREADS if "two_threads" in command else ONE_THREAD)},
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        reason = (result.stderr.strip().splitlines() or ["no message"])[-1]
        raise DigradError(f"{name} ended with exit code {result.returncode}: {reason}")
    return result.stdout
