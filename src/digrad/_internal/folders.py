"""Folders of results, which must not be mixed with other files, and the folder of what can be fetched again."""

import os
from collections.abc import Callable
from pathlib import Path

from digrad._internal.files import is_left_over
from digrad.errors import ArgumentError


def check_folder(
    path: Path,
    what: str,
    is_ours: Callable[[Path], bool],
    *,
    resume: bool = False,
    overwrite: bool = False,
) -> None:
    """Raise unless results may go to a folder: it is new, empty, or holds results of the same kind.

    Args:
        path: The folder.
        what: The kind of results, for the message.
        is_ours: Tells by its files whether a folder holds such results.
        resume: Whether earlier results are kept.
        overwrite: Whether they are deleted.

    Raises:
        ArgumentError: It may not, or both ``resume`` and ``overwrite`` are wanted.
    """
    if path.exists() and not path.is_dir():
        raise ArgumentError(f"`out` must be a folder, but {path} is a file; give another --out.")
    if resume and overwrite:
        raise ArgumentError("--resume keeps what --overwrite deletes; give one of the two.")
    if not is_empty(path) and not is_ours(path):
        raise ArgumentError(
            f"`out` must be empty or hold {what}, but {path} holds other files; give another --out."
        )


def is_empty(path: Path) -> bool:
    """Return whether nothing is there, or a folder with nothing but what a killed process may have left."""
    return not path.exists() or all(map(is_left_over, path.iterdir()))


def cache_folder() -> Path:
    """Return the folder of downloads: ``DIGRAD_CACHE``, else the user's cache folder of the platform."""
    override = os.environ.get("DIGRAD_CACHE")
    if override:
        return Path(override).expanduser()
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("digrad", appauthor=False))
