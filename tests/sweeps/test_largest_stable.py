"""The search for a value, whatever is measured."""

import math

import pytest

from digrad.errors import ArgumentError
from digrad.sweeps import best_value, largest_stable


def counted(function):
    calls = []
    return calls, lambda value: calls.append(value) or function(value)


def within_a_tenth(function, **options):
    """Search with the rule that a score is at most 0.1 above the best so far."""
    scores = {}

    def measure(value):
        scores[value] = function(value)
        return scores[value]

    return largest_stable(
        measure, is_stable=lambda value: scores[value] <= min(scores.values()) + 0.1, **options
    )


def test_the_edge_is_bracketed_and_bisected_to_the_precision_asked():
    calls, measure = counted(lambda size: 1.0 if size < 0.37 else math.inf)
    found = largest_stable(measure, start=0.01, precision=1.05, budget=30)
    assert found.is_bounded
    assert 0.37 / 1.05 <= found.value < 0.37
    assert [trial.value for trial in found.trials] == sorted(calls)


def test_a_start_that_is_too_large_is_searched_downwards():
    found = largest_stable(lambda size: 1.0 if size < 0.01 else math.nan, start=1.0, budget=20, precision=1.2)
    assert 0.01 / 1.2 <= found.value < 0.01


def test_without_bisection_values_lie_on_the_grid_of_the_factor():
    """The protocol of the CIFAR baselines: a loss per step size, neighbours a factor of two apart."""
    losses = {0.25: 0.9, 0.5: 0.5, 1.0: 0.52, 2.0: 3.0}
    found = within_a_tenth(losses.__getitem__, start=0.5)
    assert (found.value, found.is_bounded) == (1.0, True)
    assert [trial.value for trial in found.trials] == [0.25, 0.5, 1.0, 2.0]


def test_a_search_goes_down_until_the_smallest_is_not_the_best():
    calls, measure = counted(lambda size: abs(math.log2(size) + 5) + 1)  # best at 2**-5
    assert within_a_tenth(measure, start=1.0).value == 2**-5
    assert min(calls) == 2**-6


def test_a_search_goes_on_above_its_start_after_it_went_below():
    """Only what is below shows that the start is no worse than others."""
    tried = set()
    found = largest_stable(
        lambda size: tried.add(size) or 1 / size, start=1.0, is_stable=lambda size: min(tried) < size < 8
    )
    assert (found.value, found.is_bounded) == (4.0, True)


def test_a_search_that_meets_no_edge_says_so():
    found = largest_stable(lambda size: 1 / size, start=1.0, budget=4)
    assert (found.value, found.is_bounded, len(found.trials)) == (8.0, False, 4)


def test_a_search_whose_smallest_value_is_still_the_best_is_not_bounded():
    """A smaller one may be so much better that the value found is not stable."""
    found = within_a_tenth(lambda size: 1.2 ** math.log2(size), start=1.0, budget=4)
    assert (found.value, found.is_bounded) == (0.25, False)
    assert [trial.value for trial in found.trials] == [0.25, 0.5, 1.0, 2.0]


def test_nothing_stable_gives_no_value():
    found = largest_stable(lambda size: math.inf, start=1.0, budget=4)
    assert (found.value, found.is_bounded, len(found.trials)) == (None, False, 4)


def test_rounding_errors_do_not_send_a_search_down():
    calls, measure = counted(lambda size: 1 + 1e-16 * size if size < 2 else math.inf)
    assert largest_stable(measure, start=0.5).value == 1.0
    assert min(calls) == 0.5


def test_the_lowest_score_is_found_between_worse_ones():
    calls, measure = counted(lambda size: abs(math.log(size / 0.033)))
    found = best_value(measure, start=1.0, precision=1.1, budget=40)
    assert found.is_bounded
    assert 0.033 / 1.1 <= found.value <= 0.033 * 1.1
    assert len(calls) == len(set(calls)) < 20


def test_of_equal_scores_the_larger_value_is_taken():
    found = best_value(lambda size: 0.0 if size <= 1 else 1.0, start=0.5, budget=3)
    assert found.value == 1.0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"budget": 0}, "`budget` of largest_stable must be a whole number of at least 1"),
        ({"start": 0}, "`start`"),
        ({"factor": 1.0}, "must be above 1"),
        ({"precision": 0.5}, "must be above 1"),
    ],
)
def test_bad_arguments_are_refused(arguments, said):
    with pytest.raises(ArgumentError, match=said):
        largest_stable(lambda size: size, **{"start": 1.0, **arguments})
