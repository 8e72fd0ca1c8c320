"""What earlier benchmarks found, as lines of JSON, so that a slower version is noticed."""

import datetime
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import BenchRow
from digrad._internal.files import make_folder
from digrad.errors import DataError


def remember(
    path: str | os.PathLike[str], rows: Sequence[BenchRow], facts: dict[str, Any]
) -> dict[str, float]:
    """Add a line with digrad's figures to a file; return those of its last line before, by name.

    Raises:
        DataError: The file holds something else, or cannot be written.
    """
    path = Path(path)
    before = _last(path)
    figures = {row.name: row.ours for row in rows}
    when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    make_folder(path.parent)
    try:
        with path.open("a") as file:
            file.write(json.dumps({"time": when, "facts": facts, "ours": figures}) + "\n")
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error.strerror}. Choose another file.") from error
    return before


def _last(path: Path) -> dict[str, float]:
    try:
        lines = path.read_text().splitlines() if path.exists() else []
        return (
            {str(name): float(value) for name, value in json.loads(lines[-1])["ours"].items()}
            if lines
            else {}
        )
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise DataError(
            f"{path} is no history of `python -m benchmarks`: {error}. Name another file, or remove this one."
        ) from None
