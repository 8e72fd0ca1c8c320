"""The lines of all agents as one text: each begins with the number of its agent, none is torn or lost.

torchelastic's own ``--tee`` reads files of the agents every tenth of a second, and puts its prefix also in front of the
second half of a line that was not yet complete.
"""

import contextlib
import os
import selectors
import threading
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

OUT, ERR = 1, 2  # file descriptors
_CHUNK = 1 << 16  # bytes; a longer piece of a line is shown before the line ends
_PERIOD = 0.1  # seconds between two looks at whether to end


@dataclass
class _Stream:
    prefix: bytes
    target: int
    rest: bytes = b""  # the beginning of a line


class PrefixedLogs(LogsSpecs):
    """Gives the workers of torchelastic pipes to write to, and passes on what comes, in a thread, until it is closed.

    A line is passed on when it ends, a progress bar at each carriage return.

    Args:
        folder: Private; for error files.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder, self._starts = folder, 0
        self.error_files: dict[int, str] = {}  # of the present attempt, by agent
        self._selector, self._lock = selectors.DefaultSelector(), threading.Lock()
        self._writers: list[int] = []
        self._is_closing, self._idle = False, threading.Event()
        self._thread = threading.Thread(target=self._relay, name="digrad-logs", daemon=True)
        self._thread.start()

    @property
    def root_log_dir(self) -> str:
        """Folder of the error files."""
        return str(self._folder)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return where the workers of an attempt write."""
        self._close_writers()
        self._starts += 1
        self.error_files = {}
        outputs, errors, files = {}, {}, {}
        for local, variables in envs.items():
            rank = int(variables["RANK"])
            folder = self._folder / f"attempt-{self._starts}" / str(rank)
            folder.mkdir(parents=True)
            variables["TORCHELASTIC_ERROR_FILE"] = files[local] = self.error_files[rank] = str(
                folder / "error.json"
            )
            outputs[local] = self._pipe(rank, OUT)
            # If both go to the same place their order is kept.
            errors[local] = outputs[local] if _is_one_output() else self._pipe(rank, ERR)
        return LogsDest(outputs, errors, {}, {}, files, "", "")

    def show(self, agent: int, text: str) -> None:
        """Write lines as if the agent had, on standard error."""
        self._write(ERR, _complete_lines(_Stream(_prefix(agent), ERR), text.encode()))

    def flush(self, timeout: float | None = None) -> None:
        """Pass on what has been written so far."""
        self._idle.clear()
        self._idle.wait(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Pass on what has been written so far; ``timeout`` is how long a reader of ours may keep us waiting."""
        self._close_writers()
        self._is_closing = True
        self._thread.join(timeout)

    def _pipe(self, agent: int, target: int) -> str:
        reader, writer = os.pipe()
        self._selector.register(reader, selectors.EVENT_READ, _Stream(_prefix(agent), target))
        self._writers.append(writer)
        return f"/dev/fd/{writer}"  # which torchelastic opens

    def _close_writers(self) -> None:
        """Close our own ends of the pipes of an attempt: the workers have theirs."""
        while self._writers:
            os.close(self._writers.pop())

    def _relay(self) -> None:
        while True:
            # Before the look: what was written until then is seen by it.
            is_last, is_asked = self._is_closing, not self._idle.is_set()
            ready = self._selector.select(0 if is_last or is_asked else _PERIOD)
            if is_asked and not ready:
                self._idle.set()
            if is_last and not ready:
                break
            for key, _ in ready:
                self._pass_on(key.fd, key.data)
        for key in list(self._selector.get_map().values()):
            self._end(key.fd, key.data)

    def _pass_on(self, descriptor: int, stream: _Stream) -> None:
        data = os.read(descriptor, _CHUNK)
        try:
            if data:
                self._write(stream.target, _complete_lines(stream, data))
            else:
                self._end(descriptor, stream)
        except OSError:  # nobody reads on: the agents are told as if they wrote there themselves
            self._selector.unregister(descriptor)
            os.close(descriptor)

    def _end(self, descriptor: int, stream: _Stream) -> None:
        with contextlib.suppress(OSError):
            if stream.rest:
                self._write(stream.target, stream.prefix + stream.rest + b"\n")
        self._selector.unregister(descriptor)
        os.close(descriptor)

    def _write(self, target: int, data: bytes) -> None:
        with self._lock:
            while data:
                data = data[os.write(target, data) :]


def _is_one_output() -> bool:
    with contextlib.suppress(OSError):  # this process has no such output
        return os.path.samestat(os.fstat(OUT), os.fstat(ERR))
    return False


def _prefix(agent: int) -> bytes:
    return f"[{agent}] ".encode()


def _complete_lines(stream: _Stream, data: bytes) -> bytes:
    r"""Return the lines that end in ``data``, with the number in front, and keep the rest.

    >>> stream = _Stream(b"[3] ", OUT)
    >>> _complete_lines(stream, b"one\ntwo\r\nth"), stream.rest
    (b'[3] one\n[3] two\r\n', b'th')
    >>> _complete_lines(stream, b"ree\r"), _complete_lines(stream, b"\n")
    (b'', b'[3] three\r\n')
    """
    lines = (stream.rest + data).splitlines(keepends=True)
    # A carriage return at the end may be the first half of a line end.
    is_torn = not lines[-1].endswith(b"\n") and len(lines[-1]) < _CHUNK
    stream.rest = lines.pop() if is_torn else b""
    if lines and not lines[-1].endswith((b"\n", b"\r")):
        lines[-1] += b"\n"
    return b"".join(stream.prefix + line for line in lines)
