"""Reports of stored results, for people: one self-contained page per run. Nothing is computed again."""

from digrad.report.write_report import write_report

__all__ = ["write_report"]
