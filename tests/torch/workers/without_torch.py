"""One agent of `digrad launch` or torchrun that takes no steps, and so need not load torch, which takes seconds."""

import os
import signal
import sys
import time
from pathlib import Path

from digrad.errors import CommunicationError, DisagreementError
from digrad.torch.engines.log_records import note_step
from digrad.torch.launch import attempt

RANK = int(os.environ["RANK"])


def trouble(folder: Path) -> None:
    """Agent 1 leaves at step 3, and in all later attempts fails at step 1; agent 0 notices that it is gone."""
    note_step(1 if attempt() else 3)
    mine, other = folder / f"{attempt()}-{RANK}", folder / f"{attempt()}-1"
    mine.write_text(str(os.getpid()))
    if RANK == 0:
        while not other.exists() or Path("/proc", other.read_text() or "self").exists():
            time.sleep(0.02)
        raise CommunicationError("nothing came from agent 1")
    while not (folder / f"{attempt()}-0").exists():
        time.sleep(0.02)
    if attempt():
        raise ZeroDivisionError("agent 1 divides by zero.")


def main(what: str, out: str) -> None:
    folder = Path(out)
    if what == "trouble":
        trouble(folder)
    elif what == "disagree":
        raise DisagreementError("the agents disagree on dtype")
    elif what == "killed" and attempt():  # the second attempt is a real one
        from launched import main as train

        train("short", out)
    else:
        (folder / f"training-{RANK}").touch()
        if what == "killed" and RANK == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600)


if __name__ == "__main__":
    main(*sys.argv[1:])
