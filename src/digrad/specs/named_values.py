"""A value that a specification writes as a table with a name and arguments, such as a schedule."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from digrad.checks import did_you_mean
from digrad.errors import DigradError
from digrad.specs.messages import is_number, refuse, require_choice


def named_value(
    value: Mapping[str, Any], word: str, classes: Mapping[str, type], example: str, key: str
) -> Any:
    """Return what a table describes.

    Args:
        value: The table.
        word: The key of its name, e.g. ``"schedule"``.
        classes: The dataclass behind each name.
        example: Of such a table, for messages.
        key: Where the table stands.
    """
    name = value.get(word)
    if not isinstance(name, str):
        missing = "missing" if name is None else repr(name)
        raise refuse(f"a {word} is a table such as {example}, but `{word}` is {missing}.", key)
    require_choice(name, classes, f"{key}.{word}")
    arguments = {other: value[other] for other in value if other != word}
    fields = {field.name: field for field in dataclasses.fields(classes[name])}
    for argument, number in arguments.items():
        if argument not in fields:
            near = did_you_mean(argument, fields)
            raise refuse(
                f"`{argument}` is not an argument of {name}, which takes {', '.join(fields)}.{near}", key
            )
        if not is_number(number):
            raise refuse(f"`{argument}` must be a number, but got {number!r}.", key)
    for argument, field in fields.items():
        if field.default is dataclasses.MISSING and argument not in arguments:
            raise refuse(f"{name} requires `{argument}`, but it is missing.", key)
    try:
        return classes[name](**arguments)
    except DigradError as error:
        raise refuse(str(error), key) from error
