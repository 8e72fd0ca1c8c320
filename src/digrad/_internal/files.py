"""Writing files so that a reader sees the old content or the new, never half of it, and from one process at a time."""

import errno
import fcntl
import hashlib
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from digrad.errors import ArgumentError, StorageError

LOCK = ".lock"  # in a folder while a process writes there
_TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp")

_LONGEST_STEM = 80  # file systems allow 255 bytes; the rest is for prefixes and suffixes
_SAFE_NAME = re.compile(r"[A-Za-z0-9._-]+")
_HASHED_NAME = re.compile(r".*-[0-9a-f]{8}")


def write_atomically(path: str | os.PathLike[str], data: bytes | str) -> Path:
    """Write ``data`` (text as UTF-8) to ``path`` in one step that survives a crash or a full disk.

    A hidden temporary file in the same folder is written, forced to the disk and renamed over ``path``. What a killed
    process left of such files in this folder is deleted.

    Args:
        path: The file to create or replace; its folder must exist.
        data: The whole content.

    Returns:
        The path written.

    Raises:
        StorageError: The folder is missing or not writable, or the disk is full; ``path`` is then unchanged.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_atomically(Path(folder) / "note.txt", "done").read_text()
        'done'
    """
    path = Path(path)
    _remove_abandoned(path.parent)
    try:
        with _temporary_file(path.parent) as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
            os.replace(file.name, path)
    except OSError as error:
        raise _not_written(path, error) from error
    _sync_folder(path.parent)
    return path


def make_folder(path: str | os.PathLike[str]) -> Path:
    """Make a folder and those above it, unless they are there.

    Raises:
        StorageError: It cannot be made, or is a file.
    """
    path = Path(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_written(path, error) from error
    return path


@contextmanager
def locked(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Make a folder and keep other processes that lock it out; a lock ends with its process, however that ends.

    Raises:
        ArgumentError: Another process has locked it.
        StorageError: It cannot be made or written to.
    """
    with _held(make_folder(folder) / LOCK, f"{folder}; wait until it has ended, or give another --out"):
        yield


@contextmanager
def locked_file(file: str | os.PathLike[str]) -> Iterator[None]:
    """Keep other processes that lock a file out; its folder must exist, the file need not.

    Raises:
        ArgumentError: Another process has locked it.
        StorageError: Its folder is missing or cannot be written to.
    """
    path = Path(file)
    with _held(
        path.with_name(f".{path.name}{LOCK}"), f"{path}; wait until it has ended, or give another path"
    ):
        yield


def is_left_over(file: Path) -> bool:
    """Return whether a file may be left of a process that was killed while it held a lock or wrote a file."""
    return file.name == LOCK or _TEMPORARY.fullmatch(file.name) is not None


@contextmanager
def _held(path: Path, what: str) -> Iterator[None]:
    descriptor = _open_lock(path, what)
    try:
        _remove_abandoned(path.parent)
        yield
    finally:
        try:
            path.unlink(missing_ok=True)
        finally:
            os.close(descriptor)


@contextmanager
def _temporary_file(folder: Path) -> Iterator[BinaryIO]:
    """Open a new file that :func:`_remove_abandoned` leaves alone while this process lives; delete it at the end."""
    while True:
        path = folder / f".{secrets.token_hex(8)}.tmp"
        with open(path, "xb") as file:
            with suppress(OSError):  # a file system without locks, where nothing is taken for abandoned
                fcntl.flock(file, fcntl.LOCK_EX)
            if not os.fstat(file.fileno()).st_nlink:
                continue  # taken for abandoned before it was locked
            try:
                yield file
            finally:
                with suppress(OSError):
                    path.unlink()
            return


def _remove_abandoned(folder: Path) -> None:
    """Delete temporary files whose writer was killed: nobody holds their locks any more."""
    with suppress(OSError):  # a folder that is missing, or not ours to tidy
        names = [name for name in os.listdir(folder) if _TEMPORARY.fullmatch(name)]
        for name in names:
            with suppress(OSError), open(folder / name, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(folder / name)


def _open_lock(path: Path, what: str) -> int:
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise _not_written(path, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:
                return descriptor
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                raise ArgumentError(f"Another process is writing to {what}.") from None
            raise _not_written(path, error) from error
        os.close(descriptor)  # the one who held it has just removed it: make a new one


def _not_written(path: Path, error: OSError) -> StorageError:
    return StorageError(error.errno, error.strerror or str(error), str(path))


def file_stem(name: str) -> str:
    """Return ``name`` made safe as part of a file name; different names give different stems.

    A name of letters, digits, ``.``, ``_`` and ``-`` stays as it is. Any other is shortened and gets a hash
    of the name at its end; so does a name that already looks hashed, so that no two names meet.

    Example:
        >>> file_stem("CGT"), file_stem("a/b"), file_stem("a b")
        ('CGT', 'a_b-c14cddc0', 'a_b-c8687a08')
    """
    if _SAFE_NAME.fullmatch(name) and len(name) <= _LONGEST_STEM and not _HASHED_NAME.fullmatch(name):
        return name
    readable = re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:_LONGEST_STEM]
    return f"{readable}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _sync_folder(folder: Path) -> None:
    # Without this the rename itself may be lost when the machine loses power.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
