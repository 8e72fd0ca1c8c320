"""The comparisons that are timed, each of which gives the rows of one worker process."""

from functools import partial
from typing import Any

import jax
import numpy as np

from benchmarks.large import converging, growth, large, large_memory, networks, two_threads
from benchmarks.lossy import lossy
from benchmarks.measure import Timing, fastest, interleave, peak_memory
from benchmarks.report import BenchRow
from benchmarks.workload import METHOD, Workload, many_agents_problem, paper_problem
from digrad.errors import DigradError
from digrad.graphs import example5
from digrad.network import Network
from digrad.simulation import simulate

BATCH = 32
MINIBATCH_STEPS, RECORDED_STEPS, FULL_STEPS = 2000, 1000, 10
RECORD_EVERY = 10
SPEEDUP = {"float32": 4.0, "float64": 5.0}
MANY_SPEEDUP = {"float32": 3.0, "float64": 4.5}  # of 500 agents, against dense mixing
MANY_STEPS = 50
LOOP_SPEEDUP = 8.0
DEFERRAL = 2.5
FULL_BATCH = {"float32": 1 / 1.3, "float64": 1.7}
MEMORY_GB = 1.0


def minibatch(data: str, repeats: int) -> list[BenchRow]:
    """Time a mini-batch step against NumPy's best layout."""
    return _against_numpy(data, repeats, MINIBATCH_STEPS, BATCH)


def full_batch(data: str, repeats: int) -> list[BenchRow]:
    """Time a full-batch step against NumPy's best layout."""
    return _against_numpy(data, repeats, FULL_STEPS, None)


def many_agents(data: str, repeats: int) -> list[BenchRow]:
    """Time a mini-batch step of 500 agents on random dense samples against NumPy with dense mixing."""
    problem = many_agents_problem()
    with jax.enable_x64(True):
        Workload(problem, "float64", 20, BATCH).check_agreement()
        works = [Workload(problem, dtype, MANY_STEPS, BATCH) for dtype in MANY_SPEEDUP]
        return [row for work in works for row in _stepped(work, MANY_SPEEDUP[work.dtype], repeats)]


def recording(data: str, repeats: int) -> list[BenchRow]:
    """Time a recorded run with metrics deferred, as digrad does, and with metrics inside the loop."""
    problem = paper_problem(data)
    with jax.enable_x64(True):
        return [_recorded(Workload(problem, dtype, RECORDED_STEPS, BATCH), repeats) for dtype in SPEEDUP]


def memory(data: str, repeats: int) -> list[BenchRow]:
    """Measure the peak memory of one recorded run in this process, which must be fresh."""
    simulate(
        METHOD, paper_problem(data), Network(example5()),
        steps=RECORDED_STEPS, batch_size=BATCH, record_every=RECORD_EVERY, x0="normal",
    )  # fmt: skip
    name = f"peak memory, {RECORDED_STEPS} steps"
    return [BenchRow(name=name, ours=peak_memory() / 1e9, unit="GB", target=MEMORY_GB)]


CASES = {
    "minibatch": minibatch,
    "many_agents": many_agents,
    "recording": recording,
    "full_batch": full_batch,
    "memory": memory,
    "lossy": lossy,
    "large": large,
    "two_threads": two_threads,
    "growth": growth,
    "networks": networks,
    "converging": converging,
    "large_memory": large_memory,
}


def _against_numpy(data: str, repeats: int, steps: int, batch_size: int | None) -> list[BenchRow]:
    problem = paper_problem(data)
    targets = FULL_BATCH if batch_size is None else SPEEDUP
    with jax.enable_x64(True):
        Workload(problem, "float64", min(steps, 200), batch_size).check_agreement()
        works = [Workload(problem, dtype, steps, batch_size) for dtype in targets]
        return [row for work in works for row in _stepped(work, targets[work.dtype], repeats)]


def _stepped(work: Workload, target: float, repeats: int) -> list[BenchRow]:
    layouts = {name: partial(work.run_numpy, gradient) for name, gradient in work.layouts().items()}
    others = work.others() if work.problem.n_agents == 5 else {}
    candidates = {"digrad": work.run, "products": work.run_products, **layouts, **others}
    times = interleave(candidates, repeats=repeats)
    layout, best = fastest({name: times[name] for name in layouts})
    agents = "" if work.problem.n_agents == 5 else f"{work.problem.n_agents} agents, "
    name = f"step, {agents}{'full batch' if work.batch_size is None else f'batch {work.batch_size}'}, {work.dtype}"
    found = [
        BenchRow(
            name=name,
            target=target,
            at_least=True,
            note=f"NumPy: {layout}, the best of {len(layouts)} layouts; samples drawn beforehand for both; floor: "
            "the products of dense samples alone, by BLAS; sparse samples, or own loops over dense ones, need less",
            floor=times["products"].cpu * 1e6 / work.steps,
            **_pair(times["digrad"], best, "us", 1e6 / work.steps),
        )
    ]
    for other in others:
        limit = LOOP_SPEEDUP if other == "agent loop" else None
        pair = _pair(times["digrad"], times[other], "us", 1e6 / work.steps)
        found.append(BenchRow(name=f"{name}, against {other}", target=limit, at_least=True, **pair))
    return found


def _recorded(work: Workload, repeats: int) -> BenchRow:
    _check_losses(work)
    candidates = {
        "deferred": partial(work.run_deferred, RECORD_EVERY),
        "inside": partial(work.run_inside, RECORD_EVERY),
    }
    times = interleave(candidates, repeats=repeats)
    return BenchRow(
        name=f"{work.steps} steps, metrics every {RECORD_EVERY}, {work.dtype}",
        target=DEFERRAL,
        at_least=True,
        note="reference: loss and gradient inside the compiled loop",
        **_pair(times["deferred"], times["inside"], "ms", 1e3),
    )


def _pair(ours: Timing, reference: Timing, unit: str, scale: float) -> dict[str, Any]:
    return {
        "ours": ours.cpu * scale,
        "reference": reference.cpu * scale,
        "unit": unit,
        "ours_wall": ours.wall * scale,
        "reference_wall": reference.wall * scale,
    }


def _check_losses(work: Workload) -> None:
    """Both ways of recording must give the same losses, to rounding."""
    deferred, inside = work.run_deferred(RECORD_EVERY), work.run_inside(RECORD_EVERY)
    tolerance = 1e-10 if work.dtype == "float64" else 1e-2  # rounding differs, and 1000 steps amplify it
    if not np.allclose(deferred, inside, rtol=tolerance, atol=0):
        gap = float(np.abs(deferred / inside - 1).max())
        raise DigradError(
            f"losses recorded inside and after the loop differ by {gap:.3g} in {work.dtype}, which must be at most "
            f"{tolerance:g}; the benchmark is void, please report it."
        )
