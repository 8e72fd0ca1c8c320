import math

import pytest

from digrad.experiments.step_size_search import largest_converging


def losses(table):
    """Return a measure that looks losses up, and the list of step sizes it was asked for."""
    asked = []

    def measure(step_size):
        asked.append(step_size)
        return table(step_size)

    return measure, asked


def test_search_takes_the_largest_step_size_near_the_best_loss():
    table = {0.125: 2.0, 0.25: 1.02, 0.5: 1.0, 1.0: 1.04, 2.0: 1.2, 4.0: math.inf}
    found = largest_converging(table.__getitem__, start=0.5)
    assert found.step_size == 1.0
    assert found.is_bounded


def test_search_goes_down_until_the_smallest_is_not_the_best():
    measure, asked = losses(lambda size: abs(math.log2(size) + 5) + 1)  # best at 2**-5
    found = largest_converging(measure, start=1.0)
    assert found.step_size == 2**-5
    assert min(asked) == 2**-6


def test_search_goes_up_until_a_step_size_diverges():
    measure, asked = losses(lambda size: 1 / size if size < 8 else math.nan)
    found = largest_converging(measure, start=1.0)
    assert found.step_size == 4.0
    assert found.trials[-1].loss is None
    assert max(asked) == 8.0


def test_search_finds_none_when_every_step_size_diverges():
    found = largest_converging(lambda size: math.inf, start=1.0, most=4)
    assert found.step_size is None
    assert [trial.step_size for trial in found.trials] == [0.125, 0.25, 0.5, 1.0]


def test_search_says_that_its_limit_ended_it():
    found = largest_converging(lambda size: 1 / size, start=1.0, most=3)
    assert found.step_size == 4.0
    assert not found.is_bounded


def test_search_measures_each_step_size_once():
    measure, asked = losses(lambda size: (size - 1) ** 2 + 1)
    largest_converging(measure, start=1.0)
    assert len(asked) == len(set(asked))


def test_search_counts_the_slack_of_a_negative_loss_upwards():
    found = largest_converging({0.5: -10.0, 1.0: -9.8, 2.0: -5.0, 0.25: -3.0}.__getitem__, start=0.5)
    assert found.step_size == pytest.approx(1.0)
