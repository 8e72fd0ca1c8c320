"""The figure of the paper that sets an exploding method against CGT."""

from typing import TYPE_CHECKING

from digrad.errors import ArgumentError
from digrad.plots.axis_limits import deserves_log, log_limits, use_log_axis
from digrad.plots.runs import Run, finite, label_of, mark_divergence, measured_at, scale_across
from digrad.plots.style import BLUE, FONT, RED, LineStyle, Width, dress, legend, panels, plain_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def twin_explosion(
    baseline: Run,
    proposed: Run,
    *,
    columns: int | None = None,
    width: Width | None = None,
) -> "Figure":
    """Draw a method that explodes against one that does not, each on its own axis.

    Two panels, loss and gradient norm: ``baseline`` in blue on the left, logarithmic axis, ``proposed`` in red on the
    right axis. A cross marks the iteration at which ``baseline`` diverged, at the edge of the panel if its value lies
    beyond. The iterations are on a logarithmic axis too, which shows zero, when the baseline ends within a fiftieth of
    them, where it would be a vertical line.

    Args:
        baseline: The run that explodes, e.g. of AB.
        proposed: The run that does not, e.g. of CGT.
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
        _twin_panel(ax, baseline, proposed, metric)
    entries = {
        f"{label_of(baseline.name, baseline)}, left axis": LineStyle(BLUE, "", "-"),
        f"{label_of(proposed.name, proposed)}, right axis": LineStyle(RED, "", "-"),
    }
    legend(figure, entries)
    return figure


def _twin_panel(ax: "Axes", baseline: Run, proposed: Run, metric: str) -> None:
    right = ax.twinx()
    pairs = [finite(run.columns["k"], run.columns[metric]) for run in (baseline, proposed)]
    for axis, (k, values), color in zip((ax, right), pairs, (BLUE, RED), strict=True):
        axis.plot(k, values, color=color, linewidth=1.4, zorder=3)
        if values.size and (axis is ax or deserves_log(values)) and values.min() > 0:
            use_log_axis(axis, *log_limits(values))
    mark_divergence(ax, baseline, metric, BLUE)
    dress(ax, metric, "iteration $k$", measured_at([baseline, proposed]))
    _dress_twin(ax, right, baseline.name, proposed.name)
    scale_across(ax, [baseline, proposed])


def _dress_twin(ax: "Axes", right: "Axes", left_name: str, right_name: str) -> None:
    symbol = ax.get_ylabel()
    for axis, side, name, color in ((ax, "left", left_name, BLUE), (right, "right", right_name, RED)):
        axis.set_ylabel(f"{symbol}, {plain_text(name)}", color=color, fontsize=FONT["label"])
        axis.tick_params(axis="y", which="both", colors=color, labelsize=FONT["tick"])
        axis.spines[:].set_visible(False)
        axis.spines[[side, "bottom"]].set_visible(True)
        axis.spines[side].set_color(color)
