"""A folder as kills between any two changes of files would leave it."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock


def killed_everywhere(act: Callable[[Path], object], before: Path, into: Path) -> list[Path]:
    """Return copies of a folder as kills of ``act(folder)`` leave it, one before each change of a file.

    A kill itself changes no file, so that one process shows all of them: it copies the folder before each change.

    Args:
        act: Changes files in a folder.
        before: The folder to begin with; need not exist.
        into: Where the copies go. The last was not killed.
    """
    folder, copies = into / "acted on", list[Path]()
    if before.exists():
        shutil.copytree(before, folder)

    def copying(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any, **options: Any) -> Any:
            is_change = change.__name__ != "unlink" or os.path.exists(arguments[0])
            if is_change and folder.exists():
                copies.append(shutil.copytree(folder, into / str(len(copies))))
            return change(*arguments, **options)

        return changed

    with mock.patch("os.replace", copying(os.replace)), mock.patch("os.unlink", copying(os.unlink)):
        act(folder)
    return [*copies, folder]
