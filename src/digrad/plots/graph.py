"""Drawings of digraphs."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from digrad.checks import choice
from digrad.errors import ArgumentError
from digrad.plots.style import BLUE, FONT, PANEL, plain_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Floats: TypeAlias = npt.NDArray[np.float64]

_CIRCLE = 20  # agents; more do not fit on a circle
_LARGEST_DRAWING = 60  # agents; a larger graph is shown as a dot picture


def draw_graph(
    graph: Any,
    *,
    u: npt.ArrayLike | None = None,
    v: npt.ArrayLike | None = None,
    layout: str = "auto",
) -> "Figure":
    """Draw a digraph; arrows point from the sender to the receiver.

    Agents are larger the more in-neighbours they have. More than 60 agents are shown as a dot picture, one
    dot per link at its place in the mixing matrix.

    Args:
        graph: Anything with ``n``, ``edges`` (``[m, 2]``, sender and receiver) and ``to_networkx()``.
        u: One weight per agent, shown as its colour (e.g. the Perron weights of R).
        v: One weight per agent, written next to it (e.g. the Perron weights of C).
        layout: ``"circular"``, ``"spring"`` or ``"auto"``: circular up to 20 agents.

    Returns:
        The figure.

    Raises:
        ArgumentError: A weight vector has not one entry per agent.
    """
    from digrad.plots.figure import Figure

    choice(layout, "layout", "draw_graph", ("auto", "circular", "spring"))
    weights = [_weights(values, name, graph.n) for values, name in ((u, "u"), (v, "v"))]
    edges = np.asarray(graph.edge_array, dtype=np.int64).reshape(-1, 2)
    edges = edges[edges[:, 0] != edges[:, 1]]
    width = PANEL[0] * (1.0 if graph.n <= _CIRCLE else 1.5)
    figure = Figure(figsize=(width, width), layout="constrained")
    ax = figure.add_subplot()
    ax.set_title(f"{graph.n} agents, {len(edges)} one-way links", fontsize=FONT["title"])
    if graph.n > _LARGEST_DRAWING:
        _dot_picture(ax, graph.n, edges)
    else:
        names = getattr(graph, "names", None) or [str(agent) for agent in range(graph.n)]
        _node_link_drawing(ax, edges, _positions(graph, layout), names, *weights)
    return figure


def _weights(values: npt.ArrayLike | None, name: str, n: int) -> Floats | None:
    if values is None:
        return None
    array = np.asarray(values, dtype=np.float64)
    if array.shape != (n,):
        raise ArgumentError(
            f"`{name}` of draw_graph must have one entry per agent, ({n},), but got {array.shape}."
        )
    return array


def _positions(graph: Any, layout: str) -> Floats:
    if layout == "circular" or (layout == "auto" and graph.n <= _CIRCLE):
        angle = np.pi / 2 - 2 * np.pi * np.arange(graph.n) / graph.n
        return np.column_stack([np.cos(angle), np.sin(angle)])
    import networkx as nx

    places = nx.kamada_kawai_layout(graph.to_networkx().to_undirected())
    return np.array(list(places.values()))  # in the order of the nodes, which is that of the agents


def _dot_picture(ax: "Axes", n: int, edges: npt.NDArray[Any]) -> None:
    size = max(0.5, min(4.0, 300 / n))
    ax.plot(
        edges[:, 0],
        edges[:, 1],
        "s",
        color=BLUE,
        markersize=size,
        markeredgewidth=0,
        rasterized=len(edges) > 5000,
    )
    ax.set(xlim=(-1, n), ylim=(n, -1), aspect="equal")
    ax.set_xlabel("sender $j$", fontsize=FONT["label"])
    ax.set_ylabel("receiver $i$", fontsize=FONT["label"])
    ax.tick_params(labelsize=FONT["tick"])


def _node_link_drawing(
    ax: "Axes",
    edges: npt.NDArray[Any],
    places: Floats,
    names: Sequence[str],
    u: Floats | None,
    v: Floats | None,
) -> None:
    in_degrees = np.bincount(edges[:, 1], minlength=len(places))
    radius = (7 + 5 * in_degrees / max(1, in_degrees.max())) * min(1.0, 4.5 / len(places) ** 0.5)  # points
    for sender, receiver, bend in _bent(edges):
        _arrow(ax, places[sender], places[receiver], (radius[sender], radius[receiver]), bend)
    look: dict[str, Any] = {"c": "#dce9f5"} if u is None else {"c": u, "cmap": "cividis"}
    dots = ax.scatter(*places.T, s=(2 * radius) ** 2, edgecolors="0.2", zorder=3, **look)
    for agent, place in enumerate(places):
        is_dark = u is not None and u[agent] < (u.min() + u.max()) / 2
        size = min(FONT["label"], 1.1 * radius[agent])
        _write(ax, place, (0.0, 0.0), plain_text(names[agent]), size, "white" if is_dark else "black")
        if v is not None:
            outward = place / (np.hypot(*place) or 1.0)
            _write(ax, place, (radius[agent] + 3) * outward, f"{v[agent]:.3g}", FONT["tick"], "0.2")
    _explain(ax, dots, u, v)
    ax.set(aspect="equal")
    ax.margins(0.16)
    ax.axis("off")


def _bent(edges: npt.NDArray[Any]) -> Iterator[tuple[int, int, float]]:
    pairs = {(int(sender), int(receiver)) for sender, receiver in edges}
    for sender, receiver in sorted(pairs):
        yield sender, receiver, 0.18 if (receiver, sender) in pairs else 0.0


def _arrow(ax: "Axes", start: Floats, end: Floats, radii: tuple[float, float], bend: float) -> None:
    from matplotlib.patches import FancyArrowPatch

    patch = FancyArrowPatch(
        posA=(start[0], start[1]),
        posB=(end[0], end[1]),
        arrowstyle="-|>",
        connectionstyle=f"arc3,rad={bend}",
        mutation_scale=9,
        shrinkA=radii[0],
        shrinkB=radii[1] + 0.5,
        linewidth=0.9,
        color="0.35",
        zorder=2,
    )
    ax.add_patch(patch)


def _write(ax: "Axes", place: Floats, offset: Any, text: str, size: float, color: str) -> None:
    ax.annotate(
        text,
        (place[0], place[1]),
        (offset[0], offset[1]),
        textcoords="offset points",
        ha=("right", "center", "left")[1 + _sign(offset[0])],
        va=("top", "center", "bottom")[1 + _sign(offset[1])],
        fontsize=size,
        color=color,
        zorder=4,
    )


def _sign(offset: float) -> int:
    return int(offset > 4) - int(offset < -4)  # points


def _explain(ax: "Axes", dots: Any, u: Floats | None, v: Floats | None) -> None:
    if u is not None and ax.figure is not None:
        bar = ax.figure.colorbar(dots, ax=ax, shrink=0.6, location="bottom", pad=0.02)
        bar.set_label("weight $u_i$ (colour)", fontsize=FONT["label"])
        bar.ax.tick_params(labelsize=FONT["tick"])
    if v is not None:
        ax.set_title(f"{ax.get_title()}; beside them $v_i$", fontsize=FONT["title"])
