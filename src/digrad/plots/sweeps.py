"""Figures of sweeps: what was reached, against the hyper-parameters that led there."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from digrad._internal.formatting import shown
from digrad.errors import ArgumentError
from digrad.plots.axis_limits import log_limits, log_ticks, use_log_axis
from digrad.plots.columns import column_of
from digrad.plots.style import (
    AVERAGES,
    FONT,
    LineStyle,
    dress,
    legend,
    panels,
    plain_text,
    styles_of,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_CURVES = 12  # a legend of more is no help
_TICKS = 8  # of a heat map's axis at most
_LETTERS = 18  # of the labels of a heat map's horizontal axis; more are turned
_FAR = 1e3  # on a log scale, a value this many times the smallest is not told apart from larger ones
_SPREAD = 4  # on a linear one, what lies this many times as far from the smallest as the upper quartile
_OF_THE_AVERAGE = ("_loss", "_grad_norm", "_consensus_error")  # how metrics end that are about the average


def values_against(
    curves: Mapping[str, tuple[Sequence[float], Sequence[Sequence[float]]]],
    x: str,
    metric: str,
    *,
    mark: float | None = None,
    average: str | None = None,
) -> "Figure":
    """Draw a metric against a hyper-parameter, a curve per label.

    Several values at one place (of seeds) are drawn as their median and a band; a place where one of them is not
    finite is a cross at the upper edge.

    Args:
        curves: By label: the places, and the values at each.
        x: Name of the places.
        metric: Name of the values.
        mark: A place to mark by a vertical line.
        average: The average of the agents where they were measured, ``plain`` or ``weighted``.
    """
    if not curves or not all(len(places) for places, _ in curves.values()):
        raise ArgumentError("`curves` of values_against must not be empty.")
    if len(curves) > MOST_CURVES:
        raise ArgumentError(
            f"`curves` of values_against must be at most {MOST_CURVES} to be told apart, but got {len(curves)}; select "
            "rows of the table first, or draw a heat map."
        )
    figure, (ax,) = panels(1, 1)
    styles = styles_of(curves)
    for label, (places, values) in curves.items():
        _draw(ax, np.asarray(places, float), [np.asarray(each, float) for each in values], styles[label])
    finite = np.concatenate([np.asarray(each, float) for _, values in curves.values() for each in values])
    _limit(ax, finite[np.isfinite(finite)])
    if not np.isfinite(finite).all():
        _cross_out(ax, curves, styles)
        styles["diverged"] = LineStyle("0.35", "x", "")
    if mark is not None:
        ax.axvline(mark, color="0.4", linewidth=1.0, linestyle="--", zorder=1)
        ax.annotate(f"{mark:.3g}", (mark, 1.0), xycoords=("data", "axes fraction"), xytext=(2, -2),
                    textcoords="offset points", va="top", fontsize=FONT["tick"], color="0.3")  # fmt: skip
    _scale_across(ax, np.concatenate([np.asarray(places, float) for places, _ in curves.values()]))
    _dress(ax, x, metric, average)
    legend(figure, styles)
    return figure


def heat_maps(
    grids: Mapping[str, tuple[Sequence[Any], Sequence[Any], npt.NDArray[np.float64]]],
    x: str,
    y: str,
    metric: str,
    *,
    average: str | None = None,
) -> "Figure":
    """Draw a metric over two hyper-parameters, a panel per label, with one scale of colours.

    A place that is not finite is grey with a cross, one that was not tried is white.

    Args:
        grids: By label: the places across, the places up, and the values ``[up, across]``; NaN where none was tried.
        x: Name of the places across.
        y: Name of the places up.
        metric: Name of the values.
        average: The average of the agents where they were measured, ``plain`` or ``weighted``.
    """
    if not grids or not all(values.size for _, _, values in grids.values()):
        raise ArgumentError(
            f"no method of the sweep has both {x} and {y}; draw its values against one of them."
        )
    if len(grids) > MOST_CURVES:
        raise ArgumentError(
            f"`grids` of heat_maps must be at most {MOST_CURVES}, but got {len(grids)}; select rows of the table first."
        )
    from matplotlib.colors import LogNorm, Normalize

    figure, axes = panels(len(grids), None)
    finite = np.concatenate([values[np.isfinite(values)] for _, _, values in grids.values()])
    low, high, is_log = _range(finite)
    norm = LogNorm(low, high) if is_log else Normalize(low, high)
    mesh: Any = None
    for ax, (label, (across, up, values)) in zip(axes, grids.items(), strict=True):
        shown = np.ma.masked_invalid(values)
        mesh = ax.pcolormesh(shown, norm=norm, cmap="viridis_r", edgecolors="white", linewidth=0.3)
        rows, columns = np.nonzero(np.isposinf(values))
        ax.pcolormesh(
            np.ma.masked_where(~np.isposinf(values), np.ones_like(values)), cmap="Greys", vmin=0, vmax=4
        )
        ax.plot(
            columns + 0.5, rows + 0.5, "x", color="0.35", markersize=4, markeredgewidth=0.8, gid="diverged"
        )
        _ticks(ax, across, up)
        ax.set_xlabel(_words(x), fontsize=FONT["label"])
        ax.set_ylabel(_words(y), fontsize=FONT["label"])
        ax.set_title(plain_text(label), fontsize=FONT["title"])
        ax.tick_params(labelsize=FONT["tick"], length=2)
    bar = figure.colorbar(mesh, ax=axes, extend="max" if finite.size and finite.max() > high else "neither")
    label, where = column_of(metric).label, _measured_at(metric, average)
    bar.set_label(f"{label}{where}" + "\n" + r"($\times$ diverged)", fontsize=FONT["label"])
    bar.ax.tick_params(labelsize=FONT["tick"])
    return figure


def _draw(ax: "Axes", places: npt.NDArray[Any], values: list[npt.NDArray[Any]], style: Any) -> None:
    whole = np.array([np.isfinite(each).all() for each in values])
    medians = np.array(
        [np.median(each) if good else np.nan for each, good in zip(values, whole, strict=True)]
    )
    low = np.array([each.min() if good else np.nan for each, good in zip(values, whole, strict=True)])
    high = np.array([each.max() if good else np.nan for each, good in zip(values, whole, strict=True)])
    if any(each.size > 1 for each in values):
        ax.fill_between(places, low, high, color=style.color, alpha=0.2, linewidth=0)
    ax.plot(places, medians, color=style.color, marker=style.marker, linestyle=style.linestyle, markersize=3.5,
            linewidth=1.4)  # fmt: skip


def _range(finite: npt.NDArray[Any]) -> tuple[float, float, bool]:
    """Return which values to tell apart, without those of runs on their way to infinity, and whether on a log scale."""
    if not finite.size:
        return 0.0, 1.0, False
    low, high = float(finite.min()), float(finite.max())
    if low > 0 and high >= 10 * low:
        return low, min(high, _FAR * low), True
    typical = float(np.quantile(finite, 0.75)) - low
    high = min(high, low + _SPREAD * typical) if typical > 0 else high
    return low, high if high > low else low + (abs(low) or 1.0), False


def _limit(ax: "Axes", finite: npt.NDArray[Any]) -> None:
    low, high, is_log = _range(finite)
    if is_log:
        use_log_axis(ax, *log_limits(np.array([low, high])))
    else:
        margin = 0.06 * (high - low)
        ax.set_ylim(low - margin, high + 2 * margin)


def _scale_across(ax: "Axes", places: npt.NDArray[Any]) -> None:
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    low, high = float(places.min()), float(places.max())
    if low <= 0 or high < 3 * low:
        return
    ax.set_xscale("log")
    ticks = [tick for tick in log_ticks(np.log10(low), np.log10(high)) if low / 1.1 <= tick <= high * 1.1]
    ax.xaxis.set_major_locator(FixedLocator(ticks))
    ax.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    ax.xaxis.set_minor_locator(NullLocator())


def _cross_out(ax: "Axes", curves: Mapping[str, Any], styles: Mapping[str, Any]) -> None:
    """Mark where a run diverged, a row per curve below the upper edge."""
    for row, (label, (places, values)) in enumerate(curves.items()):
        bad = [place for place, each in zip(places, values, strict=True) if not np.isfinite(each).all()]
        if bad:
            ax.plot(bad, [0.96 - 0.05 * row] * len(bad), "x", color=styles[label].color, markersize=5,
                    gid="diverged", transform=ax.get_xaxis_transform())  # fmt: skip


def _dress(ax: "Axes", x: str, metric: str, average: str | None) -> None:
    dress(ax, metric, _words(x))
    ax.set_title(column_of(metric).title + _measured_at(metric, average), fontsize=FONT["title"])


def _measured_at(metric: str, average: str | None) -> str:
    """Return what the title of a metric says about the average; held-out losses are always those of the plain mean."""
    if average is None or not metric.endswith(_OF_THE_AVERAGE):
        return ""
    return f" ({AVERAGES['plain' if metric == 'held_out_loss' else average]})"


def _ticks(ax: "Axes", across: Sequence[Any], up: Sequence[Any]) -> None:
    for axis, places in ((ax.xaxis, across), (ax.yaxis, up)):
        every = -(-len(places) // _TICKS)
        axis.set_ticks([place + 0.5 for place in range(0, len(places), every)])
        axis.set_ticklabels([shown(places[place], 3) for place in range(0, len(places), every)])
    letters = sum(len(label.get_text()) for label in ax.get_xticklabels())
    ax.tick_params(axis="x", rotation=45 if letters > _LETTERS else 0)


def _words(name: str) -> str:
    return name.replace("_", " ")
