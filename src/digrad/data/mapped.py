"""Samples larger than memory: written once as arrays on disk, which are then memory-mapped."""

import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from digrad._internal.files import make_folder

Row = tuple[float, list[int], list[float]]  # label, indices from 1 ascending, values

ROWS_AT_ONCE = 1000  # parsed between two writes; a number takes ten times its size until then
_FACTS = "facts.json"


def convert(folder: Path, rows: Iterable[Row], *, index_dtype: npt.DTypeLike) -> None:
    """Write ``rows`` as the arrays of ``folder``, which is there when all of them are.

    Args:
        folder: What :func:`open_mapped` takes.
        rows: The samples, read once.
        index_dtype: Of the columns, and of where each row begins.
    """
    make_folder(folder.parent)
    building = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    try:
        facts = _write(building, iter(rows), np.dtype(index_dtype))
        (building / _FACTS).write_text(json.dumps(facts))
        if not folder.exists():
            os.replace(building, folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def open_mapped(folder: Path, dim: int | None) -> tuple[Any, npt.NDArray[np.float64]]:
    """Return the features as CSR over memory-mapped arrays, and the labels.

    Args:
        folder: Made by :func:`convert`.
        dim: The number of features; by default the largest index.
    """
    facts = json.loads((folder / _FACTS).read_text())
    starts, columns = (_mapped(folder / name, facts["index_dtype"]) for name in ("starts", "columns"))
    values, labels = (_mapped(folder / name, "float64") for name in ("values", "labels"))
    shape = (len(labels), dim or facts["largest_index"])
    return sp.csr_array((values, columns, starts), shape=shape, copy=False), labels


def _write(folder: Path, rows: Iterable[Row], dtype: np.dtype[Any]) -> dict[str, Any]:
    largest, end = 0, 0
    with ExitStack() as files:
        starts, columns, values, labels = (
            files.enter_context((folder / name).open("wb"))
            for name in ("starts", "columns", "values", "labels")
        )
        np.zeros(1, dtype).tofile(starts)
        while some := list(itertools.islice(rows, ROWS_AT_ONCE)):
            ends = end + np.cumsum([len(indices) for _, indices, _ in some], dtype=np.int64)
            end = int(ends[-1])
            largest = max(largest, *(indices[-1] if indices else 0 for _, indices, _ in some))
            ends.astype(dtype).tofile(starts)
            indices = np.fromiter(itertools.chain.from_iterable(row[1] for row in some), dtype)
            (indices - 1).astype(dtype).tofile(columns)
            np.fromiter(itertools.chain.from_iterable(row[2] for row in some), np.float64).tofile(values)
            np.array([label for label, _, _ in some], np.float64).tofile(labels)
    return {"largest_index": largest, "index_dtype": dtype.name}


def _mapped(path: Path, dtype: str) -> npt.NDArray[Any]:
    if not path.stat().st_size:  # which cannot be mapped
        return np.zeros(0, dtype)
    return np.memmap(path, dtype, mode="r")
