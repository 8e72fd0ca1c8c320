"""Fetching one file: to a temporary name, checked, then renamed, so that a broken download leaves nothing."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeAlias

from digrad.errors import DataError

Progress: TypeAlias = Callable[[int, int | None], None]  # (bytes so far, bytes in all if the server says)

_CHUNK = 1 << 16
_TIMEOUT = 30.0  # seconds without a byte from the server


def download(
    url: str, target: Path, *, refuse: Callable[[Path], str | None], progress: Progress | None = None
) -> Path:
    """Download ``url`` to ``target``, which appears only when complete and accepted.

    Args:
        url: The address.
        target: Path of the file; its folder is made when missing.
        refuse: Called with the downloaded file before it gets its name; says what is wrong with it, or None.
        progress: Called with the bytes so far and the bytes in all (None when unknown).

    Raises:
        DataError: With the reason, when the file could not be fetched, stored or was refused.
    """
    from http.client import HTTPException

    temporary: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}-", delete=False) as file:
            temporary = Path(file.name)
            _fetch(url, file, progress)
        wrong = refuse(temporary)
        if wrong is not None:
            raise DataError(f"{url}: {wrong}; the downloaded file was removed")
        os.replace(temporary, target)
    except DataError:
        raise
    except (OSError, HTTPException, ValueError) as error:  # ValueError: the address is malformed
        raise DataError(f"{url}: {_reason(error)}") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return target


@contextmanager
def progress_bar(description: str) -> Iterator[Progress | None]:
    """Give a callback for ``progress`` that draws a bar on the terminal, or None when there is no terminal.

    Example:
        >>> with progress_bar("a9a") as progress:
        ...     progress is None  # standard error is not a terminal here
        True
    """
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _fetch(url: str, file: IO[bytes], progress: Progress | None) -> None:
    from urllib.request import urlopen

    with urlopen(url, timeout=_TIMEOUT) as response:
        total = _content_length(response)
        done = 0
        while chunk := response.read(_CHUNK):
            file.write(chunk)
            done += len(chunk)
            if progress is not None:
                progress(done, total)
    if total is not None and done != total:
        raise DataError(f"{url}: the download stopped after {done} of {total} bytes")


def _content_length(response: Any) -> int | None:
    length = response.headers.get("Content-Length")
    return int(length) if length is not None else None


def _reason(error: Exception) -> str:
    from urllib.error import HTTPError

    if isinstance(error, HTTPError):
        error.close()  # it is also the server's answer, with an open connection
        return f"the server answers {error.code} {error.reason}"
    cause = getattr(error, "reason", None) or error
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
