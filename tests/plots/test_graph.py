from dataclasses import dataclass

import networkx as nx
import numpy as np
import pytest
from matplotlib.patches import FancyArrowPatch

from digrad import plots
from digrad.errors import ArgumentError


@dataclass
class Graph:
    n: int
    edge_array: list

    def to_networkx(self):
        graph = nx.DiGraph(self.edge_array)
        graph.add_nodes_from(range(self.n))
        return graph


def ring(n):
    return Graph(n, [(i, (i + 1) % n) for i in range(n)])


def arrows(figure):
    return [patch for patch in figure.axes[0].patches if isinstance(patch, FancyArrowPatch)]


def test_each_link_is_an_arrow_from_sender_to_receiver():
    figure = plots.draw_graph(Graph(3, [(0, 1), (1, 2), (2, 1), (2, 2)]))
    places = figure.axes[0].collections[0].get_offsets()
    ends = [patch._posA_posB for patch in arrows(figure)]
    expected = [(places[0], places[1]), (places[1], places[2]), (places[2], places[1])]
    np.testing.assert_allclose(ends, expected)
    assert [patch.get_connectionstyle().rad for patch in arrows(figure)] == [0.0, 0.18, 0.18]


def test_agents_that_hear_more_are_larger():
    sizes = plots.draw_graph(Graph(3, [(0, 1), (2, 1), (1, 2)])).axes[0].collections[0].get_sizes()
    assert sizes[1] > sizes[2] > sizes[0]


def test_weights_are_colour_and_text():
    figure = plots.draw_graph(ring(4), u=[1, 2, 3, 4], v=[0.5, 0.25, 0.125, 1])
    assert figure.axes[0].collections[0].get_array().tolist() == [1, 2, 3, 4]
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == ["0", "0.5", "1", "0.25", "2", "0.125", "3", "1"]
    assert figure.axes[1].get_xlabel() == "weight $u_i$ (colour)"


def test_weights_of_the_wrong_length_are_rejected():
    with pytest.raises(ArgumentError, match=r"`u` of draw_graph must have one entry per agent, \(4,\)"):
        plots.draw_graph(ring(4), u=[1, 2])


@pytest.mark.parametrize(("n", "layout"), [(1, "auto"), (2, "circular"), (21, "auto"), (5, "spring")])
def test_graphs_of_all_sizes_are_drawn(n, layout):
    figure = plots.draw_graph(ring(n) if n > 1 else Graph(1, []), layout=layout)
    figure.draw_without_rendering()
    assert len(figure.axes[0].texts) == n
    assert np.isfinite(figure.axes[0].collections[0].get_offsets()).all()


def test_a_large_graph_is_a_dot_picture_of_the_mixing_matrix():
    ax = plots.draw_graph(ring(61)).axes[0]
    assert ax.lines[0].get_xydata().tolist() == [[i, (i + 1) % 61] for i in range(61)]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("sender $j$", "receiver $i$")
    assert ax.yaxis_inverted()
