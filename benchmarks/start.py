"""The first seconds of a process: imports, and where the time of the first ``simulate`` goes.

``python -m benchmarks.start`` prints the seconds of one fresh process as JSON.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

from benchmarks.measure import in_fresh_process
from benchmarks.report import BenchRow


def start_rows(repeats: int) -> list[BenchRow]:
    """Return the CPU time of two imports, and the parts of the first call with and without compiled code in a cache."""
    rows = [
        BenchRow("import digrad", _cpu(["-c", "import digrad"], repeats), "s CPU", 0.1),
        BenchRow("digrad --help", _cpu(["-m", "digrad", "--help"], repeats), "s CPU", 0.3),
    ]
    with tempfile.TemporaryDirectory() as folder:
        cold = [in_fresh_process("benchmarks.start") for _ in range(repeats)]
        warm = [in_fresh_process("benchmarks.start", folder) for _ in range(repeats + 1)][1:]
    for part in cold[0]:
        without, kept = (statistics.median(one[part] for one in found) for found in (cold, warm))
        note = "reference: without `keep_compiled`, which keeps compiled code in a folder"
        rows.append(BenchRow(f"first simulate, {part}", kept, "s", reference=without, note=note))
    return rows


def _cpu(arguments: list[str], repeats: int) -> float:
    def one() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    return statistics.median(one() for _ in range(repeats))


def _profile(folder: str | None) -> dict[str, float]:
    began = time.perf_counter()
    import jax

    import digrad as dg

    _ = dg.simulate, dg.CGT, dg.problems, dg.Network  # which are loaded when they are first named
    if folder:
        from digrad._internal.compilation import keep_compiled

        keep_compiled(folder)
    imported = time.perf_counter()
    spent: dict[str, float] = {"trace": 0.0, "lower": 0.0, "compile": 0.0}
    parts = {"jaxpr_trace": "trace", "jaxpr_to_mlir": "lower", "backend_compile": "compile"}

    def listen(event: str, duration_secs: float, **kwargs: Any) -> None:
        for name, part in parts.items():
            spent[part] += duration_secs if name in event else 0.0

    jax.monitoring.register_event_duration_secs_listener(listen)
    problem = dg.problems.logistic(data="digits", agents=5, reg_weight=1e-3, reg_power=4)
    network = dg.Network(dg.graphs.example5())
    made = time.perf_counter()
    dg.simulate(dg.CGT(0.05, 5.0), problem, network, steps=400, batch_size=32)
    first = time.perf_counter()
    dg.simulate(dg.CGT(0.05, 5.0), problem, network, steps=400, batch_size=32)
    second = time.perf_counter()
    rest = first - made - sum(spent.values()) - (second - first)
    return {
        "imports": imported - began,
        "problem and network": made - imported,
        **spent,
        "the rest": max(rest, 0.0),
        "and the second simulate": second - first,
    }


if __name__ == "__main__":
    os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
    print(json.dumps(_profile(sys.argv[1] if len(sys.argv) > 1 else None)))
