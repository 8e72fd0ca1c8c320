"""Compare the torch benchmarks of two checkouts, which take turns: ``python -m benchmarks.compare_torch OTHER``.

Each checkout measures itself, so that the two may differ in everything but the names of rows: an exchange of a
ResNet-18 buffer on one host and as between hosts, plain and encrypted, a DDP all-reduce beside it, and forty small
agents.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.measure import ONE_THREAD
from benchmarks.report import ROOT

CHILD = """
import json
from benchmarks.torch_exchange import run_torch_bench
from benchmarks.torch_many import many_rows
rows = [*run_torch_bench(repeats=5), *many_rows()]
print(json.dumps({row.name: [row.ours, row.unit] for row in rows}))
"""


def measure(checkout: Path) -> dict[str, list[object]]:
    """Return the figure and unit of every row of a checkout."""
    environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": f"{checkout / 'src'}{os.pathsep}{checkout}"}
    words = [sys.executable, "-c", CHILD]
    done = subprocess.run(words, cwd=checkout, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path, help="the other checkout")
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    found = [(measure(arguments.other), measure(ROOT)) for _ in range(arguments.turns)]
    print("| | before | after |", "|---|---|---|", sep="\n")
    names = list(dict.fromkeys(name for turn in found for one in turn for name in one))
    for name in names:
        cells = []
        for place in (0, 1):
            rows = [turn[place][name] for turn in found if name in turn[place]]
            cells.append(
                f"{statistics.median(float(row[0]) for row in rows):.3g} {rows[0][1]}" if rows else "-"
            )
        print(f"| {name} | {cells[0]} | {cells[1]} |")


if __name__ == "__main__":
    main()
