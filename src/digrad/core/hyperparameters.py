"""Hyper-parameters as an engine sees them: which fields are numbers, their values at iteration k, their form as JSON.

Schedules are evaluated here, never by the method.
"""

import dataclasses
import hashlib
import math
import sys
import typing
from collections.abc import Iterable, Sequence
from functools import cache
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from digrad import checks
from digrad._internal.fingerprints import fingerprint
from digrad.errors import ArgumentError
from digrad.schedules import SCHEDULES

MOST_LISTED = 64  # entries of a hyper-parameter per agent that are written out; of more a hash is


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


def scheduled_fields(method: Any) -> list[str]:
    """Return the names of the hyper-parameters that are functions of k."""
    return [name for name in numeric_fields(type(method)) if callable(getattr(method, name))]


def check_schedules(method: Any) -> None:
    """Raise unless every schedule is a function of the iteration alone."""
    for name in scheduled_fields(method):
        checks.function_of_k(getattr(method, name), name, type(method).__name__)


def at_iteration(method: Any, k: int) -> Any:
    """Return the method of iteration k, its schedules evaluated."""
    owner = type(method).__name__
    values = {
        name: float(_values(method, name, owner, range(k, k + 1), np.float64)[0])
        for name in scheduled_fields(method)
    }
    return with_fields(method, values)


def tables(method: Any, owner: str, ks: Sequence[int], length: int, dtype: npt.DTypeLike) -> dict[str, Any]:
    """Return each schedule of a method at the iterations ``ks``, NaN beyond them up to ``length``.

    Raises:
        ArgumentError: A value is no number, or the method does not take it; the message names k.
    """
    return {
        name: np.pad(_values(method, name, owner, ks, dtype), (0, length - len(ks)), constant_values=np.nan)
        for name in scheduled_fields(method)
    }


def _values(method: Any, name: str, owner: str, ks: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    schedule = getattr(method, name)
    values = [_number(schedule, name, owner, k) for k in ks]
    with np.errstate(over="ignore"):
        rounded = np.array(values, np.float64).astype(dtype)  # where a small number may vanish
    try:
        dataclasses.replace(method, **{name: rounded})  # all at once, by its own checks
    except ArgumentError:
        _refuse_first(method, name, owner, zip(ks, values, strict=True))
        _refuse_first(method, name, owner, zip(ks, rounded.tolist(), strict=True))
    return rounded


def _number(schedule: Any, name: str, owner: str, k: int) -> Any:
    try:
        value = schedule(k)
    except OverflowError:  # as of 2.0 ** 2000
        return math.inf
    value = value.item() if hasattr(value, "item") and np.ndim(value) == 0 else value
    if not isinstance(value, Real) or isinstance(value, bool) or value != value:
        raise ArgumentError(
            f"`{name}` of {owner} is a schedule and must give a number for every k, but it gave {value!r} at k = {k}."
        )
    return math.inf if isinstance(value, int) and value > sys.float_info.max else value


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
    return {field.name: plain(getattr(method, field.name)) for field in dataclasses.fields(method)}


def plain(value: Any) -> Any:
    """Return a hyper-parameter as JSON can hold it: a long array by shape and hash, a function by name and hash.

    Raises:
        ArgumentError: A function holds something that has no fingerprint.
    """
    if isinstance(value, bool | int | str) or value is None:
        return value
    if isinstance(value, float | np.floating):
        return float(value) if np.isfinite(value) else repr(float(value))
    if hasattr(value, "tolist"):
        return value.tolist() if is_short(value) else _digest(np.asarray(value))
    if type(value) in SCHEDULES.values() or _is_record(value):
        return repr(value)
    return f"{getattr(value, '__qualname__', type(value).__qualname__)}:{fingerprint(value)[:12]}"


def _is_record(value: Any) -> bool:
    """Return whether a value is a data class of plain values, such as a part of a composed method."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return False
    plain_types = bool | int | float | str | None
    return all(isinstance(getattr(value, one.name), plain_types) for one in dataclasses.fields(value))


def long_arrays(method: Any) -> dict[str, npt.NDArray[Any]]:
    """Return the hyper-parameters of which :func:`describe` has only the hash, by name."""
    values = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}
    return {
        name: np.asarray(value)
        for name, value in values.items()
        if hasattr(value, "tolist") and not is_short(value)
    }


def is_short(value: Any) -> bool:
    """Return whether the entries of an array are written out."""
    return np.size(value) <= MOST_LISTED


def _digest(array: npt.NDArray[Any]) -> str:
    digest = hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()
    return f"{array.dtype.name}{list(array.shape)}:{digest}"
