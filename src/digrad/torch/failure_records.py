"""How an agent tells ``digrad launch`` why it failed: a small file in a folder that launch has named."""

import contextlib
import io
import json
import signal
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from digrad._internal.files import write_atomically
from digrad.errors import CheckpointError, CommunicationError, DigradError, DisagreementError
from digrad.torch.log_records import step_reached
from digrad.torch.reasons import is_timeout

FAILURES_VARIABLE = "DIGRAD_FAILURES"  # the folder where agents leave the reason of their failure


def record_failure(folder: Path, agent: int, attempt: int, error: BaseException, script: str) -> None:
    """Let an error that ends this agent be known to :func:`launch`, which shows it."""
    frames = _frames_of(error, script)
    step = step_reached()  # two attempts that fail alike at one step fail for ever
    places = [f"{place.filename}:{place.lineno}" for place in traceback.extract_tb(frames)]
    entry = {
        "agent": agent,
        "attempt": attempt,
        "time": time.monotonic(),
        "step": step,
        "reason": f"{type(error).__name__}: {' '.join(str(error).split())}",
        "traceback": "" if isinstance(error, SystemExit) else _as_shown(error, frames),
        "is_final": _is_final(error),
        "is_own": not isinstance(error, CommunicationError),  # not the silence of others
        "has_left": False,
        "mark": None if _is_consequence(error) else json.dumps([type(error).__name__, places, step]),
    }
    _write(folder, entry)


def record_end(folder: Path, agent: int, attempt: int) -> None:
    """Let it be known that this agent has ended well: if others fail for want of it, it was too early."""
    step = step_reached()
    when = "before the first step" if step is None else f"at step {step}"
    entry = {
        **unrecorded_failure(agent, 0, attempt),
        "step": step,
        "reason": f"it ended with exit code 0 {when}, before the others were done; all agents must step equally often",
        "is_own": False,
        "has_left": True,
        "mark": json.dumps(["left", agent, step]),
    }
    _write(folder, entry)


def _write(folder: Path, entry: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # launch has gone, and nobody will ask
        write_atomically(folder / f"{entry['attempt']}-{entry['agent']}.json", json.dumps(entry))


def unrecorded_failure(agent: int, code: int, attempt: int) -> dict[str, Any]:
    """Return the failure of an agent that could not say anything itself, from its exit code.

    >>> unrecorded_failure(3, -9, 0)["reason"], unrecorded_failure(3, 7, 0)["reason"]
    ('it was ended by SIGKILL', 'it ended with exit code 7')
    """
    signals = {number.value: number.name for number in signal.Signals}
    reason = f"it was ended by {signals[-code]}" if -code in signals else f"it ended with exit code {code}"
    return {
        "agent": agent, "attempt": attempt, "time": time.monotonic(), "step": None, "reason": reason, "traceback": "",
        "is_final": False, "is_own": True, "has_left": False, "mark": None,
    }  # fmt: skip


def _as_shown(error: BaseException, frames: TracebackType | None) -> str:
    """Return what the hook of the script would show; that of torch only adds the rank, as launch does."""
    is_torch = sys.excepthook.__module__.startswith("torch.")
    with contextlib.redirect_stderr(io.StringIO()) as shown:
        hook = sys.__excepthook__ if is_torch else sys.excepthook
        hook(type(error), error.with_traceback(frames), frames)
    return shown.getvalue()


def _frames_of(error: BaseException, script: str) -> TracebackType | None:
    """Return the traceback from the script on: how launch runs it is no part of it."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != script:
        frames = frames.tb_next
    return frames


def _is_consequence(error: BaseException) -> bool:
    """Return whether another agent has gone, for a reason of its own; silence may also be a forgotten call."""
    cause = error.__cause__
    return isinstance(error, CommunicationError) and cause is not None and not is_timeout(cause)


def _is_final(error: BaseException) -> bool:
    """Return whether all attempts would end in this error: bad input, different settings, a damaged checkpoint."""
    final = ValueError | DisagreementError | CheckpointError
    return isinstance(error, DigradError) and isinstance(error, final)


def read_failures(folder: Path) -> list[dict[str, Any]]:
    """Return what the agents have left in ``folder`` so far, in the order of attempts."""
    failures = [json.loads(path.read_text()) for path in folder.glob("*.json")]
    return sorted(failures, key=lambda failure: (failure["attempt"], failure["agent"]))


def without_successes(failures: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out agents that have ended well, unless all others of the attempt failed for want of somebody."""
    failed = [one for one in failures if not one["has_left"]]
    own = {one["attempt"] for one in failed if one["is_own"]}
    in_vain = {one["attempt"] for one in failed} - own
    return [one for one in failures if not one["has_left"] or one["attempt"] in in_vain]


def cause_of(failures: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the failure of the last attempt that explains the others: the first that did not follow from another."""
    last = max(failure["attempt"] for failure in failures)
    candidates = [failure for failure in failures if failure["attempt"] == last]
    return min(
        candidates,
        key=lambda one: (not one["is_final"], not (one["is_own"] or one["has_left"]), _order(one)),
    )


def _order(failure: dict[str, Any]) -> float:
    return failure["agent"] if failure["is_final"] else failure["time"]  # all agents have those at once


def repeated_failure(failures: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Return a failure that an earlier attempt has had in the same place of the program at the same step."""
    first: dict[str, int] = {}
    for failure in failures:
        mark = failure["mark"]
        if mark is not None and first.setdefault(mark, failure["attempt"]) < failure["attempt"]:
            return failure
    return None
