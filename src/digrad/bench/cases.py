"""The comparisons that are timed, each of which gives the rows of one worker process."""

from functools import partial
from typing import Any

import jax
import numpy as np

from digrad.bench.measure import Timing, fastest, interleave, peak_memory
from digrad.bench.report import BenchRow
from digrad.bench.workload import METHOD, Workload, paper_problem
from digrad.errors import DigradError
from digrad.graphs import example5
from digrad.mixing import Network
from digrad.simulation import simulate

BATCH = 32
MINIBATCH_STEPS, RECORDED_STEPS, FULL_STEPS = 2000, 1000, 10
RECORD_EVERY = 10
SPEEDUP = {"float32": 3.0, "float64": 2.5}
DEFERRAL = 2.5
FULL_BATCH = 1.3
MEMORY_GB = 1.0


def minibatch(data: str, repeats: int) -> list[BenchRow]:
    """Time a mini-batch step against NumPy's best layout."""
    return _against_numpy(data, repeats, MINIBATCH_STEPS, BATCH)


def full_batch(data: str, repeats: int) -> list[BenchRow]:
    """Time a full-batch step against NumPy's best layout."""
    return _against_numpy(data, repeats, FULL_STEPS, None)


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


CASES = {"minibatch": minibatch, "recording": recording, "full_batch": full_batch, "memory": memory}


def _against_numpy(data: str, repeats: int, steps: int, batch_size: int | None) -> list[BenchRow]:
    problem = paper_problem(data)
    with jax.enable_x64(True):
        Workload(problem, "float64", min(steps, 200), batch_size).check_agreement()
        return [_stepped(Workload(problem, dtype, steps, batch_size), repeats) for dtype in SPEEDUP]


def _stepped(work: Workload, repeats: int) -> BenchRow:
    layouts = {name: partial(work.run_numpy, gradient) for name, gradient in work.layouts().items()}
    times = interleave({"digrad": work.run, **layouts}, repeats=repeats)
    layout, best = fastest({name: times[name] for name in layouts})
    is_full = work.batch_size is None
    return BenchRow(
        name=f"step, {'full batch' if is_full else f'batch {work.batch_size}'}, {work.dtype}",
        target=FULL_BATCH if is_full else SPEEDUP[work.dtype],
        at_least=not is_full,
        note=f"NumPy: {layout}, the best of {len(layouts)} layouts; samples drawn beforehand for both",
        **_pair(times["digrad"], best, "us", 1e6 / work.steps),
    )


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
