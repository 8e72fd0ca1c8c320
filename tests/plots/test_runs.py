import math
from dataclasses import replace

import numpy as np
import pytest

from digrad import plots
from digrad.errors import ArgumentError
from digrad.trace import Ensemble, Trace


def make_trace(name, loss, *, verdict="not converged", diverged_at=None):
    k = np.arange(len(loss))
    loss = np.array(loss, dtype=float)
    columns = {"k": k, "loss": loss, "grad_norm": loss / 2, "consensus_error": loss, "bytes_sent": 1000 * k}
    return Trace(name, columns, np.zeros((2, 1)), verdict, diverged_at, len(k) - 1, 1.0)


def calm(name="CGT"):
    return make_trace(name, 0.3 + np.exp(-np.arange(50.0) / 5))


def exploding(name="AB"):
    return make_trace(name, [1.3, 9.0, 1e60, math.inf, math.nan], verdict="diverged", diverged_at=3)


def legend_texts(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def assert_only_finite_lines(figure):
    figure.draw_without_rendering()
    assert sum(len(ax.lines) for ax in figure.axes) > 0
    for ax in figure.axes:
        for line in ax.lines:
            assert np.isfinite(np.asarray(line.get_xydata(), dtype=float)).all()


def test_curves_draw_the_data_given():
    figure = plots.curves({"CGT": calm(), "DGD": calm("DGD")}, ("loss", "grad_norm"))
    for ax, metric in zip(figure.axes, ("loss", "grad_norm"), strict=True):
        assert [line.get_xdata().tolist() for line in ax.lines] == [list(range(50))] * 2
        np.testing.assert_array_equal(ax.lines[0].get_ydata(), calm().columns[metric])
    assert legend_texts(figure) == ["CGT", "DGD"]


def test_curves_draw_a_diverged_run_to_its_last_finite_value_with_a_cross_where_it_diverged_and_say_so():
    figure = plots.curves({"CGT": calm(), "AB": exploding()}, ("loss",))
    line, cross = figure.axes[0].lines[1:]
    assert line.get_xydata().tolist() == [[0.0, 1.3], [1.0, 9.0], [2.0, 1e60]]
    assert (cross.get_marker(), cross.get_xdata()) == ("x", [3])
    assert legend_texts(figure) == ["CGT", "AB (diverged at k=3)"]
    assert_only_finite_lines(figure)


def test_curves_leave_an_explosion_outside_the_axes_and_its_cross_inside():
    ax = plots.curves({"CGT": calm(), "AB": exploding()}, ("loss",)).axes[0]
    low, high = ax.get_ylim()
    assert 0.1 < low < 0.3 < 9.0 < high < 1e4
    assert low < ax.lines[-1].get_ydata()[0] < high


def test_curves_that_start_at_rounding_error_are_shown_whole():
    apart = make_trace("CGT", np.append(1.3e-7, np.linspace(0.2, 0.4, 49)))
    other = make_trace("AB", [1.3e-7, 1e9, 1e60, math.inf], verdict="diverged", diverged_at=3)
    low, high = plots.curves({"CGT": apart, "AB": other}, ("loss",)).axes[0].get_ylim()
    assert low < 0.2
    assert 0.4 < high < 1e3


def test_curves_show_an_explosion_whole_when_there_is_nothing_to_compare_it_with():
    low, high = plots.curves({"AB": exploding()}, ("loss",)).axes[0].get_ylim()
    assert low < 1.3 < 1e60 < high


def test_curves_leave_an_explosion_outside_a_linear_axis():
    falling = make_trace("CGT", [0.0, -1.0, -2.0])
    wild = make_trace("AB", [0.0, 5e80, -1e307], verdict="diverged", diverged_at=3)
    figure = plots.curves({"CGT": falling, "AB": wild}, ("loss",))
    assert figure.axes[0].get_yscale() == "linear"
    low, high = figure.axes[0].get_ylim()
    assert -3 < low < -2 < 0 < high < 1
    assert_only_finite_lines(figure)


def test_curves_do_not_take_a_rounding_error_for_the_initial_scale():
    growing = make_trace("CGT", [1e-17, 0.5, 0.1])
    high = plots.curves({"CGT": growing}, ("consensus_error",)).axes[0].get_ylim()[1]
    assert high > 0.5


def test_curves_use_a_log_axis_only_for_values_that_span_a_factor_of_ten():
    scales = [
        plots.curves({"CGT": make_trace("CGT", loss)}, ("loss",)).axes[0].get_yscale()
        for loss in ([1.0, 0.01], [1.0, 0.9], [1.0, -0.01], [0.0, 1.0, 0.01], [0.0, 0.0])
    ]
    assert scales == ["log", "linear", "linear", "log", "linear"]


def test_curves_over_bytes_name_the_unit():
    ax = plots.curves({"CGT": calm()}, ("loss",), x="bytes_sent").axes[0]
    assert ax.get_xlabel() == "sent by all agents (kB)"
    assert ax.lines[0].get_xdata()[-1] == 49.0


def test_curves_say_so_when_nothing_finite_was_recorded():
    figure = plots.curves({"CGT": calm()}, ("tracking_error",))
    assert [text.get_text() for text in figure.axes[0].texts] == ["nothing finite was recorded"]
    assert figure.axes[0].lines[0].get_xdata().size == 0


def test_curves_draw_median_band_and_each_seed_of_an_ensemble():
    members = (
        make_trace("CGT", [3.0, 1.0, 5.0]),
        make_trace("CGT", [4.0, 2.0, 6.0]),
        make_trace("CGT", [5.0, 9.0]),
    )
    ax = plots.curves({"CGT": Ensemble(members)}, ("loss",)).axes[0]
    assert [line.get_ydata().tolist() for line in ax.lines] == [[3, 1, 5], [4, 2, 6], [5, 9], [4.0, 2.0]]
    corners = ax.collections[0].get_paths()[0].vertices
    assert (corners[:, 1].min(), corners[:, 1].max()) == (1.0, 9.0)


def test_curves_draw_a_band_to_zero_that_no_log_axis_cuts_across():
    members = tuple(make_trace("CGT", [1.0, 1e-3, last, 1e-9]) for last in (1e-6, 0.0))
    figure = plots.curves({"CGT": Ensemble(members)}, ("loss",))
    ax = figure.axes[0]
    figure.draw_without_rendering()
    assert ax.get_yscale() == "log"
    corners = ax.transData.transform(ax.collections[0].get_paths()[0].vertices)
    assert np.isfinite(corners).all()
    place = np.round(ax.transData.inverted().transform(corners)[:, 0])
    assert corners[place == 2, 1].min() < ax.transAxes.transform((0, 0))[1] < corners[place == 2, 1].max()


def test_curves_draw_the_excess_loss_on_the_scale_asked_for():
    run = make_trace("CGT", [2.5, 1.0, 0.5, 0.3 - 1e-16])
    figure = plots.curves({"CGT": run}, "excess_loss", minimum=0.3, y_scale="linear")
    assert figure.axes[0].get_yscale() == "linear"
    np.testing.assert_allclose(figure.axes[0].lines[0].get_ydata(), [2.2, 0.7, 0.2, 0.0])
    assert plots.curves({"CGT": run}, "excess_loss", minimum=0.3).axes[0].get_yscale() == "log"
    assert plots.curves({"CGT": run}, "loss", y_scale="log").axes[0].get_yscale() == "log"


def test_curves_draw_the_mean_and_its_interval():
    seeds = [make_trace("CGT", values) for values in ([3.0, 1.0], [1.0, 0.2], [2.0, 0.6])]
    ensemble = Ensemble(tuple(seeds))
    figure = plots.curves({"CGT": ensemble, "AB": calm("AB")}, "loss", band="interval")
    first = figure.axes[0].lines[0]
    np.testing.assert_allclose(first.get_ydata(), [2.0, 0.6])
    assert len(figure.axes[0].lines) == 2  # no line for each seed, and the single run
    k, low, mean, high = ensemble.interval("loss")
    np.testing.assert_allclose(
        high - mean, 4.302652729911275 / np.sqrt(3) * np.array([1.0, 0.4])
    )  # t of 2 degrees
    np.testing.assert_allclose(mean - low, high - mean)
    assert k.tolist() == [0, 1]
    assert_only_finite_lines(figure)


def test_curves_say_how_many_seeds_diverged():
    ensemble = Ensemble((calm("AB"), exploding(), exploding()))
    figure = plots.curves({"AB": ensemble}, x="bytes_sent")
    assert legend_texts(figure) == ["AB (2 of 3 diverged, first at k=3)"]
    assert_only_finite_lines(figure)


def test_curves_show_labels_that_matplotlib_would_hide_or_typeset():
    figure = plots.curves({"_hidden": calm(), "5$ or 6$": calm()}, ("loss",))
    assert_only_finite_lines(figure)
    assert legend_texts(figure) == [" _hidden", r"5\$ or 6\$"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"traces": {}}, "must not be empty"),
        ({"metrics": ()}, "must not be empty"),
        ({"metrics": ("los",)}, "Did you mean `loss`"),
        ({"x": "seconds"}, "`x` of curves"),
    ],
)
def test_curves_reject_bad_arguments(arguments, message):
    options = {"traces": {"CGT": calm()}, "metrics": ("loss",), **arguments}
    with pytest.raises(ArgumentError, match=message):
        plots.curves(options.pop("traces"), options.pop("metrics"), **options)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([1.0], [math.nan]),
        ([1e-320, 1.0], [0.0, 0.0]),
        ([1e308, 1.0], [5e299, 1e-299]),
        ([-1e299, 1e299], [0.0, 1.0]),
        ([-1e308, -math.inf], [-1.0, -1.0]),
        ([math.inf, 1.0], [1e-308, 2e-308]),
    ],
)
def test_any_values_can_be_drawn(first, second):
    wild = make_trace("AB", first, verdict="diverged", diverged_at=0)
    other = make_trace("CGT", second)
    assert_only_finite_lines(plots.curves({"AB": wild, "CGT": other}, ("loss",)))
    assert_only_finite_lines(plots.twin_explosion(wild, other))


def test_side_by_side_draws_both_runs_in_two_panels():
    figure = plots.side_by_side(calm(), calm("DGDClip"))
    assert [ax.get_title() for ax in figure.axes] == ["Global loss", "Gradient norm"]
    assert [len(ax.lines) for ax in figure.axes] == [2, 2]
    with pytest.raises(ArgumentError, match="different names"):
        plots.side_by_side(calm(), calm())


def test_twin_explosion_puts_the_baseline_left_in_blue_and_the_proposed_right_in_red():
    figure = plots.twin_explosion(exploding(), calm())
    left, other_left, right, _ = figure.axes
    assert (left.get_title(), other_left.get_title()) == ("Global loss", "Gradient norm")
    assert left.get_yscale() == "log"
    assert left.lines[0].get_ydata().tolist() == [1.3, 9.0, 1e60]
    np.testing.assert_array_equal(right.lines[0].get_ydata(), calm().loss)
    assert left.lines[0].get_color() == plots.style_of("AB", 0).color
    assert right.lines[0].get_color() == plots.style_of("CGT", 0).color
    assert legend_texts(figure) == ["AB (diverged at k=3), left axis", "CGT, right axis"]
    assert_only_finite_lines(figure)


def test_the_cross_is_at_the_same_iteration_in_every_panel_though_the_loss_overflows_first():
    grad_norm = np.array([1.0, 5.0, 1e50, 1e99, math.inf])
    run = replace(exploding(), columns={**exploding().columns, "grad_norm": grad_norm})
    for figure in (plots.twin_explosion(run, calm()), plots.curves({"AB": run, "CGT": calm()})):
        crosses = [line for ax in figure.axes for line in ax.lines if line.get_gid() == "diverged"]
        assert [line.get_xdata()[0] for line in crosses] == [3, 3]
        for line in crosses:
            low, high = line.axes.get_ylim()
            assert low < line.get_ydata()[0] < high


def test_a_run_without_the_metric_of_a_panel_has_no_cross_there():
    runs = {"AB": exploding(), "CGT": calm()}
    for run, value in zip(runs.values(), (math.nan, 1.0), strict=True):
        run.columns["fraction_clipped"] = np.full(len(run.columns["k"]), value)
    (ax,) = plots.curves(runs, "fraction_clipped").axes
    assert not [line for line in ax.lines if line.get_gid() == "diverged"]


def test_twin_explosion_spreads_out_the_iterations_of_a_short_baseline():
    long = make_trace("CGT", np.linspace(1.3, 0.5, 3000))
    left, _, right, _ = plots.twin_explosion(exploding(), long).axes
    assert left.get_xscale() == right.get_xscale() == "symlog"
    first, last = left.transAxes.inverted().transform(left.transData.transform([(0, 1), (3, 1)]))[:, 0]
    assert (first, last > 0.15) == (0, True)  # a share of the panel, not the thousandth of a linear axis
    assert plots.twin_explosion(exploding(), calm()).axes[0].get_xscale() == "linear"


def test_twin_explosion_rejects_an_ensemble():
    with pytest.raises(ArgumentError, match="'CGT' is an ensemble"):
        plots.twin_explosion(exploding(), Ensemble((calm(),)))


def test_styles_of_the_methods_in_one_figure_differ():
    names = ["CGT", "AB", *(f"method {index}" for index in range(100))]
    styles = [plots.style_of(name, index) for index, name in enumerate(names)]
    assert len(set(styles)) == len(names)


def test_byte_unit_keeps_figures_between_one_and_a_thousand():
    assert [plots.byte_unit(largest) for largest in (0, 999, 1000, 5e9)] == [
        (1, "B"),
        (1, "B"),
        (1000, "kB"),
        (10**9, "GB"),
    ]


@pytest.mark.parametrize(("width", "inches", "rows"), [("one-column", 3.5, 2), ("two-column", 7.16, 1)])
def test_figure_is_as_wide_as_the_columns_of_a_journal(width, inches, rows):
    figure = plots.curves({"CGT": calm()}, ("loss", "grad_norm"), width=width)
    figure.draw_without_rendering()
    assert figure.get_figwidth() == inches
    assert figure.axes[0].get_subplotspec().get_gridspec().nrows == rows


def test_unknown_width_is_refused():
    with pytest.raises(ArgumentError, match=r"`width` of a figure must be .*one-column"):
        plots.curves({"CGT": calm()}, width="half")


def test_first_iterations_are_spread_out_when_a_run_ends_there():
    long = make_trace("CGT", 0.3 + np.exp(-np.arange(6001.0) / 500))
    figure = plots.curves({"CGT": long, "AB": exploding()}, ("loss",))
    figure.draw_without_rendering()
    ax = figure.axes[0]
    assert ax.get_xscale() == "symlog"
    pixels = ax.transData.transform([(0, 1.0), (4, 1.0), (6000, 1.0)])[:, 0]
    assert (pixels[1] - pixels[0]) / (pixels[2] - pixels[0]) > 0.1
    assert plots.curves({"CGT": calm(), "AB": exploding()}, ("loss",)).axes[0].get_xscale() == "linear"
    assert plots.curves({"CGT": calm()}, ("loss",), x_scale="log").axes[0].get_xscale() == "symlog"
    assert plots.curves({"CGT": long, "AB": exploding()}, x_scale="linear").axes[0].get_xscale() == "linear"


def test_fonts_of_a_paper_are_in_the_file(tmp_path):
    with plots.paper_fonts():
        figure = plots.curves({"CGT": calm()}, ("loss",), width="one-column")
    (path,) = plots.save_figure(figure, tmp_path / "loss", formats=("pdf",))
    assert b"STIX" in path.read_bytes()
    assert b"/Type3" not in path.read_bytes()
