"""The search for a step size finds the edge that the dynamics have."""

import numpy as np
import pytest

import digrad as dg
from digrad.errors import ArgumentError

NETWORK = dg.Network(dg.graphs.complete(2))
CURVATURE = 4.0
PARABOLA = dg.problems.quadratic(curvature=[[CURVATURE], [CURVATURE]], linear=[[0.0], [0.0]])
EDGE = 2 / CURVATURE  # of gradient descent on a parabola


def test_the_largest_stable_step_of_gradient_descent_is_two_over_the_curvature():
    found = dg.tune(dg.GD(step_size=0.01), PARABOLA, NETWORK, steps=400, x0=[1.0], precision=1.05, budget=20)
    assert found.is_bounded
    assert EDGE / 1.05 <= found.value < EDGE
    assert found.method.step_size == found.value
    stable = found.table.groupby("step_size")["is_stable"].all()
    assert stable[found.value]
    assert not stable[stable.index > found.value].any()


def test_the_best_final_value_of_gradient_descent_is_at_one_over_the_curvature():
    found = dg.tune(
        dg.GD(step_size=0.01), PARABOLA, NETWORK, steps=10, x0=[1.0], goal="best final value", budget=25
    )
    assert found.is_bounded
    assert found.value == pytest.approx(1 / CURVATURE, rel=0.1)


def test_clipped_agents_that_never_agree_are_not_stable():
    opposed = dg.problems.quadratic(curvature=[[1.0], [1.0]], linear=[[11.0], [-9.0]])
    found = dg.tune(dg.CGT(step_size=0.1, threshold=1.0), opposed, NETWORK, steps=400, x0=[1.0], budget=9)
    ends = found.table.groupby("step_size")["final_consensus_error"].max()
    assert found.is_bounded
    assert ends[found.value] < 1e-6
    assert ends[ends.index > found.value].min() > 0.1
    assert found.table["final_loss"].max() == pytest.approx(-0.5)  # at the average all of them look well
    stable, unstable = found.plot().axes[0].lines[:2]  # the score shows it
    assert max(stable.get_ydata()) < -0.49 < min(unstable.get_ydata())


def test_a_bias_of_the_method_is_no_instability():
    """DGD ends beside the minimum, with agents apart in proportion to the step; differences grow from 1 / L on."""
    opposed = dg.problems.quadratic(curvature=[[CURVATURE]] * 2, linear=[[0.3], [-0.3]])
    found = dg.tune(dg.DGD(step_size=0.01), opposed, NETWORK, steps=200, x0=[1.0], precision=1.05, budget=16)
    assert found.is_bounded
    assert 0.9 / CURVATURE < found.value < 1 / CURVATURE


def test_a_longer_run_refutes_an_answer_of_a_short_one():
    """A step a few percent too large grows from a small beginning, which 20 steps from afar hide."""
    slope = dg.problems.quadratic(curvature=[[CURVATURE, 0.01]] * 2, linear=[[0.0, 0.0]] * 2)
    options = {"steps": 20, "x0": [1e-3, 1e3], "precision": 1.05}
    hasty = dg.tune(dg.GD(step_size=1.05 * EDGE), slope, NETWORK, **options, confirm=1)
    found = dg.tune(dg.GD(step_size=1.05 * EDGE), slope, NETWORK, **options, confirm=10)
    assert hasty.value >= 1.05 * EDGE
    assert found.value == pytest.approx(EDGE, rel=0.03)
    assert not found.table[found.table["step_size"] > found.value]["is_stable"].any()


def test_the_worst_seed_decides_and_all_seeds_are_evidence():
    found = dg.tune(dg.GD(step_size=0.3), PARABOLA, NETWORK, steps=50, x0="normal", seeds=2, budget=5)
    runs = found.table.groupby(["step_size", "planned_steps"])
    assert runs.size().eq(2).all()
    worst, finite = runs["final_loss"].max(), runs["score"].first()
    np.testing.assert_allclose(worst[np.isfinite(finite)], finite[np.isfinite(finite)], rtol=1e-12)


def test_held_out_losses_decide_where_there_are_some():
    elsewhere = dg.problems.quadratic(curvature=[[1.0]], linear=[[10.0]])
    found = dg.tune(dg.GD(step_size=0.1), PARABOLA, NETWORK, steps=5, x0=[1.0], held_out=elsewhere, budget=4)
    assert found.metric == "held_out_loss"
    np.testing.assert_allclose(found.table["score"], found.table["held_out_loss"], rtol=1e-12)


def test_a_budget_that_ends_too_early_is_said():
    found = dg.tune(dg.GD(step_size=1e-4), PARABOLA, NETWORK, steps=20, x0=[1.0], budget=3)
    assert not found.is_bounded
    assert "the budget ended first" in repr(found)


def test_values_that_the_method_refuses_bound_the_search():
    method = dg.CDSGDPolyak(step_size=0.1, momentum=0.6)
    found = dg.tune(method, PARABOLA, NETWORK, steps=200, x0=[1.0], field="momentum", budget=5)
    tried = found.table["momentum"].tolist()
    assert 0.6 in tried
    assert 1.2 not in tried  # it has no row
    assert found.is_bounded


def test_nothing_stable_is_a_result(tmp_path):
    found = dg.tune(dg.GD(step_size=1e3), PARABOLA, NETWORK, steps=100, x0=[1.0], budget=3)
    assert found.value is None
    assert found.to_dict()["trials"][0]["score"] is None
    assert found.plot(tmp_path / "a.png") is not None


@pytest.mark.parametrize(
    ("method", "arguments", "said"),
    [
        (dg.GD(0.1), {"budget": 2}, "`budget` of tune must be a whole number of at least 3, but got 2"),
        (dg.GD(0.1), {"steps": None}, "`steps` of tune must be a whole number of at least 1, but got None"),
        (dg.GD(0.1), {"record_every": 0}, "`record_every` of tune must be a whole number"),
        (dg.GD(0.1), {"goal": "fast"}, "`goal` of tune must be one of"),
        (dg.GD(0.1), {"field": "stepsize"}, "Did you mean `step_size`"),
        (dg.GD(lambda k: 0.1), {}, "one finite number for tune to start from"),
        (dg.CGT(0.1, float("inf")), {"field": "threshold"}, "one finite number"),
        (dg.GD, {}, "must be a method such as"),
    ],
)
def test_bad_arguments_get_one_line(method, arguments, said):
    with pytest.raises(ArgumentError, match=said) as refused:
        dg.tune(method, PARABOLA, NETWORK, **{"steps": 5, **arguments})
    assert "\n" not in str(refused.value)
