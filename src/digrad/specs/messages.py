"""What is wrong with a specification, in one line that names the key and the nearest valid one."""

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, PlainValidator, ValidationError
from pydantic_core import PydanticCustomError

from digrad._internal import plugins
from digrad.checks import did_you_mean

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


class Table(BaseModel):
    """A table of a specification: frozen, without unknown keys, and without conversions ("3" is no number)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def is_number(value: Any) -> bool:
    """Whether ``value`` is a number of a TOML file, and not a whole one too large for a float."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) <= sys.float_info.max
    return isinstance(value, float)


def refuse(reason: str, key: str = "") -> PydanticCustomError:
    """Return an error for a validator to raise: ``reason`` says what is wrong with ``key`` of its table."""
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


def require_choice(value: Any, options: Iterable[str], key: str) -> None:
    """Refuse ``value`` unless it is one of ``options``."""
    options = list(options)
    if value not in options:
        raise refuse(_not_one_of(value, options), key)


def first_line(text: str) -> str:
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


def complaint(error: ValidationError, keys: Mapping[str, Iterable[str]]) -> str:
    """Return the most telling problem of ``error`` as one line.

    An unknown key comes first: it is often a misspelt one, and then also the reason why another is missing.

    Args:
        error: What pydantic found.
        keys: The valid keys of each table, by its dotted path ("" for the top).
    """
    problems = error.errors(include_url=False)
    problems.sort(key=lambda problem: problem["type"] != "extra_forbidden")
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    return first_line(_describe(problems[0], keys)) + more


def _describe(problem: Any, keys: Mapping[str, Iterable[str]]) -> str:
    kind, context, got = problem["type"], problem.get("ctx", {}), problem["input"]
    location = _without_tag(problem["loc"], keys)
    key = dotted([*location, *(part for part in context.get("key", "").split(".") if part)])
    if kind == "extra_forbidden":
        return _unknown_key(problem["loc"], keys)
    if kind == "missing":
        return f"`{key}` is required, but it is missing."
    if kind == "refused":
        return join(key, context["reason"])
    if kind == "literal_error":
        options = re.findall(r"'([^']*)'", context["expected"])
        return f"`{key}` {_not_one_of(got, options)}"
    if kind == "union_tag_invalid":
        options = [tag for tag in re.findall(r"'([^']*)'", context["expected_tags"]) if tag != "plug-in"]
        options += plugins.installed(plugins.PROBLEMS)
        return f"`{key}.kind` {_not_one_of(context['tag'], options)}"
    if kind == "union_tag_not_found":
        return f"`{key}.kind` is required, but it is missing."
    if kind in ("too_short", "string_too_short"):
        return f"`{key}` must not be empty."
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"`{key}` must be {words} {context[name]:g}, but got {got!r}."
    return f"`{key}` must be {_TYPES.get(kind, problem['msg'])}, but got {got!r}."


def _unknown_key(location: Sequence[str | int], keys: Mapping[str, Iterable[str]]) -> str:
    *parents, name = _without_tag(location, keys)
    table = dotted(parents)
    valid = sorted(keys.get(":".join(map(str, location[:-1])), keys.get(table, ())))
    where = f"[{table}]" if table else "the top of a specification"
    listed = f"; {where} takes {', '.join(valid)}" if valid else ""
    return f"`{dotted([*parents, name])}` is not a known key{listed}.{did_you_mean(name, valid)}"


def _not_one_of(value: Any, options: Sequence[str]) -> str:
    listed = ", ".join(repr(option) for option in options)
    return f"must be one of {listed}, but got {value!r}.{did_you_mean(value, options)}"


def _without_tag(location: Sequence[str | int], keys: Mapping[str, Iterable[str]]) -> list[str | int]:
    # Inside a union pydantic inserts the name of the alternative, which is not a key of the file.
    if len(location) > 1 and location[0] == "problem" and f"problem:{location[1]}" in keys:
        return [location[0], *location[2:]]
    return list(location)
