"""The LIBSVM text format: a sample per line, ``label index:value ...``, indices ascending from 1."""

import bz2
import gzip
import hashlib
import itertools
import math
import zlib
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NoReturn, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from digrad._internal.folders import cache_folder
from digrad.checks import count
from digrad.data.dataset import Dataset
from digrad.data.download import Progress, progress_bar
from digrad.data.mapped import Row, convert, open_mapped
from digrad.errors import DataError

LARGEST_IN_MEMORY = 1 << 30  # bytes of text; of a larger file the arrays stay on disk
PACKED_SUFFIXES = (".bz2", ".gz")

_MAGIC = {".bz2": b"BZh", ".gz": b"\x1f\x8b"}
_PACKING_RATIO = 5  # of LIBSVM text, at least about
_SHORTEST_PAIR = 4  # bytes of " 1:1"
_LARGEST_INDEX = 2**31 - 1  # forty times the widest data set of the LIBSVM site, and an int32


def read_libsvm(path: str | Path, *, dim: int | None = None, progress: Progress | None = None) -> Dataset:
    """Read a LIBSVM file, plain or packed with gzip or bzip2, as sparse features.

    Blank lines and what follows a ``#`` are skipped. A file of more than a gigabyte of text is converted once, with a
    progress bar, to arrays in the cache folder that are memory-mapped from then on; a changed file is converted again.

    Args:
        path: The file; the name of the data set is its name without ``.gz``, ``.bz2`` and ``.txt``.
        dim: The number of features, below 2**31; by default the largest index in the file.
        progress: Called during a conversion with the bytes of text so far and in all (None when the file is packed),
            instead of the bar.

    Returns:
        Features ``[m, dim]`` in CSR and labels ``[m]``, both float64.

    Raises:
        DataError: Naming the file, the line and the reason, when the file cannot be read as LIBSVM text.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = (file := Path(folder, "toy")).write_text("+1 1:0.5 3:2 # a comment\\n-1 2:1\\n")
        ...     data = read_libsvm(file)
        >>> data.features.toarray()
        array([[0.5, 0. , 2. ], [0. , 1. , 0. ]])
        >>> data.labels
        array([ 1., -1.])
    """
    path = Path(path).expanduser()
    dim = None if dim is None else count(dim, "dim", "read_libsvm", maximum=_LARGEST_INDEX)
    if path.is_file() and _text_bytes(path) > LARGEST_IN_MEMORY:
        features, labels = open_mapped(_converted(path, dim, progress), dim)
    else:
        features, labels = _in_memory(path, dim)
    if not len(labels):
        raise DataError(f"{path} has no samples: every line is blank or a comment. Give a file with data.")
    if not features.shape[1]:
        raise DataError(f"{path} has labels but no features. Pass `dim` to read_libsvm if that is meant.")
    return Dataset(_stem(path), features, labels)


def _in_memory(path: Path, dim: int | None) -> tuple[Any, npt.NDArray[np.float64]]:
    labels, indices, values, row_starts = array("d"), array("q"), array("d"), array("q", [0])
    with open_unpacked(path) as lines:
        for label, row_indices, row_values in _rows(lines, path, dim):
            labels.append(label)
            indices.extend(row_indices)
            values.extend(row_values)
            row_starts.append(len(indices))
    columns = np.frombuffer(indices, dtype=np.int64) - 1 if indices else np.zeros(0, dtype=np.int64)
    shape = (len(labels), dim or max(indices, default=0))
    entries = np.array(values, dtype=np.float64)
    return sp.csr_array((entries, columns, np.array(row_starts)), shape=shape), np.array(labels, np.float64)


def _converted(path: Path, dim: int | None, progress: Progress | None) -> Path:
    """Return the folder with the arrays of a file, made unless it is there."""
    about = path.stat()
    state = f"{path.resolve()} {about.st_size} {about.st_mtime_ns} {dim}"
    folder = cache_folder() / "mapped" / f"{_stem(path)}-{hashlib.sha256(state.encode()).hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    is_long = _text_bytes(path) // _SHORTEST_PAIR > np.iinfo(np.int32).max
    with open_unpacked(path) as lines, progress_bar(f"converting {path.name}") as bar:
        told = _told(lines, None if _is_packed(path) else about.st_size, progress or bar)
        convert(folder, _rows(told, path, dim), index_dtype="int64" if is_long else "int32")
    return folder


def _told(lines: Iterable[bytes], total: int | None, progress: Progress | None) -> Iterator[bytes]:
    """Yield the lines, and tell every thousandth how many bytes there were."""
    done = 0
    for number, line in enumerate(lines, start=1):
        done += len(line)
        if progress and number % 1000 == 0:
            progress(done, total)
        yield line
    if progress:
        progress(done, total)


def _text_bytes(path: Path) -> int:
    """Return about how long the text of a file is, without unpacking it."""
    return path.stat().st_size * (_PACKING_RATIO if _is_packed(path) else 1)


def _is_packed(path: Path) -> bool:
    return path.suffix in PACKED_SUFFIXES


@contextmanager
def open_unpacked(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading, unpacking gzip and bzip2, which are recognised by their first bytes.

    Raises:
        DataError: When the file cannot be opened, is damaged, or is not what its suffix says.
    """
    try:
        with path.open("rb") as raw:
            packing = _packing(path, raw.read(3))
            raw.seek(0)
            opener = {".bz2": bz2.open, ".gz": gzip.open}.get(packing)
            if opener is None:
                yield raw
                return
            with opener(raw, "rb") as unpacked:
                yield cast(IO[bytes], unpacked)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DataError(f"{path} cannot be read: {reason}. Check the path, or fetch it again.") from error


def _packing(path: Path, head: bytes) -> str:
    for suffix, magic in _MAGIC.items():
        if head.startswith(magic):
            return suffix
    if path.suffix in _MAGIC:
        raise DataError(
            f"{path} is named {path.suffix} but is not packed that way. Rename it or get it again."
        )
    return ""


def _rows(lines: Iterable[bytes], path: Path, dim: int | None) -> Iterator[Row]:
    largest = _LARGEST_INDEX if dim is None else dim
    for number, line in enumerate(lines, start=1):
        tokens = line.partition(b"#")[0].split() if b"#" in line else line.split()
        if not tokens:
            continue
        row = _parse_row(tokens, largest)
        if row is None:
            _explain(tokens, f"{path}, line {number}", dim)
        yield row


def _parse_row(tokens: list[bytes], largest: int) -> Row | None:
    # The path every good line takes: whole-row operations, and only the fact that something is wrong.
    try:
        label = _number(tokens[0])
        pairs = [token.split(b":") for token in tokens[1:]]
        row_indices = [int(index) for index, _ in pairs]
        row_values = [float(value) for _, value in pairs]
    except ValueError:
        return None
    steps = zip(itertools.chain([0], row_indices), row_indices, strict=False)
    is_good = all(a < b for a, b in steps) and all(map(math.isfinite, row_values))
    if not is_good or (row_indices and row_indices[-1] > largest) or b"_" in b"".join(tokens):
        return None
    return label, row_indices, row_values


def _explain(tokens: list[bytes], where: str, dim: int | None) -> NoReturn:
    try:
        _number(tokens[0])
    except ValueError:
        raise DataError(f"{where}: the label must be a finite number, but got {_shown(tokens[0])}.") from None
    previous = 0
    for token in tokens[1:]:
        previous = _explain_pair(token, where, previous, dim)
    raise AssertionError(f"{where}: a good row was taken for a bad one")


def _explain_pair(token: bytes, where: str, previous: int, dim: int | None) -> int:
    try:
        left, right = token.split(b":")
        index, value = _whole(left), float(right)
        if b"_" in right:
            raise ValueError
    except ValueError:
        raise DataError(f"{where}: expected `index:value` with numbers, but got {_shown(token)}.") from None
    if index < 1:
        raise DataError(f"{where}: indices start at 1, but got {_shown(token)}.")
    if index <= previous:
        raise DataError(f"{where}: indices must ascend, but {index} follows {previous}.")
    if not math.isfinite(value):
        raise DataError(f"{where}: values must be finite, but got {_shown(token)}.")
    if dim is not None and index > dim:
        raise DataError(f"{where}: index {index} exceeds `dim` = {dim} of read_libsvm. Pass a larger `dim`.")
    if index > _LARGEST_INDEX:
        raise DataError(
            f"{where}: index {index} is above {_LARGEST_INDEX}, the most features that can be handled: one number "
            f"for each would take {8 * index / 1e9:.3g} GB. Check the line, or number the features anew."
        )
    return index


def _number(token: bytes) -> float:
    value = float(token)
    if b"_" in token or not math.isfinite(value):  # Python reads 1_000 as a number; the format does not
        raise ValueError
    return value


def _whole(token: bytes) -> int:
    if b"_" in token:
        raise ValueError
    return int(token)


def _shown(token: bytes) -> str:
    text = token.decode("utf-8", errors="replace")
    return f"`{text if len(text) <= 40 else text[:40] + '...'}`"


def _stem(path: Path) -> str:
    name = path.name
    for suffix in (*PACKED_SUFFIXES, ".txt"):
        name = name.removesuffix(suffix)
    return name
