"""The table of results: one row per method, complete without the script, which sorts it and hides columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from digrad._internal.formatting import shown, size
from digrad.report.page import badge, text
from digrad.report.runs import Run

_LOOKS = {"converged": "good", "diverged": "bad"}  # any other is open
_SHOWN_AT_FIRST = ("delivered", "train_accuracy", "test_accuracy")  # of the columns that not every run has


@dataclass(frozen=True)
class _Column:
    key: str
    title: str
    is_number: bool = True
    is_hidden: bool = False


@dataclass(frozen=True)
class _Cell:
    content: str  # HTML
    value: float | str | None = ""  # what is sorted by; "" stands for the content


def results_table(runs: Sequence[Run], data: Mapping[str, Any]) -> str:
    """Return how each method of each run ended, as HTML.

    Args:
        runs: The runs of a page.
        data: Result of :func:`digrad.report.model.model_of` for them.
    """
    extras = [
        metric for metric in data["metrics"] if metric["key"] not in ("loss", "grad_norm", "consensus_error")
    ]
    columns = _columns(extras, has_runs=len(runs) > 1)
    rows = [_row(series, runs[series["run"]], extras) for series in data["series"]]
    head = "".join(
        f'<th data-key="{text(column.key)}"{_look(column)}>{text(column.title)}</th>' for column in columns
    )
    lines = [
        f'<tr data-series="{number}">'
        + "".join(_cell(column, row[column.key]) for column in columns)
        + "</tr>"
        for number, row in enumerate(rows)
    ]
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


def _columns(extras: Sequence[Mapping[str, Any]], *, has_runs: bool) -> list[_Column]:
    return [
        _Column("method", "method", is_number=False),
        *([_Column("run", "run", is_number=False)] if has_runs else []),
        _Column("verdict", "verdict", is_number=False),
        _Column("diverged_at", "diverged at", is_hidden=True),
        _Column("steps", "steps"),
        _Column("loss", "loss"),
        _Column("grad_norm", "gradient norm"),
        _Column("consensus_error", "consensus error"),
        *(
            _Column(one["key"], one["title"].lower(), is_hidden=one["key"] not in _SHOWN_AT_FIRST)
            for one in extras
        ),
        _Column("best_loss", "smallest loss", is_hidden=True),
        _Column("best_grad_norm", "smallest gradient norm", is_hidden=True),
        _Column("bytes_sent", "sent"),
        _Column("seconds", "seconds"),
        _Column("seeds", "seeds", is_hidden=True),
    ]


def _row(series: Mapping[str, Any], run: Run, extras: Sequence[Mapping[str, Any]]) -> dict[str, _Cell]:
    entry = run.results[series["label"]].summary()
    final, best = entry["final"], entry["best"]
    return {
        "method": _Cell(text(series["shown"])),
        "run": _Cell(text(f"{run.folder}: {run.name}")),
        "verdict": _Cell(badge(_verdict(entry), _LOOKS.get(entry["verdict"], "open"))),
        "diverged_at": _Cell(
            text("" if entry["diverged_at"] is None else entry["diverged_at"]), entry["diverged_at"]
        ),
        "steps": _Cell(text(entry["steps"]), entry["steps"]),
        **{name: _number(final[name]) for name in ("loss", "grad_norm", "consensus_error")},
        **{one["key"]: _last(series["columns"].get(one["key"])) for one in extras},
        "best_loss": _number(best["loss"]),
        "best_grad_norm": _number(best["grad_norm"]),
        "bytes_sent": _Cell(size(entry["bytes_sent"]), entry["bytes_sent"]),
        "seconds": _Cell(""),
        "seeds": _Cell(text(series["seeds"]), series["seeds"]),
    }


def _verdict(entry: Mapping[str, Any]) -> str:
    at = f" at k = {entry['diverged_at']}" if entry["diverged_at"] is not None else ""
    return entry["verdict"] + at


def _last(band: Mapping[str, Any] | None) -> _Cell:
    return _Cell("", None) if band is None else _number(band["median"][-1])


def _number(value: float | None) -> _Cell:
    return _Cell(shown(value, absent="inf"), value)


def _cell(column: _Column, cell: _Cell) -> str:
    value = "" if cell.value is None else cell.value
    sorted_by = f' data-value="{value}"' if column.is_number else ""
    return f"<td{_look(column)}{sorted_by}>{cell.content}</td>"


def _look(column: _Column) -> str:
    return (' class="number"' if column.is_number else "") + (" hidden" if column.is_hidden else "")
