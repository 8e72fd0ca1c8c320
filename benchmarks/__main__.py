"""Measure digrad's speed and memory, and write what docs/results/bench shows: ``python -m benchmarks [PART ...]``."""

import argparse
import sys

from benchmarks import methods, page, small, start, sweeps
from benchmarks.measure import in_fresh_process
from benchmarks.report import BenchRow, promises, save_rows


def measure(part: str, options: argparse.Namespace) -> None:
    """Measure one part and write its rows."""
    if part == "methods":
        methods.measure_methods(box=options.box, agents=options.agents, dims=options.dims)
        return
    if part in ("small", "sweeps"):
        cases = {"small": small, "sweeps": sweeps}[part].CASES
        rows = []
        for case in cases:
            print(f"{part}, {case}", file=sys.stderr)
            found = in_fresh_process(f"benchmarks.{part}", case, options.data, options.repeats)
            rows += [BenchRow(**row) for row in found]
    elif part == "start":
        rows = start.start_rows(options.repeats)
    else:
        rows = _torch(options.repeats)
    save_rows(f"{part}.jsonl", rows)
    print(promises(rows))


def _torch(repeats: int) -> list[BenchRow]:
    from benchmarks.torch_deadline import deadline_row
    from benchmarks.torch_exchange import run_torch_bench
    from benchmarks.torch_many import many_rows
    from benchmarks.torch_replicas import replicas_rows

    return [*run_torch_bench(repeats=repeats), *replicas_rows(repeats=repeats), deadline_row(), *many_rows()]


def main() -> None:
    """Measure the parts that are named, all but torch by default, and write the page."""
    parts = ("small", "sweeps", "start", "methods")
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts)}, torch, page")
    parser.add_argument("--repeats", type=int, default=7, help="turns of a comparison")
    parser.add_argument("--data", default="a9a", help="of small and sweeps")
    parser.add_argument(
        "--box", type=float, default=methods.BOX, help="seconds for the turns of one of methods"
    )
    parser.add_argument("--agents", type=int, nargs="+", default=methods.AGENTS, help="of methods")
    parser.add_argument("--dims", type=int, nargs="+", default=methods.DIMS, help="of methods")
    options = parser.parse_args()
    unknown = set(options.parts) - {*parts, "torch", "page"}
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    for part in options.parts or parts:
        if part != "page":
            measure(part, options)
    page.write()


if __name__ == "__main__":
    main()
