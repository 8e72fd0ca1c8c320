"""The LIBSVM text format: a sample per line, ``label index:value ...``, indices ascending from 1."""

import bz2
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import scipy.sparse as sp

from digrad.checks import count
from digrad.data.dataset import Dataset
from digrad.data.nan_check import not_finite_row
from digrad.errors import DataError

_MAGIC = {".bz2": b"BZh", ".gz": b"\x1f\x8b"}
_LARGEST_INDEX = 2**31 - 1  # forty times the widest data set of the LIBSVM site, and an int32


def read_libsvm(path: str | Path, *, dim: int | None = None) -> Dataset:
    """Read a LIBSVM file, plain or packed with gzip or bzip2, as sparse features; scikit-learn parses it.

    Blank lines and what follows a ``#`` are skipped.

    Args:
        path: The file; the name of the data set is its name without ``.gz``, ``.bz2`` and ``.txt``.
        dim: The number of features, below 2**31; by default the largest index in the file.

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
    from sklearn.datasets import load_svmlight_file

    path = Path(path).expanduser()
    dim = None if dim is None else count(dim, "dim", "read_libsvm", maximum=_LARGEST_INDEX)
    with open_unpacked(path) as file:
        lines = _Lines(file)
        try:
            # Without a given dim, the parser makes one feature of none.
            features, labels = cast(Any, load_svmlight_file)(lines, dtype=np.float64, zero_based=False)
        except (ValueError, OverflowError) as error:
            raise DataError(
                f"{path}, line {lines.number}: a line must be `label index:value ...` with indices that ascend from "
                f"1 to at most {_LARGEST_INDEX}, but {str(error)[:200].rstrip('.')}."
            ) from error
    if not len(labels):
        raise DataError(f"{path} has no samples: every line is blank or a comment. Give a file with data.")
    if dim is None and not features.nnz:
        raise DataError(f"{path} has labels but no features. Pass `dim` to read_libsvm if that is meant.")
    if dim is not None and features.nnz and features.shape[1] > dim:
        raise DataError(
            f"{path}: index {features.shape[1]} exceeds `dim` = {dim} of read_libsvm. Pass a larger `dim`."
        )
    shape = (len(labels), dim or features.shape[1])
    features = sp.csr_array((features.data, features.indices, features.indptr), shape=shape)
    for what, values in (("label", labels), ("value", features)):
        row = not_finite_row(values)
        if row is not None:
            raise DataError(f"{path}: every {what} must be finite, but sample {row} (from 0) has another.")
    return Dataset(_stem(path), features, labels)


class _Lines:
    """The lines of a file, and the number of the last one that was read."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file, self.number = file, 0
        self.read = file.read  # by which scikit-learn knows a file

    def __iter__(self) -> Iterator[bytes]:
        for self.number, line in enumerate(self.file, start=1):  # noqa: B020
            yield line


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


def _stem(path: Path) -> str:
    name = path.name
    for suffix in (*_MAGIC, ".txt"):
        name = name.removesuffix(suffix)
    return name
