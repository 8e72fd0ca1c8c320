"""Large messages between agents of one host: the sender writes them into memory of the receiver, which both share.

Loopback TCP copies every message into the kernel and out again, in pieces. Here the receiver's buffer is a memory file
that it hands to the sender with the first message (``memfd_create``, ``SCM_RIGHTS``): one copy, which needs no rights
beyond those of the user. Two packets over a Unix socket surround it: the receiver tells where it wants a message, the
sender tells when it is there. Both follow the order in which rounds are posted, so a message can only meet its own.
"""

import contextlib
import fcntl
import mmap
import os
import queue
import secrets
import socket
import struct
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from digrad.errors import CommunicationError
from digrad.torch.future_work import FutureWork
from digrad.torch.reasons import MessageLostError, agents_text

LARGE = 1 << 20  # bytes; shorter messages gain nothing that a training step would notice
_WANTED = struct.Struct("<qqqq")  # tag, bytes, number of the buffer, and of the oldest one that is still used
_WRITTEN = struct.Struct("<qq")  # tag, bytes
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid of the other end of a Unix socket


class SameHost:
    """The arcs of one agent whose other end is on this host and belongs to the same user.

    Args:
        agent: This agent.
        arcs: All arcs ``(sender, receiver)`` over which messages may travel, the same on every agent.
        exchange: Gathers short facts of every agent, by agent.
        timeout: Seconds to wait for neighbours to connect.
    """

    def __init__(
        self,
        agent: int,
        arcs: Iterable[tuple[int, int]],
        exchange: "Callable[[Facts], list[Facts]]",
        timeout: float,
    ) -> None:
        senders, receivers = _meet(agent, arcs, exchange, timeout)
        self._readers = {sender: _Reader(connection) for sender, connection in senders.items()}
        self._incoming = {s: _Arc(reader.connection, reader.take) for s, reader in self._readers.items()}
        self._outgoing = {
            r: _Arc(connection, _Writer(connection).write) for r, connection in receivers.items()
        }

    @property
    def senders(self) -> frozenset[int]:
        """The neighbours that write into memory of this agent."""
        return frozenset(self._incoming)

    def receives(self, sender: int, message: torch.Tensor) -> bool:
        """Return whether a message of ``sender`` is written into memory of this agent."""
        return sender in self._incoming and message.nbytes >= LARGE

    def sends(self, receiver: int, message: torch.Tensor) -> bool:
        """Return whether a message is written into memory of ``receiver``."""
        return receiver in self._outgoing and message.nbytes >= LARGE

    def inbox(self, sender: int, like: torch.Tensor) -> torch.Tensor:
        """Return memory like ``like``, flat, that ``sender`` can write into."""
        return self._readers[sender].inbox(like)

    def receive(self, sender: int, message: torch.Tensor, tag: int, k: int) -> FutureWork:
        """Let ``sender`` write into ``message``, which is an :meth:`inbox`."""
        return self._incoming[sender].post(message, tag)

    def send(self, receiver: int, message: torch.Tensor, tag: int, k: int) -> FutureWork:
        """Write ``message``, which must stay as it is until that is done, as soon as ``receiver`` wants it."""
        return self._outgoing[receiver].post(message, tag)

    def keep_waiting(self) -> None:
        """Do nothing: what is written is written at once."""

    def close(self) -> None:
        """Close the connections; a neighbour that still waits for a message learns that it is lost."""
        for arc in (*self._incoming.values(), *self._outgoing.values()):
            arc.close()


class _Arc:
    """One end of an arc: what is posted is carried in order, by a thread of its own, or lost."""

    def __init__(self, connection: socket.socket, carry: Callable[[torch.Tensor, int], None]) -> None:
        self._connection, self._carry = connection, carry
        self._posted: queue.SimpleQueue[tuple[torch.Tensor, int, FutureWork] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._serve, name="digrad-same-host", daemon=True)
        self.thread.start()

    def post(self, message: torch.Tensor, tag: int) -> FutureWork:
        work = FutureWork()
        self._posted.put((message, tag, work))
        return work

    def close(self) -> None:
        self._posted.put(None)
        with contextlib.suppress(OSError):  # the other end was first
            self._connection.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        while (posted := self._posted.get()) is not None:
            message, tag, work = posted
            try:
                self._carry(message, tag)
            except (OSError, MessageLostError) as error:
                work.future.set_exception(MessageLostError(str(error)))
            else:
                work.future.set_result(None)
            del posted, message  # not kept while waiting for the next one
        self._connection.close()


class _Reader:
    """The memory of this agent that one sender writes into."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._memory: weakref.WeakValueDictionary[int, mmap.mmap] = weakref.WeakValueDictionary()
        self._numbers: dict[int, int] = {}  # of the memory, by address
        self._files: dict[
            int, tuple[int, int]
        ] = {}  # not sent yet: file, and oldest memory in use, by number

    def inbox(self, like: torch.Tensor) -> torch.Tensor:
        number, file = max(self._numbers.values(), default=0) + 1, memory_file(like.nbytes)
        self._memory[number] = memory = mmap.mmap(file, like.nbytes)
        message = torch.frombuffer(memory, dtype=like.dtype)
        self._numbers[message.data_ptr()], self._files[number] = number, (file, min(self._memory))
        return message

    def take(self, message: torch.Tensor, tag: int) -> None:
        number = self._numbers[message.data_ptr()]
        *files, oldest = self._files.pop(number, (number,))
        packet = _WANTED.pack(tag, message.nbytes, number, oldest)
        with _closing(files):
            socket.send_fds(self.connection, [packet], files)
        written, size = _unpacked(_WRITTEN, self.connection.recv(_WRITTEN.size))
        if (written, size) != (tag, message.nbytes):
            raise MessageLostError(
                f"round {written} with {size} bytes came for round {tag} with {message.nbytes}"
            )


class _Writer:
    """The memory of one receiver that this agent writes into."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._memory: dict[int, torch.Tensor] = {}  # by number

    def write(self, message: torch.Tensor, tag: int) -> None:
        packet, files, *_ = socket.recv_fds(self._connection, _WANTED.size, 1)
        with _closing(files):
            wanted, size, number, oldest = _unpacked(_WANTED, packet)
            if files:
                self._memory = {n: memory for n, memory in self._memory.items() if n >= oldest}
                self._memory[number] = _mapped(files[0])
        if (wanted, size) == (tag, message.nbytes):  # else the receiver finds it out
            self._memory[number].copy_(message.view(torch.uint8))
        self._connection.send(_WRITTEN.pack(tag, message.nbytes))


Facts = dict[str, Any]
Connections = dict[int, socket.socket]  # by neighbour


def _meet(
    agent: int, arcs: Iterable[tuple[int, int]], exchange: Callable[[Facts], list[Facts]], timeout: float
) -> tuple[Connections, Connections]:
    """Connect with the neighbours of this host; return the connections to senders and of receivers."""
    with contextlib.ExitStack() as stack:
        try:
            listener = stack.enter_context(_listener())
            facts = _describe_self(listener)
        except OSError:  # a sandbox, or another system: this agent talks over gloo with everybody
            exchange({"host": None})
            exchange({"senders": []})
            return {}, {}
        everyone = exchange(facts)
        host = everyone[agent]["host"]
        near = {s: _connect(everyone[s]) for s, r in arcs if r == agent and everyone[s]["host"] == host}
        senders = {sender: connection for sender, connection in near.items() if connection is not None}
        chosen = exchange({"senders": sorted(senders)})
        expected = {everyone[r]["pid"]: r for r, one in enumerate(chosen) if agent in one["senders"]}
        return senders, _accept(listener, expected, timeout)


def _listener() -> socket.socket:
    """Return a socket in the abstract namespace of Linux: no file is left behind, whatever ends this process."""
    if sys.platform != "linux":
        raise OSError("memory files are a facility of Linux")
    os.close(memory_file(1))  # a sandbox may forbid it
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(f"\0digrad-{secrets.token_hex(16)}")
        listener.listen(socket.SOMAXCONN)
    except OSError:
        listener.close()
        raise
    return listener


def _describe_self(listener: socket.socket) -> Facts:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespaces = "/".join(os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net"))
    return {
        "host": f"{boot}/{namespaces}/{os.getuid()}",
        "pid": os.getpid(),
        "socket": listener.getsockname()[1:].decode(),
    }


def _connect(sender: Facts) -> socket.socket | None:
    """Return a connection to a sender, or None if it cannot be reached or another process listens there."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.suppress(OSError):
        connection.connect(f"\0{sender['socket']}")
        if _pid_of(connection) == sender["pid"]:
            return connection
    connection.close()
    return None


def _accept(listener: socket.socket, expected: dict[int, int], timeout: float) -> Connections:
    """Return the connections of the receivers, by agent; a stranger's is closed."""
    connections: Connections = {}
    listener.settimeout(timeout)
    while len(connections) < len(expected):
        try:
            connection, _ = listener.accept()
        except TimeoutError as error:
            silent = sorted(set(expected.values()) - set(connections))
            raise CommunicationError(
                f"{agents_text(silent)} did not connect to this agent of the same host within {timeout:.1f} s; "
                "start all agents again."
            ) from error
        receiver = expected.get(_pid_of(connection))
        if receiver is None:
            connection.close()
            continue
        connection.setblocking(True)
        connections[receiver] = connection
    return connections


def _pid_of(connection: socket.socket) -> int:
    """Return the process at the other end; the kernel vouches for it."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(raw)[0]


def memory_file(size: int) -> int:
    """Return a file that exists in memory only, and whose size nobody can change."""
    file = os.memfd_create("digrad", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(file, 0, size)  # a lack of memory shows here, not in the middle of a message
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError:
        os.close(file)
        raise
    return file


def _mapped(file: int) -> torch.Tensor:
    """Return the bytes of a memory file; who writes behind the end of one that has shrunk would be ended."""
    if not fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise MessageLostError("the memory that the receiver offers is not sealed")
    return torch.frombuffer(mmap.mmap(file, 0), dtype=torch.uint8)


@contextlib.contextmanager
def _closing(files: Iterable[int]) -> Iterator[None]:
    try:
        yield
    finally:
        for file in files:
            os.close(file)


def _unpacked(form: struct.Struct, packet: bytes) -> tuple[int, ...]:
    if len(packet) != form.size:
        raise MessageLostError("the process has ended")
    return form.unpack(packet)
