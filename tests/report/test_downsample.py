"""Fewer rows, the same envelope."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from digrad.report.downsample import kept_rows


def test_short_runs_keep_every_row() -> None:
    assert kept_rows(np.arange(0, 500, 5), [np.zeros(100)], 100).tolist() == list(range(100))


@pytest.mark.parametrize("curves", [1, 7])
def test_number_of_rows_is_about_what_is_allowed(curves: int) -> None:
    generator = np.random.default_rng(0)
    noise = [generator.standard_normal(100_000) for _ in range(curves)]
    rows = kept_rows(np.arange(100_000), noise, 3000)
    assert 1000 < len(rows) <= 3100


def test_room_that_shared_extremes_leave_is_used() -> None:
    k = np.arange(400)
    falling = [np.exp(-k / (10 + number)) for number in range(30)]
    assert 60 < len(kept_rows(k, falling, 100)) <= 100


@given(st.integers(300, 3000), st.integers(60, 250), st.integers(0, 99))
def test_every_window_keeps_its_envelope_to_within_a_stretch(size: int, most: int, seed: int) -> None:
    generator = np.random.default_rng(seed)
    values = generator.standard_normal(size).cumsum()
    rows = kept_rows(np.arange(size), [values], most)
    assert np.all(np.diff(rows) > 0)
    assert rows[0] == 0
    assert rows[-1] == size - 1
    assert values[rows].max() == values.max()
    assert values[rows].min() == values.min()
    stretch = -(-size // 10)
    for begin in range(0, size - 2 * stretch, stretch):
        inside = rows[(rows >= begin) & (rows < begin + 2 * stretch)]
        middle = values[begin + stretch // 2 : begin + 3 * stretch // 2]
        assert inside.size
        assert values[inside].max() >= np.median(middle)


def test_last_finite_value_before_an_explosion_is_kept() -> None:
    values = np.linspace(1, 0, 5000)
    values[4321:] = np.nan
    assert 4320 in kept_rows(np.arange(5000), [values], 200)


def test_curve_without_a_finite_value_is_no_obstacle() -> None:
    assert len(kept_rows(np.arange(5000), [np.full(5000, np.nan)], 200)) > 50


def test_first_rows_stay_for_a_logarithmic_axis() -> None:
    rows = kept_rows(np.arange(100_000), [np.ones(100_000)], 600)
    assert set(range(20)) <= set(rows.tolist())
    assert np.sum((rows >= 20) & (rows < 1000)) >= 10
