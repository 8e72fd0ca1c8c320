"""Checks of arguments, done once by public functions; below them the code trusts its input.

Only concrete Python and NumPy numbers are checked: a sweep passes traced values through the same
constructors.
"""

import dataclasses
import difflib
import inspect
import math
import sys
from collections.abc import Callable, Iterable
from functools import cache, partial
from numbers import Integral, Real
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from digrad.errors import ArgumentError

LARGEST_WHOLE = 2**63 - 1  # what arrays of whole numbers hold


def fields(record: Any) -> None:
    """Check the fields of a dataclass by their annotations; such a class has ``__post_init__ = checks.fields``.

    A field ``Annotated[type, check]`` is checked by ``check(value, name, owner)``, which may return the value in its
    one form; a ``Literal`` must be one of its choices; with ``| None`` it may also be None.
    """
    for name, check in _checks_of(type(record)).items():
        form = check(getattr(record, name), name, type(record).__name__)
        if form is not None:
            object.__setattr__(record, name, form)


def positive(value: Any, name: str, owner: str, *, allow_inf: bool = False) -> None:
    """Raise unless a concrete number ``value`` is positive (and finite, unless ``allow_inf``).

    Of a NumPy array every entry must be.
    """
    kind = "positive" if allow_inf else "positive and finite"
    if _is_numpy_array(value):
        if not ((value > 0) & (allow_inf | (value < math.inf))).all():
            raise ArgumentError(
                f"`{name}` of {owner} must be {kind} in every entry, but got {value.tolist()!r}."
            )
    elif _is_concrete(value) and not (value > 0 and (allow_inf or value < math.inf) and _fits(value)):
        raise ArgumentError(f"`{name}` of {owner} must be {kind}, but got {value!r}.")
    _reject_non_number(value, name, owner)


def not_negative(value: Any, name: str, owner: str) -> None:
    """Raise unless a number is at least 0 and finite."""
    if not 0 <= value < math.inf:
        raise ArgumentError(f"`{name}` of {owner} must be at least 0 and finite, but got {value!r}.")


def fraction(value: Any, name: str, owner: str) -> None:
    """Raise unless a concrete number ``value`` is in [0, 1); of a NumPy array, every entry."""
    if _is_numpy_array(value):
        if not ((value >= 0) & (value < 1)).all():
            raise ArgumentError(
                f"`{name}` of {owner} must be at least 0 and below 1 in every entry, but got {value.tolist()!r}."
            )
    elif _is_concrete(value) and not 0 <= value < 1:
        raise ArgumentError(f"`{name}` of {owner} must be at least 0 and below 1, but got {value!r}.")
    _reject_non_number(value, name, owner)


def number(value: Any, name: str, owner: str) -> int | float:
    """Return one concrete number as one of Python's; raise for anything else, traced values and arrays too."""
    plain = value.item() if getattr(value, "ndim", None) == 0 else value
    if isinstance(plain, bool) or not isinstance(plain, Real) or not _fits(plain):
        raise ArgumentError(f"`{name}` of {owner} must be a number (below 1.8e308), but got {value!r}.")
    return plain if isinstance(plain, int) else float(plain)


def one_number(check: Callable[[Any, str, str], None], value: Any, name: str, owner: str) -> int | float:
    """Return one concrete number, checked; for the annotation of a field, ``partial(one_number, positive)``."""
    found = number(value, name, owner)
    check(found, name, owner)
    return found


def count(value: Any, name: str, owner: str, *, minimum: int = 1, maximum: int = LARGEST_WHOLE) -> int:
    """Return ``value`` as an int; raise unless it is a whole number from ``minimum`` to ``maximum``."""
    is_whole = isinstance(value, Integral) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not is_whole or value < minimum:
        raise ArgumentError(
            f"`{name}` of {owner} must be a whole number of at least {minimum}, but got {value!r}."
        )
    whole = int(value)
    if whole > maximum:
        raise ArgumentError(f"`{name}` of {owner} must be at most {maximum}, but got {value!r}.")
    return whole


def seed(value: Any, owner: str) -> int:
    """Return the seed of a random source as an int; raise unless it is a whole number from 0 to ``LARGEST_WHOLE``."""
    return count(value, "seed", owner, minimum=0)


def choice(value: Any, name: str, owner: str, options: Iterable[str]) -> None:
    """Raise unless ``value`` is one of ``options``; the message names the nearest."""
    options = list(options)
    if not isinstance(value, str) or value not in options:
        listed = ", ".join(repr(option) for option in options)
        raise ArgumentError(
            f"`{name}` of {owner} must be one of {listed}, but got {value!r}.{did_you_mean(value, options)}"
        )


def flag(value: Any, name: str, owner: str) -> bool:
    """Return ``value`` as a bool; raise unless it is True or False."""
    if type(value).__name__ not in ("bool", "bool_"):  # of Python or of NumPy
        raise ArgumentError(f"`{name}` of {owner} must be True or False, but got {value!r}.")
    return bool(value)


def optional(check: Callable[[Any, str, str], Any]) -> Callable[[Any, str, str], Any]:
    """Return a check that also accepts None."""
    return lambda value, name, owner: None if value is None else check(value, name, owner)


def function_of_k(value: Any, name: str, owner: str) -> None:
    """Raise unless a schedule can be called with the iteration alone."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):  # a function in C need not have one
        return
    try:
        signature.bind(0)
    except TypeError as error:
        raise ArgumentError(
            f"`{name}` of {owner} is a schedule and must be a function of the iteration k alone, but it takes "
            f"{signature} ({error})."
        ) from None


def one_or_column(value: Any, name: str, owner: str, n: int) -> None:
    """Raise unless ``value`` is one number, a schedule, or an array ``[n, 1]`` with one number per agent."""
    shape = getattr(value, "shape", ())
    if shape not in ((), (n, 1)):
        raise ArgumentError(
            f"`{name}` of {owner} must be a number, or a column of shape ({n}, 1), one per agent, "
            f"but its shape is {tuple(shape)}."
        )


def did_you_mean(value: Any, options: Iterable[str]) -> str:
    """Return a sentence that suggests the option nearest to ``value``, ignoring case, or an empty string.

    >>> did_you_mean("step_sise", ["step_size", "threshold"]), did_you_mean("cgt", ["CGT", "AB"])
    (' Did you mean `step_size`?', ' Did you mean `CGT`?')
    """
    by_lower = {option.lower(): option for option in options}
    near = difflib.get_close_matches(str(value).lower(), by_lower, n=1)
    return f" Did you mean `{by_lower[near[0]]}`?" if near else ""


@cache
def _checks_of(kind: type) -> dict[str, Callable[[Any, str, str], Any]]:
    hints = get_type_hints(kind, include_extras=True)
    found = {field.name: _check_of(hints[field.name]) for field in dataclasses.fields(kind)}
    return {name: check for name, check in found.items() if check is not None}


def _check_of(hint: Any) -> Callable[[Any, str, str], Any] | None:
    if get_origin(hint) is Annotated:
        return hint.__metadata__[0]
    if get_origin(hint) is Literal:
        return partial(choice, options=get_args(hint))
    if type(None) not in get_args(hint):
        return None
    check = next(filter(None, map(_check_of, get_args(hint))), None)
    return check and optional(check)


def _is_concrete(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _fits(value: Any) -> bool:
    """Return whether a concrete number can be made a float: Python's whole numbers have no largest one."""
    return not isinstance(value, int) or abs(value) <= sys.float_info.max


def _is_numpy_array(value: Any) -> bool:
    # Methods may not depend on NumPy; whoever holds one of its arrays has imported it.
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _reject_non_number(value: Any, name: str, owner: str) -> None:
    if isinstance(value, bool | complex | str | bytes | list | tuple | dict | set | None):
        raise ArgumentError(f"`{name}` of {owner} must be a number, but got {value!r}.")
