"""Data sets by name or file: one that digrad knows, or a LIBSVM file of the user."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from digrad.checks import did_you_mean
from digrad.data import cifar
from digrad.data.bundled import BUNDLED
from digrad.data.cache import find_file, locate
from digrad.data.dataset import Dataset
from digrad.data.download import Progress
from digrad.data.known_datasets import KNOWN, KnownDataset
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
        source: A bundled name (``digits``), one of the LIBSVM site (``a9a``, found by :func:`locate`), or a file.
        path: For a name of the LIBSVM site: the file to use instead of looking for it.
        dim: For a file: the number of features, by default its largest index.
        progress: Called during a download with the bytes so far and the bytes in all (None when unknown).

    Raises:
        DataError: When there is no such data set, or its file is missing or malformed.

    Example:
        >>> load("digits")
        Dataset('digits', 1797 x 64, dense)
    """
    known = KNOWN.get(source) if isinstance(source, str) else None
    if known and known.source == "bundled":
        if path is not None or dim is not None:
            raise ArgumentError(
                f"`path` and `dim` of load are for files, but {source!r} is bundled. Omit them."
            )
        return BUNDLED[known.name]()
    if known and known.source == "libsvm":
        file = locate(known.name, path, progress=progress)
        return replace(read_libsvm(file, dim=known.dim if dim is None else dim), name=known.name)
    if path is not None:
        names = ", ".join(name for name in KNOWN if KNOWN[name].source == "libsvm")
        raise ArgumentError(f"`path` of load is for the names {names}, but `source` is {source!r}.")
    if not Path(source).expanduser().is_file():
        _raise_unknown(source)
    return read_libsvm(source, dim=dim)


def fetch(name: str, *, progress: Progress | None = None) -> DatasetRow:
    """Make sure that a data set is on this machine, downloading it if it is not, and say where it is.

    Args:
        name: A name of :func:`list_datasets`; bundled ones need no download.
        progress: Called during a download with the bytes so far and the bytes in all (None when unknown).

    Raises:
        DataError: When there is no such data set, or it cannot be had.

    Example:
        >>> fetch("digits").location
        'scikit-learn'
    """
    known = _known(name)
    if known.source == "images":
        return _row(known, cifar.fetch_cifar10(progress=progress))
    return _row(known, locate(name, progress=progress) if known.source == "libsvm" else _find(known))


def list_datasets() -> list[DatasetRow]:
    """Return what :func:`load` knows by name; nothing is downloaded.

    Example:
        >>> [row.name for row in list_datasets()]
        ['digits', 'breast_cancer', 'a9a', 'a9a.t', 'cifar10']
    """
    rows = []
    for known in KNOWN.values():
        try:
            rows.append(_row(known, _find(known)))
        except DataError as error:
            rows.append(_row(known, None, str(error)))
    return rows


def verify(name: str) -> Verification:
    """Check that a data set on this machine is complete and unchanged; nothing is downloaded.

    Raises:
        DataError: When it is not here, or is not what it should be.

    Example:
        >>> verify("digits").n_samples
        1797
    """
    known = _known(name)
    location = _find(known)
    if location is None:
        raise DataError(f"Data set {name!r} is not on this machine. Get it with `digrad data get {name}`.")
    if known.source == "images":
        train = cifar.cifar10()
        return Verification(name, str(location), train.content_hash, len(train), known.dim)
    data = read_libsvm(location, dim=known.dim) if known.source == "libsvm" else BUNDLED[name]()
    if (data.n_samples, data.dim) != (known.n_samples, known.dim):
        raise DataError(
            f"Data set {name!r} must be {known.n_samples} x {known.dim}, but {location} has "
            f"{data.n_samples} x {data.dim}. Install a complete copy."
        )
    return Verification(name, str(location), known.sha256 or data.content_hash, data.n_samples, data.dim)


def _known(name: str) -> KnownDataset:
    return KNOWN[name] if name in KNOWN else _raise_unknown(name)


def _find(known: KnownDataset) -> str | Path | None:
    """Return where a data set is on this machine; None if it is not here.

    Raises:
        DataError: What is in ``DIGRAD_DATA`` is not the data set.
    """
    if known.source == "bundled":
        return "scikit-learn"
    return (cifar.find_folder() if known.source == "images" else find_file(known))[0]


def _row(known: KnownDataset, found: str | Path | None, problem: str | None = None) -> DatasetRow:
    location = None if found is None else str(found)
    return DatasetRow(
        known.name, known.source, known.n_samples, known.dim, location, known.description, problem
    )


def _raise_unknown(source: str | Path) -> NoReturn:
    if source == cifar.NAME:
        raise DataError("Data set 'cifar10' holds images for torch models: use `dg.data.cifar10()`.")
    alike = [name for name in KNOWN if name[0] == str(source)[:1].lower()]  # iris is no misspelt digits
    raise DataError(
        f"No data set and no file {str(source)!r}. Data sets: {', '.join(KNOWN)}; or give the path of a "
        f"LIBSVM file.{did_you_mean(source, alike)}"
    )
