"""Processes that are killed between any two changes of files."""

import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def killed_everywhere(code: str, before: Path, into: Path, *arguments: object) -> list[Path]:
    """Return copies of a folder, in each of which a process was killed before the next change of a file.

    Args:
        code: Defines ``act(folder)``; what it imports and builds is shared by all processes, which are forks.
        before: The folder to begin with; need not exist.
        into: Where the copies go: ``1`` was killed before the first change, and so on. The last was not killed.
        *arguments: What ``code`` finds in ``sys.argv[1:]``.
    """
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, __file__, str(before), str(into), code, *map(str, arguments)]
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return sorted(into.iterdir(), key=lambda copy: int(copy.name))


def _fork_until_one_ends(before: Path, into: Path, act: Callable[[Path], object]) -> int:
    for number in itertools.count(1):
        copy = into / str(number)
        if before.exists():
            shutil.copytree(before, copy)
        child = os.fork()
        if not child:
            _kill_before_change(number)
            act(copy)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code != -signal.SIGKILL:
            return code
    raise AssertionError


def _kill_before_change(number: int) -> None:
    count = itertools.count(1)

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def changed(*arguments: Any, **options: Any) -> Any:
            is_change = change.__name__ != "unlink" or os.path.exists(arguments[0])
            if is_change and next(count) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return change(*arguments, **options)

        return changed

    os.replace, os.unlink = counted(os.replace), counted(os.unlink)
    os.fsync = lambda descriptor: None  # of a kill, the kernel loses nothing


if __name__ == "__main__":
    _before, _into, _code = sys.argv[1:4]
    del sys.argv[1:4]
    Path(_into).mkdir(exist_ok=True)
    _names: dict[str, Any] = {}
    exec(compile(_code, "code", "exec"), _names)
    sys.exit(_fork_until_one_ends(Path(_before), Path(_into), _names["act"]))
