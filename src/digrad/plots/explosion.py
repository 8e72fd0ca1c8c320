"""The figure of the paper that sets an exploding method against CGT."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from digrad.errors import ArgumentError
from digrad.plots.limits import Floats, deserves_log, log_limits, use_log_axis
from digrad.plots.runs import Run, finite, label_of
from digrad.plots.style import BLUE, FONT, RED, LineStyle, Width, dress, legend, panels, plain_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_Pair: TypeAlias = tuple[npt.NDArray[Any], Floats]  # iterations and values


def twin_explosion(
    baseline: Run,
    proposed: Run,
    *,
    zoom: int | None = None,
    columns: int | None = None,
    width: Width | None = None,
) -> "Figure":
    """Draw a method that explodes against one that does not, each on its own axis.

    Two panels, loss and gradient norm: ``baseline`` in blue on the left, logarithmic axis, ``proposed`` in
    red on the right axis. An inset shows the first iterations of both on one axis, from their common start.

    Args:
        baseline: The run that explodes, e.g. of AB.
        proposed: The run that does not, e.g. of CGT.
        zoom: Last iteration of the inset; by default three times what the baseline takes to grow 30-fold.
        columns: Panels side by side; two unless told.
        width: As in :func:`curves`.

    Returns:
        The figure.

    Raises:
        ArgumentError: A run is an ensemble.
    """
    for run in (baseline, proposed):
        if hasattr(run, "traces"):
            raise ArgumentError(
                f"twin_explosion draws single runs, but {run.name!r} is an ensemble: pass one of `traces`."
            )
    figure, axes = panels(2, columns, height=3.2, width=width)
    for ax, metric in zip(axes, ("loss", "grad_norm"), strict=True):
        _twin_panel(ax, baseline, proposed, metric, zoom)
    entries = {
        f"{label_of(baseline.name, baseline)}, left axis": LineStyle(BLUE, "", "-"),
        f"{label_of(proposed.name, proposed)}, right axis": LineStyle(RED, "", "-"),
    }
    legend(figure, entries)
    return figure


def _twin_panel(ax: "Axes", baseline: Run, proposed: Run, metric: str, zoom: int | None) -> None:
    right = ax.twinx()
    pairs = [finite(run.columns["k"], run.columns[metric]) for run in (baseline, proposed)]
    for axis, (k, values), color in zip((ax, right), pairs, (BLUE, RED), strict=True):
        axis.plot(k, values, color=color, linewidth=1.4, zorder=3)
        if values.size and (axis is ax or deserves_log(values)) and values.min() > 0:
            use_log_axis(axis, *log_limits(values))
    k, values = pairs[0]
    if baseline.verdict == "diverged" and k.size:
        ax.plot(k[-1:], values[-1:], "x", color=BLUE, markersize=7, gid="diverged", clip_on=False)
    _make_room(right)
    dress(ax, metric, "iteration $k$")
    _dress_twin(ax, right, baseline.name, proposed.name)
    _zoom(right, pairs, zoom)


def _make_room(right: "Axes") -> None:
    # The inset takes the upper half of the panel, the curve of the right axis the lower.
    low, high = right.get_ylim()
    if right.get_yscale() == "log":
        use_log_axis(right, low, 10 ** min(2 * math.log10(high) - math.log10(low), 305.0))
    else:
        right.set_ylim(low, high + (high - low))


def _dress_twin(ax: "Axes", right: "Axes", left_name: str, right_name: str) -> None:
    symbol = ax.get_ylabel()
    for axis, side, name, color in ((ax, "left", left_name, BLUE), (right, "right", right_name, RED)):
        axis.set_ylabel(f"{symbol}, {plain_text(name)}", color=color, fontsize=FONT["label"])
        axis.tick_params(axis="y", which="both", colors=color, labelsize=FONT["tick"])
        axis.spines[:].set_visible(False)
        axis.spines[[side, "bottom"]].set_visible(True)
        axis.spines[side].set_color(color)


def _zoom(right: "Axes", pairs: Sequence[_Pair], zoom: int | None) -> None:
    (k, values), (calm_k, _) = pairs
    if not k.size or not calm_k.size:
        return
    inset = right.inset_axes((0.30, 0.55, 0.62, 0.33))
    last = max(_zoom_end(k, values), calm_k[:3][-1]) if zoom is None else zoom
    for (across, heights), color in zip(pairs, (BLUE, RED), strict=True):
        seen = across <= last
        inset.plot(across[seen], heights[seen], color=color, linewidth=1.2, marker="o", markersize=2.5)
    inset.plot(k[:1], values[:1], "o", color="black", markersize=5, fillstyle="none", zorder=5)
    near = np.concatenate([heights[across <= last] for across, heights in pairs])
    near = near[near <= 100 * abs(values[0])]
    if near.size and near.min() > 0:
        use_log_axis(inset, *log_limits(near))
    inset.set_xlim(-0.04 * last, 1.04 * last)
    size = FONT["tick"] - 1
    look = {"ha": "right", "va": "top", "fontsize": size, "transform": inset.transAxes}
    inset.text(0.96, 0.92, "first iterations,\none axis", **look)
    inset.tick_params(labelsize=size)


def _zoom_end(k: npt.NDArray[Any], values: Floats) -> int:
    escaped = np.flatnonzero(values > 30 * abs(values[0]))
    return int(3 * k[escaped[0]]) if escaped.size else max(1, int(k[-1]) // 20)
