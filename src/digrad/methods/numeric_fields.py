"""The fields of a method seen from an engine: which are numbers, and a copy with other values."""

import dataclasses
import typing
from functools import cache
from typing import Any

from digrad import checks
from digrad.errors import ArgumentError


def with_fields(method: Any, values: dict[str, Any]) -> Any:
    """Return a copy of ``method`` with other field values, without the checks of its constructor."""
    copy = object.__new__(type(method))
    copy.__dict__.update({**method.__dict__, **values})
    return copy


@cache
def numeric_fields(method_type: type) -> tuple[str, ...]:
    """Return the names of the fields that hold numbers: those annotated with ``float``.

    Every other field (a name, a flag, a count) is static: an engine may compile it in.

    >>> from digrad.methods import DGDClip
    >>> numeric_fields(DGDClip)
    ('step_size', 'threshold')
    """
    hints = typing.get_type_hints(method_type)
    names = [field.name for field in dataclasses.fields(method_type)]
    return tuple(name for name in names if hints[name] is float or float in typing.get_args(hints[name]))


def check_columns(method: Any, n: int) -> None:
    """Raise unless every number of a method is one number, a schedule, or a column with one number per agent.

    A centralized method, which needs nothing but averages, has one number for all: its agents would part.
    """
    owner, centralized = type(method).__name__, method.needs == {"mean"}
    for name in numeric_fields(type(method)):
        value = getattr(method, name)
        checks.one_or_column(value, name, owner, n)
        if centralized and getattr(value, "shape", ()):
            raise ArgumentError(
                f"`{name}` of {owner} must be one number, because all its agents take the same step."
            )
