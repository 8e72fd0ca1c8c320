"""A process that ends with the one that started it, however that ends: ``python -m digrad.torch.tied MODULE WORDS``.

Whoever starts it leaves its number in the environment, so that it is noticed if the starter has ended already.
"""

import ctypes
import os
import runpy
import signal
import sys

PARENT_VARIABLE = "DIGRAD_PARENT"
_PR_SET_PDEATHSIG = 1  # of Linux's prctl


def end_with_parent() -> None:
    """Let the kernel kill this process when the one that started it ends."""
    parent = os.environ.pop(PARENT_VARIABLE, None)
    if parent is None or sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        os._exit(128 + signal.SIGKILL)


def main() -> None:
    """Run a module, whose own children may be tied to it."""
    end_with_parent()
    os.environ[PARENT_VARIABLE] = str(os.getpid())
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
