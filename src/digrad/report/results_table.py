"""The table of results: one row per method, complete without the script, which sorts it and hides columns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from digrad._internal.formatting import shown, size
from digrad.report.page import badge, text
from digrad.report.runs import Run

_LOOKS = {"converged": "good", "diverged": "bad"}  # any other is open
_SHOWN_AT_FIRST = ("delivered", "train_accuracy", "test_accuracy")  # of the columns that not every run has

_NUMBER = partial(shown, absent="inf")


class _Row(NamedTuple):
    """One method of one run."""

    series: Mapping[str, Any]
    run: Run
    entry: Mapping[str, Any]  # how it ended


@dataclass(frozen=True)
class _Column:
    key: str
    title: str
    value: Callable[[_Row], Any]  # what is sorted by
    show: Callable[[Any], str] = _NUMBER  # as HTML
    is_number: bool = True
    is_hidden: bool = False

    @property
    def look(self) -> str:
        return (' class="number"' if self.is_number else "") + (" hidden" if self.is_hidden else "")

    def cell(self, row: _Row) -> str:
        value = self.value(row)
        sorted_by = f' data-value="{"" if value is None else value}"' if self.is_number else ""
        return f"<td{self.look}{sorted_by}>{self.show(value)}</td>"


def results_table(runs: Sequence[Run], data: Mapping[str, Any]) -> str:
    """Return how each method of each run ended, as HTML.

    Args:
        runs: The runs of a page.
        data: Result of :func:`digrad.report.model.model_of` for them.
    """
    columns = _columns(data["metrics"], has_runs=len(runs) > 1)
    head = "".join(
        f'<th data-key="{text(column.key)}"{column.look}>{text(column.title)}</th>' for column in columns
    )
    lines = []
    for number, series in enumerate(data["series"]):
        run = runs[series["run"]]
        row = _Row(series, run, run.results[series["label"]].summary())
        lines.append(
            f'<tr data-series="{number}">' + "".join(column.cell(row) for column in columns) + "</tr>"
        )
    return (
        '<div class="scroll"><table id="results">\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n" + "\n".join(lines) + "\n</tbody>\n</table></div>\n"
        '<div id="table-controls" class="controls"></div>\n' + _NOTE.format(average=data["average"])
    )


_NOTE = (
    '<p class="faint">At the last iteration, measured at the {average} of the agents; medians where there are several '
    "seeds. Converged: gradient norm and consensus error are within the tolerance of the specification; diverged: an "
    "entry is not finite, or beyond 10<sup>12</sup> times the start with gradients 1000 times those of the start; "
    "stalled: neither, and the medians of the last two quarters of the rows are the same to 5 %; not converged: none "
    "of these.</p>"
)


def _columns(metrics: Sequence[Mapping[str, Any]], *, has_runs: bool) -> list[_Column]:
    finals = {"loss": "loss", "grad_norm": "gradient norm", "consensus_error": "consensus error"}
    bests = {"loss": "smallest loss", "grad_norm": "smallest gradient norm"}
    of_runs = _Column("run", "run", lambda row: f"{row.run.folder}: {row.run.name}", text, is_number=False)
    return [
        _Column("method", "method", lambda row: row.series["shown"], text, is_number=False),
        *([of_runs] if has_runs else []),
        _Column("verdict", "verdict", lambda row: row.entry, _verdict, is_number=False),
        _Column("diverged_at", "diverged at", lambda row: row.entry["diverged_at"], shown, is_hidden=True),
        _Column("steps", "steps", lambda row: row.entry["steps"]),
        *(_Column(key, title, lambda row, key=key: row.entry["final"][key]) for key, title in finals.items()),
        *(
            _Column(
                one["key"],
                one["title"].lower(),
                partial(_last, key=one["key"]),
                is_hidden=one["key"] not in _SHOWN_AT_FIRST,
            )
            for one in metrics
            if one["key"] not in finals
        ),
        *(
            _Column(f"best_{key}", title, lambda row, key=key: row.entry["best"][key], is_hidden=True)
            for key, title in bests.items()
        ),
        _Column("bytes_sent", "sent", lambda row: row.entry["bytes_sent"], size),
        _Column("seconds", "seconds", lambda row: ""),  # which the script fills in
        _Column("seeds", "seeds", lambda row: row.series["seeds"], is_hidden=True),
    ]


def _verdict(entry: Mapping[str, Any]) -> str:
    at = f" at k = {entry['diverged_at']}" if entry["diverged_at"] is not None else ""
    return badge(entry["verdict"] + at, _LOOKS.get(entry["verdict"], "open"))


def _last(row: _Row, key: str) -> float | str | None:
    """Return the last value of a metric; nothing where the run has no such column."""
    band = row.series["columns"].get(key)
    return "" if band is None else band["median"][-1]
