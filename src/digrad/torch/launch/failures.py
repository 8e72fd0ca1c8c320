"""Cause of an agent's failure: left in the error file of torchelastic, as by ``@record``, with what digrad knows."""

import contextlib
import io
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from digrad._internal.error_text import is_timeout
from digrad._internal.files import write_atomically
from digrad.errors import CheckpointError, CommunicationError, DigradError, DisagreementError
from digrad.torch.engines.log_records import step_reached

FAILED, BAD_INPUT = 1, 2  # exit codes
ERROR_VARIABLE = "TORCHELASTIC_ERROR_FILE"  # names the file where torchelastic looks for the cause
_LEFT = "left.json"  # beside it, the record of an agent that has ended well


def record_failure(error: BaseException, script: str | None = None) -> None:
    """Write the error that ends this agent to the error file, if torchelastic has named one.

    Args:
        error: What was raised.
        script: The file whose frames and those below are the user's; None takes all.
    """
    frames = error.__traceback__ if script is None else _frames_of(error, script)
    text = "" if isinstance(error, SystemExit) else _as_shown(error, frames)
    step = step_reached()  # two attempts that fail alike at one step fail for ever
    places = [f"{place.filename}:{place.lineno}" for place in traceback.extract_tb(frames)]
    reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
    details = _record(
        reason,
        time=time.monotonic(),
        step=step,
        traceback=text,
        is_final=_is_final(error),
        is_own=not isinstance(error, CommunicationError),  # not the silence of others
        mark=None if _is_consequence(error) else json.dumps([type(error).__name__, places, step]),
    )
    extra = {"py_callstack": text or reason, "timestamp": str(int(time.time()))}
    _write({"message": {"message": reason, "extraInfo": extra}, "digrad": details})


def record_end() -> None:
    """Write that this agent has ended well: if others fail for want of it, it was too early."""
    step = step_reached()
    reason = (
        f"it ended with exit code 0 {place_of({'step': step})}, before the others were done; all agents must step "
        "equally often"
    )
    mark = json.dumps(["left", step])
    details = _record(reason, time=time.monotonic(), step=step, is_own=False, has_left=True, mark=mark)
    _write({"digrad": details}, _LEFT)


def _record(reason: str, **known: Any) -> dict[str, Any]:
    """Return what is recorded of the end of an agent; by default it could not say anything itself.

    Args:
        reason: Why it ended.
        **known: ``step`` it had reached, ``traceback``, ``is_final`` if all attempts would end so, ``is_own`` unless
            it ended for want of others, ``has_left`` if it ended well, ``mark`` by which an end like it is recognised.
    """
    unknown = {
        "step": None,
        "traceback": "",
        "is_final": False,
        "is_own": True,
        "has_left": False,
        "mark": None,
    }
    return {"reason": reason, **unknown, **known}


def _write(entry: dict[str, Any], name: str | None = None) -> None:
    path = os.environ.get(ERROR_VARIABLE)
    if path:
        place = Path(path) if name is None else Path(path).with_name(name)
        with contextlib.suppress(OSError):  # whoever has named it has gone, and nobody will ask
            write_atomically(place, json.dumps(entry))


def failures_of(error_files: dict[int, str], codes: dict[int, int]) -> list[dict[str, Any]]:
    """Return the failures of the agents of one machine, each with its age in seconds, the first one first.

    Args:
        error_files: By agent.
        codes: Exit codes by agent of those that failed, in the order in which that was noticed.
    """
    now, found = time.monotonic(), []
    for agent in [*codes, *(other for other in error_files if other not in codes)]:
        code = codes.get(agent, 0)
        details = _details(Path(error_files[agent])) or _details(Path(error_files[agent]).with_name(_LEFT))
        if details is None and code:
            if code == -signal.SIGTERM and found:
                continue  # ended by torchelastic because another one had failed
            details = _record(_exit_text(code))
        if details is not None:
            found.append({"agent": agent, "age": now - details.get("time", now), **details})
    return found


def _details(path: Path) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads(path.read_text())
        return found.get("digrad") or _record(found["message"]["message"])  # of @record
    return None


def _exit_text(code: int) -> str:
    """Return what an exit code says.

    >>> _exit_text(-9), _exit_text(7)
    ('it was ended by SIGKILL', 'it ended with exit code 7')
    """
    signals = {number.value: number.name for number in signal.Signals}
    return f"it was ended by {signals[-code]}" if -code in signals else f"it ended with exit code {code}"


def _as_shown(error: BaseException, frames: TracebackType | None) -> str:
    """Return what the hook of the script would show; that of torch only adds the rank, as launch does."""
    hook = getattr(sys.excepthook, "shows", sys.excepthook)
    with contextlib.redirect_stderr(io.StringIO()) as shown:
        hook = sys.__excepthook__ if hook.__module__.startswith("torch.") else hook
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
    """Return whether all attempts would end in this error: bad input, different settings, a bad checkpoint, a typo."""
    final = ValueError | DisagreementError | CheckpointError
    return isinstance(error, SyntaxError) or (isinstance(error, DigradError) and isinstance(error, final))


def without_successes(failures: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out agents that have ended well, unless all others of the attempt failed for want of somebody."""
    failed = [one for one in failures if not one["has_left"]]
    own = {one["attempt"] for one in failed if one["is_own"]}
    in_vain = {one["attempt"] for one in failed} - own
    return [one for one in failures if not one["has_left"] or one["attempt"] in in_vain]


def cause_of(failures: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the failure of an attempt that explains the others: the first that did not follow from another."""
    return min(
        failures,
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


def place_of(failure: dict[str, Any]) -> str:
    """Return where in the run a failure happened.

    >>> place_of({"step": None}), place_of({"step": 3})
    ('before the first step', 'at step 3')
    """
    return "before the first step" if failure["step"] is None else f"at step {failure['step']}"


def say(text: str) -> None:
    """Write a line of digrad itself."""
    sys.stderr.write(f"digrad: {text}\n")
    sys.stderr.flush()
