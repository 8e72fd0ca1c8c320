"""What sweeps promise: many configurations together against one after another, and on two workers against one.

``python -m benchmarks.sweeps CASE DATA REPEATS`` measures one of them in this process and prints its rows as JSON.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks.measure import Timing, interleave
from benchmarks.report import ROOT, BenchReport, BenchRow
from digrad import checks
from digrad.errors import DigradError

SIZES = np.geomspace(1e-3, 1e-1, 64)
SMALL_SIZES, SMALL_THRESHOLDS = np.geomspace(1e-3, 1e-1, 20), np.geomspace(0.5, 50.0, 10)
FULL_STEPS, SAMPLED_STEPS, SMALL_STEPS = 20, 500, 1000
BATCH, SMALL_BATCH = 32, 8
FULL, SHARED, WORKERS = 3.0, 2.5, 1.7  # promised
AGREEMENT = 1e-9  # of final losses, relative
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
    "NPROC": "1",  # which XLA obeys
}


def full_batch(data: str, repeats: int) -> BenchRow:
    """Time a sweep of step sizes with full gradients."""
    name = f"{len(SIZES)} step sizes, full batch, float64"
    return _together(name, data, repeats, FULL, steps=FULL_STEPS, record_every=10)


def shared_samples(data: str, repeats: int) -> BenchRow:
    """Time a sweep of step sizes with shared mini-batches."""
    name = f"{len(SIZES)} step sizes, batch {BATCH}, shared samples, float64"
    return _together(name, data, repeats, SHARED, steps=SAMPLED_STEPS, record_every=100, batch_size=BATCH)


def workers(data: str, repeats: int) -> BenchRow:
    """Time small configurations on two workers, whose processes are there already, against one."""
    from digrad import CGT, Network, graphs, problems, sweep

    problem = problems.logistic(data="digits", agents=5, reg_weight=1e-3, reg_power=4)
    grid: dict[str, Any] = {"step_size": SMALL_SIZES, "threshold": SMALL_THRESHOLDS}
    network = Network(graphs.example5())

    def run(count: int) -> list[float]:
        found = sweep(
            CGT, problem, network, grid=grid, steps=SMALL_STEPS, batch_size=SMALL_BATCH, record_every=100,
            workers=count,
        )  # fmt: skip
        return found.table["final_loss"].tolist()

    run(1)  # in which XLA starts, with one thread; the workers see to that themselves
    os.environ.pop("NPROC", None)
    two, one = _timed(lambda: run(2), lambda: run(1), repeats)
    return BenchRow(
        name=f"{len(SMALL_SIZES) * len(SMALL_THRESHOLDS)} configurations, batch {SMALL_BATCH}, two workers",
        ours=two.wall, reference=one.wall, unit="s", target=WORKERS, at_least=True, ours_wall=two.wall,
        reference_wall=one.wall, note="wall-clock time; reference: one worker, in this process",
    )  # fmt: skip


CASES: dict[str, Callable[[str, int], BenchRow]] = {
    "full_batch": full_batch,
    "shared_samples": shared_samples,
    "workers": workers,
}


def run_sweep_bench(
    *, repeats: int = 7, data: str = "a9a", progress: Callable[[str], None] | None = None
) -> BenchReport:
    """Measure what sweeps promise, each promise in a fresh process with one thread.

    Args:
        repeats: Turns per comparison.
        data: The data set of the first two.
        progress: Called with the name of each part before it starts.
    """
    repeats = checks.count(repeats, "repeats", "run_sweep_bench")
    rows = []
    for case in CASES:
        if progress:
            progress(case)
        rows.append(sweep_row(case, data, repeats))
    return BenchReport(tuple(rows), {"data": data, "repeats": repeats, "cores": os.cpu_count()})


def sweep_row(case: str, data: str, repeats: int) -> BenchRow:
    """Measure one promise in a fresh process.

    Raises:
        DigradError: The process failed; the message ends with its last line.
    """
    command = [sys.executable, "-m", "benchmarks.sweeps", case, data, str(repeats)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **ONE_THREAD}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise DigradError(f"the benchmark `{case}` ended with exit code {done.returncode}: {reason}")
    return BenchRow(**json.loads(done.stdout))


def _together(name: str, data: str, repeats: int, target: float, **options: Any) -> BenchRow:
    from benchmarks.workload import THRESHOLD, paper_problem
    from digrad import CGT, Network, graphs, simulate, sweep

    problem, network = paper_problem(data), Network(graphs.example5())

    def one_after_another() -> list[float]:
        runs = (
            simulate(CGT(size, THRESHOLD), problem, network, x0="normal", **options)
            for size in SIZES.tolist()
        )
        return [trace.final["loss"] for trace in runs]

    def together() -> Any:
        grid: dict[str, Any] = {"step_size": SIZES, "threshold": [THRESHOLD]}
        return sweep(
            CGT, problem, network, grid=grid, x0="normal", common_random_numbers=True, **options
        ).table

    gap = np.max(np.abs(together()["final_loss"] / one_after_another() - 1))
    if not gap <= AGREEMENT:
        raise DigradError(
            f"{name}: together and one after another differ by {gap:.3g}; the benchmark is void."
        )
    times = interleave({"together": together, "alone": one_after_another}, repeats=repeats)
    ours, reference = times["together"], times["alone"]
    return BenchRow(
        name=name, ours=ours.cpu, reference=reference.cpu, unit="s", target=target, at_least=True,
        ours_wall=ours.wall, reference_wall=reference.wall, note="reference: simulate, one after another",
    )  # fmt: skip


def _timed(
    ours: Callable[[], list[float]], reference: Callable[[], list[float]], repeats: int
) -> tuple[Timing, Timing]:
    """Return the times of both, after checking that they end at the same losses."""
    losses: dict[str, list[float]] = {}
    times = interleave(
        {
            "ours": lambda: losses.update(ours=ours()),
            "reference": lambda: losses.update(reference=reference()),
        },
        repeats=repeats,
    )
    if not np.allclose(losses["ours"], losses["reference"], rtol=AGREEMENT):
        raise DigradError(
            "together and one after another give different losses; the benchmark is void, please report it."
        )
    return times["ours"], times["reference"]


if __name__ == "__main__":
    found = CASES[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
    print(json.dumps(asdict(found)))
