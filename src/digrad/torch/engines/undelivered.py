"""Undelivered mass: what the edges of an agent that waits for nobody hold between its steps.

A packet holds some arrays, each under the number of the call of the method that sends it. What is pushed is an
increment: those that could not leave add up, and so do those that arrive before they are taken. What is pulled is a
value, of which the newest wins. Arrays may be compressed: of a push, what the packet could not hold stays undelivered;
a pull is the change of a reference that both ends keep. Of what is pushed with a push-sum weight both is true: it does
not vanish, so that its quotient by the weight of the packet, which is in full, is compressed as such a change. All is
decided when a packet leaves: it is short however much it covers.
"""

import struct
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch

from digrad._internal.error_text import first_line
from digrad.errors import ArgumentError
from digrad.links import Links
from digrad.torch.engines.compression import Compression, LinkKey
from digrad.torch.transport.packets import MessageLostError, Packet, typed
from digrad.torch.transport.transports import Channel

_HEADER = struct.Struct("<qqqqq")  # step, epoch, arrays, step of the packet before, first step of this one
# Call, format, whether it adds up, whether it is compressed, numbers, call of its push-sum weight or -1.
_ENTRY = struct.Struct("<qqqqqq")
RECENT = 2  # times that a neighbour may be late in a row and still be waited for
_FORMATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass
class Item:
    """One array of a packet, to which nobody writes.

    Args:
        values: ``[width]``.
        adds: Whether it adds up.
        is_short: Whether it is compressed on its way.
        per: The call of the push-sum weight by which it is divided on its way, if any.
    """

    values: torch.Tensor
    adds: bool
    is_short: bool = False
    per: int | None = None

    def after(self, before: "Item | None") -> "Item":
        """Return what is to be sent of both, this being the newer one."""
        if before is None or not self.adds:
            return self
        return replace(self, values=before.values + self.values)


@dataclass
class Arrived:
    """Packets that have come from one sender and were not taken yet.

    Args:
        steps: The newest of the sender of which something has come, by call.
        when: When a packet last came.
        items: By call.
        held: The first step of a packet that has come too early to be taken, and its items.
    """

    steps: dict[int, int] = field(default_factory=dict)
    when: float = 0.0
    items: dict[int, Item] = field(default_factory=dict)
    held: tuple[int, dict[int, Item]] | None = None

    def add(self, items: Mapping[int, Item]) -> None:
        """Add what may be taken."""
        for call, item in items.items():
            self.items[call] = item.after(self.items.get(call))


class Inbox:
    """Packets of all senders of an agent that it has not taken yet; ``changed`` guards everything here.

    A packet is held, and its sender waits, as long as the agent has reached the step of the one before but not its own:
    agents that are all in time take at every step what synchronous ones do. Who is further behind takes what comes.

    Args:
        channel: From which packets come.
        links: How arrays are compressed.
    """

    def __init__(self, channel: Channel, links: Links | None) -> None:
        self.changed = threading.Condition()
        self.arrived: dict[int, Arrived] = {}
        self.epoch = 0  # packets of an earlier one are of a state that was given up
        self.step: float = 0  # that this agent has reached
        self.error: tuple[int, Exception] | None = None  # the neighbour whose connection is lost
        self._channel, self._links = channel, links
        self._compression: dict[int, tuple[int, Compression]] = {}  # epoch and references, by sender

    def reach(self, step: float) -> None:
        """Begin a step: let what was held for it be taken."""
        with self.changed:
            self.step, due = step, []
            for sender, arrived in self.arrived.items():
                if arrived.held is not None and arrived.held[0] <= step:
                    arrived.add(arrived.held[1])
                    arrived.held = None
                    due.append(sender)
        for sender in due:
            self._channel.release(sender)

    def lose(self, peer: int, error: Exception) -> None:
        """Let the agent know that a connection is lost."""
        with self.changed:
            self.error = self.error or (peer, error)
            self.changed.notify_all()

    def deliver(self, sender: int, packet: Packet) -> None:
        """Add a packet to what has arrived, and release it unless it is held; a thread of a transport calls."""
        try:
            step, before, first, epoch, items = self._items(sender, packet)
        except (struct.error, IndexError, RuntimeError, KeyError) as error:
            self.lose(sender, MessageLostError(f"a packet is not what was expected ({first_line(error)})"))
            return
        with self.changed:
            is_held = epoch == self.epoch and before <= self.step < first
            if epoch == self.epoch:
                arrived = self.arrived.setdefault(sender, Arrived())
                arrived.when = time.monotonic()
                arrived.steps |= {call: max(arrived.steps.get(call, -1), step) for call in items}
                if is_held:
                    arrived.held = first, items
                else:
                    arrived.add(items)
            self.changed.notify_all()
        if not is_held:
            self._channel.release(sender)

    def _items(self, sender: int, packet: Packet) -> tuple[int, int, int, int, dict[int, Item]]:
        step, epoch, count, before, first = _HEADER.unpack_from(packet.header)
        known, compression = self._compression.get(sender, (-1, None))
        if compression is None or known != epoch:
            compression = Compression(self._links, 0)
            self._compression[sender] = epoch, compression
        items: dict[int, Item] = {}
        start = 0
        for number in range(count):
            entry = _ENTRY.unpack_from(packet.header, _HEADER.size + number * _ENTRY.size)
            call, kind, adds, is_short, width, per = entry
            like = torch.empty(1, width, dtype=_FORMATS[kind], device="meta")
            size = compression.size(like[0]) if is_short else like.nbytes
            piece = packet.payload[start : start + size]
            start += size
            key = None if self._links is None or (adds and per < 0) else LinkKey("reference", call)
            wire = piece[None] if is_short else typed(piece, like.dtype)[None]
            values = compression.decode(wire, like, key, in_full=not is_short)[0]
            items[call] = Item(values, bool(adds), per=None if per < 0 else per)
        for item in items.values():
            if item.per is not None:
                item.values = item.values * items[item.per].values
        return step, before, first, epoch, items


class Outgoing:
    """Packets to one receiver: one at a time, each when the one before was taken.

    Args:
        receiver: The neighbour.
        channel: That carries packets.
        inbox: Whose epoch packets are of, and which is told what goes wrong.
        links: How arrays are compressed.
    """

    def __init__(self, receiver: int, channel: Channel, inbox: Inbox, links: Links | None) -> None:
        self._receiver, self._channel, self._inbox, self._links = receiver, channel, inbox, links
        self._changed = threading.Condition()
        self._waiting: dict[int, Item] = {}  # by call, not sent yet
        self._rest: dict[int, Item] = {}  # by call, of what was sent: what the compressor left out
        self._compression = Compression(links, 0)
        self._under_way = self._is_paused = False
        self._first = self._step = self._before = 0  # of what is to be sent, and of what was sent last
        self._delayed = 0  # offers that had to wait for the receiver, less those that had not

    @property
    def undelivered(self) -> dict[int, Item]:
        """The mass that was pushed and has not been sent, by call."""
        with self._changed:
            waiting = {call: item for call, item in self._waiting.items() if item.adds}
            return waiting | {call: rest.after(waiting.get(call)) for call, rest in self._rest.items()}

    def offer(self, step: int, items: Mapping[int, Item]) -> None:
        """Send items as soon as the edge is free, together with undelivered mass."""
        with self._changed:
            self._first, self._step = self._first if self._waiting else step, step
            self._delayed = min(self._delayed + 1, RECENT + 1) if self._waiting else max(self._delayed - 1, 0)
            for call, item in items.items():
                self._waiting[call] = item.after(self._waiting.get(call))
        self._send()

    @property
    def has_left(self) -> bool:
        """True once all that was offered has left, or the receiver is too slow to be waited for."""
        return not self._waiting or self._is_paused or self._delayed > RECENT

    def pause(self) -> None:
        """Let no further packet leave."""
        with self._changed:
            self._is_paused = True

    def wait_drained(self, until: float) -> bool:
        """Return whether the packet under way was taken by then."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._under_way, max(until - time.monotonic(), 0.0))

    def replace(self, undelivered: dict[int, Item]) -> None:
        """Pause, and replace undelivered mass, which is of no step that the receiver might wait for."""
        with self._changed:
            self._is_paused, self._first, self._step = True, -1, -1
            self._waiting, self._rest, self._compression = undelivered, {}, Compression(self._links, 0)

    def go_on(self, step: int) -> None:
        """Let packets leave again; none is of a later step, because all agents are at this one."""
        with self._changed:
            self._is_paused = False
            self._first, self._step, self._before = (
                min(one, step) for one in (self._first, self._step, self._before)
            )
        self._send()

    def _send(self) -> None:
        """Let a packet leave if there is something to send and nothing under way."""
        with self._changed:
            if self._is_paused or self._under_way or not self._waiting:
                return
            items, self._waiting, self._under_way = self._waiting, {}, True
            items = {call: item.after(self._rest.pop(call, None)) for call, item in items.items()}
            header = _HEADER.pack(self._step, self._inbox.epoch, len(items), self._before, self._first)
            self._before = self._step
            segments = []
            for call, item in items.items():
                weight = None if item.per is None else items[item.per].values
                is_short, wire = self._packed(call, item, weight)
                kind, per = _FORMATS.index(item.values.dtype), -1 if item.per is None else item.per
                header += _ENTRY.pack(call, kind, item.adds, is_short, item.values.numel(), per)
                segments.append(wire.reshape(-1))
        self._channel.send(self._receiver, header, segments, self._taken)
        with self._inbox.changed:
            self._inbox.changed.notify_all()

    def _taken(self) -> None:
        with self._changed:
            self._under_way = False
            self._changed.notify_all()
        try:
            self._send()
        except ArgumentError as error:  # a number that the compressor has no room for
            self._inbox.lose(self._receiver, error)

    def _packed(self, call: int, item: Item, weight: torch.Tensor | None) -> tuple[bool, torch.Tensor]:
        """Return whether an item is compressed, and its bytes; keep what they do not say."""
        values = item.values[None]
        if not item.is_short:
            return False, values
        key = None if item.adds and weight is None else LinkKey("reference", call)
        is_first = key is not None and key not in self._compression.references
        wire, value = self._compression.encode(values if weight is None else values / weight, key)
        if key is not None:
            self._compression.keep(key, value, sends=True)
        if item.adds:
            told = value if weight is None else value * weight
            self._rest[call] = replace(item, values=(values - told)[0])
        return not is_first, wire
