import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytest

from digrad import checks
from digrad.errors import ArgumentError, DigradError
from digrad.types import Count, Positive


@pytest.mark.parametrize("value", [1, 0.5, np.float32(2.0), np.int64(3), np.array([[1.0], [2.0]])])
def test_positive_accepts_positive_numbers_and_arrays(value: Any) -> None:
    assert checks.positive(value, "step_size", "CGT") is None


@pytest.mark.parametrize("value", [lambda k: 0.1, object()], ids=["schedule", "traced"])
def test_positive_trusts_what_is_not_a_concrete_number(value: Any) -> None:
    assert checks.positive(value, "step_size", "CGT") is None


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, True, "1", None, [1.0], (1.0,)])
def test_positive_refuses_and_names_argument_owner_and_value(value: Any) -> None:
    with pytest.raises(ArgumentError) as caught:
        checks.positive(value, "step_size", "CGT")
    message = str(caught.value)
    assert "`step_size` of CGT" in message
    assert repr(value) in message
    assert "\n" not in message


@pytest.mark.parametrize("value", [[[1.0], [0.0]], [[math.inf]], [[math.nan]]])
def test_positive_refuses_an_array_with_a_bad_entry(value: Any) -> None:
    with pytest.raises(ArgumentError, match="`threshold` of CGT must be positive and finite in every entry"):
        checks.positive(np.array(value), "threshold", "CGT")


def test_positive_allows_infinity_on_request() -> None:
    assert checks.positive(math.inf, "threshold", "CGT", allow_inf=True) is None
    assert checks.positive(np.array([math.inf, 1.0]), "threshold", "CGT", allow_inf=True) is None
    with pytest.raises(ArgumentError, match="must be positive, but got nan"):
        checks.positive(math.nan, "threshold", "CGT", allow_inf=True)


@pytest.mark.parametrize("value", [0, 0.0, 0.999])
def test_fraction_accepts_zero_up_to_one(value: float) -> None:
    assert checks.fraction(value, "momentum", "Adam") is None


@pytest.mark.parametrize("value", [1.0, -0.1, math.nan, "0.5", True])
def test_fraction_refuses_the_rest(value: Any) -> None:
    with pytest.raises(ArgumentError, match="`momentum` of Adam must be"):
        checks.fraction(value, "momentum", "Adam")


@pytest.mark.parametrize("value", [3, 3.0, np.int64(3), np.float64(3.0)])
def test_count_returns_an_int(value: Any) -> None:
    result = checks.count(value, "steps", "simulate")
    assert result == 3
    assert type(result) is int


@pytest.mark.parametrize("value", [0, -1, 2.5, math.nan, math.inf, True, "3", None])
def test_count_refuses_what_is_not_a_whole_number(value: Any) -> None:
    with pytest.raises(ArgumentError, match="`steps` of simulate must be a whole number of at least 1"):
        checks.count(value, "steps", "simulate")


def test_count_respects_the_minimum() -> None:
    assert checks.count(0, "seed", "ring", minimum=0) == 0
    with pytest.raises(ArgumentError, match="at least 2, but got 1"):
        checks.count(1, "n", "ring", minimum=2)


def test_choice_lists_the_options_and_suggests_the_nearest() -> None:
    assert checks.choice("row", "mixing", "DGD", ("sinkhorn", "row")) is None
    with pytest.raises(
        ArgumentError, match=r"'sinkhorn', 'row', but got 'sinkhorm'. Did you mean `sinkhorn`\?"
    ):
        checks.choice("sinkhorm", "mixing", "DGD", ("sinkhorn", "row"))


def test_did_you_mean_is_silent_when_nothing_is_near() -> None:
    assert checks.did_you_mean("zebra", ["step_size", "threshold"]) == ""


@pytest.mark.parametrize(
    ("value", "near"), [("cgt", "CGT"), ("dgdclip", "DGDClip"), ("STEP_SISE", "step_size")]
)
def test_did_you_mean_ignores_case(value: str, near: str) -> None:
    assert checks.did_you_mean(value, ["CGT", "DGDClip", "step_size"]) == f" Did you mean `{near}`?"


def test_did_you_mean_is_not_misled_by_an_option_that_shares_the_case() -> None:
    assert checks.did_you_mean("damsgrad", ["DAdaGrad", "DAMSGrad"]) == " Did you mean `DAMSGrad`?"


def test_count_respects_the_maximum() -> None:
    assert checks.count(5, "n", "ring", maximum=5) == 5
    with pytest.raises(ArgumentError, match="`n` of ring must be at most 5, but got 6"):
        checks.count(6, "n", "ring", maximum=5)


def test_errors_are_both_digrad_errors_and_value_errors() -> None:
    assert issubclass(ArgumentError, DigradError)
    assert issubclass(ArgumentError, ValueError)


@dataclass(frozen=True)
class Circle:
    radius: Positive
    color: Literal["red", "blue"] = "red"
    copies: Count | None = None

    __post_init__ = checks.fields


@pytest.mark.parametrize(
    ("given", "name"), [((-1.0,), "radius"), ((1.0, "green"), "color"), ((1.0, "red", 0), "copies")]
)
def test_fields_are_checked_by_their_annotations(given: Any, name: str) -> None:
    with pytest.raises(ArgumentError, match=f"`{name}` of Circle must be"):
        Circle(*given)


def test_fields_are_stored_in_their_one_form() -> None:
    assert Circle(1.0, "blue", 2.0).copies == 2  # pyright: ignore[reportArgumentType]
    assert Circle(1.0).copies is None
