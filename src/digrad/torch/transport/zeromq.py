"""Packets between agents of different hosts, over ZeroMQ: encrypted and authenticated (CURVE) where the run has a key.

An agent listens on one port. The sender of an edge connects when there is something to send; the receiver answers on
the same connection. Payloads travel in frames that take a second at 1 Mbit/s, so that progress is seen: ZeroMQ delivers
a frame as a whole. A connection that breaks is an error: what was under way may be lost.
"""

import contextlib
import errno
import secrets
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from digrad.torch.transport.curve_keys import KeyPair, Refusals, authenticate, require_zmq, secure
from digrad.torch.transport.packets import HEARTBEAT, MessageLostError, Packet, Sending, Transport

FRAME = 1 << 17  # bytes of a payload that travel together
QUEUED = 4  # frames that ZeroMQ keeps for a connection, at either end
_BEGINS, _GOES_ON = 0, 1
_META = struct.Struct("<bqq")  # whether a packet begins, channel, bytes of the payload
_TAKEN = struct.Struct("<q")  # channel
_CLOSED = "the other end has closed the connection"

Facts = dict[str, Any]


class ZeroMQ(Transport):
    """The edges between this agent and others that it reaches over the network.

    Args:
        agent: This agent.
        address: To listen on.
        keys: Of the run; None sends everything as it is.
        exchange: Gathers short facts of every agent, by agent; all must call.
    """

    def __init__(
        self, agent: int, address: str, keys: KeyPair | None, exchange: Callable[[Facts], list[Facts]]
    ) -> None:
        self._zmq = require_zmq("ProcessNetwork")
        self._agent, self._keys, self._is_ipv6 = agent, keys, ":" in address
        self._context = self._zmq.Context()
        self._authenticator = authenticate(self._context, keys)
        self._refusals = Refusals()
        self._poller = self._zmq.Poller()
        self._monitors: dict[Any, int | None] = {}  # receivers, by monitor; None for the listener
        self._listener = self._socket(self._zmq.ROUTER, server=True)
        # A sender that connects again has the name of its old connection, whose end may not have been noticed yet.
        self._listener.router_handover = True
        self._monitor(self._listener, None)  # before anybody can connect
        host = f"[{address}]" if ":" in address else address
        port = self._listener.bind_to_random_port(f"tcp://{host}")
        self._token = secrets.token_hex(8)  # nobody of an earlier attempt is taken for an agent of this one
        self._everyone = exchange({"endpoint": f"tcp://{host}:{port}", "token": self._token})
        super().__init__(frozenset(range(len(self._everyone))) - {agent})
        self._names = {f"{self._token} {peer}".encode(): peer for peer in self.peers}
        self._to: dict[int, Any] = {}  # sockets, by receiver
        self._outgoing: dict[int, list[Any]] = {}  # frames that wait for room, by receiver
        self._incoming: dict[tuple[int, int], _Incoming] = {}  # by sender and channel
        self._buffers: dict[tuple[int, int], torch.Tensor] = {}
        self._accepted: set[int] = set()  # descriptors of connections that have not ended
        self._connections: dict[int, int] = {}  # senders, by descriptor
        self._slow: set[int] = set()  # receivers whose handshake has timed out, so that ZeroMQ connects again
        self._poller.register(self._woken.fileno(), self._zmq.POLLIN)
        self._poller.register(self._listener, self._zmq.POLLIN)
        self._start("digrad-zeromq")

    def release(self, sender: int, channel: int) -> None:
        """Let the sender of a packet send the next one."""
        name = f"{self._token} {sender}".encode()
        self._do(lambda: self._listener.send_multipart([name, _TAKEN.pack(channel)], self._zmq.DONTWAIT))

    def send_heartbeat(self, receiver: int) -> None:
        """Send a heartbeat."""
        self._do(lambda: self._put(receiver, [(_META.pack(_BEGINS, 0, HEARTBEAT), b"", None)]))

    def _transmit(self, receiver: int, channel: int, sending: Sending) -> None:
        frames: list[Any] = [(_META.pack(_BEGINS, channel, sending.size), sending.header, None)]
        meta = _META.pack(_GOES_ON, channel, sending.size)
        for segment in sending.segments:
            memory = segment.numpy().data
            frames += [(meta, memory[i : i + FRAME], None) for i in range(0, len(memory), FRAME)]
        frames[-1] = (*frames[-1][:2], sending)
        self._do(lambda: self._put(receiver, frames))

    def _put(self, receiver: int, frames: list[Any]) -> None:
        self._outgoing.setdefault(receiver, []).extend(frames)
        self._flush(receiver)

    def _flush(self, receiver: int) -> None:
        """Hand frames to ZeroMQ as long as it takes them."""
        zmq, frames = self._zmq, self._outgoing[receiver]
        connection = self._to.get(receiver) or self._connect(receiver)
        done = 0
        try:
            for meta, piece, sending in frames:
                connection.send_multipart([meta, piece], zmq.DONTWAIT)  # which copies
                done += 1
                self._moved(receiver)
                if sending is not None:
                    sending.end()
        except zmq.Again:
            pass
        del frames[:done]
        self._poller.register(connection, zmq.POLLIN | (zmq.POLLOUT if frames else 0))

    def _connect(self, receiver: int) -> Any:
        connection = self._socket(self._zmq.DEALER, server=False)
        connection.routing_id = f"{self._everyone[receiver]['token']} {self._agent}".encode()
        self._monitor(connection, receiver)
        connection.connect(self._everyone[receiver]["endpoint"])
        self._to[receiver] = connection
        self._poller.register(connection, self._zmq.POLLIN)
        return connection

    def _socket(self, kind: int, *, server: bool) -> Any:
        made = self._context.socket(kind)
        # What a listener sends is short and at most one for each channel; ZeroMQ would drop what has no room.
        made.sndhwm, made.rcvhwm = 0 if server else QUEUED, QUEUED
        made.linger, made.ipv6 = 0, self._is_ipv6
        secure(made, self._keys, server=server)
        return made

    def _monitor(self, connection: Any, receiver: int | None) -> None:
        monitor = connection.get_monitor_socket(self._refusals.events)
        self._monitors[monitor] = receiver
        self._poller.register(monitor, self._zmq.POLLIN)

    def _do(self, task: Callable[[], None]) -> None:
        """Let the thread of this transport do something: sockets belong to it."""

        def attempt() -> None:
            with contextlib.suppress(
                self._zmq.ZMQError
            ):  # a connection that breaks is noticed by its monitor
                task()

        super()._do(attempt)

    def _serve(self) -> None:
        zmq = self._zmq
        while not self._is_closed:
            for ready, events in self._poller.poll():
                if self._is_closed:
                    break
                if ready == self._woken.fileno():
                    self._run_tasks()
                elif ready is self._listener:
                    self._receive()
                elif ready in self._monitors:
                    self._notice(ready)
                else:
                    receiver = next(one for one, connection in self._to.items() if connection is ready)
                    if events & zmq.POLLIN:
                        self._receive_taken(receiver)
                    if events & zmq.POLLOUT:
                        self._flush(receiver)
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.destroy(linger=0)
        for end in (self._wake, self._woken):
            end.close()

    def _receive(self) -> None:
        """Take frames as long as there are some."""
        with contextlib.suppress(self._zmq.Again):
            for _ in range(4 * QUEUED):
                name, *frames = self._listener.recv_multipart(self._zmq.DONTWAIT, copy=False)
                sender = self._names.get(name.bytes)
                if sender is None or len(frames) != 2 or len(frames[0]) != _META.size:
                    continue  # of an earlier attempt, or no agent
                self._know(frames[0].get(self._zmq.SRCFD), sender)
                self._moved(sender)
                kind, channel, size = _META.unpack(frames[0].bytes)
                if size != HEARTBEAT:
                    self._take(sender, channel, kind, size, frames[1])

    def _take(self, sender: int, channel: int, kind: int, size: int, frame: Any) -> None:
        key = sender, channel
        if kind == _BEGINS:
            if key not in self._buffers or len(self._buffers[key]) != size:
                self._buffers[key] = torch.empty(size, dtype=torch.uint8)
            self._incoming[key] = _Incoming(frame.bytes, self._buffers[key])
        else:
            self._incoming[key].add(frame)
        if self._incoming[key].is_complete:
            self._deliver(sender, channel, self._incoming.pop(key).packet)

    def _receive_taken(self, receiver: int) -> None:
        with contextlib.suppress(self._zmq.Again):
            while True:
                frame = self._to[receiver].recv(self._zmq.DONTWAIT)
                self._moved(receiver)
                self._taken(receiver, *_TAKEN.unpack(frame))

    def _know(self, descriptor: int, sender: int) -> None:
        """Take a connection for that of a sender, a message of which it has brought.

        Its descriptor may be that of an earlier connection, whose end was not noticed yet: what happened before the
        message is looked at first.
        """
        if self._connections.get(descriptor) == sender:
            return
        self._notice(next(one for one, receiver in self._monitors.items() if receiver is None))
        self._connections[descriptor] = sender
        if descriptor not in self._accepted:
            self._end_of(descriptor)

    def _end_of(self, descriptor: int) -> None:
        """Lose the sender whose connection has ended."""
        sender = self._connections.pop(descriptor, None)
        if sender is not None:
            self._lose(sender, MessageLostError(_CLOSED))

    def _notice(self, monitor: Any) -> None:
        """Learn which connections have begun, failed or ended."""
        from zmq.utils.monitor import recv_monitor_message

        with contextlib.suppress(self._zmq.Again):
            while True:
                self._take_event(self._monitors[monitor], recv_monitor_message(monitor, self._zmq.DONTWAIT))

    def _take_event(self, receiver: int | None, event: Any) -> None:
        """Take an event of a connection into account: to a receiver, or, None, to the listener."""
        has_ended = event["event"] == self._zmq.EVENT_DISCONNECTED
        if receiver is None:
            self._refusals.note(event)
            if event["event"] == self._zmq.EVENT_ACCEPTED:
                self._accepted.add(event["value"])
            elif has_ended:
                self._accepted.discard(event["value"])
                self._end_of(event["value"])
        elif event["event"] & self._refusals.failures:
            if event["value"] == errno.EAGAIN:
                self._slow.add(receiver)
            else:
                self._lose(receiver, MessageLostError("it has another key, or none"))
        elif has_ended and receiver in self._slow:
            self._slow.remove(receiver)
        elif has_ended:
            self._lose(receiver, MessageLostError(_CLOSED))


class _Incoming:
    """A packet of which frames arrive."""

    def __init__(self, header: bytes, buffer: torch.Tensor) -> None:
        self.packet, self._filled = Packet(header, buffer), 0

    def add(self, frame: Any) -> None:
        view = np.frombuffer(frame.buffer, dtype=np.uint8)
        self.packet.payload.numpy()[self._filled : self._filled + len(view)] = view
        self._filled += len(view)

    @property
    def is_complete(self) -> bool:
        return self._filled == len(self.packet.payload)
