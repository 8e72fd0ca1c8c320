"""Look of all figures: sizes, fonts, colours, labels, legends.

Panels are 3.5 inches wide, one column of a journal, with fonts that are readable at that size.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from digrad.checks import choice
from digrad.plots.columns import column_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Dashes: TypeAlias = Literal["-", "--", ":", "-.", ""]
Width: TypeAlias = Literal["one-column", "two-column"]

PANEL = (3.5, 2.6)  # inches
WIDTHS: dict[str, float] = {"one-column": 3.5, "two-column": 7.16}  # inches, of IEEE's journals
LEGEND_ROW = 0.17  # inches
FONT = {"title": 9, "label": 9, "tick": 8, "legend": 8}  # points
RED, BLUE = "#c1272d", "#0067a5"
RESERVED = {"CGT": (RED, "o"), "AB": (BLUE, "v")}  # the protagonists look the same in every figure
# Okabe and Ito's colours, which colour-blind readers can tell apart, without the yellow that fades on white.
_COLORS = ("#009e73", "#e69f00", "#cc79a7", "#56b4e9", "#000000", "#7f5a2e")
_MARKERS = ("s", "^", "D", "<", "P", "*")
_DASHES: tuple[Dashes, ...] = ("-", "--", ":", "-.")
#: Averages of the agents by the names that :func:`digrad.simulate` takes.
AVERAGES = {"plain": "plain mean", "weighted": "weighted average"}


class LineStyle(NamedTuple):
    """Look of the curve of a run."""

    color: str
    marker: str
    linestyle: Dashes


def style_of(name: str, index: int) -> LineStyle:
    """Return the style of the run ``name``, the ``index``-th of its figure.

    CGT is always red and AB always blue; the others take colour-blind safe colours in turn, other dashes when the
    colours are used up, and other markers after that: 144 look different.

    Example:
        >>> style_of("CGT", 3).color == style_of("CGT", 0).color
        True
    """
    if name in RESERVED:
        return LineStyle(*RESERVED[name], "-")
    turn, position = divmod(index, len(_COLORS))
    shift, dashes = divmod(turn, len(_DASHES))
    return LineStyle(_COLORS[position], _MARKERS[(position + shift) % len(_MARKERS)], _DASHES[dashes])


def styles_of(labels: Iterable[str]) -> dict[str, LineStyle]:
    """Return the style of each run of a figure, by its label; CGT and AB take no colour from the others."""
    labels = list(labels)
    others = [label for label in labels if label not in RESERVED]
    return {label: style_of(label, others.index(label) if label in others else 0) for label in labels}


@contextmanager
def paper_fonts() -> Iterator[None]:
    """Draw figures made inside the block in the fonts of a LaTeX paper: STIX, which looks like Times, formulas too.

    Example:
        >>> import digrad as dg
        >>> network = dg.Network(dg.graphs.example5())
        >>> trace = dg.simulate(dg.CGT(0.05, 5.0), dg.problems.example_quadratic(), network, steps=20)
        >>> with paper_fonts():
        ...     figure = dg.plots.curves({"CGT": trace}, width="one-column")
        >>> float(figure.get_figwidth())
        3.5
    """
    import matplotlib

    with matplotlib.rc_context(
        {"font.family": "serif", "font.serif": ["STIXGeneral"], "mathtext.fontset": "stix"}
    ):
        yield


def panels(
    count: int, columns: int | None, *, height: float = PANEL[1], width: Width | None = None
) -> tuple["Figure", list["Axes"]]:
    """Return a figure of ``count`` panels, ``columns`` side by side: at most two, or one in one column, unless told."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    from digrad.plots.figure import Figure

    if width is not None:
        choice(width, "width", "a figure", WIDTHS)
    across = min(count, columns or (1 if width == "one-column" else 2))
    down = -(-count // across)
    inches = PANEL[0] * across if width is None else WIDTHS[width]
    figure = Figure(figsize=(inches, height * down + 0.3), layout=ConstrainedLayoutEngine(wspace=0.06))
    return figure, [figure.add_subplot(down, across, position + 1) for position in range(count)]


def plain_text(name: str) -> str:
    """Return ``name`` so that matplotlib shows it as it is: no formula, no hiding of a leading underscore."""
    return (" " if name.startswith("_") else "") + name.replace("$", r"\$")


def dress(ax: "Axes", metric: str, x_label: str, average: str = "") -> None:
    """Give a panel the title and the labels of ``metric``, readable fonts and a light grid.

    Args:
        ax: The panel.
        metric: The column that it shows.
        x_label: Label of the horizontal axis.
        average: The average of the agents that the metric is about, if it is about one.
    """
    column = column_of(metric)
    is_said = average not in ("", "average") and r"\bar{x}" in column.label
    ax.set_title(f"{column.title} ({average})" if is_said else column.title, fontsize=FONT["title"])
    dress_axes(ax, x_label, column.label)


def dress_axes(ax: "Axes", x_label: str, y_label: str) -> None:
    """Give a panel labels, readable fonts and a light grid."""
    ax.set_xlabel(x_label, fontsize=FONT["label"])
    ax.set_ylabel(y_label, fontsize=FONT["label"])
    ax.tick_params(which="both", labelsize=FONT["tick"])
    ax.grid(True, color="0.9", linewidth=0.6)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def legend(figure: "Figure", entries: Mapping[str, LineStyle]) -> None:
    """Put one legend for all panels below them."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D(
            [],
            [],
            color=style.color,
            marker=style.marker,
            linestyle=style.linestyle,
            markersize=4,
            label=plain_text(label),
        )
        for label, style in entries.items()
    ]
    room = figure.get_figwidth() / (0.065 * max(len(label) for label in entries) + 0.6)  # inches per letter
    ncols = max(1, min(len(handles), int(room)))
    rows = -(-len(handles) // ncols)
    figure.set_figheight(figure.get_figheight() + LEGEND_ROW * (rows - 1))  # or the panels would pay for them
    figure.legend(
        handles=handles, loc="outside lower center", ncols=ncols, fontsize=FONT["legend"], frameon=False
    )
