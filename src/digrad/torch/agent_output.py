"""The lines of all agents as one text: each begins with the number of its agent, none is torn or lost."""

import contextlib
import json
import os
import re
import selectors
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

OUT, ERR = 1, 2  # file descriptors
ONE_OUTPUT_VARIABLE = "DIGRAD_ONE_OUTPUT"  # set if both go to the same place, so that their order is kept
_SOCKET = "output"  # in the folder that launch has named
_CHUNK = 1 << 16  # bytes; a longer piece of a line is shown before the line ends
_TRACEBACK = b"Traceback (most recent call last):"
_EXIT = re.compile(rb"failed \(exitcode: (-?\d+)\) local_rank: (\d+) ")  # of an agent, as torchrun logs it
_PERIOD = 0.1  # seconds between two looks at whether to end


def hand_over_output(folder: Path, agent: int, attempt: int) -> None:
    """Let launch read all that this process writes, also from below Python."""
    targets = [(OUT, ERR)] if os.environ.pop(ONE_OUTPUT_VARIABLE, "") else [(OUT,), (ERR,)]
    pipes = [os.pipe() for _ in targets]
    header = {"agent": str(agent), "attempt": attempt}
    with socket.socket(socket.AF_UNIX) as channel:
        channel.connect(str(folder / _SOCKET))
        socket.send_fds(channel, [json.dumps(header).encode()], [reader for reader, _ in pipes])
    for (reader, writer), descriptors in zip(pipes, targets, strict=True):
        for descriptor in descriptors:
            os.dup2(writer, descriptor)
        os.close(reader)
        os.close(writer)


@dataclass
class _Stream:
    prefix: bytes
    target: int
    rest: bytes = b""  # the beginning of a line
    kept_back: bytes | None = None  # a traceback and all that follows; None shows it at once


class AgentOutput:
    """Reads what agents write and passes it on, in a thread of its own, until it is closed.

    A line is passed on when it ends, a progress bar at each carriage return.

    Args:
        folder: Private; agents find the socket there.
    """

    def __init__(self, folder: Path) -> None:
        self.attempt = 0  # the latest of which an agent has begun
        self._selector, self._lock = selectors.DefaultSelector(), threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / _SOCKET))
        self._listener.listen()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._torchrun = _Stream(b"", ERR, kept_back=b"")
        self._said = b""  # by torchrun
        self._is_closing = False
        self._thread = threading.Thread(target=self._relay, daemon=True)
        self._thread.start()

    @property
    def variables(self) -> dict[str, str]:
        """What agents must find in their environment."""
        with contextlib.suppress(OSError):  # this process has no such output
            if os.path.samestat(os.fstat(OUT), os.fstat(ERR)):
                return {ONE_OUTPUT_VARIABLE: "1"}
        return {}

    @contextlib.contextmanager
    def of_torchrun(self) -> Iterator[int]:
        """Give a descriptor that torchrun may use as standard error."""
        reader, writer = os.pipe()
        self._selector.register(reader, selectors.EVENT_READ, self._torchrun)
        yield writer
        os.close(writer)

    def exits(self) -> list[tuple[int, int]]:
        """Return, for each attempt that has failed, the agent that torchrun blames, and its exit code."""
        return [(int(agent), int(code)) for code, agent in _EXIT.findall(self._said)]

    def show_torchrun(self) -> None:
        """Write the traceback with which torchrun has ended, if it has; the output must be closed."""
        self._write(ERR, self._torchrun.kept_back or b"")

    def show(self, agent: int, text: str) -> None:
        """Write lines as if the agent had, on standard error."""
        stream = _Stream(_prefix(agent), ERR)
        self._write(ERR, _complete_lines(stream, text.encode()))

    def close(self, timeout: float | None = None) -> None:
        """Pass on what has been written so far; ``timeout`` is how long a reader of ours may keep us waiting."""
        self._is_closing = True
        self._thread.join(timeout)

    def _relay(self) -> None:
        while True:
            is_last = self._is_closing  # before the look: what was written until then is seen by it
            ready = self._selector.select(0 if is_last else _PERIOD)
            if is_last and not ready:
                break
            for key, _ in ready:
                if key.data is None:
                    self._accept()
                else:
                    self._pass_on(key.fd, key.data)
        for key in list(self._selector.get_map().values()):
            if key.data is None:
                self._listener.close()
            else:
                self._end(key.fd, key.data)

    def _accept(self) -> None:
        channel, _ = self._listener.accept()
        with channel:
            header, descriptors, *_ = socket.recv_fds(channel, _CHUNK, 2)
        if not header:
            return  # the agent was ended meanwhile
        facts = json.loads(header)
        self.attempt = max(self.attempt, facts["attempt"])
        for descriptor, target in zip(descriptors, (OUT, ERR), strict=False):
            self._selector.register(
                descriptor, selectors.EVENT_READ, _Stream(_prefix(facts["agent"]), target)
            )

    def _pass_on(self, descriptor: int, stream: _Stream) -> None:
        data = os.read(descriptor, _CHUNK)
        if stream is self._torchrun:
            self._said += data
        try:
            if data:
                self._write(stream.target, _complete_lines(stream, data))
            else:
                self._end(descriptor, stream)
        except OSError:  # nobody reads on: the agents are told as if they wrote there themselves
            self._selector.unregister(descriptor)
            os.close(descriptor)

    def _end(self, descriptor: int, stream: _Stream) -> None:
        if stream.rest:
            self._write(stream.target, stream.prefix + stream.rest + b"\n")
        self._selector.unregister(descriptor)
        os.close(descriptor)

    def _write(self, target: int, data: bytes) -> None:
        with self._lock:
            while data:
                data = data[os.write(target, data) :]


def _prefix(agent: int | str) -> bytes:
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
    text = b"".join(stream.prefix + line for line in lines)
    if stream.kept_back is None:
        return text
    start = 0 if stream.kept_back else text.find(_TRACEBACK)
    shown = text if start < 0 else text[:start]
    stream.kept_back += text[len(shown) :]
    return shown
