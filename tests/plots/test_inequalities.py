import numpy as np
import pytest

from digrad import graphs, problems
from digrad.network import Network
from digrad.theory import Row, check_run, empirical_smoothness, row_figure, row_figures
from digrad.theory.inequality import Terms, worst_agent


def test_each_row_has_a_logarithmic_figure_of_both_sides(tmp_path):
    check = check_run(
        problems.example_quadratic(),
        Network(graphs.example5()),
        step_size=0.01,
        threshold=5.0,
        steps=20,
        paper=True,
    )
    figures = row_figures([check.row(name, "paper") for name in ("y-recursion", "descent")])
    axes = figures["paper-y-recursion"].axes[0]
    assert axes.get_yscale() == "log"
    assert [line.get_label() for line in axes.lines] == ["measured", "bound"]
    figures["paper-descent"].savefig(tmp_path / "row.png")
    assert (tmp_path / "row.png").stat().st_size > 1000


def test_row_without_positive_numbers_can_be_drawn():
    figure = row_figure(Row("nothing", "all", np.zeros(3), np.zeros(3)))
    assert figure.axes[0].get_title() == "nothing\nall: PASS"
    assert [text.get_text() for text in figure.axes[0].get_legend().get_texts()] == [
        "measured (0)",
        "bound (0)",
    ]


def test_negative_side_is_drawn_below_zero():
    row = Row("descent", "paper", np.array([-1.0, -1e-5]), np.array([1e-2, 1e-8]))
    axes = row_figure(row).axes[0]
    assert axes.get_yscale() == "symlog"
    assert axes.lines[0].get_ydata().tolist() == [-1.0, -1e-5]
    low, high = axes.get_ylim()
    assert low < -1
    assert high > 1e-2


def test_infinite_bound_is_named_in_the_legend():
    axes = row_figure(Row("sum", "paper", np.ones(3), np.full(3, np.inf))).axes[0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["measured", "bound (infinite)"]


@pytest.mark.parametrize(
    ("name", "sides"),
    [
        ("x", ([1e-120, 1e-100], [1e100, 1e120])),
        (
            "a name that takes several lines above its panel: " + 3 * "and some more words ",
            ([3.0, 2.0], [4.0, 5.0]),
        ),
        ("descent", ([-1e-12, 1e-15], [1e-14, 1e12])),
    ],
)
def test_texts_of_each_figure_stay_inside_it(name, sides):
    figure = row_figure(Row(name, "paper", *map(np.array, sides)))
    figure.draw_without_rendering()
    axes = figure.axes[0]
    for text in (axes.title, axes.xaxis.label, axes.yaxis.label):
        box = text.get_window_extent()
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= figure.bbox.x1
        assert box.y1 <= figure.bbox.y1


def test_smoothness_figure_shows_points_and_lines(tmp_path):
    found = empirical_smoothness(
        problems.example_quartic(), np.random.default_rng(0).normal(size=(20, 2)) * 2
    )
    figure = found.figure()
    assert [axis.get_title() for axis in figure.axes] == ["Average loss", "Each agent"]
    assert len(figure.axes[1].lines) == 5
    assert len({line.get_color() for line in figure.axes[1].lines}) == 5
    assert [text.get_text()[:7] for text in figure.axes[1].get_legend().get_texts()] == [
        f"agent {i}" for i in range(5)
    ]
    assert "indicative, not a certificate" in figure.get_suptitle()
    figure.savefig(tmp_path / "smoothness.png")
    assert (tmp_path / "smoothness.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("lhs", "rhs", "is_met", "status"),
    [
        ([1.0, 2.0], [1.0, 2.0], True, "PASS"),
        ([1.0, 2.1], [1.0, 2.0], True, "FAIL"),
        ([1.0, 2.1], [1.0, 2.0], False, "INAPPLICABLE"),
        ([-1.0], [0.5], True, "PASS"),
        ([np.nan], [1.0], True, "FAIL"),
        ([1e-14], [0.0], True, "FAIL"),
        ([0.0], [0.0], True, "PASS"),
        ([-2.0], [-1.0], True, "PASS"),
        ([-1.0], [-2.0], True, "FAIL"),
    ],
)
def test_row_status_follows_numbers_and_precondition(lhs, rhs, is_met, status):
    assert Row("r", "paper", np.array(lhs), np.array(rhs), Terms("-", is_met)).status == status


def test_row_reports_a_negative_ratio_for_a_negative_left_side():
    assert Row("r", "paper", np.array([-1.0, -3.0]), np.array([2.0, 2.0])).max_ratio < 0


def test_worst_agent_is_the_one_closest_to_its_bound():
    lhs, rhs = worst_agent(np.array([[1.0, 2.0], [0.0, 0.0]]), np.array([[10.0, 4.0], [1.0, 0.0]]))
    assert lhs.tolist() == [2.0, 0.0]
    assert rhs.tolist() == [4.0, 1.0]
