r"""The lines of all agents as one text: each begins with the number of its agent, none is torn or lost.

torchelastic's own ``--tee`` reads files of the agents every tenth of a second, and puts its prefix also in front of the
second half of a line that was not yet complete, behind the first half of another agent's: with torch 2.13 two agents
that write ``half``, wait 0.35 s and write ``half\n`` are shown as ``[0] half[1] half[1] half``.
"""

import contextlib
import os
import select
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from torch.distributed.elastic.multiprocessing import LogsDest, LogsSpecs

from digrad.torch.launch.failures import ERROR_VARIABLE

OUT, ERR = 1, 2  # file descriptors
_CHUNK = 1 << 16  # bytes; a longer piece of a line is shown before the line ends
_PERIOD = 100  # milliseconds between two looks at whether the attempt is over


@dataclass
class _Stream:
    agent: int
    target: int
    rest: bytes = b""  # the beginning of a line


class PrefixedLogs(LogsSpecs):
    """Gives the workers of an attempt pipes to write to, and error files; a thread passes on what they write.

    A line is passed on when it ends, a progress bar at each carriage return.
    """

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory(prefix="digrad-launch-")
        self.error_files: dict[int, Path] = {}  # of the present attempt, by agent
        self._writers: list[int] = []  # our own ends of the pipes; the workers have theirs
        self._is_over, self._thread = threading.Event(), threading.Thread()

    @property
    def root_log_dir(self) -> str:
        """Folder of the error files."""
        return self._folder.name

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """Return where the workers of an attempt write."""
        self.finish()
        self.error_files, folder = {}, tempfile.mkdtemp(dir=self._folder.name)
        streams: dict[int, _Stream] = {}
        outputs, errors, files = {}, {}, {}
        for local, variables in envs.items():
            rank = int(variables["RANK"])
            files[local] = variables[ERROR_VARIABLE] = f"{folder}/{rank}.json"
            self.error_files[rank] = Path(files[local])
            outputs[local] = self._pipe(streams, _Stream(rank, OUT))
            # If both go to the same place their order is kept.
            errors[local] = outputs[local] if _is_one_output() else self._pipe(streams, _Stream(rank, ERR))
        self._is_over = threading.Event()
        self._thread = threading.Thread(
            target=_relay, args=(streams, self._is_over), name="digrad-logs", daemon=True
        )
        self._thread.start()
        return LogsDest(outputs, errors, {}, {}, files, "", "")

    def finish(self, timeout: float | None = None) -> None:
        """Pass on what the workers of an attempt that is over have written; wait at most so long for our reader."""
        while self._writers:
            os.close(self._writers.pop())
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def close(self, timeout: float | None = None) -> None:
        """Finish, and forget the error files."""
        self.finish(timeout)
        self._folder.cleanup()

    def _pipe(self, streams: dict[int, _Stream], stream: _Stream) -> str:
        reader, writer = os.pipe()
        streams[reader] = stream
        self._writers.append(writer)
        return f"/dev/fd/{writer}"  # which torchelastic opens


def show(agent: int, text: str) -> None:
    """Write lines, if there are any, as if the agent had, on standard error."""
    if text:
        _write(ERR, _complete_lines(_Stream(agent, ERR), text.encode()))


def _relay(streams: dict[int, _Stream], is_over: threading.Event) -> None:
    """Pass on what comes, until all have closed their ends, or the attempt is over and nothing more comes."""
    poll = select.poll()
    for reader in streams:
        poll.register(reader)
    while streams:
        is_last = is_over.is_set()  # before the look: what was written until then is seen by it
        ready = [reader for reader, _ in poll.poll(0 if is_last else _PERIOD)]
        for reader in ready or (list(streams) if is_last else []):
            data, stream = os.read(reader, _CHUNK) if ready else b"", streams[reader]
            try:
                if data:
                    _write(stream.target, _complete_lines(stream, data))
                elif stream.rest:
                    _write(stream.target, _complete_lines(stream, b"\n"))
            except OSError:  # nobody reads on: the agents are told as if they wrote there themselves
                data = b""
            if not data:
                poll.unregister(reader)
                os.close(reader)
                del streams[reader]


def _write(target: int, data: bytes) -> None:
    while data:
        data = data[os.write(target, data) :]


def _is_one_output() -> bool:
    with contextlib.suppress(OSError):  # this process has no such output
        return os.path.samestat(os.fstat(OUT), os.fstat(ERR))
    return False


def _complete_lines(stream: _Stream, data: bytes) -> bytes:
    r"""Return the lines that end in ``data``, with the number in front, and keep the rest.

    >>> stream = _Stream(3, OUT)
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
    return b"".join(b"[%d] " % stream.agent + line for line in lines)
