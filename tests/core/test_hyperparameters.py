"""The method of iteration k: what schedules give is checked as the run will use it."""

import numpy as np
import pytest

from digrad.core.hyperparameters import describe, tables
from digrad.errors import ArgumentError
from digrad.methods import AB, CGT


@pytest.mark.parametrize(("value", "got"), [(1e-60, "0.0"), (1e60, "inf")])
def test_schedule_that_leaves_single_precision_is_refused_with_its_iteration(value, got):
    method = AB(lambda k: value if k == 2 else 0.1)
    assert tables(method, "AB", range(4), 4, np.float64)["step_size"][2] == value
    with pytest.raises(ArgumentError, match=f"is a schedule, and at k = 2: .* but got {got}"):
        tables(method, "AB", range(4), 4, np.float32)


def test_hyper_parameters_of_many_agents_are_described_by_a_hash():
    few, many, other = (
        CGT(step_size=0.1, threshold=np.full((n, 1), c)) for n, c in ((5, 2.0), (1000, 2.0), (1000, 3.0))
    )
    assert describe(few)["threshold"] == [[2.0]] * 5
    assert describe(many)["threshold"].startswith("float64[1000, 1]:")
    assert len(describe(many)["threshold"]) < 100
    assert describe(many)["threshold"] != describe(other)["threshold"]
