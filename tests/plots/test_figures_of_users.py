"""Figures are fit for a paper however they are saved, and however many curves they hold."""

import io
import subprocess
import sys

import pytest

import digrad as dg
from digrad.errors import ArgumentError

PROBLEM, NETWORK = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())


@pytest.fixture(scope="module")
def trace():
    return dg.simulate(dg.CGT(step_size=0.05, threshold=5.0), PROBLEM, NETWORK, steps=20)


def test_plots_is_found_in_a_fresh_process():
    code = "import digrad; print(digrad.plots.curves.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "curves", done.stderr


def test_pdf_that_a_user_saves_has_no_type_3_fonts(trace):
    buffer = io.BytesIO()
    dg.plots.curves({"CGT": trace}).savefig(buffer, format="pdf")
    assert b"/Subtype /Type3" not in buffer.getvalue()
    assert b"/Subtype /Type0" in buffer.getvalue()


def test_many_curves_do_not_squash_the_panels(trace):
    def height(count):
        figure = dg.plots.curves({f"a method with a long label {i}": trace for i in range(count)})
        figure.savefig(io.BytesIO(), format="png", dpi=20)
        return figure.axes[0].get_position().height * figure.get_figheight()

    assert height(20) > 0.9 * height(1)


def test_one_metric_may_be_given_as_a_string(trace):
    assert len(trace.plot(metrics="loss").axes) == 1
    with pytest.raises(ArgumentError, match="`metrics` of curves must be names of columns, but got 3"):
        trace.plot(metrics=3)


def test_problem_is_shown_without_its_data():
    shown = repr(dg.problems.logistic(data="digits", agents=5))
    assert shown == "Problem('logistic regression on digits', n_agents=5, dim=64, n_samples=1797)"
