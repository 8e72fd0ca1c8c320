"""Choice of the transport between two agents: through memory that agents of one host share, or over ZeroMQ."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from digrad.errors import CommunicationError
from digrad.torch.transport.curve_keys import KeyPair
from digrad.torch.transport.packets import MessageLostError, Packet, Receiver, Sending, Transport
from digrad.torch.transport.shared_memory import open_shared_memory

Facts = dict[str, Any]


class Transports:
    """The transports of one agent.

    Args:
        transports: Of which the first that reaches a neighbour is used.
    """

    def __init__(self, transports: Sequence[Transport]) -> None:
        self.each = transports
        self._channels = 0

    def channel(self) -> "Channel":
        """Return the next channel; every agent must ask for the same ones in the same order."""
        self._channels += 1
        return Channel(self, self._channels)

    def to(self, peer: int) -> Transport:
        """Return the transport of a neighbour."""
        found = next((one for one in self.each if peer in one.peers), None)
        if found is None:
            raise CommunicationError(f"agent {peer} cannot be reached from here.")
        return found

    def close(self) -> None:
        """Close all connections."""
        for transport in self.each:
            transport.close()


class Channel:
    """Packets of one purpose.

    Args:
        transports: That carry them.
        number: Of the channel.
    """

    def __init__(self, transports: Transports, number: int) -> None:
        self._transports, self._number = transports, number
        self._arrived = threading.Condition()
        self._packets: dict[int, Packet] = {}
        self._lost: dict[int, Exception] = {}
        self.bytes_sent = 0

    def open(self, receiver: Receiver | None = None) -> "Channel":
        """Let ``receiver`` take packets; by default they wait here."""
        for transport in self._transports.each:
            transport.open(self._number, receiver or self)
        return self

    def send(
        self,
        receiver: int,
        header: bytes,
        segments: Sequence[torch.Tensor],
        on_taken: Callable[[], None] | None = None,
    ) -> Sending:
        """Send a packet; see :meth:`Transport.send`."""
        sending = self._transports.to(receiver).send(receiver, self._number, header, segments, on_taken)
        self.bytes_sent += sending.size
        return sending

    def release(self, sender: int) -> None:
        """Let go of the packet of a sender, which may send the next one."""
        with self._arrived:
            self._packets.pop(sender, None)
        self._transports.to(sender).release(sender, self._number)

    def send_heartbeat(self, receiver: int) -> None:
        """Send a heartbeat."""
        self._transports.to(receiver).send_heartbeat(receiver)

    def last_progress(self, peer: int) -> float:
        """Return when bytes of or to a neighbour last moved."""
        return self._transports.to(peer).last_progress(peer)

    def deliver(self, sender: int, packet: Packet) -> None:
        """Keep a packet until somebody waits for it."""
        with self._arrived:
            self._packets[sender] = packet
            self._arrived.notify_all()

    def lose(self, peer: int, error: Exception) -> None:
        """Wake up whoever waits for a neighbour that has gone."""
        with self._arrived:
            self._lost[peer] = error
            self._arrived.notify_all()

    def wait(self, sender: int, seconds: float) -> Packet | None:
        """Return the packet of a sender, which stays here until it is released; None if none comes in time.

        Raises:
            MessageLostError: Nothing more comes from it.
        """
        with self._arrived:
            self._arrived.wait_for(lambda: sender in self._packets or sender in self._lost, max(seconds, 0.0))
            if sender in self._packets:
                return self._packets[sender]
            if sender in self._lost:
                raise MessageLostError(str(self._lost[sender]))
            return None


def open_transports(
    agent: int,
    address: str,
    keys: KeyPair | None,
    exchange: Callable[[Facts], list[Facts]],
    *,
    direct: bool = True,
) -> Transports:
    """Connect an agent with all others; all must call.

    Args:
        agent: This agent.
        address: To listen on for agents of other hosts.
        keys: Of the run; None sends everything as it is.
        exchange: Gathers short facts of every agent, by agent.
        direct: Whether agents of one host share memory.
    """
    near = open_shared_memory(agent, exchange, is_wanted=direct)
    reached = exchange({"near": sorted(near.peers) if near else [agent]})
    if all(len(one["near"]) == len(reached) for one in reached):
        return Transports([near] if near else [])
    from digrad.torch.transport.zeromq import ZeroMQ  # which needs pyzmq

    far = ZeroMQ(agent, address, keys, exchange)
    return Transports([near, far] if near else [far])


def ring_sum(
    values: torch.Tensor,
    agent: int,
    n: int,
    channel: Channel,
    wait: Callable[[int, Callable[[float], Any]], Any],
) -> None:
    """Replace ``values``, contiguous, by the sum over all agents: each part is added up around a ring, then passed on.

    Args:
        values: Of this agent.
        agent: Its number.
        n: How many there are.
        channel: That carries the parts.
        wait: Returns what a function of seconds finds of a neighbour, which is None at first.
    """
    parts = values.view(-1).tensor_split(n)
    after, before = (agent + 1) % n, (agent - 1) % n
    for turn in range(2 * (n - 1)):
        is_adding = turn < n - 1
        shift = turn if is_adding else turn - n
        mine, theirs = parts[(agent - shift) % n], parts[(agent - shift - 1) % n]
        sending = channel.send(after, b"", [mine])
        packet = wait(before, lambda seconds: channel.wait(before, seconds))
        received = packet.payload.view(values.dtype)
        theirs.add_(received) if is_adding else theirs.copy_(received)
        channel.release(before)
        wait(after, sending.wait)
