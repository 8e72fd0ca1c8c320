"""Reports of results, for people: one self-contained page. Of stored results nothing is computed again."""

from digrad.report.write_report import write_report

__all__ = ["write_report"]
