"""Large messages between agents of one host: the receiver reads them out of the sender's memory.

Loopback TCP copies every message into the kernel and out again, in pieces. Linux lets a process read the
memory of another one of the same user (``process_vm_readv``): one copy, about four times faster. Two packets
over a Unix socket surround it: the sender tells where the message is, the receiver tells when it has read it.
Both follow the order in which rounds are posted, so a message can only meet its own round.
"""

import contextlib
import ctypes
import os
import queue
import secrets
import select
import socket
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from digrad.errors import CommunicationError
from digrad.torch.future_work import FutureWork
from digrad.torch.reasons import MessageLostError, agents_text

LARGE = 1 << 20  # bytes; shorter messages gain nothing that a training step would notice
_OFFER = struct.Struct("<qqq")  # tag, address, bytes
_TAKEN = struct.Struct("<q")  # tag
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid of the other end of a Unix socket
_NONCE = 16  # bytes by which an agent recognises the memory of another one


class SameHost:
    """The arcs of one agent whose other end is on this host and lets its memory be read.

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
        readable, outgoing = _meet(agent, arcs, exchange, timeout)
        self._incoming = {s: _Incoming(connection, pid) for s, (connection, pid) in readable.items()}
        self._outgoing = {r: _Outgoing(connection) for r, connection in outgoing.items()}

    @property
    def senders(self) -> frozenset[int]:
        """The neighbours whose memory is read."""
        return frozenset(self._incoming)

    def receives(self, sender: int, message: torch.Tensor) -> bool:
        """Return whether a message of ``sender`` is to be read from its memory."""
        return sender in self._incoming and message.nbytes >= LARGE

    def sends(self, receiver: int, message: torch.Tensor) -> bool:
        """Return whether ``receiver`` reads a message from this agent's memory."""
        return receiver in self._outgoing and message.nbytes >= LARGE

    def receive(self, sender: int, message: torch.Tensor, tag: int, k: int) -> FutureWork:
        """Start to read into ``message`` as soon as ``sender`` offers it."""
        return self._incoming[sender].post(message, tag)

    def send(self, receiver: int, message: torch.Tensor, tag: int, k: int) -> "Offer":
        """Offer ``message``, which must stay as it is until it has been taken."""
        return self._outgoing[receiver].post(message, tag)

    def keep_waiting(self) -> None:
        """Do nothing: what is read from memory is read at once."""

    def close(self) -> None:
        """Close the connections; a neighbour that still waits for a message learns that it is lost."""
        for arc in (*self._incoming.values(), *self._outgoing.values()):
            arc.close()


class Offer:
    """A message that waits to be taken, with the interface of a torch ``Work``."""

    def __init__(self, arc: "_Outgoing", message: torch.Tensor, tag: int) -> None:
        self._arc, self.tag, self.is_taken = arc, tag, False
        self._message = message  # kept alive for its reader

    def wait(self, timeout: timedelta) -> bool:
        """Wait until it has been taken; return whether it has."""
        deadline = time.monotonic() + timeout.total_seconds()
        while not self.is_taken:
            if not self._arc.note_taken(max(deadline - time.monotonic(), 0.0)):
                return False
        return True

    def is_completed(self) -> bool:
        """Return whether it has been taken."""
        return self.wait(timedelta(0))


class _Incoming:
    """Reads the messages of one sender, one after the other, in a thread of its own."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self._connection, self._pid = connection, pid
        self._posted: queue.SimpleQueue[tuple[torch.Tensor, int, FutureWork] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._serve, name="digrad-reader", daemon=True)
        self.thread.start()

    def post(self, message: torch.Tensor, tag: int) -> FutureWork:
        work = FutureWork()
        self._posted.put((message, tag, work))
        return work

    def close(self) -> None:
        self._posted.put(None)
        _shut(self._connection)

    def _serve(self) -> None:
        while (posted := self._posted.get()) is not None:
            message, tag, work = posted
            try:
                offered, address, size = _OFFER.unpack(_packet(self._connection, _OFFER.size))
                if (offered, size) != (tag, message.nbytes):
                    raise MessageLostError(
                        f"round {offered} with {size} bytes came for round {tag} with {message.nbytes}"
                    )
                _read(self._pid, address, message.data_ptr(), size)
                self._connection.send(_TAKEN.pack(tag))
            except (OSError, MessageLostError) as error:
                work.future.set_exception(MessageLostError(str(error)))
            else:
                work.future.set_result(None)
            del posted, message  # not kept while waiting for the next one
        self._connection.close()


class _Outgoing:
    """Offers messages to one receiver, which takes them in the same order."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._poll = select.poll()  # select itself ends at 1024 open files
        self._poll.register(connection, select.POLLIN)
        self._offers: deque[Offer] = deque()

    def post(self, message: torch.Tensor, tag: int) -> Offer:
        try:
            self._connection.send(_OFFER.pack(tag, message.data_ptr(), message.nbytes))
        except OSError as error:
            raise MessageLostError(str(error)) from error
        self._offers.append(Offer(self, message, tag))
        return self._offers[-1]

    def note_taken(self, seconds: float) -> bool:
        """Wait until the receiver has taken the oldest offer; return whether it has."""
        if not self._poll.poll(1000 * seconds):
            return False
        (tag,) = _TAKEN.unpack(_packet(self._connection, _TAKEN.size))
        offer = self._offers.popleft()
        if tag != offer.tag:
            raise MessageLostError(f"round {tag} was taken instead of round {offer.tag}")
        offer.is_taken = True
        return True

    def close(self) -> None:
        _shut(self._connection)
        self._connection.close()


Facts = dict[str, Any]
Readable = dict[int, tuple[socket.socket, int]]  # connection and process, by sender


def _meet(
    agent: int, arcs: Iterable[tuple[int, int]], exchange: Callable[[Facts], list[Facts]], timeout: float
) -> tuple[Readable, dict[int, socket.socket]]:
    """Connect with the neighbours of this host; return who can be read, and the connections of who reads."""
    nonce = ctypes.create_string_buffer(secrets.token_bytes(_NONCE), _NONCE)
    with contextlib.ExitStack() as stack:
        try:
            listener = stack.enter_context(_listener())
            facts = _describe_self(listener, nonce)
        except OSError:  # a sandbox, or another system: this agent talks over gloo with everybody
            exchange({"host": None})
            exchange({"reads": []})
            return {}, {}
        everyone = exchange(facts)
        host = everyone[agent]["host"]
        senders = [s for s, r in arcs if r == agent and everyone[s]["host"] == host]
        connections = {s: _connect(everyone[s]) for s in senders}
        readable = {s: (link, everyone[s]["pid"]) for s, link in connections.items() if link}
        readers = exchange({"reads": sorted(readable)})  # from here on nobody needs the nonces
        expected = {everyone[r]["pid"]: r for r, facts in enumerate(readers) if agent in facts["reads"]}
        return readable, _accept(listener, expected, timeout)


def _listener() -> socket.socket:
    """Return a socket in the abstract namespace of Linux: no file is left behind, whatever ends this process."""
    if _libc is None:
        raise OSError("memory of other processes can be read on Linux only")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        listener.bind(f"\0digrad-{secrets.token_hex(_NONCE)}")
        listener.listen(socket.SOMAXCONN)
    except OSError:
        listener.close()
        raise
    return listener


def _describe_self(listener: socket.socket, nonce: Any) -> Facts:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespaces = "/".join(os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "net"))
    return {
        "host": f"{boot}/{namespaces}/{os.getuid()}",
        "pid": os.getpid(),
        "socket": listener.getsockname()[1:].decode(),
        "address": ctypes.addressof(nonce),
        "nonce": nonce.raw.hex(),
    }


def _connect(sender: Facts) -> socket.socket | None:
    """Return a connection to a sender whose memory can be read, or None if the kernel does not allow it."""
    probe = ctypes.create_string_buffer(_NONCE)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.connect(f"\0{sender['socket']}")
        _read(sender["pid"], sender["address"], ctypes.addressof(probe), _NONCE)
    except (OSError, MessageLostError):
        connection.close()
        return None
    if probe.raw.hex() != sender["nonce"] or _pid_of(connection) != sender["pid"]:
        connection.close()
        return None
    return connection


def _accept(listener: socket.socket, expected: dict[int, int], timeout: float) -> dict[int, socket.socket]:
    """Return the connections of the receivers, by agent; a stranger's is closed."""
    connections: dict[int, socket.socket] = {}
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


def _packet(connection: socket.socket, size: int) -> bytes:
    try:
        packet = connection.recv(size)
    except OSError as error:
        raise MessageLostError(str(error)) from error
    if len(packet) != size:
        raise MessageLostError("the process has ended")
    return packet


def _shut(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # the other end was first
        connection.shutdown(socket.SHUT_RDWR)


class _Span(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("size", ctypes.c_size_t))


_Spans = ctypes.POINTER(_Span)
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
if _libc is not None:
    _libc.process_vm_readv.restype = ctypes.c_ssize_t
    _libc.process_vm_readv.argtypes = (
        ctypes.c_int, _Spans, ctypes.c_ulong, _Spans, ctypes.c_ulong, ctypes.c_ulong,
    )  # fmt: skip


def _read(pid: int, source: int, target: int, size: int) -> None:
    """Copy ``size`` bytes from the memory of another process; other threads run meanwhile."""
    done = 0
    while done < size:
        local, remote = _Span(target + done, size - done), _Span(source + done, size - done)
        assert _libc is not None
        count = _libc.process_vm_readv(pid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
        if count <= 0:
            reason = os.strerror(ctypes.get_errno()) if count < 0 else "its memory ends"
            raise MessageLostError(f"process {pid} cannot be read: {reason}")
        done += count
