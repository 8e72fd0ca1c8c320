"""How fast digrad is on this machine: against NumPy, against its own alternatives, and against fixed limits."""

from digrad.bench.report import BenchReport, BenchRow
from digrad.bench.run import run_bench

__all__ = ["BenchReport", "BenchRow", "run_bench"]
