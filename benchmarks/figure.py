"""Time per iteration against the number of agents, with the floor that memory sets."""

from typing import TYPE_CHECKING

from benchmarks.report import BenchReport, BenchRow
from digrad.plots.style import BLUE, FONT, PANEL, RED

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def growth_figure(report: BenchReport) -> "Figure":
    """Draw the rows of a report that have a number of agents, one panel per graph, on logarithmic axes."""
    from matplotlib.figure import Figure

    panels: dict[str, list[BenchRow]] = {}
    for row in report.rows:
        if row.n is not None:
            panels.setdefault(row.name.split(",")[0], []).append(row)
    figure = Figure(figsize=(PANEL[0] * max(1, len(panels)), PANEL[1]), layout="constrained")
    for axes, (graph, rows) in zip(
        figure.subplots(1, max(1, len(panels)), sharey=True, squeeze=False)[0], panels.items(), strict=False
    ):
        steps, runs = ([row for row in rows if (row.reference is None) == whole] for whole in (False, True))
        agents = [row.n for row in steps]
        axes.loglog(agents, [row.ours for row in steps], "o-", color=RED, label="digrad")
        axes.loglog(agents, [row.reference for row in steps], "v-", color=BLUE, label="NumPy and scipy")
        axes.loglog(
            agents, [row.floor for row in steps], "--", color="black", label="floor: memory bandwidth"
        )
        if runs:
            times = [row.ours for row in runs]
            label = "digrad, a run to convergence"
            axes.loglog([row.n for row in runs], times, "*", color=RED, markersize=14, label=label)
        axes.set_title(graph, fontsize=FONT["title"])
        axes.set_xlabel("agents", fontsize=FONT["label"])
        axes.tick_params(labelsize=FONT["tick"])
        axes.grid(alpha=0.3)
    first = figure.axes[0]
    first.set_ylabel("time per iteration (us)", fontsize=FONT["label"])
    first.legend(fontsize=FONT["legend"], frameon=False)
    return figure
