"""The method of iteration k: what schedules give is checked as the run will use it."""

import numpy as np
import pytest

from digrad.algorithms import AB
from digrad.engine.hyper import tables
from digrad.errors import ArgumentError


@pytest.mark.parametrize(("value", "got"), [(1e-60, "0.0"), (1e60, "inf")])
def test_schedule_that_leaves_single_precision_is_refused_with_its_iteration(value, got):
    method = AB(lambda k: value if k == 2 else 0.1)
    assert tables(method, "AB", range(4), 4, np.float64)["step_size"][2] == value
    with pytest.raises(ArgumentError, match=f"is a schedule, and at k = 2: .* but got {got}"):
        tables(method, "AB", range(4), 4, np.float32)
