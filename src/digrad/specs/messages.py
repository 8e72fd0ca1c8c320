"""Messages about a specification that is not valid, each one line that names the key and the nearest valid one."""

import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, PlainValidator, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from digrad.checks import did_you_mean
from digrad.errors import DigradError

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_VERBS = ("must", "is", "has", "needs")
_TYPES = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a string",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "model_attributes_type": "a table",
}
_KEYS = {"x0": "start", "network": "graph"}  # arguments of the library that a specification calls otherwise
_BOUNDS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


class Section(BaseModel):
    """A table of a specification: frozen, without unknown keys, and without conversions ("3" is no number)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, value: Any) -> Any:
        if isinstance(value, dict) and cls.model_config.get("extra") == "forbid":
            _check_known(value, cls.model_fields, "this table")
        return value


def is_number(value: Any) -> bool:
    """Return whether ``value`` is a number of a TOML file, and not a whole one too large for a float."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return isinstance(value, float)


def refuse(reason: str, *key: str) -> PydanticCustomError:
    """Return an error for a validator to raise: ``reason`` says what is wrong with ``key``, below its own table."""
    return PydanticCustomError("refused", "{reason}", {"reason": reason, "key": key})


def numbers(each: str, *, or_table: bool = False) -> PlainValidator:
    """Return the check of a number, or of a list with one number per ``each``; a table may be another way to say it."""

    def check(value: Any) -> Any:
        if is_number(value):
            return float(value)
        if isinstance(value, list) and value and all(map(is_number, value)):
            return [float(number) for number in value]
        if or_table and isinstance(value, dict):
            return value
        table = ", or a table" if or_table else ""
        raise refuse(f"must be a number, or a list with one number per {each}{table}, but got {value!r}.")

    return PlainValidator(check)


def require_choice(value: Any, options: Iterable[str], *key: str) -> None:
    """Refuse ``value`` unless it is one of ``options``."""
    options = list(options)
    if value not in options:
        raise refuse(_not_one_of(value, options), *key)


def check_call(call: Callable[..., Any], given: Mapping[str, Any], name: str, *key: str) -> None:
    """Refuse keys that are no arguments of a function or class, and those that it requires and that are missing.

    Args:
        call: The function or class.
        given: Its arguments by name.
        name: Its name for users.
        *key: Where they stand, below the table that is validated.
    """
    parameters = inspect.signature(call).parameters
    _check_known(given, parameters, name, *key)
    for one, parameter in parameters.items():
        if parameter.default is parameter.empty and one not in given:
            raise refuse(f"is required by {name}, but it is missing.", *key, one)


def named_value(value: Mapping[str, Any], word: str, classes: Mapping[str, type], *key: str) -> Any:
    """Return what a table such as ``{schedule = "inverse_sqrt", scale = 0.5}`` describes.

    Args:
        value: The table.
        word: The key of the name, e.g. ``"schedule"``; the others are numbers.
        classes: The dataclass behind each name.
        *key: Where the table stands.
    """
    arguments = dict(value)
    name = arguments.pop(word, None)
    require_choice(name, classes, *key, word)
    check_call(classes[str(name)], arguments, str(name), *key)
    for argument, number in arguments.items():
        if not is_number(number):
            raise refuse(f"must be a number, but got {number!r}.", *key, argument)
    try:
        return classes[str(name)](**arguments)
    except DigradError as error:
        raise refuse(str(error), *key) from error


def one_line(text: str) -> str:
    """Return ``text`` as one line."""
    return " ".join(text.split())


def dotted(location: Sequence[str | int]) -> str:
    """Return the path of a key as TOML writes it.

    Example:
        >>> dotted(["methods", "DGD clip", "step_size"])
        'methods."DGD clip".step_size'
    """
    parts = (str(part) for part in location)
    return ".".join(part if _BARE_KEY.fullmatch(part) else f'"{part}"' for part in parts)


def join(key: str, reason: str) -> str:
    """Return a sentence of a key and what is wrong with it, which may begin with a verb or be a sentence itself.

    A sentence of the library names its argument first, which is then not named twice.

    Example:
        >>> join("steps", "must be positive."), join("graph", "`n` of ring must be positive.")
        ('`steps` must be positive.', '`graph`: `n` of ring must be positive.')
        >>> join("", "`steps` of CGT must be positive."), join("", "`x0` must be finite.")
        ('`steps` of CGT must be positive.', '`start`: `x0` must be finite.')
    """
    argument = re.match(r"`(\w*)`", reason)
    key = _KEYS.get(argument[1], key) if argument else key
    if not key or (argument and argument[1] == key):
        return reason
    return f"`{key}`{'' if reason.split()[0] in _VERBS else ':'} {reason}"


def message(error: ValidationError, content: Mapping[str, Any]) -> str:
    """Return the most telling fault that pydantic found, as one line.

    An unknown key comes first: it is often a misspelt one, and then also the reason why another is missing.

    Args:
        error: The error of pydantic.
        content: The whole specification.
    """
    faults: list[Any] = error.errors(include_url=False)
    faults.sort(key=lambda fault: not fault.get("ctx", {}).get("is_unknown"))
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return one_line(_describe(faults[0], content)) + more


def _describe(fault: Any, content: Mapping[str, Any]) -> str:
    kind, context, got = fault["type"], fault.get("ctx", {}), fault["input"]
    key = dotted([*_without_tags(fault, content), *context.get("key", ())])
    if "reason" in context:
        return join(key, context["reason"])
    if kind == "missing":
        return f"`{key}` is required, but it is missing."
    if kind == "literal_error":
        options = re.findall(r"'([^']*)'", context["expected"])
        return f"`{key}` {_not_one_of(got, options)}"
    if kind in ("too_short", "string_too_short"):
        return f"`{key}` must not be empty."
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"`{key}` must be {words} {context[name]:g}, but got {got!r}."
    return f"`{key}` must be {_TYPES.get(kind, fault['msg'])}, but got {got!r}."


def _without_tags(fault: Any, content: Any) -> list[str | int]:
    """Return where a fault is, without the names of alternatives, which pydantic adds to the keys of the file."""
    found: list[str | int] = []
    for part in fault["loc"]:
        if (isinstance(content, dict) and part in content) or isinstance(part, int):
            content = content[part]
            found.append(part)
    return [*found, fault["loc"][-1]] if fault["type"] == "missing" else found


_ELSEWHERE = {"x0": "start", "edges": "file"}  # names of the Python functions for what a key says


def _check_known(given: Iterable[str], known: Iterable[str], owner: str, *key: str) -> None:
    known = list(known)
    for one in given:
        if one not in known:
            takes = ", ".join(known) or "nothing"
            reason = (
                f"is no key of {owner}, which takes {takes}.{did_you_mean(_ELSEWHERE.get(one, one), known)}"
            )
            context = {"reason": reason, "key": (*key, one), "is_unknown": True}
            raise PydanticCustomError("refused", "{reason}", context)


def _not_one_of(value: Any, options: Sequence[str]) -> str:
    listed = ", ".join(repr(option) for option in options)
    return f"must be one of {listed}, but got {value!r}.{did_you_mean(value, options)}"
