"""Curves of runs.

A run is anything with ``name``, ``columns``, ``verdict`` and ``diverged_at``; an ensemble also has ``traces``
and ``band``.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from digrad._internal.formatting import byte_unit
from digrad.checks import choice
from digrad.errors import ArgumentError
from digrad.plots.axis_limits import LARGEST, SMALLEST, Floats, set_limits
from digrad.plots.columns import column_of
from digrad.plots.style import (
    AVERAGES,
    FONT,
    LineStyle,
    Width,
    dress,
    legend,
    panels,
    styles_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Run: TypeAlias = Any  # a Trace or an Ensemble, by duck typing
Scale: TypeAlias = Literal["auto", "linear", "log"]

_MARKS = 8  # along a curve
_SHORT_RUN = 50  # a run this many times shorter than the longest would be a vertical line
_X_LABELS = {"k": "iteration $k$", "epoch": "epoch", "seconds_simulated": "simulated seconds"}


def curves(
    traces: Mapping[str, Run],
    metrics: Sequence[str] | str = ("loss", "grad_norm"),
    *,
    x: str = "k",
    columns: int | None = None,
    width: Width | None = None,
    x_scale: Scale = "auto",
    y_scale: Scale = "auto",
    band: Literal["range", "interval"] = "range",
    minimum: float | None = None,
) -> "Figure":
    """Draw one panel per metric with one curve per run.

    A run that diverged is drawn up to its last finite value. A cross marks the iteration at which it diverged, at the
    edge of the panel if its value lies beyond, and the legend says when. Values above 1000 times the largest initial
    one lie outside the axes, so that an explosion does not squash the rest; if all explode, all is shown. An ensemble
    is its median, the band between its smallest and largest values, and a thin line for each seed.

    Args:
        traces: The runs by the label to show.
        metrics: Names of columns, or one name; with ``minimum`` also ``"excess_loss"``, F - F*.
        x: Column to draw them over: ``"k"``, ``"bytes_sent"`` or, where they were recorded, ``"epoch"`` or
            ``"seconds_simulated"``.
        columns: Panels side by side; at most two unless told.
        width: ``"one-column"`` (3.5 inches) or ``"two-column"`` (7.16 inches) of a journal; by default 3.5 inches
            per panel.
        x_scale: ``"log"`` spreads out the first iterations and shows zero too; ``"auto"`` does so when a run ends
            within a fiftieth of the axis, where it would be a vertical line.
        y_scale: ``"auto"`` is logarithmic when no value is negative and they span a factor of ten.
        band: ``"interval"`` draws an ensemble as the mean over its seeds with a 95 % confidence interval instead.
        minimum: F*, as in ``problem.solve().loss``.

    Returns:
        The figure.

    Raises:
        ArgumentError: There is nothing to draw, or a run lacks a metric.
    """
    for name, scale in (("x_scale", x_scale), ("y_scale", y_scale)):
        choice(scale, name, "curves", ("auto", "linear", "log"))
    choice(band, "band", "curves", ("range", "interval"))
    choice(x, "x", "curves", ("k", "bytes_sent", "epoch", "seconds_simulated"))
    metrics = (metrics,) if isinstance(metrics, str) else metrics
    if not isinstance(metrics, Sequence):
        raise ArgumentError(f"`metrics` of curves must be names of columns, but got {metrics!r}.")
    if not traces or not metrics:
        raise ArgumentError("`traces` and `metrics` of curves must not be empty.")
    if minimum is not None:
        traces = {label: _with_excess(run, minimum) for label, run in traces.items()}
    elif "excess_loss" in metrics:
        raise ArgumentError("`minimum` of curves must be given for 'excess_loss', e.g. problem.solve().loss.")
    for run, metric in (
        (run, metric) for top in traces.values() for run in _members(top) for metric in (x, *metrics)
    ):
        choice(metric, "metrics", "curves", run.columns)
    figure, axes = panels(len(metrics), columns, width=width)
    styles = styles_of(traces)
    divisor, x_label = _x_axis(traces, x)
    for ax, metric in zip(axes, metrics, strict=True):
        for index, (label, run) in enumerate(traces.items()):
            _draw(ax, run, metric, x, divisor, styles[label], index, band)
        _limit(ax, list(traces.values()), metric, y_scale)
        for label, run in traces.items():
            for member in _members(run) if band == "range" or not hasattr(run, "traces") else ():
                mark_divergence(ax, member, metric, styles[label].color, _scaled(member.columns[x], divisor))
        dress(ax, metric, x_label, measured_at(traces.values()))
        scale_across(ax, list(traces.values()), x, divisor, x_scale)
    legend(figure, {label_of(label, run): styles[label] for label, run in traces.items()})
    return figure


def side_by_side(
    first: Run, second: Run, *, columns: int | None = None, width: Width | None = None
) -> "Figure":
    """Draw the loss and the gradient norm of two runs, e.g. CGT and clipped DGD, in two panels.

    Raises:
        ArgumentError: The runs have the same name.
    """
    if first.name == second.name:
        raise ArgumentError(
            f"The runs of side_by_side must have different names, but both are {first.name!r}."
        )
    return curves({first.name: first, second.name: second}, columns=columns, width=width)


def excess_loss(loss: npt.ArrayLike, minimum: float) -> Floats:
    """Return F - F*, where what rounding of the minimum explains is zero: a negative value would forbid a log axis."""
    excess = np.asarray(loss, np.float64) - minimum
    rounding = 64 * np.finfo(np.float64).eps * max(1.0, abs(minimum))
    return np.where(np.abs(excess) <= rounding, 0.0, excess)


def _with_excess(run: Run, minimum: float) -> Run:
    if hasattr(run, "traces"):
        return replace(run, traces=tuple(_with_excess(member, minimum) for member in run.traces))
    excess = excess_loss(run.columns["loss"], minimum)
    return replace(run, columns={**run.columns, "excess_loss": excess})


def measured_at(runs: Iterable[Run]) -> str:
    """Return the average of the agents at which all runs were measured; ``average`` if they do not say."""
    found = {getattr(run, "facts", {}).get("average") for top in runs for run in _members(top)}
    return AVERAGES.get(found.pop() or "", "average") if len(found) == 1 else "differing averages"


def _members(run: Run) -> tuple[Run, ...]:
    return getattr(run, "traces", (run,))


def _x_axis(traces: Mapping[str, Run], x: str) -> tuple[int, str]:
    if x in _X_LABELS:
        return 1, _X_LABELS[x]
    divisor, unit = byte_unit(max(run.columns[x][-1] for top in traces.values() for run in _members(top)))
    return divisor, f"sent by all agents ({unit})"


def scale_across(
    ax: "Axes", runs: Sequence[Run], x: str = "k", divisor: int = 1, x_scale: str = "auto"
) -> None:
    """Make the horizontal axis logarithmic beyond its first step, if that is wanted or needed."""
    columns = [_scaled(run.columns[x], divisor) for top in runs for run in _members(top)]
    ends = [float(column[-1]) for column in columns]
    shortest, longest = min(ends), max(ends)
    if x_scale == "log" or (x_scale == "auto" and 0 < shortest < longest / _SHORT_RUN):
        positive = [float(column[column > 0].min()) for column in columns if (column > 0).any()]
        first = 10.0 ** np.floor(
            np.log10(min(positive, default=1.0))
        )  # a tick between 0 and it would overlap
        ax.set_xscale("symlog", linthresh=first, linscale=0.4)
        ax.set_xlim(left=0.0, right=longest)
        for index, line in enumerate(ax.lines):
            if (
                len(np.asarray(line.get_xdata())) > _MARKS
            ):  # marks at equal distances on paper, not in iterations
                line.set_markevery((0.03 * (index % 4), 1 / _MARKS))


def label_of(label: str, run: Run) -> str:
    """Return the label for the legend, which says when a run diverged."""
    if run.diverged_at is None:
        return label
    if not hasattr(run, "traces"):
        return f"{label} (diverged at k={run.diverged_at})"
    diverged = sum(member.verdict == "diverged" for member in run.traces)
    return f"{label} ({diverged} of {len(run.traces)} diverged, first at k={run.diverged_at})"


def finite(x: npt.NDArray[Any], y: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], Floats]:
    """Return the points that can be drawn."""
    seen = np.isfinite(x) & (np.abs(y) <= LARGEST)
    return x[seen], np.asarray(y[seen], dtype=np.float64)


def _scaled(values: npt.NDArray[Any], divisor: int) -> npt.NDArray[Any]:
    return values if divisor == 1 else values / divisor


def _draw(
    ax: "Axes", run: Run, metric: str, x: str, divisor: int, style: LineStyle, index: int, band: str
) -> None:
    thick = {"linewidth": 1.4, "marker": style.marker, "markersize": 4.0, "zorder": 3}
    thin = {"linewidth": 0.5, "alpha": 0.5, "zorder": 2}
    is_ensemble = hasattr(run, "traces")
    for member in _members(run) if band == "range" or not is_ensemble else ():
        across, values = finite(_scaled(member.columns[x], divisor), member.columns[metric])
        looks = thin if is_ensemble else {**thick, "markevery": _marks(values.size, index)}
        ax.plot(across, values, color=style.color, linestyle=style.linestyle, label=member.name, **looks)
    if is_ensemble:
        across, low, middle, high = _band(run, metric, x, divisor, band)
        # A log axis leaves out corners at zero, which would cut the band across; nor is what has no negative value,
        # such as a norm, in an interval below zero.
        if all((member.columns[metric] >= 0).all() for member in run.traces):
            low, high = (np.maximum(edge, SMALLEST) for edge in (low, high))
        ax.fill_between(across, low, high, color=style.color, alpha=0.2, linewidth=0, zorder=1)
        looks = {**thick, "markevery": _marks(middle.size, index)}
        ax.plot(across, middle, color=style.color, linestyle=style.linestyle, label=run.name, **looks)


def _band(run: Run, metric: str, x: str, divisor: int, band: str) -> list[npt.NDArray[Any]]:
    k, low, middle, high = run.band(metric) if band == "range" else run.interval(metric)
    across = _scaled(k if x == "k" else run.band(x)[2], divisor)
    seen = np.isfinite(across) & (low >= -LARGEST) & (high <= LARGEST)
    return [values[seen] for values in (across, low, middle, high)]


def _marks(size: int, index: int) -> tuple[int, int]:
    every = max(1, size // _MARKS)
    return (index * every // 4) % every, every


def _limit(ax: "Axes", runs: Sequence[Run], metric: str, scale: str) -> None:
    members = [member for run in runs for member in _members(run)]
    drawn = [(finite(run.columns["k"], run.columns[metric])[1], run.verdict == "diverged") for run in members]
    if any(values.size for values, _ in drawn):
        set_limits(ax, drawn, "linear" if scale == "auto" and column_of(metric).is_share else scale)
    else:
        look = {"ha": "center", "transform": ax.transAxes, "fontsize": FONT["tick"]}
        ax.text(0.5, 0.5, "nothing finite was recorded", **look)


def mark_divergence(
    ax: "Axes", run: Run, metric: str, color: str, across: npt.NDArray[Any] | None = None
) -> None:
    """Put a cross where a run diverged, inside the limits of the panel, which must be set before.

    Args:
        ax: The panel.
        run: A single run; nothing is drawn unless it diverged and has the metric.
        metric: The column that the panel shows.
        color: Colour of the cross.
        across: Where its rows are on the horizontal axis; at ``k`` by default.
    """
    k, values = run.columns["k"], run.columns[metric]
    if run.diverged_at is None or not np.isfinite(values).any():
        return
    row = min(int(np.searchsorted(k, run.diverged_at)), k.size - 1)
    value = values[row] if np.isfinite(values[row]) else LARGEST
    is_log = ax.get_yscale() == "log"
    low, high = np.log(ax.get_ylim()) if is_log else ax.get_ylim()
    edges = low + np.array([0.04, 0.96]) * (high - low)
    height = np.clip(value, *(np.exp(edges) if is_log else edges))
    place = (k if across is None else across)[row]
    look: dict[str, Any] = {"color": color, "markersize": 7, "zorder": 4, "gid": "diverged"}
    ax.plot([place], [height], "x", scaley=False, **look)
