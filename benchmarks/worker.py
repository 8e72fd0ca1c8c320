"""One timed comparison in a process of its own, with one thread: ``python -m benchmarks.worker CASE DATA REPEATS``.

Prints its rows as JSON; :func:`benchmarks.run_bench` starts it with the threads of BLAS and OpenMP limited,
which must happen before NumPy is imported.
"""

import json
import os
import sys
from dataclasses import asdict

from digrad.errors import DigradError


def main(case: str, data: str, repeats: str) -> int:
    """Run one case on one core and print its rows; return the exit code."""
    if case == "two_threads":
        os.environ.pop("OMP_NUM_THREADS", None)  # no BLAS takes part, and our own steps obey it
    elif hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    from benchmarks.cases import CASES

    try:
        rows = CASES[case](data, int(repeats))
    except DigradError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps([asdict(row) for row in rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
