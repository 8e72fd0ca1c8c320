"""Data sets by name or file: bundled, in the catalog, or a LIBSVM file of the user."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from digrad.checks import did_you_mean
from digrad.data import cifar
from digrad.data.bundled import BUNDLED
from digrad.data.cache import catalog_entry, find_local, locate
from digrad.data.dataset import Dataset
from digrad.data.download import Progress
from digrad.data.images import RECORD
from digrad.data.known_datasets import CATALOG
from digrad.data.libsvm import read_libsvm
from digrad.errors import ArgumentError, DataError


@dataclass(frozen=True)
class DatasetRow:
    """One line of :func:`list_datasets`.

    Args:
        name: Argument of :func:`load`.
        source: ``bundled``, ``libsvm`` or ``images``.
        n_samples: The number of samples.
        dim: The number of features.
        location: ``scikit-learn``, the file on this machine, or None when it has to be fetched first.
        description: One line.
        problem: The fault of the file on this machine, or None.
    """

    name: str
    source: str
    n_samples: int
    dim: int
    location: str | None
    description: str
    problem: str | None = None


@dataclass(frozen=True)
class Verification:
    """Result of :func:`verify`: a data set that is what it should be, with its place and its hash."""

    name: str
    location: str
    sha256: str
    n_samples: int
    dim: int


def load(
    source: str | Path,
    *,
    path: str | Path | None = None,
    dim: int | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Return a data set by name, or read it from a LIBSVM file.

    Args:
        source: A bundled name (``digits``), a catalog name (``a9a``, found by :func:`locate`), or a file.
        path: For a catalog name: the file to use instead of looking for it.
        dim: For a file: the number of features, by default its largest index.
        progress: Called during a download with the bytes so far and the bytes in all (None when unknown).

    Raises:
        DataError: When there is no such data set, or its file is missing or malformed.

    Example:
        >>> load("digits")
        Dataset('digits', 1797 x 64, dense)
    """
    if isinstance(source, str) and source in BUNDLED:
        if path is not None or dim is not None:
            raise ArgumentError(
                f"`path` and `dim` of load are for files, but {source!r} is bundled. Omit them."
            )
        return BUNDLED[source].load()
    if isinstance(source, str) and source in CATALOG:
        file = locate(source, path, progress=progress)
        width = CATALOG[source].dim if dim is None else dim
        return replace(read_libsvm(file, dim=width), name=source)
    if path is not None:
        raise ArgumentError(
            f"`path` of load is for the names {', '.join(CATALOG)}, but `source` is {source!r}."
        )
    if not Path(source).expanduser().is_file():
        _raise_unknown(source)
    return read_libsvm(source, dim=dim)


def fetch(name: str, *, progress: Progress | None = None) -> DatasetRow:
    """Make sure that a data set is on this machine, downloading it if it is not, and say where it is.

    Args:
        name: A bundled name, which needs no download, or one of the catalog.
        progress: Called during a download with the bytes so far and the bytes in all (None when unknown).

    Raises:
        DataError: When there is no such data set, or it cannot be had.

    Example:
        >>> fetch("digits").location
        'scikit-learn'
    """
    if name in BUNDLED:
        return _bundled_row(name)
    if name == cifar.NAME:
        return replace(_cifar10_row(), location=str(cifar.fetch_cifar10(progress=progress)), problem=None)
    if name not in CATALOG:
        _raise_unknown(name)
    return replace(_catalog_row(name), location=str(locate(name, progress=progress)), problem=None)


def list_datasets() -> list[DatasetRow]:
    """Return what :func:`load` knows by name; nothing is downloaded.

    Example:
        >>> [row.name for row in list_datasets()]
        ['digits', 'breast_cancer', 'a9a', 'a9a.t', 'cifar10']
    """
    return [*map(_bundled_row, BUNDLED), *map(_catalog_row, CATALOG), _cifar10_row()]


def verify(name: str) -> Verification:
    """Check that a data set on this machine is complete and unchanged; nothing is downloaded.

    Raises:
        DataError: When it is not here, or is not what it should be.

    Example:
        >>> verify("digits").n_samples
        1797
    """
    if name == cifar.NAME:
        folder, train = cifar.find_cifar10(), cifar.cifar10()
        return Verification(name, str(folder), train.content_hash, len(train), RECORD - 1)
    if name in BUNDLED:
        data, expected, location = BUNDLED[name].load(), BUNDLED[name], "scikit-learn"
        sha256 = data.content_hash
    else:
        if name not in CATALOG:
            _raise_unknown(name)
        expected, file = catalog_entry(name), find_local(name)
        if file is None:
            raise DataError(
                f"Data set {name!r} is not on this machine. Get it with `digrad data get {name}`."
            )
        data, location, sha256 = read_libsvm(file, dim=expected.dim), str(file), expected.sha256
    if (data.n_samples, data.dim) != (expected.n_samples, expected.dim):
        raise DataError(
            f"Data set {name!r} must be {expected.n_samples} x {expected.dim}, but {location} has "
            f"{data.n_samples} x {data.dim}. Install a complete copy."
        )
    return Verification(name, location, sha256, data.n_samples, data.dim)


def _bundled_row(name: str) -> DatasetRow:
    entry = BUNDLED[name]
    return DatasetRow(name, "bundled", entry.n_samples, entry.dim, "scikit-learn", entry.description)


def _catalog_row(name: str) -> DatasetRow:
    entry = CATALOG[name]
    problem = None
    try:
        file = find_local(name)
    except DataError as error:
        file, problem = None, str(error)
    location = None if file is None else str(file)
    return DatasetRow(name, "libsvm", entry.n_samples, entry.dim, location, entry.description, problem)


def _cifar10_row() -> DatasetRow:
    location, problem = None, None
    try:
        location = str(cifar.find_cifar10())
    except DataError as error:
        problem = str(error) if "MD5" in str(error) else None
    description = "colour images of ten classes, 32 x 32 pixels, for torch models (and 10 000 test images)"
    return DatasetRow(cifar.NAME, "images", cifar.N_TRAIN, RECORD - 1, location, description, problem)


def _raise_unknown(source: str | Path) -> NoReturn:
    if source == cifar.NAME:
        raise DataError("Data set 'cifar10' holds images for torch models: use `dg.data.cifar10()`.")
    names = [*BUNDLED, *CATALOG, cifar.NAME]
    alike = [name for name in names if name[0] == str(source)[:1].lower()]  # iris is no misspelt digits
    raise DataError(
        f"No data set and no file {str(source)!r}. Data sets: {', '.join(names)}; or give the path of a "
        f"LIBSVM file.{did_you_mean(source, alike)}"
    )
