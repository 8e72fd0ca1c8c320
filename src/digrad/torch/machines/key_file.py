"""The secret that the machines of a run share: a file with 32 random bytes, written for people."""

import os
import secrets
import stat
from pathlib import Path

from digrad.errors import ArgumentError, StorageError

SIZE = 32  # bytes
_PREFIX = "digrad-key-1:"


def make_key(path: str | os.PathLike[str]) -> Path:
    """Write a new key that only its owner can read; a file that is there already is left alone.

    Raises:
        ArgumentError: The file exists.
        StorageError: It cannot be written.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     len(read_key(make_key(Path(folder) / "run.key")))
        32
    """
    path = Path(path)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise ArgumentError(
            f"`{path}` exists, and a key that machines share is not overwritten; give another file."
        ) from error
    except OSError as error:
        raise StorageError(error.errno, error.strerror or str(error), str(path)) from error
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(f"{_PREFIX}{secrets.token_hex(SIZE)}\n")
    except OSError as error:
        path.unlink(missing_ok=True)  # half a key would keep the next one out
        raise StorageError(error.errno, error.strerror or str(error), str(path)) from error
    return path


def read_key(path: str | os.PathLike[str]) -> bytes:
    """Return the key in a file.

    Raises:
        ArgumentError: It is missing, is no key, or others can read it.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
        mode = path.stat().st_mode
    except OSError as error:
        raise ArgumentError(
            f"`key_file` of launch cannot be read ({path}: {error.strerror}); make one with `digrad keygen {path}` and "
            "copy it to all machines."
        ) from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ArgumentError(
            f"`key_file` of launch can be read by others (`{path}` has mode {stat.S_IMODE(mode):o}); "
            f"say `chmod 600 {path}`, and make a new key if somebody may have seen it."
        )
    digits = text.removeprefix(_PREFIX)
    if not text.startswith(_PREFIX) or len(digits) != 2 * SIZE or set(digits) - set("0123456789abcdef"):
        raise ArgumentError(
            f"`key_file` of launch must hold a key of `digrad keygen`, but `{path}` does not."
        )
    return bytes.fromhex(digits)
