"""Packets that may be late: at most one is under way on an arc, and what was not sent is added to the next one.

A packet holds some arrays, each under the number of the call of the method that sends it. What is pushed is an
increment: those that could not leave add up, and so do those that arrive before they are taken. What is pulled is a
value, of which the newest wins. A packet that was taken is confirmed; only then may the next one leave.

Arrays may travel in a short format. Of a push, what it could not say stays owed; a pull says the change of what the
receiver knows, so that both ends remember it. Both are decided when a packet leaves: it is short
however much it covers.
"""

import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from digrad.torch.agent_links import HEADER, TAKEN, last_progress, memory_of
from digrad.torch.machines.sealed import StrangerError, Wire
from digrad.torch.short_format import ShortFormat

PACKET = b"pack"
_ENTRY = struct.Struct("<qqqqqq")  # call, format, whether it adds up, whether it is short, numbers, bytes
_FORMATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass
class Item:
    """One array of a packet, to which nobody writes.

    Args:
        values: ``[width]``.
        adds: Whether it adds up.
        is_short: Whether it travels in the short format.
    """

    values: torch.Tensor
    adds: bool
    is_short: bool = False

    def after(self, before: "Item | None") -> "Item":
        """Return what is to be said of both, this being the newer one."""
        if before is None or not self.adds:
            return self
        return replace(self, values=before.values + self.values)


@dataclass
class Heard:
    """What has come from one sender and was not taken yet.

    Args:
        steps: The newest of the sender of which something has come, by call.
        when: When a packet last came.
        items: By call.
    """

    steps: dict[int, int]
    when: float
    items: dict[int, Item]


class Inbox:
    """What all senders of an agent have left for it; ``changed`` guards everything here."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.heard: dict[int, Heard] = {}
        self.epoch = 0  # packets of an earlier one are of a state that was given up
        self.error: tuple[int, Exception] | None = None  # the neighbour whose connection is lost

    def fail(self, peer: int, error: Exception) -> None:
        """Let the agent know that a connection is lost."""
        with self.changed:
            self.error = self.error or (peer, error)
            self.changed.notify_all()


class LateIncoming:
    """Receives the packets of one sender in a thread of its own, and confirms them."""

    def __init__(self, sender: int, inbox: Inbox, form: ShortFormat | None) -> None:
        self._sender, self._inbox, self._form = sender, inbox, form
        self._known: dict[int, torch.Tensor] = {}  # what the sender has said of an estimate, by call
        self._epoch = 0
        self._wire: Wire | None = None
        self._is_closed = False

    def begin(self, wire: Wire) -> bool:
        """Take the connection of the sender; return whether it is the first."""
        if self._wire is not None:
            return False
        self._wire = wire
        threading.Thread(target=self._serve, args=(wire,), name="digrad-receiver", daemon=True).start()
        return True

    @property
    def last_progress(self) -> float:
        """When bytes last came."""
        return last_progress(self._wire)

    def close(self) -> None:
        """Close the connection."""
        self._is_closed = True
        if self._wire is not None:
            self._wire.close()

    def _serve(self, wire: Wire) -> None:
        try:
            while True:
                header = wire.receive(HEADER.size)
                _, step, tag, count = HEADER.unpack(header)
                if tag != self._epoch:
                    self._epoch, self._known = tag, {}
                items = dict(self._item(wire, header) for _ in range(count))
                self._take(tag, step, items)
                wire.send(HEADER.pack(TAKEN, step, tag, 0))
        except (OSError, StrangerError, IndexError) as error:
            if not self._is_closed:
                self._inbox.fail(self._sender, error)

    def _item(self, wire: Wire, header: bytes) -> tuple[int, Item]:
        entry = wire.receive(_ENTRY.size, header)
        call, kind, adds, is_short, width, size = _ENTRY.unpack(entry)
        packed, dtype = torch.empty(size, dtype=torch.uint8), _FORMATS[kind]
        wire.receive_into(memory_of(packed), entry)
        if not is_short:
            values = packed.view(dtype)
        else:
            assert self._form is not None
            values = self._form.unpack(packed, width, dtype)
            values = values if adds else self._known[call] + values
        if self._form is not None and not adds:
            self._known[call] = values
        return call, Item(values, bool(adds))

    def _take(self, epoch: int, step: int, items: dict[int, Item]) -> None:
        with self._inbox.changed:
            if epoch != self._inbox.epoch:
                return
            heard = self._inbox.heard.setdefault(self._sender, Heard({}, 0.0, {}))
            heard.when = time.monotonic()
            for call, item in items.items():
                heard.steps[call] = max(heard.steps.get(call, -1), step)
                heard.items[call] = item.after(heard.items.get(call))
            self._inbox.changed.notify_all()


class LateOutgoing:
    """Sends packets to one receiver in a thread of its own, each after the one before was confirmed."""

    def __init__(
        self, receiver: int, connect: Callable[[], Wire], inbox: Inbox, form: ShortFormat | None
    ) -> None:
        self._receiver, self._inbox, self._form = receiver, inbox, form
        self._changed = threading.Condition()
        self._waiting: dict[int, Item] = {}  # by call, not sent yet
        self._rest: dict[int, Item] = {}  # by call, of what was sent: what the short format could not say
        self._known: dict[int, torch.Tensor] = {}  # what was said of an estimate, by call
        self._under_way = self._is_paused = self._is_closed = False
        self._step = 0
        self.bytes_sent = 0
        self._wire: Wire | None = None
        threading.Thread(target=self._serve, args=(connect,), name="digrad-sender", daemon=True).start()

    @property
    def owed(self) -> dict[int, Item]:
        """What was pushed and has not been sent, by call."""
        with self._changed:
            waiting = {call: item for call, item in self._waiting.items() if item.adds}
            return waiting | {call: rest.after(waiting.get(call)) for call, rest in self._rest.items()}

    def offer(self, step: int, items: dict[int, Item]) -> None:
        """Send items as soon as the link is free, together with what is owed."""
        with self._changed:
            self._step = step
            for call, item in items.items():
                self._waiting[call] = item.after(self._waiting.get(call))
            self._changed.notify_all()

    @property
    def last_progress(self) -> float:
        """When bytes last left or a confirmation came."""
        return last_progress(self._wire)

    def pause(self) -> None:
        """Let no further packet leave."""
        with self._changed:
            self._is_paused = True

    def wait_settled(self, until: float) -> bool:
        """Return whether the packet under way was confirmed by then."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._under_way or self._is_closed, max(until - time.monotonic(), 0.0)
            )

    def replace(self, owed: dict[int, Item]) -> None:
        """Pause, and replace what is owed, which is of no step that the receiver might wait for."""
        with self._changed:
            self._is_paused, self._step = True, -1
            self._waiting, self._rest, self._known = owed, {}, {}

    def go_on(self) -> None:
        """Let packets leave again."""
        with self._changed:
            self._is_paused = False
            self._changed.notify_all()

    def close(self) -> None:
        """Close the connection."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if self._wire is not None:
            self._wire.close()

    def _serve(self, connect: Callable[[], Wire]) -> None:
        try:
            self._wire = wire = connect()
            while (packet := self._next()) is not None:
                self._send(wire, *packet)
                del packet
                wire.receive(
                    HEADER.size
                )  # the confirmation; what comes was sealed by the receiver, in this order
                with self._changed:
                    self._under_way = False
                    self._changed.notify_all()
        except (OSError, StrangerError) as error:
            if not self._is_closed:
                self._inbox.fail(self._receiver, error)

    def _next(self) -> tuple[int, int, dict[int, Item]] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or (self._waiting and not self._is_paused))
            if self._is_closed:
                return None
            items, self._waiting, self._under_way = self._waiting, {}, True
            items = {call: item.after(self._rest.pop(call, None)) for call, item in items.items()}
            return self._inbox.epoch, self._step, items

    def _send(self, wire: Wire, epoch: int, step: int, items: dict[int, Item]) -> None:
        header = HEADER.pack(PACKET, step, epoch, len(items))
        wire.send(header)
        for call, item in items.items():
            is_short, packed = self._packed(call, item)
            kind, width = _FORMATS.index(item.values.dtype), item.values.numel()
            entry = _ENTRY.pack(call, kind, item.adds, is_short, width, packed.nbytes)
            wire.send(entry, header)
            wire.send(memory_of(packed), entry)
            self.bytes_sent += packed.nbytes

    def _packed(self, call: int, item: Item) -> tuple[bool, torch.Tensor]:
        """Return whether an item travels in the short format, and its bytes; note what they say."""
        form, before = self._form if item.is_short else None, self._known.get(call)
        if form is None or (before is None and not item.adds):  # the first word on an estimate is in full
            if form is not None:
                self._known[call] = item.values
            return False, item.values.view(torch.uint8)
        wanted = item.values if before is None else item.values - before
        packed = form.pack(wanted)
        said = form.unpack(packed, wanted.numel(), wanted.dtype)
        if before is not None:
            self._known[call] = before + said
        else:
            with self._changed:
                self._rest[call] = replace(item, values=wanted - said)
        return True, packed
