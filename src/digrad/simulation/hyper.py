"""Hyper-parameters as the compiled loop sees them: numbers are traced, so that a new step size does not
compile again.

A field annotated with ``float`` is a leaf of the method's pytree; every other field (a name, a flag, a count)
is static.
"""

import dataclasses
import inspect
from collections.abc import Iterable
from functools import cache
from numbers import Real
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from digrad.algorithms.fields import numeric_fields, with_fields
from digrad.errors import ArgumentError
from digrad.fingerprints import fingerprint
from digrad.schedules import SCHEDULES


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


def without_schedules(method: Any, dtype: npt.DTypeLike) -> Any:
    """Return the method with numbers only: zero in place of a schedule.

    Raises:
        ArgumentError: A schedule does not take one argument.
    """
    register(type(method))
    values: dict[str, Any] = {name: getattr(method, name) for name in numeric_fields(type(method))}
    scheduled = [name for name, value in values.items() if callable(value)]
    for name in scheduled:
        _check_signature(values[name], name, type(method).__name__)
    arrays = {
        name: np.asarray(value, dtype)
        for name, value in values.items()
        if np.ndim(value) and not callable(value)
    }
    return with_fields(method, {**arrays, **dict.fromkeys(scheduled, 0.0)})


def _check_signature(schedule: Any, name: str, owner: str) -> None:
    try:
        signature = inspect.signature(schedule)
    except (TypeError, ValueError):  # a function in C need not have one
        return
    try:
        signature.bind(0)
    except TypeError as error:
        raise ArgumentError(
            f"`{name}` of {owner} is a schedule and must be a function of the iteration k alone, but it takes "
            f"{signature} ({error})."
        ) from None


def evaluate(method: Any, owner: str, ks: range, length: int, dtype: npt.DTypeLike) -> dict[str, Any]:
    """Return each schedule of a method at the iterations ``ks``, NaN beyond them up to ``length``.

    Raises:
        ArgumentError: A value is no number, or the method does not take it; the message names k.
    """
    return {
        name: np.pad(_values(method, name, owner, ks, dtype), (0, length - len(ks)), constant_values=np.nan)
        for name in numeric_fields(type(method))
        if callable(getattr(method, name))
    }


def _values(method: Any, name: str, owner: str, ks: range, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    schedule = getattr(method, name)
    values = [_number(schedule(k), name, owner, k) for k in ks]
    try:
        dataclasses.replace(method, **{name: np.array(values, np.float64)})  # all at once, by its own checks
    except ArgumentError:
        _refuse_first(method, name, owner, zip(ks, values, strict=True))
    return np.array(values, dtype)


def _number(value: Any, name: str, owner: str, k: int) -> Any:
    value = value.item() if hasattr(value, "item") and np.ndim(value) == 0 else value
    if not isinstance(value, Real) or isinstance(value, bool) or np.isnan(float(value)):
        raise ArgumentError(
            f"`{name}` of {owner} is a schedule and must give a number for every k, but it gave {value!r} at k = {k}."
        )
    return value


def _refuse_first(method: Any, name: str, owner: str, values: Iterable[tuple[int, Any]]) -> None:
    for k, value in values:
        try:
            dataclasses.replace(method, **{name: value})
        except ArgumentError as error:
            raise ArgumentError(f"`{name}` of {owner} is a schedule, and at k = {k}: {error}") from error


def describe(method: Any) -> dict[str, Any]:
    """Return the hyper-parameters in a form that can be stored as JSON and compared between processes.

    Raises:
        ArgumentError: A schedule holds something that has no fingerprint.
    """
    return {field.name: _plain(getattr(method, field.name)) for field in dataclasses.fields(method)}


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else repr(float(value))
    if hasattr(value, "tolist"):
        return value.tolist()
    if type(value) in SCHEDULES.values():
        return repr(value)
    return f"{getattr(value, '__qualname__', type(value).__qualname__)}:{fingerprint(value)[:12]}"
