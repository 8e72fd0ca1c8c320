"""How fast digrad is on this machine: against NumPy, against its own alternatives, and against fixed limits."""

from benchmarks.report import BenchReport, BenchRow
from benchmarks.run import run_bench

__all__ = ["BenchReport", "BenchRow", "run_bench"]
