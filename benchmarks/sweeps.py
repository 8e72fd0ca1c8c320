"""Sweeps: many configurations together against one after another, and on two workers against one.

``python -m benchmarks.sweeps CASE DATA REPEATS`` measures one case in this process and prints its rows as JSON.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from benchmarks.measure import in_fresh_process, interleave
from benchmarks.report import BenchRow
from digrad.errors import DigradError

AGREEMENT = 1e-9  # of final losses, relative
SIZES, THRESHOLDS = np.geomspace(1e-3, 0.3, 12), [0.5, 1.0, 5.0, 20.0]
BEGUN = ("digits_together", "digits_alone")  # which `first_time` starts


def full_batch(data: str, repeats: int) -> list[BenchRow]:
    """Time a sweep of step sizes with full gradients."""
    return _together("full batch", data, repeats, 3.0, steps=20, record_every=10)


def shared_samples(data: str, repeats: int) -> list[BenchRow]:
    """Time a sweep of step sizes with shared mini-batches."""
    options = {"steps": 500, "record_every": 100, "batch_size": 32}
    return _together("batch 32, shared samples", data, repeats, 2.5, **options)


def workers(data: str, repeats: int) -> list[BenchRow]:
    """Time small configurations on two workers, whose processes are there already, against one."""
    import digrad as dg

    problem = dg.problems.logistic(data="digits", agents=5, reg_weight=1e-3, reg_power=4)
    grid: dict[str, Any] = {
        "step_size": np.geomspace(1e-3, 1e-1, 20),
        "threshold": np.geomspace(0.5, 50.0, 10),
    }
    network = dg.Network(dg.graphs.example5())

    def run(count: int) -> Any:
        options: dict[str, Any] = {"steps": 1000, "batch_size": 8, "record_every": 100, "workers": count}
        return dg.sweep(dg.CGT, problem, network, grid=grid, **options).table["final_loss"]

    _check(run(1), run(2))  # in which XLA starts, with one thread; the workers see to that themselves
    os.environ.pop("NPROC", None)
    times = interleave({"two": lambda: run(2), "one": lambda: run(1)}, repeats=repeats)
    two, one = times["two"].wall, times["one"].wall
    name, note = (
        "200 configurations, batch 8, two workers",
        "wall-clock time; reference: one worker, in this process",
    )
    return [BenchRow(name, two, "s", 1.7, one, at_least=True, note=note)]


def first_time(data: str, repeats: int) -> list[BenchRow]:
    """Time 48 configurations on digits in fresh processes, compilation included, and once more in the same ones."""
    found = {
        case: [in_fresh_process("benchmarks.sweeps", case, data, 1) for _ in range(repeats)] for case in BEGUN
    }
    together, alone = (np.median(found[case], axis=0) for case in BEGUN)
    return [
        BenchRow(f"48 configurations on digits, {when}", ours, "s", 1.0, reference, note="wall-clock time")
        for when, ours, reference in zip(("the first time", "the second time"), together, alone, strict=True)
    ]


def _digits(together: bool) -> list[float]:
    import digrad as dg

    problem = dg.problems.logistic(data="digits", agents=5, reg_weight=1e-3, reg_power=4)
    network, seconds = dg.Network(dg.graphs.example5()), []
    grid: dict[str, Any] = {"step_size": SIZES, "threshold": THRESHOLDS}
    options: dict[str, Any] = {"steps": 400, "x0": "normal"}
    for _ in range(2):
        began = time.perf_counter()
        if together:
            dg.sweep(dg.CGT, problem, network, grid=grid, **options)
        else:
            for size in SIZES.tolist():
                for threshold in THRESHOLDS:
                    dg.simulate(dg.CGT(size, threshold), problem, network, **options)
        seconds.append(time.perf_counter() - began)
    return seconds


def _together(name: str, data: str, repeats: int, target: float, **options: Any) -> list[BenchRow]:
    import digrad as dg
    from benchmarks.small import THRESHOLD, paper_problem

    problem, network, sizes = (
        paper_problem(data),
        dg.Network(dg.graphs.example5()),
        np.geomspace(1e-3, 1e-1, 64),
    )

    def alone() -> Any:
        runs = (
            dg.simulate(dg.CGT(size, THRESHOLD), problem, network, x0="normal", **options) for size in sizes
        )
        return [run.final["loss"] for run in runs]

    def together() -> Any:
        grid: dict[str, Any] = {"step_size": sizes, "threshold": [THRESHOLD]}
        found = dg.sweep(
            dg.CGT, problem, network, grid=grid, x0="normal", common_random_numbers=True, **options
        )
        return found.table["final_loss"]

    _check(together(), alone())
    times = interleave({"together": together, "alone": alone}, repeats=repeats)
    ours, reference = times["together"].cpu, times["alone"].cpu
    note = "reference: simulate, one after another"
    return [
        BenchRow(f"64 step sizes, {name}, float64", ours, "s", target, reference, at_least=True, note=note)
    ]


def _check(ours: Any, reference: Any) -> None:
    if not np.allclose(ours, reference, rtol=AGREEMENT):
        raise DigradError("both sides give different losses: nothing to compare.")


CASES: dict[str, Callable[[str, int], list[BenchRow]]] = {
    case.__name__: case for case in (full_batch, shared_samples, workers, first_time)
}

if __name__ == "__main__":
    if sys.argv[1] in BEGUN:
        print(json.dumps(_digits(sys.argv[1] == BEGUN[0])))
    else:
        print(json.dumps([asdict(row) for row in CASES[sys.argv[1]](sys.argv[2], int(sys.argv[3]))]))
