import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from digrad.theory import Row
from digrad.theory.inequality import worst_agent

SPECIAL = [0.0, -0.0, 1e-17, -1e-17, 1e-300, 1.0, -1.0, np.inf, -np.inf, np.nan]
SIDES = st.one_of(st.floats(-1e3, 1e3), st.sampled_from(SPECIAL))


def row(lhs: list[float], rhs: list[float]) -> Row:
    return Row("any", "all", np.array(lhs), np.array(rhs))


@given(st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=4))
@example([(1.0, -0.0)])
@example([(-np.inf, -np.inf)])
@example([(1.0, -np.inf)])
@example([(np.inf, np.inf)])
@example([(np.inf, 1.0)])
def test_ratio_exceeds_one_exactly_where_a_row_fails(sides):
    checked = row([lhs for lhs, _ in sides], [rhs for _, rhs in sides])
    assert (checked.max_ratio > 1) == (checked.status == "FAIL")


@pytest.mark.parametrize(
    ("lhs", "rhs", "ratio"),
    [
        (1.0, 2.0, 0.5),
        (-1.0, 2.0, -0.5),
        (-1.0, -2.0, 1.5),
        (-4.0, -2.0, 0.0),
        (3.0, -1.0, 5.0),
        (0.0, 0.0, 0.0),
        (1.0, -0.0, np.inf),
        (0.0, -0.0, 0.0),
        (1.0, np.inf, 0.0),
        (np.inf, np.inf, 0.0),
        (-np.inf, -np.inf, 0.0),
        (np.inf, 1.0, np.inf),
        (2e-200, 1e-200, 2.0),
    ],
)
def test_ratio_grows_with_the_left_side_for_bounds_of_either_sign(lhs, rhs, ratio):
    assert row([lhs], [rhs]).max_ratio == ratio


@pytest.mark.parametrize("unit", [1e-300, 1e-20, 1.0, 1e20])
def test_status_does_not_depend_on_the_unit_of_the_sides(unit):
    assert row([2 * unit], [unit]).status == "FAIL"
    assert row([unit], [unit]).status == "PASS"
    assert Row("any", "all", np.array([2 * unit]), np.array([unit]), rounding=unit).status == "PASS"


@given(st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=4))
def test_worst_agent_never_hides_a_violation(sides):
    lhs, rhs = (np.array([side]) for side in zip(*sides, strict=True))
    everyone = row(list(lhs[0]), list(rhs[0]))
    assert Row("any", "all", *worst_agent(lhs, rhs)).status == everyone.status


def test_worst_agent_is_not_the_one_with_a_bound_of_zero():
    lhs, rhs = worst_agent(np.array([[1e-17, 2.0]]), np.array([[0.0, 1.0]]))
    assert (lhs.tolist(), rhs.tolist()) == ([2.0], [1.0])
    lhs, rhs = worst_agent(np.array([[0.0, 0.9, 5.0]]), np.array([[0.0, 1.0, 9.0]]))
    assert (lhs.tolist(), rhs.tolist()) == ([0.9], [1.0])
