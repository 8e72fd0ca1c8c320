import numpy as np
import pytest

from digrad import graphs, problems
from digrad.mixing import Network
from digrad.theory import Row, check_run, empirical_smoothness, row_figure
from digrad.theory.rows import Terms, worst_agent


def test_each_row_has_a_logarithmic_figure_of_both_sides(tmp_path):
    check = check_run(
        problems.example_quadratic(), Network(graphs.example5()), step_size=0.01, threshold=5.0, steps=20
    )
    figures = check.figures()
    assert len(figures) == len(check.rows)
    assert "sharp-descent" in figures
    axes = figures["sharp-y-recursion-system"].axes[0]
    assert axes.get_yscale() == "log"
    assert [line.get_label() for line in axes.lines] == ["measured", "bound"]
    figures["sharp-descent"].savefig(tmp_path / "row.png")
    assert (tmp_path / "row.png").stat().st_size > 1000


def test_row_without_positive_numbers_can_be_drawn():
    figure = row_figure(Row("nothing", "all", np.zeros(3), np.zeros(3)))
    assert figure.axes[0].get_title() == "nothing (all): PASS"


def test_smoothness_figure_shows_points_and_lines(tmp_path):
    found = empirical_smoothness(
        problems.example_quartic(), np.random.default_rng(0).normal(size=(20, 2)) * 2
    )
    figure = found.figures()["smoothness"]
    assert [axis.get_title() for axis in figure.axes] == ["Average loss", "Each agent"]
    assert len(figure.axes[1].lines) == 5
    figure.savefig(tmp_path / "smoothness.png")
    assert (tmp_path / "smoothness.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("lhs", "rhs", "precondition", "status"),
    [
        ([1.0, 2.0], [1.0, 2.0], "met", "PASS"),
        ([1.0, 2.1], [1.0, 2.0], "met", "FAIL"),
        ([1.0, 2.1], [1.0, 2.0], "not met", "INAPPLICABLE"),
        ([-1.0], [0.5], "n.a.", "PASS"),
        ([np.nan], [1.0], "n.a.", "FAIL"),
        ([1e-14], [0.0], "n.a.", "PASS"),
        ([-2.0], [-1.0], "n.a.", "PASS"),
        ([-1.0], [-2.0], "n.a.", "FAIL"),
    ],
)
def test_row_status_follows_numbers_and_precondition(lhs, rhs, precondition, status):
    assert Row("r", "sharp", np.array(lhs), np.array(rhs), Terms(precondition)).status == status


def test_row_reports_a_negative_ratio_for_a_negative_left_side():
    assert Row("r", "sharp", np.array([-1.0, -3.0]), np.array([2.0, 2.0])).max_ratio < 0


def test_worst_agent_is_the_one_closest_to_its_bound():
    lhs, rhs = worst_agent(np.array([[1.0, 2.0], [0.0, 0.0]]), np.array([[10.0, 4.0], [1.0, 0.0]]))
    assert lhs.tolist() == [2.0, 0.0]
    assert rhs.tolist() == [4.0, 1.0]
