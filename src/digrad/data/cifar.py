"""CIFAR-10: 50 000 training and 10 000 test images of ten classes; where they are, and how to get them.

The authors publish six files of 10 000 images each, as binary records or as Python pickles. Both are read; what is
downloaded is kept as binary records, whose official MD5 sums are compared before they are used.
"""

import functools
import hashlib
import pickle
import shutil
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from digrad._internal.folders import cache_folder
from digrad.data.cache import find_on_disk
from digrad.data.download import Progress, download
from digrad.data.images import RECORD, ImageSet, Pixels
from digrad.errors import DataError

NAME = "cifar10"
N_CLASSES = 10
URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
ARCHIVE_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
FOLDERS = ("cifar-10-batches-bin", "cifar-10-batches-py", ".")  # as the archives of the authors unpack

# The sums of the files in the archives of the authors.
BINARY_MD5 = {
    "data_batch_1": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "data_batch_2": "5ea93a67294ea407fff1d09f752e9692",
    "data_batch_3": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "data_batch_4": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "data_batch_5": "53f37980c15c3d472c316c40844f3f0d",
    "test_batch": "803d5f7f4d78ea53de84dbe85f74fb6d",
}
PYTHON_MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
BATCHES = tuple(BINARY_MD5)  # the last one is for tests


def cifar10(path: str | Path | None = None, *, train: bool = True) -> ImageSet:
    """Return the training or the test images.

    They are looked for in ``path``, else in the folder ``DIGRAD_DATA``, else in the cache; nothing is downloaded.

    Args:
        path: A folder with binary or Python batches, or one that holds it; used as it is. Files found elsewhere must
            have the official MD5 sums.
        train: The training images; else the test images.

    Raises:
        DataError: They are not on this machine, or not what they should be.
    """
    folder = find_cifar10(path)
    names = BATCHES[:-1] if train else BATCHES[-1:]
    return ImageSet(f"{NAME}{'' if train else ' (test)'}", [_read(folder, name) for name in names])


def find_cifar10(path: str | Path | None = None) -> Path:
    """Return the folder with the batches, as :func:`cifar10` looks for it.

    Raises:
        DataError: There is none, or its files do not have the official MD5 sums.
    """
    if path is not None:
        found = _folder_below(Path(path).expanduser())
        if found is None:
            raise DataError(
                f"`path` of cifar10: {path} holds no batches ({BATCHES[0]}.bin or {BATCHES[0]}, ...)."
            )
        return found
    found, failures = find_folder()
    if found is not None:
        return found
    raise DataError(
        f"CIFAR-10 is not on this machine. {'; '.join(failures)}. Get it with `digrad data get {NAME}`."
    )


def find_folder() -> tuple[Path | None, list[str]]:
    """Return the folder with the batches on this machine, as :func:`digrad.data.cache.find_on_disk` does."""
    return find_on_disk(_folder_below, mismatch, "CIFAR-10")


def fetch_cifar10(*, progress: Progress | None = None) -> Path:
    """Return the folder with the batches, after downloading them into the cache if they are not on this machine.

    The files of the authors' archive must have the official MD5 sums, or are refused.

    Args:
        progress: Called with the bytes so far and the bytes in all.

    Raises:
        DataError: With the reason, when they cannot be fetched.
    """
    try:
        return find_cifar10()
    except DataError:
        pass
    try:
        return install(lambda folder: _fetch(folder, progress))
    except DataError as error:
        raise DataError(
            f"CIFAR-10 could not be fetched. {str(error).rstrip('.')}. Unpack {URL} on a machine with internet, then "
            "set DIGRAD_DATA to its folder."
        ) from error


def mismatch(folder: Path) -> str | None:
    """Return what is wrong with the batches in ``folder``, or None when all have the official MD5 sums."""
    sums = BINARY_MD5 if _is_binary(folder) else PYTHON_MD5
    for name, official in sums.items():
        file = _file(folder, name)
        if not file.is_file():
            return f"{file.name} is missing"
        if wrong := _wrong_sum(file, official):
            return wrong
    return None


def _wrong_sum(file: Path, official: str) -> str | None:
    about = file.stat()
    actual = _md5(file, about.st_size, about.st_mtime_ns)
    return None if actual == official else f"the MD5 sum of {file.name} must be {official}, but is {actual}"


@functools.lru_cache(maxsize=64)
def _md5(file: Path, size: int, changed: int) -> str:
    """Return the MD5 sum of a file, computed once as long as its size and time do not change."""
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "md5").hexdigest()


def _is_binary(folder: Path) -> bool:
    return (folder / f"{BATCHES[0]}.bin").is_file()


def _file(folder: Path, name: str) -> Path:
    return folder / (f"{name}.bin" if _is_binary(folder) else name)


def _folder_below(folder: Path) -> Path | None:
    candidates = (folder / name for name in FOLDERS)
    return next((place for place in candidates if _is_binary(place) or (place / BATCHES[0]).is_file()), None)


def _read(folder: Path, name: str) -> Pixels:
    file = _file(folder, name)
    try:
        if file.suffix != ".bin":
            return _read_pickle(file)
        size = file.stat().st_size
        if not size or size % RECORD:
            raise DataError(f"{file} must hold records of {RECORD} bytes, but has {size} bytes.")
        records = np.memmap(file, np.uint8, "r").reshape(-1, RECORD)
        _check_labels(records[:, 0])
        return records
    except ValueError as error:
        raise DataError(f"{file} is not a batch of CIFAR-10 ({error}).") from error
    except OSError as error:
        raise DataError(f"{file} cannot be read ({error.strerror}); get CIFAR-10 again.") from error


class _ArraysOnly(pickle.Unpickler):
    """An unpickler that builds arrays and plain containers, and nothing else: a pickle may hold any program."""

    _ALLOWED = frozenset(
        (f"numpy.{core}.multiarray", "_reconstruct") for core in ("core", "_core")
    ) | {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}  # fmt: skip

    def find_class(self, module: str, name: str) -> Any:
        """Return what a pickle names, if it is needed for an array."""
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return super().find_class(module, name)


def _read_pickle(file: Path) -> Pixels:
    try:
        with open(file, "rb") as opened:
            batch = _ArraysOnly(opened, encoding="bytes").load()
        pixels, labels = np.asarray(batch[b"data"]), np.asarray(batch[b"labels"])
        if pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != RECORD - 1:
            raise ValueError(f"its data are {pixels.dtype} of shape {pixels.shape}")
        return _records(labels, pixels)
    except (pickle.UnpicklingError, EOFError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{file} is not a Python batch of CIFAR-10 ({error}).") from error


def _records(labels: Any, pixels: Pixels) -> Pixels:
    _check_labels(np.asarray(labels))
    records = np.empty((len(labels), RECORD), np.uint8)
    records[:, 0], records[:, 1:] = labels, pixels
    return records


def _check_labels(labels: npt.NDArray[Any]) -> None:
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        raise ValueError(
            f"its labels must be a list of integers, but are {labels.dtype} of shape {labels.shape}"
        )
    wrong = np.flatnonzero((labels < 0) | (labels >= N_CLASSES))
    if wrong.size:
        raise ValueError(f"label {wrong[0]} must be 0 to {N_CLASSES - 1}, but is {labels[wrong[0]]}")


def install(write: Callable[[Path], None]) -> Path:
    """Put the batches that ``write`` writes into a folder into the cache, all of them or none.

    Raises:
        DataError: The files do not have the official MD5 sums, or the cache cannot be written.
    """
    cache = cache_folder()
    target = cache / FOLDERS[0]
    temporary = None
    try:
        cache.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=cache, prefix=f".{NAME}-"))
        batches = temporary / FOLDERS[0]
        batches.mkdir()
        write(batches)
        wrong = mismatch(batches)
        if wrong is not None:
            raise DataError(f"{wrong}; what was fetched was removed")
        if target.exists():
            shutil.rmtree(target)
        batches.rename(target)
    except OSError as error:
        raise DataError(f"{cache} cannot be written ({error.strerror})") from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    return target


def _fetch(folder: Path, progress: Progress | None) -> None:
    """Download the authors' archive, and unpack its batches into a folder."""
    target = folder.parent / "archive.tar.gz"
    archive = download(URL, target, refuse=lambda file: _wrong_sum(file, ARCHIVE_MD5), progress=progress)
    with tarfile.open(archive) as opened:
        for member in opened:
            content = opened.extractfile(member) if Path(member.name).stem in BATCHES else None
            if content is not None:
                (folder / f"{Path(member.name).stem}.bin").write_bytes(content.read())
