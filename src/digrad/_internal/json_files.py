"""JSON files: strict, for people to read, replaced atomically, and checked when read, because people edit them."""

import dataclasses
import functools
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from digrad._internal.files import write_atomically
from digrad.errors import DataError


def strict(value: Any) -> Any:
    """Return a value as strict JSON holds it: plain numbers, lists and objects, and None for NaN and infinity.

    Example:
        >>> strict({"loss": float("inf"), "k": (1, 2)})
        {'loss': None, 'k': [1, 2]}
    """
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: strict(item) for key, item in value.items()}
    if hasattr(value, "tolist"):  # of NumPy
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, content: Any) -> Path:
    """Write strict JSON that people can read, atomically."""
    return write_atomically(path, json.dumps(strict(content), indent=2, allow_nan=False) + "\n")


def read_json(path: Path, shape: Any = dict[str, Any]) -> Any:
    """Read what :func:`write_json` wrote, as it is there.

    Args:
        path: The file.
        shape: The type that its content must have, as pydantic checks it: one object by default.

    Raises:
        DataError: The file is missing or damaged, or holds something else.
    """
    from pydantic import ValidationError  # not needed to write

    try:
        content = parse_json(path.read_text(encoding="utf-8"), parse_int=whole_number)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); run it again.") from error
    try:
        _adapter(shape).validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        place = f"its {'.'.join(map(str, first['loc']))}" if first["loc"] else "it"
        raise DataError(
            f"{path} does not hold what was written: {place}: {first['msg']}; run it again."
        ) from error
    return content


@functools.cache
def _adapter(shape: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(shape)


def has_record(path: Path, key: str, value: Any = None) -> bool:
    """Return whether a file holds a JSON object with this key, and this value if one is given."""
    try:
        found = read_json(path)
    except DataError:
        return False
    return key in found and value in (None, found[key])


def parse_json(text: str, **hooks: Any) -> Any:
    """Return what JSON holds.

    Args:
        text: The JSON.
        **hooks: As in :func:`json.loads`.

    Raises:
        ValueError: It is not valid, or nested too deeply.
    """
    try:
        return json.loads(text, **hooks)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def whole_number(digits: str) -> int:
    """Return an integer of JSON, as the hook ``parse_int`` of :func:`parse_json`.

    Raises:
        ValueError: It has more than 64 bits, which no count or step has.
    """
    value = int(digits)
    if abs(value) >= 2**63:
        raise ValueError(f"{digits[:20]}... is too large a number")
    return value
