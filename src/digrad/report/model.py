"""The numbers of a page: what its script draws, as plain data that becomes JSON."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from digrad.plots import excess_loss, measured_at
from digrad.plots.columns import ORDER, column_of
from digrad.report.downsample import kept_rows
from digrad.report.runs import Run
from digrad.specs.run_directory import Result
from digrad.trace import Ensemble
from digrad.trace.ensemble import members

NUMBERS = 90_000  # in one page, about: nine characters each
MOST_ROWS, LEAST_ROWS = 3000, 60  # of one curve
THINNED_ROWS = 1000  # of one that is longer: about as many as a screen can show
LARGEST = 1e300  # beyond it the arithmetic of an axis overflows
DIGITS = 6

# Columns that a curve is drawn over instead of being one, in the order offered after the computed ones.
_ACROSS = {"epoch": "epoch", "seconds_simulated": "simulated seconds"}
_COUNTS = ("k", "bytes_sent")


def model_of(runs: Sequence[Run]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the data of a page, and apart from it the times, which differ between equal runs."""
    most = _rows_per_curve(runs)
    series = [
        {"run": number, **_series(run, label, result, most)}
        for number, run in enumerate(runs)
        for label, result in run.results.items()
    ]
    average = measured_at(result for run in runs for result in run.results.values())
    data = {
        "runs": [_run(run) for run in runs],
        "average": average,
        "metrics": _metrics(series, average),
        "axes": _axes(series),
        "series": series,
    }
    times = {"seconds": [result.summary()["seconds"] for run in runs for result in run.results.values()]}
    return data, times


def _rows_per_curve(runs: Sequence[Run]) -> int:
    columns = 0
    for run in runs:
        for result in run.results.values():
            width = 3 if isinstance(result, Ensemble) else 1
            columns += 2 + width * (len(_measured(result)) + (run.minimum.get("loss") is not None))
    return max(LEAST_ROWS, min(MOST_ROWS, NUMBERS // max(1, columns)))


def _run(run: Run) -> dict[str, Any]:
    return {
        "name": run.name,
        "folder": run.folder,
        "minimum": run.minimum.get("loss"),
        "best": run.minimum.get("x"),
        "labels": run.problem.get("labels"),
        "plane": _rounded_plane(run.problem.get("plane")),
        "network": run.setting.get("network"),
    }


def _series(run: Run, label: str, result: Result, most: int) -> dict[str, Any]:
    k, columns = _columns(result, _measured(result))
    if run.minimum.get("loss") is not None and "loss" in columns:
        columns = _with_excess(columns, run.minimum["loss"])
    drawn = [band[part] for name, band in columns.items() if name[:2] != "x[" for part in band]
    wanted = most if len(k) <= most else min(most, THINNED_ROWS)
    rows = kept_rows(k, [np.asarray(values, float) for values in drawn], wanted)
    return {
        "label": label,
        "shown": run.shown(label),
        "verdict": result.verdict,
        "diverged_at": result.diverged_at,
        "seeds": len(members(result)),
        "slowest": members(result)[0].facts.get("slowest"),
        "recorded": len(k),
        "steps": int(k[-1]),
        "evaluations_per_step": _evaluations(run),
        "k": k[rows].tolist(),
        "bytes_sent": _bytes(result, k, rows),
        "columns": {
            name: {part: _plain(values[rows]) for part, values in band.items()}
            for name, band in columns.items()
        },
    }


def _measured(result: Result) -> list[str]:
    """Return the columns in which something finite was recorded."""
    traces = members(result)
    return [
        name
        for name in traces[0].columns
        if name not in _COUNTS
        and all(name in trace.columns for trace in traces)
        and any(np.isfinite(trace.columns[name]).any() for trace in traces)
    ]


def _columns(
    result: Result, names: Iterable[str]
) -> tuple[npt.NDArray[np.int64], dict[str, dict[str, npt.NDArray[Any]]]]:
    if not isinstance(result, Ensemble):
        return result.k, {name: {"median": result.columns[name]} for name in names}
    bands = {name: result.band(name) for name in names if not name.startswith("x[")}
    k = result.band("k")[0]
    found = {
        name: {"median": median, "low": low, "high": high} for name, (_, low, median, high) in bands.items()
    }
    # A median of places is no way that agents went: the plane shows the first seed.
    first = result.traces[0]
    paths = {name: np.full(len(k), np.nan) for name in names if name.startswith("x[")}
    for name, values in paths.items():
        values[np.searchsorted(k, first.k)] = first.columns[name]
    return k, found | {name: {"median": values} for name, values in paths.items()}


def _with_excess(columns: dict[str, Any], best: float) -> dict[str, Any]:
    excess = {part: excess_loss(values, best) for part, values in columns["loss"].items()}
    return {"loss": columns["loss"], "excess_loss": excess, **columns}


def _evaluations(run: Run) -> int | None:
    """Return how many gradients of samples all agents take together per step; of losses, where there are none.

    None where agents sleep, and take fewer.
    """
    problem = run.problem
    if not problem or run.sleeps:
        return None
    if run.batch_size is not None:
        return run.batch_size * problem["agents"]
    return sum(problem["samples"]) if problem["samples"] else problem["agents"]


def _bytes(result: Result, k: npt.NDArray[np.int64], rows: npt.NDArray[np.intp]) -> Any:
    """Return the bytes of each kept row, or the two numbers of the straight line that they mostly are."""
    sent = result.band("bytes_sent")[2] if isinstance(result, Ensemble) else result.bytes_sent
    if len(k) > 1 and np.isfinite(sent).all():
        per_step = (sent[-1] - sent[0]) / (k[-1] - k[0])
        if np.array_equal(sent, sent[0] + per_step * (k - k[0])):
            return {"first": float(sent[0] - per_step * k[0]), "per_step": float(per_step)}
    return _plain(sent[rows])


def _metrics(series: Sequence[Mapping[str, Any]], average: str) -> list[dict[str, Any]]:
    found = dict.fromkeys(name for one in series for name in one["columns"])
    names = [name for name in (*ORDER, *found) if name in found]
    shown = [name for name in dict.fromkeys(names) if name not in _ACROSS and not name.startswith("x[")]
    facts = {name: column_of(name) for name in shown}
    return [
        {"key": name, "title": one.title, "what": one.what.format(average=average), "log": not one.is_share}
        for name, one in facts.items()
    ]


def _axes(series: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return what curves can be drawn over: what every series knows."""
    axes = [("k", "iteration")]
    if all(one["evaluations_per_step"] for one in series):
        axes.append(("evaluations", "gradient evaluations"))
    axes += [("bytes_sent", "bytes sent"), ("seconds", "seconds")]
    axes += [(key, title) for key, title in _ACROSS.items() if all(key in one["columns"] for one in series)]
    return [{"key": key, "title": title} for key, title in axes]


def _rounded_plane(plane: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if plane is None:
        return None
    return {**plane, "values": [_plain(np.array(row, float)) for row in plane["values"]]}


def _plain(values: npt.NDArray[Any]) -> list[float | None]:
    """Return numbers for JSON with few digits; what cannot be drawn becomes None."""
    return [_short(float(value)) for value in values]


def _short(value: float) -> float | None:
    if not math.isfinite(value) or abs(value) > LARGEST:
        return None
    short = float(f"{value:.{DIGITS}g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short
