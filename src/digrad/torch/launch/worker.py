"""One agent as ``digrad launch`` lets torchelastic start it: ``python -m digrad.torch.launch.worker SCRIPT ARGUMENTS``.

The reason of its failure is recorded also if it fails before it has constructed anything, and its traceback is left to
launch, which shows that of the first cause only.
"""

import ctypes
import os
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

PARENT_VARIABLE = (
    "DIGRAD_PARENT"  # the process that starts the workers: one that has ended already is noticed
)
_PR_SET_PDEATHSIG = 1  # of Linux's prctl
_SIGNALLED = range(129, 256)  # exit codes: somebody has ended the agent


def is_elastic() -> bool:
    """Return whether torchelastic has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def die_with_parent() -> None:
    """Let the kernel kill this process when torchelastic, which started it, ends; elsewhere do nothing."""
    if not is_elastic() or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    parent = os.environ.pop(PARENT_VARIABLE, None)
    if parent is not None and os.getppid() != int(parent):
        os._exit(128 + signal.SIGKILL)


def record_uncaught() -> None:
    """Let an uncaught exception be written to the error file of torchelastic, before it is shown."""
    from digrad.torch.launch.failures import record_failure

    show: Callable[[type[BaseException], BaseException, TracebackType | None], object] = sys.excepthook
    if hasattr(show, "shows"):
        return

    def hook(kind: type[BaseException], error: BaseException, frames: TracebackType | None) -> None:
        sys.excepthook = show
        record_failure(error)
        show(kind, error, frames)

    hook.shows = show  # pyright: ignore[reportFunctionMemberAccess]
    sys.excepthook = hook


def main() -> None:
    """Run the script of the command line as Python itself would."""
    die_with_parent()
    from digrad.torch.launch.failures import record_end, record_failure

    del sys.argv[0]
    script = sys.argv[0]
    if not sys.flags.safe_path:
        sys.path[0] = str(Path(script).resolve().parent)
    try:
        runpy.run_path(script, run_name="__main__")
        record_end()
    except SystemExit as error:
        if error.code in (None, 0):
            record_end()
        elif error.code not in _SIGNALLED:
            record_failure(error, script)
        raise
    except Exception as error:
        record_failure(error, script)
        # Not sys.exit: Python keeps the frames of an uncaught error to the end, and without them torch would wait for
        # the messages under way as it drops the group.
        sys.excepthook = lambda *_: None
        raise


if __name__ == "__main__":
    main()
