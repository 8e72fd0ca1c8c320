"""Numbers as people read them."""

import math

import numpy as np
import pytest

from digrad._internal.formatting import shown, size
from digrad._internal.json_files import strict


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1200, "1.2 kB"), (3.5e9, "3.5 GB"), (2e12, "2 TB")]
)
def test_bytes_are_shown_in_the_unit_of_the_figures(count, text):
    assert size(int(count)) == text


def test_infinity_is_shown_and_nan_is_absent():
    assert [shown(value) for value in (math.inf, -math.inf, math.nan, None)] == ["inf", "-inf", "", ""]


def test_strict_json_has_neither_nan_nor_infinity_nor_numpy():
    value = {"a": np.array([1.0, np.inf]), "b": (np.float64("nan"), np.int64(3)), "c": [None, "x", True]}
    found = strict(value)
    assert found == {"a": [1.0, None], "b": [None, 3], "c": [None, "x", True]}
    assert type(found["b"][1]) is int
