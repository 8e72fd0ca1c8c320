import math
from typing import Any

import jax
import pytest

from digrad.errors import ArgumentError
from digrad.schedules import SCHEDULES, Constant, Inverse, InverseSqrt


def test_values_follow_their_formulas() -> None:
    assert [Constant(0.3)(k) for k in (0, 7)] == [0.3, 0.3]
    assert [Inverse(0.5, 10)(k) for k in (0, 40)] == [0.05, 0.01]
    assert [InverseSqrt(2.0, 4.0)(k) for k in (0, 12)] == [1.0, 0.5]


def test_offset_defaults_to_one_so_that_the_first_value_is_the_scale() -> None:
    assert Inverse(0.5)(0) == InverseSqrt(0.5)(0) == 0.5


@pytest.mark.parametrize("schedule", [Constant(0.3), Inverse(0.5), InverseSqrt(0.5)], ids=repr)
def test_schedule_never_increases_and_accepts_a_traced_iteration(schedule: Any) -> None:
    values = [schedule(k) for k in range(20)]
    assert values == sorted(values, reverse=True)
    assert float(jax.jit(schedule)(5)) == pytest.approx(values[5], rel=1e-6)


@pytest.mark.parametrize("schedule", [Constant(0.3), Inverse(0.5, 2.0), InverseSqrt(0.5)], ids=repr)
def test_schedule_is_a_value_that_its_repr_rebuilds(schedule: Any) -> None:
    names = {kind.__name__: kind for kind in SCHEDULES.values()}
    rebuilt = eval(repr(schedule), names)
    assert rebuilt == schedule
    assert hash(rebuilt) == hash(schedule)


@pytest.mark.parametrize("kind", [Inverse, InverseSqrt])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_bad_fields_are_refused_by_name(kind: Any, value: float) -> None:
    with pytest.raises(ArgumentError, match=f"`scale` of {kind.__name__}"):
        kind(value)
    with pytest.raises(ArgumentError, match=f"`offset` of {kind.__name__}"):
        kind(1.0, value)


def test_constant_may_be_infinite_as_a_threshold_but_not_zero() -> None:
    assert Constant(math.inf)(3) == math.inf
    with pytest.raises(ArgumentError, match="`value` of Constant"):
        Constant(0.0)
