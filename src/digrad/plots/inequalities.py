"""Pictures of the theory: each inequality over a run, and Hessian norm against gradient norm."""

import math
import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from digrad.plots.style import BLUE, FONT, RED, dress_axes, panels, style_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE_WIDTH = 44  # letters that fit above one panel
LEGEND_AGENTS = 8  # with more agents a legend hides the points
# Inches around a panel and per line of its title. Known beforehand, because finding a layout takes longer than drawing
# and a check has dozens of figures.
LEFT, RIGHT, BOTTOM, ABOVE, TITLE_LINE = 0.9, 0.15, 0.45, 0.12, 0.15
FEW_DECADES = 2  # of a logarithmic axis, between whose powers of ten ticks are needed
SMALLEST_SHOWN = 1e-24  # of the largest value: what is smaller is drawn at zero, if a side is negative
_COLORS = {"PASS": "#009e73", "FAIL": RED, "INAPPLICABLE": "0.5"}


def row_figure(row: Any) -> "Figure":
    """Draw both sides of one inequality over k, logarithmically; on both sides of zero if a side is negative.

    Args:
        row: A :class:`~digrad.theory.Row`.
    """
    figure, (ax,) = panels(1, 1)
    k = np.arange(row.first, row.first + row.lhs.size)
    sides = [np.where(np.isfinite(side), side, np.nan) for side in (row.lhs, row.rhs)]
    is_signed = any(np.nanmin(side, initial=0.0) < -np.max(row.rounding) for side in sides)
    if not is_signed:
        sides = [np.where(side > 0, side, np.nan) for side in sides]
    looks = (("measured", BLUE, "-", 1.1, 3), ("bound", RED, "--", 2.0, 2))  # the thin line is on top
    for side, raw, (label, color, dashes, width, order) in zip(sides, (row.lhs, row.rhs), looks, strict=True):
        text = f"{label}{_missing(raw, side)}"
        ax.plot(k, side, color=color, linestyle=dashes, label=text, linewidth=width, zorder=order)
    _scale(ax, np.abs(np.concatenate(sides)), is_signed)
    ax.set_xlim(row.first - 0.02 * k.size, row.first + 1.02 * k.size)
    dress_axes(ax, "iteration $k$", "both sides")
    title = [*textwrap.wrap(row.name, TITLE_WIDTH), f"{row.chain}: {row.status}"]
    _entitle(figure, ax, title, _COLORS[row.status])
    ax.legend(fontsize=FONT["legend"], frameon=False)
    return figure


def _entitle(figure: "Figure", ax: "Axes", lines: list[str], color: str) -> None:
    """Put a title over the whole width, and the panel where it leaves room for all texts."""
    width, height = figure.get_size_inches()
    across, down = width - LEFT - RIGHT, height - BOTTOM - ABOVE - TITLE_LINE * len(lines)
    figure.set_layout_engine("none")
    ax.set_position((LEFT / width, BOTTOM / height, across / width, down / height))
    ax.set_title(
        "\n".join(lines), x=(width / 2 - LEFT) / across, fontsize=FONT["title"], color=color, parse_math=False
    )


def _missing(values: np.ndarray, drawn: np.ndarray) -> str:
    """Return what the legend says of a side without a curve."""
    if not np.isnan(drawn).all():
        return ""
    return " (infinite)" if np.isinf(values).any() else " (0)" if not values.any() else " (not a number)"


def _scale(ax: "Axes", sizes: np.ndarray, is_signed: bool) -> None:
    sizes = sizes[sizes > 0]
    if not sizes.size:
        return
    if not is_signed:
        ax.set_yscale("log")
        if sizes.max() > 10**FEW_DECADES * sizes.min():
            ax.set_yticks([], minor=True)
        return
    top, smallest = float(sizes.max()), max(float(sizes.min()), float(sizes.max()) * SMALLEST_SHOWN)
    ax.set_yscale("symlog", linthresh=smallest)
    ax.axhline(0.0, color="0.6", linewidth=0.8)
    high, low = math.floor(math.log10(top)), math.ceil(math.log10(smallest))
    decades = [10.0**e for e in range(high, low, -max(1, math.ceil((high - low) / 3)))]  # none close to zero
    bottom, ceiling = ax.get_ylim()
    ticks = [0.0, *decades, *(-value for value in decades)]
    ax.set_yticks([value for value in ticks if bottom <= value <= ceiling])
    ax.set_ylim(bottom, ceiling)
    ax.set_yticks([], minor=True)


def row_figures(rows: Sequence[Any]) -> "dict[str, Figure]":
    """Return a figure per row, by a name fit for a file: ``<chain>-<row>``."""
    return {f"{row.chain}-{_slug(row.name)}": row_figure(row) for row in rows}


def smoothness_figure(found: Any) -> "Figure":
    """Draw Hessian norm against gradient norm with the tightest line above, for F and for each agent.

    This is the picture with which J. Zhang, T. He, S. Sra and A. Jadbabaie, "Why gradient clipping accelerates
    training" (ICLR 2020, arXiv:1905.11881), argue for (L0, L1)-smoothness.

    Args:
        found: An :class:`~digrad.theory.EmpiricalSmoothness`.
    """
    figure, axes = panels(2, 2)
    _points_and_line(axes[0], found.grad_norms_F, found.hessian_norms_F, found.line, BLUE, RED, "F: ")
    dress_axes(axes[0], r"$\|\nabla F\|$", r"$\|\nabla^2 F\|$")
    axes[0].set_title("Average loss", fontsize=FONT["title"])
    columns = zip(found.grad_norms.T, found.hessian_norms.T, found.agent_lines, strict=True)
    for i, (g, h, line) in enumerate(columns):
        color = style_of("", i).color
        _points_and_line(axes[1], g, h, line, color, color, f"agent {i}: ")
    dress_axes(axes[1], r"$\|\nabla f_i\|$", r"$\|\nabla^2 f_i\|$")
    axes[1].set_title("Each agent", fontsize=FONT["title"])
    for ax in axes[: 1 if len(found.agent_lines) > LEGEND_AGENTS else 2]:
        top = ax.get_ylim()[1] * (1.1 if ax is axes[0] else 1.5)  # room for the legend above the points
        ax.set_ylim(0.0, top)
        ax.legend(fontsize=FONT["legend"], frameon=False, loc="upper left", labelspacing=0.2)
    figure.suptitle(f"Estimates along a run: {found.label}", fontsize=FONT["title"])
    return figure


def _points_and_line(
    ax: "Axes", g: np.ndarray, h: np.ndarray, line: Any, color: str, line_color: str, name: str
) -> None:
    ax.scatter(g, h, s=10, color=color, zorder=3, linewidths=0)
    ends = np.array([0.0, float(g.max())])
    text = f"{name}$L_0$ = {line.intercept:.3g}, $L_1$ = {line.slope:.3g}"
    ax.plot(ends, line(ends), color=line_color, linewidth=1.2, label=text)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
