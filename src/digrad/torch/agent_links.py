"""Messages between agents of different machines: a sealed TCP connection for every arc that is used.

gloo neither encrypts nor asks who connects, keeps a descriptor for every stranger, connects everybody with everybody,
and knows no half of a message. Here an agent listens on one port, and who connects must know the secret of the attempt.
The sender of an arc makes its connection when there is something to send. A message that makes progress is not late.
"""

import math
import queue
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from digrad.torch.addresses import listening_socket
from digrad.torch.future_work import FutureWork
from digrad.torch.machines.channel import GREETING, Listener
from digrad.torch.machines.sealed import StrangerError, Wire, exactly, meet
from digrad.torch.reasons import MessageLostError

HEADER = struct.Struct("<4sqqq")  # kind, step, tag, bytes
MESSAGE, ALIVE, TAKEN = b"data", b"live", b"took"
_ARC = struct.Struct("<8sqq")  # what a new connection is for: a word, sender, receiver
_WORD = b"arc v1\n\0"
_RETRY = 0.2  # seconds between two attempts to connect

Facts = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """Where an agent is, as launch has told it.

    Args:
        machine: Agents with different ones talk over links.
        address: To listen on.
        secret: Of this attempt.
        sealed: Whether messages are encrypted and authenticated.
    """

    machine: Any
    address: str
    secret: bytes
    sealed: bool


class AgentLinks:
    """The connections of one agent to and from agents of other machines.

    Args:
        agent: This agent.
        n: How many there are.
        place: Where it is.
        exchange: Gathers short facts of every agent, by agent.
        timeout: Seconds within which a neighbour must accept a connection.
        make_incoming: Makes what serves the connection of a sender; by default messages are received as posted.
        make_outgoing: Makes what serves the connection to a receiver; by default messages are sent as posted.
    """

    def __init__(
        self,
        agent: int,
        n: int,
        place: Place,
        exchange: Callable[[Facts], list[Facts]],
        timeout: float,
        *,
        make_incoming: "Callable[[int], Any] | None" = None,
        make_outgoing: "Callable[[int, Callable[[], Wire]], Any] | None" = None,
    ) -> None:
        self._agent, self._n, self._place, self._timeout = agent, n, place, timeout
        self._make_incoming = make_incoming or (lambda _: Incoming())
        self._make_outgoing = make_outgoing or (lambda _, connect: Outgoing(connect))
        listener = listening_socket(place.address, 0)
        self._name = secrets.token_bytes(16)  # among all listeners: a connection cannot be led to another one
        self._incoming: dict[int, Any] = {}
        self._outgoing: dict[int, Any] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        here = {"machine": place.machine, "address": listener.getsockname()[:2], "name": self._name.hex()}
        self._listener = Listener(listener, self._welcome)
        self._everyone = exchange(here)
        machine = place.machine
        self.elsewhere = frozenset(i for i, one in enumerate(self._everyone) if one["machine"] != machine)

    def receives(self, sender: int, message: torch.Tensor) -> bool:
        """Return whether a message of ``sender`` comes over a link."""
        return sender in self.elsewhere

    def sends(self, receiver: int, message: torch.Tensor) -> bool:
        """Return whether a message to ``receiver`` goes over a link."""
        return receiver in self.elsewhere

    def inbox(self, sender: int, like: torch.Tensor) -> torch.Tensor:
        """Return ``like``: any memory will do."""
        return like

    def receive(self, sender: int, message: torch.Tensor, tag: int, k: int = 0) -> "LinkWork":
        """Receive into ``message`` what ``sender`` sends next."""
        return self.incoming(sender).post(message, tag, k)

    def send(self, receiver: int, message: torch.Tensor, tag: int, k: int = 0) -> "LinkWork":
        """Send ``message``, which must stay as it is until it has left."""
        return self.outgoing(receiver).post(message, tag, k)

    def keep_waiting(self) -> None:
        """Tell those who may wait for this agent that it waits itself, for something that makes progress."""
        for link in list(self._outgoing.values()):
            link.say_alive()

    def incoming(self, sender: int) -> Any:
        """Return the link on which ``sender`` is heard."""
        with self._lock:
            if sender not in self._incoming:
                self._incoming[sender] = self._make_incoming(sender)
            return self._incoming[sender]

    def outgoing(self, receiver: int) -> Any:
        """Return the link to ``receiver``, which is made now if it was not."""
        with self._lock:
            if receiver not in self._outgoing:
                self._outgoing[receiver] = self._make_outgoing(receiver, lambda: self._connect(receiver))
            return self._outgoing[receiver]

    def made_outgoing(self) -> dict[int, Any]:
        """Return the links that were made so far, by receiver."""
        with self._lock:
            return dict(self._outgoing)

    @property
    def last_progress(self) -> float:
        """When bytes last came or left on any link."""
        with self._lock:
            links = (*self._incoming.values(), *self._outgoing.values())
        return max((link.last_progress for link in links), default=-math.inf)

    def close(self) -> None:
        """Close the connections; a neighbour that still waits for a message learns that it is lost."""
        with self._lock:
            self._is_closed = True
        self._listener.close()
        for link in (*self._incoming.values(), *self._outgoing.values()):
            link.close()

    def _connect(self, receiver: int) -> Wire:
        address = tuple(self._everyone[receiver]["address"])
        deadline = time.monotonic() + self._timeout
        while True:
            try:
                connection = socket.create_connection(address, timeout=GREETING)
                name = bytes.fromhex(self._everyone[receiver]["name"])
                return self._greet(connection, self._agent, receiver, name)
            except OSError:
                if self._is_closed or time.monotonic() > deadline:
                    raise
                time.sleep(_RETRY)

    def _greet(self, connection: socket.socket, sender: int, receiver: int, name: bytes) -> Wire:
        """Say what a connection is for; both ends prove that they know the secret, and mean the same listener."""
        is_first = sender == self._agent
        arc = _ARC.pack(_WORD, sender, receiver)
        if is_first:
            connection.sendall(arc)
        secret = self._place.secret if self._place.sealed else None
        return meet(connection, secret, arc + name, is_first=is_first, timeout=GREETING)

    def _welcome(self, connection: socket.socket, address: str) -> None:
        try:
            connection.settimeout(GREETING)
            word, sender, receiver = _ARC.unpack(exactly(connection, _ARC.size))
            if word != _WORD or receiver != self._agent:
                raise StrangerError("it does not speak as digrad does")
            link = self.incoming(sender) if 0 <= sender < self._n else None
            wire = self._greet(connection, sender, receiver, self._name)
            self._listener.let_in(connection)
            if link is None or not link.begin(wire):
                wire.close()
        except (OSError, StrangerError) as error:
            self._listener.refuse(connection, address, error)


class LinkWork(FutureWork):
    """A message under way.

    Args:
        link: That carries it.
    """

    def __init__(self, link: "_Carrier") -> None:
        super().__init__()
        self._link = link

    @property
    def last_progress(self) -> float:
        """When something of it, or at least a sign of life, was last seen."""
        return self._link.last_progress


class _Carrier:
    """One direction of an arc: what is posted is carried in order by a thread, or lost together."""

    def __init__(self) -> None:
        self._posted: queue.SimpleQueue[Any] = (
            queue.SimpleQueue()
        )  # tuples that end in their LinkWork, then None
        self._wire: Wire | None = None
        self._error: Exception | None = None
        self._lock = threading.Lock()

    @property
    def last_progress(self) -> float:
        """When bytes last came or left."""
        return last_progress(self._wire)

    def close(self) -> None:
        """Close the connection; what was posted is lost."""
        self._fail(MessageLostError("this agent has closed its connections"))
        self._posted.put(None)
        if self._wire is not None:
            self._wire.close()

    def _put(self, *what: Any) -> LinkWork:
        work = LinkWork(self)
        with self._lock:
            if self._error is not None:
                work.future.set_exception(MessageLostError(str(self._error)))
            else:
                self._posted.put((*what, work))
        return work

    def _fail(self, error: Exception) -> None:
        with self._lock:
            self._error = self._error or error
            while not self._posted.empty():
                posted = self._posted.get()
                if posted is not None:
                    posted[-1].future.set_exception(MessageLostError(str(self._error)))


class Incoming(_Carrier):
    """Receives the messages of a sender, one after the other, in a thread of its own, once it connects."""

    def begin(self, wire: Wire) -> bool:
        """Take the connection of the sender; return whether it is the first."""
        with self._lock:
            if self._wire is not None or self._error is not None:
                return False
            self._wire = wire
        threading.Thread(target=self._serve, args=(wire,), name="digrad-receiver", daemon=True).start()
        return True

    def post(self, message: torch.Tensor, tag: int, k: int) -> LinkWork:
        """Receive the next message into memory of ours."""
        return self._put(message, tag, k)

    def _serve(self, wire: Wire) -> None:
        posted = None
        try:
            while True:
                header = wire.receive(HEADER.size)
                kind, step, tag, size = HEADER.unpack(header)
                if kind == ALIVE:
                    continue
                posted = self._posted.get()
                if posted is None:
                    return
                message, wanted, k, work = posted
                if (tag, step, size) != (wanted, k, message.nbytes):
                    raise MessageLostError(
                        f"round {tag} of step {step} with {size} bytes came for round {wanted} of step {k} with "
                        f"{message.nbytes}"
                    )
                wire.receive_into(memory_of(message), header)
                work.future.set_result(None)
                posted = message = work = None  # not kept while waiting for the next one
        except (OSError, StrangerError, MessageLostError) as error:
            if posted is not None:
                posted[-1].future.set_exception(MessageLostError(str(error)))
            self._fail(error)


class Outgoing(_Carrier):
    """Sends messages to one receiver, one after the other, in a thread of its own."""

    def __init__(self, connect: Callable[[], Wire]) -> None:
        super().__init__()
        threading.Thread(target=self._serve, args=(connect,), name="digrad-sender", daemon=True).start()

    def post(self, message: torch.Tensor, tag: int, k: int) -> LinkWork:
        """Send a message after those that were posted before."""
        return self._put(HEADER.pack(MESSAGE, k, tag, message.nbytes), message)

    def say_alive(self) -> None:
        """Give a sign of life, unless something is about to be sent anyway."""
        if self._posted.empty():
            self._put(HEADER.pack(ALIVE, 0, 0, 0), None)

    def _serve(self, connect: Callable[[], Wire]) -> None:
        posted = None
        try:
            self._wire = wire = connect()
            while (posted := self._posted.get()) is not None:
                header, message, work = posted
                wire.send(header)
                if message is not None:
                    wire.send(memory_of(message), header)
                work.future.set_result(None)
                posted = message = work = None
        except (OSError, StrangerError) as error:
            if posted is not None:
                posted[-1].future.set_exception(MessageLostError(str(error)))
            self._fail(error)


def last_progress(wire: Wire | None) -> float:
    """Return when bytes last came or left; never, before there is a connection."""
    return -math.inf if wire is None else wire.last_progress


def memory_of(message: torch.Tensor) -> Any:
    """Return the bytes of a contiguous tensor, without a copy."""
    return message.detach().view(torch.uint8).numpy().data


def ring_sum(
    values: torch.Tensor, agent: int, n: int, links: AgentLinks, finish: Callable[[Iterable[Any]], None]
) -> None:
    """Replace ``values``, contiguous, by the sum over all agents: each part is added up around a ring, then passed on.

    Args:
        values: Of this agent.
        agent: Its number.
        n: How many there are.
        links: That carry the parts, between agents of one machine too.
        finish: Waits for messages.
    """
    parts = values.view(-1).tensor_split(n)
    after, before = (agent + 1) % n, (agent - 1) % n
    spare = torch.empty_like(parts[0])
    for turn in range(2 * (n - 1)):
        is_adding = turn < n - 1
        shift = turn if is_adding else turn - n
        mine, theirs = parts[(agent - shift) % n], parts[(agent - shift - 1) % n]
        target = spare[: theirs.numel()] if is_adding else theirs
        finish(
            [
                (before, links.receive(before, target, -1 - turn)),
                (after, links.send(after, mine, -1 - turn)),
            ]
        )
        if is_adding:
            theirs.add_(target)
