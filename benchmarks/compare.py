"""Compare two checkouts: ``python -m benchmarks.compare OTHER [--repeats 7] [--data a9a]``.

Small problems run in fresh processes of this checkout and of another one, which take turns, through the public
``simulate`` alone, so that the two may differ in everything else. A figure is the least CPU time of three calls after
the first, which compiles; a row shows the medians over the processes and their ratio.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.measure import ONE_THREAD
from benchmarks.report import FOLDER, ROOT

LIMIT = 1.03
CHILD = """
import json, sys, time
import numpy as np
import digrad as dg

data, weight, power = sys.argv[1], [5e-4, 1e-3, 2e-3, 1e-3, 1e-3], [4.0, 5.0, 6.0, 5.0, 4.0]
paper = dg.problems.logistic(data=data, agents=5, partition="sorted", reg_weight=weight, reg_power=power)
generator = np.random.default_rng(0)
labels = generator.choice([-1.0, 1.0], 32561)
samples = dg.data.Dataset("random", generator.standard_normal((32561, 123)), labels)
many = dg.problems.logistic(data=samples, agents=500, partition="iid", reg_weight=1e-3, reg_power=4.0)
small, large = dg.Network(dg.graphs.example5()), dg.Network(dg.graphs.k_out(500, 3, seed=0))
cases = {
    "batch 32": (paper, small, dict(steps=4000, batch_size=32, record_every=4000)),
    "full batch": (paper, small, dict(steps=200, record_every=200)),
    "batch 32, metrics every 10": (paper, small, dict(steps=2000, batch_size=32, record_every=10)),
    "500 agents, batch 32": (many, large, dict(steps=200, batch_size=32, record_every=200)),
}
method, found = dg.CGT(step_size=0.05, threshold=5.0), {}
for name, (problem, network, options) in cases.items():
    for dtype in ("float32", "float64"):
        times = []
        for _ in range(4):
            began = time.process_time()
            dg.simulate(method, problem, network, x0="normal", dtype=dtype, **options)
            times.append(time.process_time() - began)
        found[f"{name}, {dtype}"] = min(times[1:])
print(json.dumps(found))
"""


def compare(other: Path, repeats: int, data: str) -> list[dict[str, Any]]:
    """Return a row per case: the name, the seconds of the other checkout and of this one, and their ratio."""
    found: dict[Path, list[dict[str, float]]] = {other: [], ROOT: []}
    for _ in range(repeats):
        for checkout, runs in found.items():
            environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(checkout / "src")}
            command = [sys.executable, "-c", CHILD, data]
            done = subprocess.run(command, cwd=checkout, env=environment, stdout=subprocess.PIPE, check=True)
            runs.append(json.loads(done.stdout))
    rows = []
    for name in found[ROOT][0]:
        before, after = (statistics.median(run[name] for run in found[one]) for one in (other, ROOT))
        rows.append({"name": name, "before": before, "after": after, "ratio": after / before})
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--data", default="a9a")
    options = parser.parse_args()
    rows = compare(options.other.resolve(), options.repeats, options.data)
    (FOLDER / "compare.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for row in rows:
        print(f"{row['name']:<40} {row['before']:8.4f} s {row['after']:8.4f} s {row['ratio']:6.3f}")
    sys.exit(any(row["ratio"] > LIMIT for row in rows))
