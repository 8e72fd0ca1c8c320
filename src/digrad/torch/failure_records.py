"""How an agent tells ``digrad launch`` why it failed: a small file in a folder that launch has named."""

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from digrad.errors import CheckpointError, CommunicationError, DigradError, DisagreementError
from digrad.files import write_atomically

FAILURES_VARIABLE = "DIGRAD_FAILURES"  # the folder where agents leave the reason of their failure


def record_failure() -> None:
    """Let an uncaught error of this agent be known to :func:`launch`, if that has started it."""
    # Taken out, so that it happens once and processes started by the script do not report as the agent.
    folder = os.environ.pop(FAILURES_VARIABLE, None)
    if folder is None:
        return
    agent, attempt = os.environ.get("RANK", "0"), os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    show = sys.excepthook

    def show_and_record(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        show(kind, error, traceback)
        entry = {
            "agent": int(agent),
            "attempt": int(attempt),
            "reason": f"{kind.__name__}: {' '.join(str(error).split())}",
            "is_final": _is_final(error),
            "is_own": not isinstance(error, CommunicationError),  # not the silence of others
        }
        with contextlib.suppress(OSError):  # launch has gone, and nobody will ask
            write_atomically(Path(folder) / f"{attempt}-{agent}.json", json.dumps(entry))

    sys.excepthook = show_and_record


def _is_final(error: BaseException) -> bool:
    """Return whether all attempts would end in this error: bad input, different settings, a damaged checkpoint."""
    final = ValueError | DisagreementError | CheckpointError
    return isinstance(error, DigradError) and isinstance(error, final)


def read_failures(folder: Path) -> list[dict[str, Any]]:
    """Return what the agents have left in ``folder`` so far, in the order of attempts."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def cause_of(failures: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the failure of the last attempt that explains the others."""
    last = max(failure["attempt"] for failure in failures)
    candidates = [failure for failure in failures if failure["attempt"] == last]
    return min(candidates, key=lambda one: (not one["is_final"], not one["is_own"], one["agent"]))
