"""Places of the file of a LIBSVM data set: given, in the data folder, in the cache, or on the LIBSVM site."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from digrad._internal.folders import cache_folder
from digrad.checks import did_you_mean
from digrad.data.download import Progress, download
from digrad.data.known_datasets import KNOWN, KnownDataset
from digrad.data.libsvm import open_unpacked
from digrad.errors import DataError

LIBSVM_URL = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/binary/"

_CHUNK = 1 << 20
_SUFFIXES = ("", ".bz2", ".gz", ".txt")


def locate(
    name: str,
    path: str | Path | None = None,
    *,
    progress: Progress | None = None,
) -> Path:
    """Return the file of a LIBSVM data set, downloading it if it is nowhere on this machine.

    The places, in this order: ``path``; the folder ``DIGRAD_DATA``; the cache folder; the LIBSVM site, or its
    mirror at the address ``DIGRAD_LIBSVM_URL``, which fills the cache. Every file but the one at ``path`` is compared
    with its known SHA-256.

    Args:
        name: A data set of the LIBSVM site that digrad knows, such as ``a9a``.
        path: The user's own file, or a folder that holds it. It is used as it is, and nothing else is tried.
        progress: Called during a download with the bytes so far and the bytes in all (None when unknown).

    Raises:
        DataError: When the file at ``path`` or in ``DIGRAD_DATA`` is not usable, or no place has the data
            set; then the message says why each failed.
    """
    catalog = {each: known for each, known in KNOWN.items() if known.source == "libsvm"}
    if name not in catalog:
        near = did_you_mean(name, catalog)
        raise DataError(f"No data set {name!r} on the LIBSVM site; digrad knows {', '.join(catalog)}.{near}")
    entry = catalog[name]
    if path is not None:
        return _given(entry, Path(path).expanduser())
    found, failures = find_file(entry)
    if found is not None:
        return found
    failures = ["`path`: not given", *failures]
    url = (os.environ.get("DIGRAD_LIBSVM_URL") or LIBSVM_URL).rstrip("/") + "/" + name
    try:
        return download(
            url, cache_folder() / name, refuse=lambda file: mismatch(entry, file), progress=progress
        )
    except DataError as error:
        failures.append(f"download: {error}")
    raise DataError(
        f"Data set {name!r} was not found. {'; '.join(failures)}. Get {name} from {LIBSVM_URL} "
        f"on a machine with internet, then set DIGRAD_DATA to its folder or pass it as `path`."
    )


def find_on_disk(
    look: Callable[[Path], Path | None], mismatch: Callable[[Path], str | None], what: str
) -> tuple[Path | None, list[str]]:
    """Look for a data set in the folder ``DIGRAD_DATA``, then in the cache.

    Args:
        look: Returns where it is in a folder, or None.
        mismatch: Returns what is wrong with what was found, or None.
        what: The name of the data set in messages.

    Returns:
        Where it is, or None; and why it is not in the places before.

    Raises:
        DataError: The file in ``DIGRAD_DATA`` is not the data set.
    """
    failures = []
    for place, setting in (("DIGRAD_DATA", os.environ.get("DIGRAD_DATA")), ("cache", str(cache_folder()))):
        folder = Path(setting).expanduser() if setting else None
        found = look(folder) if folder else None
        if found is None:
            is_wrong = place == "DIGRAD_DATA" and folder is not None and not folder.is_dir()
            reason = f"{folder} is not a folder" if is_wrong else f"not in {folder}" if folder else "not set"
            failures.append(f"{place}: {reason}")
        elif (wrong := mismatch(found)) is None:
            return found, failures
        elif place == "DIGRAD_DATA":
            raise DataError(
                f"{found} (found by DIGRAD_DATA) is not {what}: {wrong}. Replace the file, or pass it as `path` to "
                "use it as it is."
            )
        else:  # the cache is ours: what is damaged is replaced by a new download
            failures.append(f"cache: {found} is damaged ({wrong})")
    return None, failures


def unpacked_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's text, unpacked if need be."""
    digest = hashlib.sha256()
    with open_unpacked(path) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def mismatch(entry: KnownDataset, path: Path) -> str | None:
    """Return what is wrong with the text of ``path``, or None when it is the known one."""
    try:
        actual = unpacked_sha256(path)
    except DataError as error:
        return str(error).rstrip(".")
    if actual == entry.sha256:
        return None
    return f"the SHA-256 of the text must be {entry.sha256}, but is {actual}"


def _given(entry: KnownDataset, path: Path) -> Path:
    if path.is_file():
        return path
    found = _in_folder(entry, path)
    if found is None:
        what = f"holds none of {_names(entry)}" if path.is_dir() else "does not exist"
        raise DataError(
            f"`path` of data set {entry.name!r}: {path} {what}. Give its file, or a folder with it."
        )
    return found


def find_file(entry: KnownDataset) -> tuple[Path | None, list[str]]:
    """Return the file of a LIBSVM data set on this machine, as :func:`find_on_disk` does."""
    what = f"the data set {entry.name!r}"
    return find_on_disk(lambda folder: _in_folder(entry, folder), lambda file: mismatch(entry, file), what)


def _in_folder(entry: KnownDataset, folder: Path) -> Path | None:
    candidates = (folder / (entry.name + suffix) for suffix in _SUFFIXES)
    return next((file for file in candidates if file.is_file()), None)


def _names(entry: KnownDataset) -> str:
    return ", ".join(entry.name + suffix for suffix in _SUFFIXES)
