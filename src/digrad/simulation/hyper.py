"""Hyper-parameters as the compiled loop sees them: numbers are traced, so that a new step size does not
compile again.

A field annotated with ``float`` is a leaf of the method's pytree; every other field (a name, a flag, a count)
is static.
"""

import dataclasses
from functools import cache
from numbers import Real
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from digrad.algorithms.fields import numeric_fields, with_fields
from digrad.errors import ArgumentError
from digrad.fingerprints import fingerprint
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
    schedules: dict[str, Schedule], owner: str, ks: range, length: int, dtype: npt.DTypeLike
) -> dict[str, Any]:
    """Return each schedule at the iterations ``ks``, all positive, and NaN beyond them up to ``length``."""
    return {
        name: np.pad(_values(schedule, name, owner, ks, dtype), (0, length - len(ks)), constant_values=np.nan)
        for name, schedule in schedules.items()
    }


def _values(schedule: Schedule, name: str, owner: str, ks: range, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    values = []
    for k in ks:
        value: Any = schedule(k)
        value = value.item() if hasattr(value, "item") and np.ndim(value) == 0 else value
        if not (isinstance(value, Real) and float(value) > 0):
            raise ArgumentError(
                f"`{name}` of {owner} is a schedule and must give a positive number for every k, but it gave "
                f"{value!r} at k = {k}."
            )
        values.append(value)
    return np.array(values, dtype)


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
        return f"{getattr(value, '__qualname__', 'schedule')}:{fingerprint(value)[:12]}"
    return repr(value)
