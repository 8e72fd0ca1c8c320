"""Packets between agents of one host and user: large ones in memory that both ends share, small ones over a socket.

The sender of an edge has a memory file (``memfd_create``) for each channel, which it hands to the receiver with the
first packet (``SCM_RIGHTS``): one copy, no names in a file system, nothing is left behind whatever ends a process.
"""

import contextlib
import fcntl
import mmap
import os
import secrets
import selectors
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from digrad.torch.transport.packets import HEARTBEAT, MessageLostError, Packet, Sending, Transport

INLINE = 1 << 15  # bytes; longer payloads travel in shared memory
_FRAME = struct.Struct("<qqq")  # channel, bytes of the payload, bytes of the header
_TAKEN = struct.Struct("<q")  # channel
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid of the other end of a Unix socket
_LONGEST = INLINE + (1 << 14)  # bytes of a frame

Facts = dict[str, Any]


def open_shared_memory(
    agent: int, exchange: Callable[[Facts], list[Facts]], *, is_wanted: bool = True
) -> "SharedMemory | None":
    """Return the transport to agents of this host and user; None where memory cannot be shared.

    Args:
        agent: This agent.
        exchange: Gathers short facts of every agent, by agent; all must call.
        is_wanted: Whether memory is to be shared at all.
    """
    listener, facts = None, {"host": None}
    if is_wanted:
        with contextlib.suppress(OSError):  # a sandbox, or another system
            listener = _listener()
            facts = _describe_self(listener)
    everyone = exchange(facts)
    here = everyone[agent]["host"]
    if listener is None or here is None:
        return None
    near = {peer: one for peer, one in enumerate(everyone) if one["host"] == here}
    return SharedMemory(listener, near)


class SharedMemory(Transport):
    """The edges between this agent and others of its host.

    Args:
        listener: To which senders connect.
        near: What the agents of this host have said of themselves, by agent.
    """

    def __init__(self, listener: socket.socket, near: dict[int, Facts]) -> None:
        super().__init__(frozenset(near))
        self._near = near
        self._agents = {one["pid"]: peer for peer, one in near.items()}
        self._to: dict[int, socket.socket] = {}  # by receiver
        self._from: dict[int, socket.socket] = {}  # by sender
        self._own: dict[tuple[int, int], torch.Tensor] = {}  # shared memory, by receiver and channel
        self._theirs: dict[tuple[int, int], torch.Tensor] = {}  # by sender and channel
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ, self._run_tasks)
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._accept(listener))
        self._start("digrad-shared-memory")

    def release(self, sender: int, channel: int) -> None:
        """Let the sender of a packet use its memory again."""
        connection = self._from.get(sender)
        if connection is not None:
            with contextlib.suppress(OSError):  # it has gone, which is noticed elsewhere
                connection.send(_TAKEN.pack(channel))

    def send_heartbeat(self, receiver: int) -> None:
        """Send a heartbeat."""
        with contextlib.suppress(OSError):
            self._connection(receiver).send(_FRAME.pack(0, HEARTBEAT, 0))

    def _transmit(self, receiver: int, channel: int, sending: Sending) -> None:
        if sending.size <= INLINE:
            self._guard(receiver, lambda: self._send_inline(receiver, channel, sending))
        else:
            self._do(lambda: self._guard(receiver, lambda: self._send_memory(receiver, channel, sending)))

    def _send_inline(self, receiver: int, channel: int, sending: Sending) -> None:
        frame = _FRAME.pack(channel, sending.size, len(sending.header))
        parts = [frame, sending.header, *(segment.numpy().data for segment in sending.segments)]
        self._connection(receiver).sendmsg(parts)
        self._moved(receiver)
        sending.end()

    def _send_memory(self, receiver: int, channel: int, sending: Sending) -> None:
        connection, key, files = self._connection(receiver), (receiver, channel), []
        try:
            if key not in self._own or len(self._own[key]) < sending.size:
                files = [memory_file(sending.size)]
                self._own[key] = torch.frombuffer(mmap.mmap(files[0], sending.size), dtype=torch.uint8)
            start = 0
            for segment in sending.segments:
                self._own[key][start : start + len(segment)].copy_(segment)
                start += len(segment)
            frame = _FRAME.pack(channel, sending.size, len(sending.header)) + sending.header
            socket.send_fds(connection, [frame], files)
        finally:
            for file in files:
                os.close(file)
        self._moved(receiver)
        sending.end()

    def _connection(self, receiver: int) -> socket.socket:
        """Return the connection to a receiver, which is made now if it was not.

        Raises:
            OSError: It cannot be reached.
        """
        with self._lock:
            if receiver not in self._to:
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                connection.connect(f"\0{self._near[receiver]['socket']}")
                if _pid_of(connection) != self._near[receiver]["pid"]:
                    connection.close()
                    raise ConnectionRefusedError("another process listens there")
                self._to[receiver] = connection
                self._do(
                    lambda: self._register(connection, lambda: self._receive_taken(receiver, connection))
                )
            return self._to[receiver]

    def _guard(self, peer: int, act: Callable[[], None]) -> None:
        try:
            act()
        except (OSError, MessageLostError, ValueError) as error:
            if not self._is_closed:
                self._lose(peer, error)

    def _register(self, connection: socket.socket, act: Callable[[], None]) -> None:
        self._selector.register(connection, selectors.EVENT_READ, act)

    def _serve(self) -> None:
        while not self._is_closed:
            for key, _ in self._selector.select():
                if not self._is_closed:
                    key.data()
        ends = [key.fileobj for key in self._selector.get_map().values()]
        for end in {*ends, *self._to.values(), *self._from.values()}:
            end.close()  # pyright: ignore[reportAttributeAccessIssue]
        self._selector.close()
        self._wake.close()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            sender = self._agents.get(_pid_of(connection))
            if sender is None or sender in self._from:  # the kernel vouches for the process
                connection.close()
                return
            self._from[sender] = connection
            self._moved(sender)
            self._register(connection, lambda: self._receive(sender, connection))

    def _receive(self, sender: int, connection: socket.socket) -> None:
        """Take a packet, or notice that its sender has gone."""

        def receive() -> None:
            frame, files, *_ = socket.recv_fds(connection, _LONGEST, 1)
            try:
                if not frame:
                    raise MessageLostError("the process has ended")
                channel, size, length = _FRAME.unpack_from(frame)
                self._moved(sender)
                if size == HEARTBEAT:
                    return
                if files:
                    self._theirs[sender, channel] = _mapped(files[0])
            finally:
                for file in files:
                    os.close(file)
            header, rest = frame[_FRAME.size : _FRAME.size + length], frame[_FRAME.size + length :]
            if size <= INLINE:
                payload = (
                    torch.frombuffer(bytearray(rest), dtype=torch.uint8) if size else torch.empty(0).byte()
                )
            else:
                payload = self._theirs[sender, channel][:size]
            self._deliver(sender, channel, Packet(header, payload))

        self._watch(sender, connection, receive)

    def _receive_taken(self, receiver: int, connection: socket.socket) -> None:
        """Note that packets were taken, or that their receiver has gone."""

        def receive() -> None:
            frame = connection.recv(_TAKEN.size)
            if len(frame) != _TAKEN.size:
                raise MessageLostError("the process has ended")
            self._moved(receiver)
            self._taken(receiver, *_TAKEN.unpack(frame))

        self._watch(receiver, connection, receive)

    def _watch(self, peer: int, connection: socket.socket, receive: Callable[[], None]) -> None:
        try:
            receive()
        except (OSError, MessageLostError, KeyError, struct.error) as error:
            self._selector.unregister(connection)
            if not self._is_closed:
                self._lose(peer, error)


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


def _pid_of(connection: socket.socket) -> int:
    """Return the process at the other end; the kernel vouches for it."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(raw)[0]


def memory_file(size: int) -> int:
    """Return a file that exists in memory only, and whose size nobody can change."""
    file = os.memfd_create("digrad", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(file, 0, size)  # a lack of memory shows here, not in the middle of a packet
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError:
        os.close(file)
        raise
    return file


def _mapped(file: int) -> torch.Tensor:
    """Return the bytes of a memory file; who reads behind the end of one that has shrunk would be ended."""
    if not fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
        raise MessageLostError("the memory that the sender offers is not sealed")
    return torch.frombuffer(mmap.mmap(file, 0), dtype=torch.uint8)
