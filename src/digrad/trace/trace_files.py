"""The files of a trace: arrays as Parquet, the rest as strict JSON; every bit kept, damage noticed.

A trace ``CGT`` is ``trace-CGT.parquet`` (the columns), ``final-CGT.parquet`` (one list ``x`` per agent) and
``trace-CGT.json`` (everything else, and the SHA-256 of the others). Long hyper-parameters, of which the JSON has only
hashes, are ``arrays-CGT.npz``.
"""

import hashlib
import io
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from digrad._internal.files import file_stem, make_folder, write_atomically
from digrad._internal.json_files import parse_json
from digrad.checks import did_you_mean
from digrad.errors import DataError

FORMAT = 1  # raised when an older digrad could no longer read the files

Columns = Mapping[str, npt.NDArray[Any]]


def write_trace(
    folder: Path,
    name: str,
    columns: Columns,
    final_x: npt.NDArray[Any],
    arrays: Columns,
    record: Mapping[str, Any],
) -> list[Path]:
    """Write the files of the trace ``name``, each atomically, and return their paths.

    Raises:
        StorageError: ``folder`` cannot be made, or is a file.
    """
    make_folder(folder)
    contents = {"trace": _columns_to_parquet(columns), "final": _matrix_to_parquet(final_x)}
    if arrays:
        contents["arrays"] = _arrays_to_npz(arrays)
    digests = {prefix: hashlib.sha256(data).hexdigest() for prefix, data in contents.items()}
    paths = [write_atomically(_path(folder, prefix, name), data) for prefix, data in contents.items()]
    if not arrays:
        _path(folder, "arrays", name).unlink(missing_ok=True)
    # The JSON comes last: it holds the digests of the others, so a half-replaced set is noticed.
    tail = {"final_shape": list(final_x.shape), "sha256": digests}
    return [*paths, write_record(folder, "trace", name, {**record, **tail})]


def read_trace(folder: Path, name: str) -> tuple[Columns, npt.NDArray[Any], Columns, dict[str, Any]]:
    """Return the columns, the final estimates, the long hyper-parameters and the record of the trace ``name``.

    Raises:
        DataError: There is no such trace, or one of its files is missing or damaged.
    """
    record = read_record(folder, "trace", name)
    try:
        digests, shape = record["sha256"], tuple(record["final_shape"])
        columns = _columns_from_parquet(_read_checked(folder, "trace", name, digests["trace"]))
        final_x = _matrix_from_parquet(_read_checked(folder, "final", name, digests["final"]), shape)
        arrays = {}
        if "arrays" in digests:
            arrays = _arrays_from_npz(_read_checked(folder, "arrays", name, digests["arrays"]))
    except KeyError as error:
        raise DataError(
            f"The record of the trace {name!r} in {folder} lacks {error}; run it again."
        ) from error
    except (TypeError, ValueError) as error:  # of a shape or a hash that was edited
        raise DataError(
            f"The record of the trace {name!r} in {folder} is damaged ({error}); run it again."
        ) from error
    return columns, final_x, arrays, record


def write_record(folder: Path, kind: str, name: str, record: Mapping[str, Any]) -> Path:
    """Write ``record`` as the strict JSON file ``<kind>-<name>.json`` and return its path."""
    content = _encode({"format": FORMAT, "name": name, **record})
    path = folder / f"{kind}-{file_stem(name)}.json"
    return write_atomically(path, json.dumps(content, indent=2, allow_nan=False) + "\n")


def read_record(folder: Path, kind: str, name: str) -> dict[str, Any]:
    """Return what :func:`write_record` wrote.

    Raises:
        DataError: There is no such record, or it is damaged.
    """
    path = folder / f"{kind}-{file_stem(name)}.json"
    try:
        record = parse_json(path.read_text(encoding="utf-8"), object_hook=_decode)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError(f"There is no {kind} {name!r} in {folder}.{_others(folder, kind, name)}") from error
    except ValueError as error:
        raise DataError(f"{path} is damaged: it is not valid JSON ({error}); run it again.") from error
    if not isinstance(record, dict) or record.get("format") != FORMAT or record.get("name") != name:
        raise DataError(
            f"{path} does not describe the {kind} {name!r} in format {FORMAT}; was it written by digrad?"
        )
    return record


def _encode(value: Any) -> Any:
    # Strict JSON has no NaN and no infinity.
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": repr(value)}
    if isinstance(value, Mapping):
        return {key: _encode(item) for key, item in value.items()}
    return [_encode(item) for item in value] if isinstance(value, list) else value


def _decode(value: dict[str, Any]) -> Any:
    return float(value["$float"]) if value.keys() == {"$float"} else value


def _others(folder: Path, kind: str, name: str) -> str:
    stems = sorted(path.stem.removeprefix(f"{kind}-") for path in folder.glob(f"{kind}-*.json"))
    near = did_you_mean(name, stems)
    return near or (f" It holds {', '.join(stems)}." if stems else " It holds none.")


def _path(folder: Path, prefix: str, name: str) -> Path:
    return folder / f"{prefix}-{file_stem(name)}.{'npz' if prefix == 'arrays' else 'parquet'}"


def _read_checked(folder: Path, prefix: str, name: str, digest: str) -> bytes:
    path = _path(folder, prefix, name)
    try:
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise DataError(
            f"{path} is missing, though its record is there; restore it or run it again."
        ) from error
    if hashlib.sha256(data).hexdigest() != digest:
        raise DataError(
            f"{path} is damaged: its SHA-256 is not the recorded one; restore it or run it again."
        )
    return data


def _arrays_to_npz(arrays: Columns) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # pyright: ignore[reportArgumentType]
    return buffer.getvalue()


def _arrays_from_npz(data: bytes) -> dict[str, npt.NDArray[Any]]:
    with np.load(io.BytesIO(data)) as archive:
        return dict(archive)


def _columns_to_parquet(columns: Columns) -> bytes:
    import pyarrow as pa

    return _table_to_bytes(pa.table({name: pa.array(values) for name, values in columns.items()}))


def _matrix_to_parquet(matrix: npt.NDArray[Any]) -> bytes:
    import pyarrow as pa

    rows = pa.FixedSizeListArray.from_arrays(pa.array(np.ravel(matrix)), matrix.shape[1])
    return _table_to_bytes(pa.table({"x": rows}))


def _table_to_bytes(table: Any) -> bytes:
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    # A dictionary would store all NaN as one and merge 0.0 with -0.0; plain pages keep every bit.
    pq.write_table(table, buffer, use_dictionary=False, compression="zstd")
    return buffer.getvalue()


def _columns_from_parquet(data: bytes) -> dict[str, npt.NDArray[Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(pa.BufferReader(data))
    return {name: table.column(name).to_numpy() for name in table.column_names}


def _matrix_from_parquet(data: bytes, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = pq.read_table(pa.BufferReader(data)).column("x").combine_chunks()
    return rows.flatten().to_numpy(zero_copy_only=False).reshape(shape)
