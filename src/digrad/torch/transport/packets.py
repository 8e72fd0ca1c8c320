"""Packets between agents: at most one is under way on every edge of a channel.

A packet leaves when the receiver has released the one before, so that nothing queues up at a slow receiver, and what a
sender has to send meanwhile stays with it. Every optimizer has channels of its own, which never wait for one another.
"""

import math
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import torch

HEARTBEAT = -1  # in place of a size: a heartbeat


class MessageLostError(RuntimeError):
    """A packet will never arrive: the other end has gone, or is no agent of this run."""


class Packet(NamedTuple):
    """A packet that has arrived.

    Args:
        header: Of the engine.
        payload: Bytes ``[size]``, which stay as they are until the packet is released.
    """

    header: bytes
    payload: torch.Tensor


@dataclass
class Sending:
    """A packet that leaves; :attr:`left` ends when its memory may change."""

    header: bytes
    segments: Sequence[torch.Tensor]
    on_taken: Callable[[], None] | None = None
    left: "Future[None]" = field(default_factory=Future)

    @property
    def size(self) -> int:
        """The bytes of the payload."""
        return sum(segment.nbytes for segment in self.segments)

    def end(self, error: Exception | None = None) -> None:
        """Say that the packet has left, or that it will not; only the first word counts, whichever thread says it."""
        with suppress(InvalidStateError):
            if error is None:
                self.left.set_result(None)
            else:
                self.left.set_exception(MessageLostError(str(error)))

    def wait(self, seconds: float) -> "Sending | None":
        """Return the packet once it has left; None if it has not in time.

        Raises:
            MessageLostError: It will not.
        """
        try:
            self.left.result(seconds)
        except TimeoutError:
            return None
        return self


class Receiver(Protocol):
    """Receiver of the packets of a channel; threads of transports call it."""

    def deliver(self, sender: int, packet: Packet) -> None:
        """Take a packet, which somebody must release."""
        ...

    def lose(self, peer: int, error: Exception) -> None:
        """Learn that nothing more comes from, or goes to, a neighbour."""
        ...


class Transport:
    """One kind of wire. Subclasses transmit packets and tell what has arrived, in a thread that also runs tasks.

    Args:
        peers: The agents that it reaches.
    """

    def __init__(self, peers: frozenset[int]) -> None:
        self.peers = peers
        self._receivers: dict[int, Receiver] = {}  # by channel
        self._early: dict[int, list[tuple[int, Packet]]] = {}  # of channels that are not open here yet
        self._queues: dict[tuple[int, int], deque[Sending]] = {}  # by receiver and channel
        self._under_way: dict[tuple[int, int], Sending] = {}
        self._lost: dict[int, Exception] = {}  # by neighbour
        self._progress: dict[int, float] = {}  # when bytes of or to a neighbour last moved
        self._lock = threading.RLock()
        self._is_closed = False
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(
            False
        )  # the thread itself may call, and would wait for itself once this is full

    def open(self, channel: int, receiver: Receiver) -> None:
        """Let ``receiver`` take what comes, or has come, on a channel."""
        with self._lock:
            self._receivers[channel] = receiver
            waiting, lost = self._early.pop(channel, []), dict(self._lost)
        for sender, packet in waiting:
            receiver.deliver(sender, packet)
        for peer, error in lost.items():
            receiver.lose(peer, error)

    def send(
        self,
        receiver: int,
        channel: int,
        header: bytes,
        segments: Sequence[torch.Tensor],
        on_taken: Callable[[], None] | None = None,
    ) -> Sending:
        """Send a packet after those of the same edge and channel; what it holds must stay as it is until it has left.

        Args:
            receiver: The neighbour.
            channel: Of the packet.
            header: Short.
            segments: Flat tensors, one after the other.
            on_taken: Called by a thread when the receiver has released the packet.
        """
        parts = [segment.detach().contiguous().view(torch.uint8) for segment in segments if segment.numel()]
        sending = Sending(header, parts, on_taken)
        with self._lock:
            error = self._lost.get(receiver)
            if error is not None:
                sending.end(error)
                return sending
            self._queues.setdefault((receiver, channel), deque()).append(sending)
        self._pump(receiver, channel)
        return sending

    def last_progress(self, peer: int) -> float:
        """Return when bytes of or to a neighbour last moved."""
        return self._progress.get(peer, -math.inf)

    def release(self, sender: int, channel: int) -> None:
        """Let the sender of a packet, which was taken, send the next one."""
        raise NotImplementedError

    def send_heartbeat(self, receiver: int) -> None:
        """Send a heartbeat to whoever may wait for a packet of this agent."""
        raise NotImplementedError

    def close(self) -> None:
        """Close all connections: neighbours that wait for a packet learn that it is lost, and so do waits here."""
        self._is_closed = True
        error = MessageLostError("this agent has closed its connections")
        for peer in self.peers:
            self._lose(peer, error)
        self._do(lambda: None)

    def _start(self, name: str) -> None:
        """Begin to serve, in a thread."""
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def _run(self) -> None:
        try:
            self._serve()
        except Exception as error:  # a thread that ends without a word would leave everybody waiting
            for peer in self.peers:
                self._lose(
                    peer, MessageLostError(f"the transport has failed: {type(error).__name__}: {error}")
                )
            raise

    def _serve(self) -> None:
        """Pass packets on until this is closed."""
        raise NotImplementedError

    def _do(self, task: Callable[[], None]) -> None:
        """Let the thread of this transport do something."""
        self._tasks.put(task)
        with suppress(OSError):  # it is closed, or wakes up anyway
            self._wake.send(b"\0")

    def _run_tasks(self) -> None:
        self._woken.recv(1 << 12)
        while not self._tasks.empty() and not self._is_closed:
            self._tasks.get()()

    def _transmit(self, receiver: int, channel: int, sending: Sending) -> None:
        """Begin to send a packet: the one before was taken."""
        raise NotImplementedError

    def _pump(self, receiver: int, channel: int) -> None:
        key = receiver, channel
        with self._lock:
            if key in self._under_way or not self._queues.get(key):
                return
            sending = self._under_way[key] = self._queues[key].popleft()
        self._transmit(receiver, channel, sending)

    def _taken(self, receiver: int, channel: int) -> None:
        """Note that a packet was released by its receiver."""
        with self._lock:
            sending = self._under_way.pop((receiver, channel), None)
        if sending is not None and sending.on_taken is not None:
            sending.on_taken()
        self._pump(receiver, channel)

    def _deliver(self, sender: int, channel: int, packet: Packet) -> None:
        with self._lock:
            receiver = self._receivers.get(channel)
            if receiver is None:
                self._early.setdefault(channel, []).append((sender, packet))
                return
        receiver.deliver(sender, packet)

    def _moved(self, peer: int) -> None:
        self._progress[peer] = time.monotonic()

    def _lose(self, peer: int, error: Exception) -> None:
        with self._lock:
            if peer in self._lost:
                return
            self._lost[peer] = error
            keys = [key for key in {*self._queues, *self._under_way} if key[0] == peer]
            sendings = [one for key in keys for one in self._queues.pop(key, ())]
            sendings += [one for key in keys if (one := self._under_way.pop(key, None)) is not None]
            receivers = list(self._receivers.values())
        for sending in sendings:
            sending.end(error)
        for receiver in receivers:
            receiver.lose(peer, error)


def typed(piece: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return bytes as numbers, without a copy where they are aligned."""
    is_aligned = piece.storage_offset() % dtype.itemsize == 0
    return (piece if is_aligned else piece.clone()).view(dtype)
