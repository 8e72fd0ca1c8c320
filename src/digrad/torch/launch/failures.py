"""Cause of an agent's failure: left in the error file of torchelastic, as by ``@record``, with what digrad knows.

``@record`` itself writes text and a time in whole seconds. That tells neither which of two agents failed first, nor
whether another attempt would end in the same way.
"""

import contextlib
import io
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from digrad._internal.error_text import is_timeout, one_line
from digrad._internal.files import write_atomically
from digrad.errors import CheckpointError, CommunicationError, DigradError, DisagreementError
from digrad.torch.engines.log_records import step_reached

FAILED, BAD_INPUT = 1, 2  # exit codes
ERROR_VARIABLE = "TORCHELASTIC_ERROR_FILE"  # names the file where torchelastic looks for the cause

# Kinds of ends; an attempt is put down to the first kind that there is.
FINAL = 0  # all attempts would end so
OWN = 1
LEFT = 2  # well: if others fail for want of this agent, it was too early
CONSEQUENCE = 3  # for want of others


@dataclass(frozen=True)
class Failure:
    """End of an agent.

    Args:
        reason: Why, in one line; by default it could not say anything itself.
        kind: ``FINAL``, ``OWN``, ``LEFT`` or ``CONSEQUENCE``.
        agent: Its number.
        age: Seconds since then.
        step: The one it had reached.
        mark: What an end like it in another attempt has, too; None if it says nothing about other attempts.
        traceback: As its script shows it.
    """

    reason: str
    kind: int = OWN
    agent: int = 0
    age: float = 0.0
    step: int | None = None
    mark: str | None = None
    traceback: str = ""

    @property
    def place(self) -> str:
        """Place in the run.

        >>> Failure("").place, Failure("", step=3).place
        ('before the first step', 'at step 3')
        """
        return "before the first step" if self.step is None else f"at step {self.step}"


def record_failure(error: BaseException, script: str | None = None) -> None:
    """Write the error that ends this agent to the error file, if torchelastic has named one.

    Args:
        error: What was raised.
        script: The file whose frames and those below are the user's; None takes all.
    """
    frames = error.__traceback__ if script is None else _frames_of(error, script)
    places = [f"{place.filename}:{place.lineno}" for place in traceback.extract_tb(frames)]
    step = step_reached()  # two attempts that fail alike at one step fail for ever
    mark = None if _is_consequence(error) else json.dumps([type(error).__name__, places, step])
    text = "" if isinstance(error, SystemExit) else _as_shown(error, frames)
    reason = one_line(error)
    _write(Failure(reason, _kind_of(error), step=step, mark=mark, traceback=text))


def record_end() -> None:
    """Write that this agent has ended well."""
    end = Failure("", LEFT, step=step_reached())
    reason = f"it ended with exit code 0 {end.place}, before the others were done; all agents must step equally often"
    _write(replace(end, reason=reason, mark=json.dumps(["left", end.step])))


def _write(end: Failure) -> None:
    path = os.environ.get(ERROR_VARIABLE)
    if path:
        extra = {"py_callstack": end.traceback or end.reason, "timestamp": str(int(time.time()))}
        entry = {"message": {"message": end.reason, "extraInfo": extra}}
        with contextlib.suppress(OSError):  # whoever has named it has gone, and nobody will ask
            write_atomically(Path(path), json.dumps({**entry, "digrad": vars(end), "time": time.monotonic()}))


def failures_of(error_files: Mapping[int, Path], codes: Mapping[int, int]) -> list[Failure]:
    """Return how agents of this machine have ended, as far as they have.

    Args:
        error_files: By agent.
        codes: Exit codes by agent of those that failed, in the order in which that was noticed.
    """
    found: list[Failure] = []
    for agent in [*codes, *(other for other in error_files if other not in codes)]:
        code, end = codes.get(agent, 0), _read(error_files[agent])
        # One that torchelastic has ended because another one had failed has nothing to say.
        if end is None and code and not (code == -signal.SIGTERM and found):
            end = Failure(_exit_text(code))
        if end is not None:
            found.append(replace(end, agent=agent))
    return found


def _read(path: Path) -> Failure | None:
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads(path.read_text())
        if "digrad" in found:
            return Failure(**{**found["digrad"], "age": time.monotonic() - found["time"]})
        return Failure(found["message"]["message"])  # of @record
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


def _kind_of(error: BaseException) -> int:
    """Return the kind of an error; bad input, different settings, a bad checkpoint and a typo are final."""
    final = ValueError | DisagreementError | CheckpointError
    if isinstance(error, SyntaxError) or (isinstance(error, DigradError) and isinstance(error, final)):
        return FINAL
    return CONSEQUENCE if isinstance(error, CommunicationError) else OWN


def say(text: str) -> None:
    """Write a line of digrad itself."""
    sys.stderr.write(f"digrad: {text}\n")
    sys.stderr.flush()
