"""Pictures of the theory: each inequality over a run, and Hessian norm against gradient norm."""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from digrad.plots.style import BLUE, FONT, RED, panels
from digrad.theory.rows import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from digrad.theory.empirical import EmpiricalSmoothness

_COLORS = {"PASS": "#009e73", "FAIL": RED, "INAPPLICABLE": "0.5"}


def row_figure(row: Row) -> "Figure":
    """Draw both sides of one inequality over k, logarithmically; a negative left side is not drawn.

    Args:
        row: Of a :class:`~digrad.theory.RunCheck`.
    """
    figure, (ax,) = panels(1, 1)
    k = np.arange(row.first, row.first + row.lhs.size)
    for values, label, color, style in ((row.lhs, "measured", BLUE, "-"), (row.rhs, "bound", RED, "--")):
        drawn = np.isfinite(values) & (values > 0)
        ax.plot(k[drawn], values[drawn], color=color, linestyle=style, label=label, linewidth=1.4)
    if any((np.isfinite(values) & (values > 0)).any() for values in (row.lhs, row.rhs)):
        ax.set_yscale("log")
    _dress(ax, "iteration $k$", row.name)
    ax.set_title(f"{row.name} ({row.chain}): {row.status}", fontsize=FONT["title"], color=_COLORS[row.status])
    ax.legend(fontsize=FONT["legend"], frameon=False)
    return figure


def row_figures(rows: Sequence[Row]) -> "dict[str, Figure]":
    """Return a figure per row, by a name fit for a file: ``<chain>-<row>``."""
    return {f"{row.chain}-{_slug(row.name)}": row_figure(row) for row in rows}


def smoothness_figure(found: "EmpiricalSmoothness") -> "Figure":
    """Draw Hessian norm against gradient norm with the tightest line above, for F and for each agent.

    This is the picture with which Zhang et al. (2020) argue for (L0, L1)-smoothness.
    """
    figure, axes = panels(2, 2)
    _scatter(axes[0], found.grad_norms_F, found.hessian_norms_F, BLUE, "F")
    _line(axes[0], found.grad_norms_F, found.line.intercept, found.line.slope, RED)
    axes[0].legend(fontsize=FONT["legend"], frameon=False)
    _dress(axes[0], r"$\|\nabla F\|$", r"$\|\nabla^2 F\|$")
    axes[0].set_title("Average loss", fontsize=FONT["title"])
    for g, h, line in zip(found.grad_norms.T, found.hessian_norms.T, found.agent_lines, strict=True):
        _scatter(axes[1], g, h, None, None)
        _line(axes[1], g, line.intercept, line.slope, "0.6", label=False)
    _dress(axes[1], r"$\|\nabla f_i\|$", r"$\|\nabla^2 f_i\|$")
    axes[1].set_title("Each agent", fontsize=FONT["title"])
    return figure


def _scatter(ax: "Axes", x: np.ndarray, y: np.ndarray, color: str | None, label: str | None) -> None:
    ax.scatter(x, y, s=10, color=color, label=label, zorder=3, linewidths=0)


def _line(
    ax: "Axes", x: np.ndarray, intercept: float, slope: float, color: str, *, label: bool = True
) -> None:
    ends = np.array([0.0, float(x.max())])
    text = f"$L_0$ = {intercept:.3g}, $L_1$ = {slope:.3g}" if label else None
    ax.plot(ends, intercept + slope * ends, color=color, linewidth=1.2, label=text)


def _dress(ax: "Axes", x_label: str, y_label: str) -> None:
    ax.set_xlabel(x_label, fontsize=FONT["label"])
    ax.set_ylabel(y_label, fontsize=FONT["label"])
    ax.tick_params(which="both", labelsize=FONT["tick"])
    ax.grid(True, color="0.9", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
