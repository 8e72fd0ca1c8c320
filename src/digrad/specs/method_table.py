"""The tables ``[methods.<label>]`` of a specification: a method and its hyper-parameters."""

import typing
from typing import Any

import numpy as np
from pydantic import ConfigDict, PrivateAttr, TypeAdapter, ValidationError, model_validator
from pydantic.errors import PydanticSchemaGenerationError

from digrad.errors import DigradError
from digrad.methods.registry import ALL_METHODS
from digrad.schedules import SCHEDULES
from digrad.specs.messages import Section, check_call, is_number, named_value, refuse, require_choice
from digrad.types import Method


class MethodTable(Section):
    """``[methods.<label>]``: the name of a method (by default the label) and its fields.

    A number may be a list, one per agent, or a schedule: ``step_size = {schedule = "inverse_sqrt", scale = 0.5}``.

    Args:
        method: A class of :data:`digrad.METHODS`, or one that another package announces; the other keys are its fields.
    """

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    method: str
    _built: Any = PrivateAttr(None)

    @property
    def fields(self) -> dict[str, Any]:
        """The hyper-parameters as the file gives them."""
        return dict(self.model_extra or {})

    @model_validator(mode="after")
    def _check(self) -> "MethodTable":
        require_choice(self.method, ALL_METHODS, "method")
        kind = ALL_METHODS[self.method]
        check_call(kind, self.fields, self.method)
        hints = typing.get_type_hints(kind)
        fields = {name: _value(value, hints[name], name) for name, value in self.fields.items()}
        try:
            self._built = kind(**fields)
        except DigradError as error:
            raise refuse(str(error)) from error
        return self

    def build(self) -> Method:
        """Return the method, which was built when the table was checked."""
        return self._built


def _value(value: Any, hint: Any, key: str) -> Any:
    if hint is float or float in typing.get_args(hint):
        return hyper_parameter(value, key)
    try:
        return TypeAdapter(hint, config=ConfigDict(strict=True)).validate_python(value)
    except PydanticSchemaGenerationError as error:
        raise refuse("cannot be given in a specification; build the method in Python.", key) from error
    except ValidationError as error:
        expected = typing.get_args(hint)
        if expected and all(isinstance(option, str) for option in expected):
            require_choice(value, expected, key)
        raise refuse(f"must be {getattr(hint, '__name__', hint)}, but got {value!r}.", key) from error


def hyper_parameter(value: Any, key: str) -> Any:
    """Return a number, a column of one per agent, or a schedule, as a specification writes it."""
    if is_number(value):
        return value
    if isinstance(value, list) and value and all(map(is_number, value)):
        return np.array(value, np.float64)[:, None]  # [n, 1]
    if not isinstance(value, dict):
        raise refuse(f"must be a number, a list with one per agent, or a schedule, but got {value!r}.", key)
    return named_value(value, "schedule", SCHEDULES, key)
