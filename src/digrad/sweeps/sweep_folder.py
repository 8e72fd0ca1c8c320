"""The folder of a sweep: finished rows, each batch on disk before the next begins, so that a kill costs one batch.

``rows.jsonl`` holds the rows, by the identity of their configuration; ``sweep.json`` says what they have in common and
which of them, in which order, are the table. ``table.parquet`` is deleted before the other two change, and written at
the end: where it is missing, the sweep has not ended, and what there is of it can be read from the other two.
Parts that were run apart are sweeps themselves, in folders of their own below that of the whole.
"""

import io
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from digrad._internal.files import is_left_over, make_folder, write_atomically
from digrad._internal.folders import check_folder
from digrad._internal.json_files import has_record, parse_json, whole_number
from digrad.errors import ArgumentError, DataError

FORMAT = "digrad sweep 1"
ROWS, FACTS, TABLE, ARRAYS = "rows.jsonl", "sweep.json", "table.parquet", "arrays.npz"
PARTS = "part-*-of-*"


def part_name(i: int, n: int) -> str:
    """Return the name of the folder of a part, as :data:`PARTS` matches it."""
    return f"part-{i}-of-{n}"


class Journal:
    """The rows of a sweep that are done, by the identity of their configuration.

    Args:
        folder: Folder of the rows; None keeps them in memory only.
        resume: Keep the rows that are there, also those of parts.
        overwrite: Delete them.

    Raises:
        ArgumentError: The folder holds something else, or rows and neither ``resume`` nor ``overwrite`` is given.
    """

    def __init__(self, folder: Path | None, *, resume: bool, overwrite: bool) -> None:
        self._path = None if folder is None else folder / ROWS
        self.rows: dict[str, dict[str, Any]] = {}
        if folder is None or self._path is None:
            return
        check_folder(folder, "a sweep", _is_ours, resume=resume, overwrite=overwrite)
        parts = sorted(folder.glob(PARTS))
        kept = {name: row for part in (*parts, folder) for name, row in _read(part / ROWS).items()}
        if not (resume or overwrite) and kept:
            raise ArgumentError(
                f"`out` of sweep: {folder} holds rows already; continue with resume=True (--resume), start over with "
                "overwrite=True (--overwrite), or give another folder."
            )
        if resume:
            self.rows = kept
        make_folder(folder)
        if overwrite:
            for part in parts:
                shutil.rmtree(part)
        (folder / TABLE).unlink(missing_ok=True)
        # Without the half of a line that a kill may have left.
        write_atomically(self._path, "".join(map(_line, self.rows.items())))

    @property
    def is_stored(self) -> bool:
        """Return whether the rows outlive the process."""
        return self._path is not None

    def add(self, rows: Mapping[str, dict[str, Any]]) -> None:
        """Keep finished rows, on disk when this returns."""
        self.rows.update(rows)
        if self._path is not None:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write("".join(map(_line, rows.items())))
                file.flush()
                os.fsync(file.fileno())


def write_facts(folder: Path, facts: Mapping[str, Any], names: Sequence[str]) -> None:
    """Write what the rows are about and which there will be, which also marks the folder as that of a sweep."""
    content = {"format": FORMAT, **facts, "rows": list(names)}
    write_atomically(make_folder(folder) / FACTS, json.dumps(content, indent=2) + "\n")


def write_arrays(folder: Path, arrays: Mapping[str, Any]) -> None:
    """Write the arrays that rows name, if there are some."""
    if arrays:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **arrays)
        write_atomically(folder / ARRAYS, buffer.getvalue())


def read_facts(folder: Path) -> dict[str, Any]:
    """Return what :func:`write_facts` wrote; ``rows`` are the names of all rows.

    Raises:
        DataError: The folder is not that of a sweep.
    """
    try:
        facts = parse_json((folder / FACTS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        facts = {}
    if not isinstance(facts, dict) or facts.pop("format", None) != FORMAT:
        raise DataError(f"{folder} is not the folder of a sweep; give one that `digrad sweep --out` made.")
    names = facts.get("rows")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError(f"{folder / FACTS} does not hold what was written: its rows; run the sweep again.")
    return facts


def read_rows(folder: Path, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the finished rows of a folder that have these names, in their order."""
    found = _read(folder / ROWS)
    return [found[name] for name in names if name in found]


def _is_ours(folder: Path) -> bool:
    """Return whether a folder holds a sweep, parts of one, or what is left of one killed before it wrote its facts."""
    if has_record(folder / FACTS, "format", FORMAT):
        return True
    others = [file for file in folder.iterdir() if not (is_left_over(file) or file.match(PARTS))]
    return not others or ([file.name for file in others] == [ROWS] and not others[0].stat().st_size)


def _line(entry: tuple[str, dict[str, Any]]) -> str:
    return json.dumps({"id": entry[0], "row": entry[1]}) + "\n"


def _read(path: Path) -> dict[str, dict[str, Any]]:
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    found = {}
    for line in text.splitlines():
        try:
            entry = parse_json(line, parse_int=whole_number)
        except ValueError:  # the line that was being written when the process was killed
            continue
        if isinstance(entry, dict) and isinstance(entry.get("id"), str) and _is_row(entry.get("row")):
            found[entry["id"]] = entry["row"]
    return found


def _is_row(row: Any) -> bool:
    """Return whether a row is one that a sweep wrote: what a run was, its verdict, and numbers."""
    if not isinstance(row, dict) or not isinstance(row.get("verdict"), str):
        return False
    names = list(row)
    cut = names.index("verdict")
    return isinstance(row.get("method"), str) and all(
        value is None or isinstance(value, int | float | (str if place < cut else int))
        for place, (name, value) in enumerate(row.items())
        if name != "verdict"
    )
