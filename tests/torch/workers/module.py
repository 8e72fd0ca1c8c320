"""Run of `python -m MODULE WORDS` in a process that has imported torch already."""

import runpy
import signal
import sys

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore Ctrl-C
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
