"""Hyper-parameters as the compiled loop sees them: numbers are traced, so that a new step size does not
compile again.

A field annotated with ``float`` is a leaf of the method's pytree; every other field (a name, a flag, a count)
is static.
"""

import dataclasses
import hashlib
from functools import cache
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from digrad.algorithms.fields import numeric_fields, with_fields
from digrad.errors import ArgumentError
from digrad.types import Schedule


@cache
def register(method_type: type) -> None:
    """Make a method class a pytree whose leaves are its numbers; unflattening skips the checks of its constructor."""
    numeric = numeric_fields(method_type)
    static = tuple(field.name for field in dataclasses.fields(method_type) if field.name not in numeric)

    def flatten(method: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(method, name) for name in numeric], tuple(getattr(method, name) for name in static)

    def unflatten(values: tuple[Any, ...], leaves: Any) -> Any:
        method = object.__new__(method_type)
        method.__dict__.update(zip(static, values, strict=True))
        method.__dict__.update(zip(numeric, leaves, strict=True))
        return method

    jax.tree_util.register_pytree_node(method_type, flatten, unflatten)


def split_schedules(method: Any, dtype: npt.DTypeLike) -> tuple[Any, dict[str, Schedule]]:
    """Return the method with numbers only (zero in place of a schedule), and its schedules by field."""
    register(type(method))
    values: dict[str, Any] = {name: getattr(method, name) for name in numeric_fields(type(method))}
    scheduled = [name for name, value in values.items() if callable(value)]
    schedules: dict[str, Schedule] = {name: values[name] for name in scheduled}
    arrays = {
        name: np.asarray(value, dtype)
        for name, value in values.items()
        if np.ndim(value) and not callable(value)
    }
    return with_fields(method, {**arrays, **dict.fromkeys(schedules, 0.0)}), schedules


def evaluate(
    schedules: dict[str, Schedule], owner: str, first: int, length: int, dtype: npt.DTypeLike
) -> dict[str, Any]:
    """Return each schedule at k = first, ..., first + length - 1, ``[length]``, all positive."""
    table = {}
    for name, schedule in schedules.items():
        values = np.array([schedule(k) for k in range(first, first + length)], dtype)
        bad = np.flatnonzero(~(values > 0))
        if values.shape != (length,) or bad.size:
            at = (
                f" gave {values[bad[0]]} at k = {first + bad[0]}"
                if bad.size
                else f" gave shape {values.shape[1:]}"
            )
            raise ArgumentError(
                f"`{name}` of {owner} is a schedule and must give a positive number for every k, but it{at}."
            )
        table[name] = values
    return table


def describe(method: Any) -> dict[str, Any]:
    """Return the hyper-parameters in a form that can be stored as JSON and compared between processes."""
    return {field.name: _plain(getattr(method, field.name)) for field in dataclasses.fields(method)}


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else repr(float(value))
    if hasattr(value, "tolist"):
        return value.tolist()
    if callable(value) and not dataclasses.is_dataclass(value):
        code = getattr(value, "__code__", None)
        text = code.co_code + repr(code.co_consts).encode() if code else repr(value).encode()
        return f"{getattr(value, '__qualname__', 'schedule')}:{hashlib.sha256(text).hexdigest()[:12]}"
    return repr(value)
