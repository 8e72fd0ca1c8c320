"""Values that a sweep tries, and those it refuses before the first run."""

import pytest

import digrad as dg
from digrad.errors import ArgumentError
from digrad.sweeps.space import candidates


def test_every_combination_is_tried_and_fields_count_for_the_methods_that_have_them():
    found = candidates(
        [dg.CGT, dg.AB], {"step_size": [0.1, 0.2], "threshold": [1.0, 2.0, 3.0]}, None, None, 0
    )
    assert [one.label for one in found] == ["CGT"] * 6 + ["AB"] * 2
    assert found[1].method.threshold == 2.0
    assert found[-1].values == {"step_size": 0.2}


def test_a_method_keeps_the_fields_that_are_not_swept():
    (one,) = candidates(dg.DGDClip(0.1, 5.0, mixing="row"), {"step_size": [0.3]}, None, None, 0)
    assert (one.method.step_size, one.method.threshold, one.method.mixing) == (0.3, 5.0, "row")


def test_random_draws_stay_within_their_bounds_and_follow_the_seed():
    random = {"step_size": dg.LogUniform(1e-4, 1.0), "threshold": [1.0, 5.0]}
    first, again, other = (candidates(dg.CGT, None, random, 40, seed) for seed in (0, 0, 1))
    sizes = [one.method.step_size for one in first]
    assert all(1e-4 <= size <= 1.0 for size in sizes)
    assert sum(size < 1e-2 for size in sizes) in range(10, 31)  # half of the decades
    assert {one.method.threshold for one in first} == {1.0, 5.0}
    assert sizes == [one.method.step_size for one in again] != [one.method.step_size for one in other]


def test_draws_are_combined_with_the_grid():
    found = candidates(dg.CGT, {"threshold": [1.0, 2.0]}, {"step_size": dg.Uniform(0.1, 0.2)}, 3, 0)
    assert len(found) == 6
    assert len({one.values["step_size"] for one in found}) == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"grid": {}}, "`grid` of sweep must map at least one field"),
        ({"grid": {"step_size": []}}, "`grid` of sweep must hold at least one value for `step_size`"),
        ({"grid": {"step_size": 0.1}}, r"write \[0.1\]"),
        ({"grid": {"step_sise": [0.1]}}, "Did you mean `step_size`"),
        (
            {"grid": {"step_size": [0.1, -1.0], "threshold": [1.0]}},
            "a value that CGT refuses: `step_size` of CGT",
        ),
        ({"grid": {"step_size": [0.1]}}, "takes step_size, threshold, but the sweep gives step_size"),
        ({"random": {"step_size": dg.Uniform(0, 1)}}, "`samples` must say how many"),
        ({"samples": 3}, "`random` is missing"),
        ({"grid": {"step_size": [1]}, "random": {"step_size": [1]}, "samples": 1}, "leave it out of one"),
    ],
)
def test_a_sweep_that_cannot_be_run_is_refused_in_one_line(arguments, said):
    given = {"grid": None, "random": None, "samples": None, **arguments}
    with pytest.raises(ArgumentError, match=said) as refused:
        candidates(dg.CGT, given["grid"], given["random"], given["samples"], 0)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("bounds", [(1.0, 0.1), (0.0, 1.0), (1.0, float("inf"))])
def test_bounds_of_draws_are_checked(bounds):
    with pytest.raises(ArgumentError):
        dg.LogUniform(*bounds)


@pytest.mark.parametrize("methods", [[], [dg.CGT, dg.CGT], ["CGT"], 3])
def test_what_is_no_method_is_refused(methods):
    with pytest.raises(ArgumentError, match="`methods` of sweep"):
        candidates(methods, {"step_size": [0.1]}, None, None, 0)
