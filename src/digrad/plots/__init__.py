"""Figures of runs and graphs: arrays in, matplotlib figures out.

Every function returns a :class:`matplotlib.figure.Figure` of its own, made without pyplot, so that it works
without a screen and in threads.
"""

from digrad._internal.formatting import byte_unit
from digrad.plots.explosion import twin_explosion
from digrad.plots.graph import draw_graph
from digrad.plots.runs import curves, excess_loss, measured_at, side_by_side
from digrad.plots.saving import save_figure, split_suffix
from digrad.plots.style import LineStyle, paper_fonts, style_of
from digrad.plots.sweeps import MOST_CURVES, heat_maps, values_against

__all__ = [
    "MOST_CURVES",
    "LineStyle",
    "byte_unit",
    "curves",
    "draw_graph",
    "excess_loss",
    "heat_maps",
    "measured_at",
    "paper_fonts",
    "save_figure",
    "side_by_side",
    "split_suffix",
    "style_of",
    "twin_explosion",
    "values_against",
]
