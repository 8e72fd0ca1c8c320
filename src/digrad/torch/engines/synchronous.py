"""The engine of one agent in its own process that waits for all messages: bit for bit what replicas compute.

What a method knows before the gradient is sent ahead, while the next forward and backward passes run. What is sent is
not copied: it must stay as it is until the round is finished.
"""

import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from digrad._internal.error_text import agents_text, first_line
from digrad.core.net import Sent, arrays_sent, fields_sent
from digrad.errors import CommunicationError
from digrad.torch.engines.compression import CompressedNet, LinkArrays, LinkKey
from digrad.torch.engines.engine import OWNER, overwrite
from digrad.torch.engines.log_records import note_step
from digrad.torch.engines.mixing import Share, combine
from digrad.torch.process_network import ProcessNetwork
from digrad.torch.transport.packets import MessageLostError, Sending, typed
from digrad.torch.transport.torch_distributed import DeviceRound
from digrad.torch.transport.transports import Channel

_HEADER = struct.Struct("<qq")  # round, step


@dataclass
class Part:
    """One array of a round: who gets it, and what travels.

    Args:
        share: This agent's part of the mixing.
        wire: ``[1, width]``, as it travels to those who have the reference.
        received: ``[1, width]`` of each sender.
        value: ``[1, width]``, what a compressed wire stands for.
        key: Of the references that a compressed wire changes, if it is a change.
        full_receivers: Who has no reference, and is sent ``value`` instead of the wire.
        full_senders: Whose reference this agent does not have, so that they send in full.
    """

    share: Share
    wire: torch.Tensor
    received: dict[int, torch.Tensor] = field(default_factory=dict)
    value: torch.Tensor | None = None
    key: LinkKey | None = None
    full_receivers: frozenset[int] = frozenset()
    full_senders: frozenset[int] = frozenset()

    def message(self, peer: int, *, receiving: bool) -> torch.Tensor:
        """Return what travels to a neighbour, or something like what comes from it."""
        in_full = self.full_senders if receiving else self.full_receivers
        return self.value if self.value is not None and peer in in_full else self.wire

    def peers(self, *, receiving: bool) -> list[int]:
        """Return the neighbours that this agent receives from, or sends to."""
        found = self.share.senders if receiving else self.share.receivers
        return [peer for peer, _ in found if peer != self.share.agent]


def messages(parts: Sequence[Part], *, receiving: bool) -> dict[int, list[int]]:
    """Return which parts travel together, by neighbour."""
    found: dict[int, list[int]] = {}
    for position, part in enumerate(parts):
        for peer in part.peers(receiving=receiving):
            found.setdefault(peer, []).append(position)
    return dict(sorted(found.items()))


class PacketRound:
    """A round whose messages are packets.

    Args:
        parts: The arrays, in the same order on every agent.
        channel: That carries them; the round before on it was released.
        network: Who is connected to whom.
        number: Of the round.
        k: The step.
    """

    def __init__(
        self, parts: list[Part], channel: Channel, network: ProcessNetwork, number: int, k: int
    ) -> None:
        self.parts, self._channel, self._network, self._k = parts, channel, network, k
        self._header, self._is_finished = _HEADER.pack(number, k), False
        self._incoming = messages(parts, receiving=True)
        self._sendings: list[tuple[int, Sending]] = []
        for peer, positions in messages(parts, receiving=False).items():
            segments = [parts[i].message(peer, receiving=False).reshape(-1) for i in positions]
            self._sendings.append((peer, channel.send(peer, self._header, segments)))

    def finish(self) -> None:
        """Wait until everything has arrived and left.

        Raises:
            CommunicationError: A neighbour is silent for too long, or its connection is lost.
        """
        if self._is_finished:
            return
        deadline = time.monotonic() + self._network.timeout
        for sender, positions in self._incoming.items():
            self._unpack(sender, positions, self._wait(sender, deadline))
        for receiver, sending in self._sendings:
            self._waited(receiver, sending.wait, deadline, "taken by")
        self._is_finished = True

    def release(self) -> None:
        """Let the senders send again; what was received may change now."""
        if self._is_finished:
            for sender in self._incoming:
                self._channel.release(sender)
            self._incoming = {}

    def _wait(self, sender: int, deadline: float) -> torch.Tensor:
        packet = self._waited(
            sender, lambda seconds: self._channel.wait(sender, seconds), deadline, "heard from"
        )
        if packet.header != self._header:
            number, k = _HEADER.unpack(packet.header)
            wanted, _ = _HEADER.unpack(self._header)
            reason = f"round {number} of step {k} came for round {wanted} of step {self._k}"
            raise CommunicationError(self._lost(sender, MessageLostError(reason)))
        return packet.payload

    def _waited(self, peer: int, look: Any, deadline: float, action: str) -> Any:
        """Return what ``look`` finds within the timeout, or as long as bytes move."""
        timeout = self._network.timeout
        with self._network.waiting_for([peer], lambda: self._channel.last_progress(peer)):
            while True:
                try:
                    found = look(timeout / 4)
                except MessageLostError as error:
                    raise CommunicationError(self._lost(peer, error)) from error
                if found is not None:
                    return found
                now, moved = time.monotonic(), self._channel.last_progress(peer)
                if now >= max(deadline, moved + timeout):
                    raise CommunicationError(self._silent(action, peer, timeout))
                if moved > now - timeout / 4:  # who waits for this agent should not give up either
                    for receiver, _ in self._sendings:
                        self._channel.send_heartbeat(receiver)

    def _unpack(self, sender: int, positions: Sequence[int], payload: torch.Tensor) -> None:
        like = [self.parts[i].message(sender, receiving=True) for i in positions]
        sizes = [one.nbytes for one in like]
        if sum(sizes) != len(payload):
            reason = f"{len(payload)} bytes came instead of {sum(sizes)}"
            raise CommunicationError(self._lost(sender, MessageLostError(reason)))
        for position, one, piece in zip(positions, like, payload.split(sizes), strict=True):
            self.parts[position].received[sender] = typed(piece, one.dtype)[None]

    def _silent(self, action: str, peer: int, timeout: float) -> str:
        return (
            f"step {self._k}: nothing was {action} {agents_text([peer])} within {timeout:.1f} s; it is dead, stopped, "
            "slow or itself waiting: look at its log, raise `timeout` of ProcessNetwork if it is slow, and "
            "start all agents again."
        )

    def _lost(self, peer: int, error: Exception) -> str:
        return f"step {self._k}: the connection to agent {peer} is lost ({first_line(error)}); start all agents again."


class SynchronousEngine(CompressedNet):
    """Agent of a :class:`ProcessNetwork` without a deadline; see :class:`~digrad.torch.engines.engine.Engine`.

    Args:
        network: Who is connected to whom.
        matrices: The matrix behind each primitive of the method.
        dimension: Numbers per agent.
        device: Where the rows are.
    """

    def __init__(
        self, network: ProcessNetwork, matrices: Mapping[str, str], dimension: int, device: torch.device
    ) -> None:
        super().__init__(network.network, matrices, dimension)
        self.network = network
        self._round = PacketRound if device.type == "cpu" else DeviceRound
        # What is sent ahead must not be in the way of what is not.
        self._channels = [network.transports.channel().open() for _ in range(2)]
        self._rounds = self.late = 0
        self.waited = 0.0  # seconds
        self._early: PacketRound | DeviceRound | None = None
        self._early_fields: list[tuple[str, torch.Tensor]] = []
        self.one_hot = torch.zeros(1, network.n, dtype=torch.float64, device=device)
        self.one_hot[0, network.agent] = 1

    @property
    def bytes_sent(self) -> int:
        """Bytes that have left so far."""
        return sum(channel.bytes_sent for channel in self._channels)

    def mean(self, x: Any) -> Any:
        """Average over all agents."""
        if isinstance(x, tuple):
            return tuple(self.mean(part) for part in x)
        total = x.clone(memory_format=torch.contiguous_format)
        return self.network.add_up(total, channel=self._channels[1]) / self.network.n

    def advance(self, method: Any, state: Any, grad: torch.Tensor) -> None:
        """Overwrite a state with the one after a step."""
        self.begin_step()
        after = method.step(state, grad, self)
        self.finish_early()
        overwrite(state, after)
        self.drop_early()
        self.end_step()

    def publish(self, k: int, early: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Begin iteration k: send what the method mixes before the gradient is known."""
        self.k = k
        note_step(k)
        self.start_early(early)

    def gather(self, call: str) -> bool:
        """Do nothing: agents that wait for all messages are together anyway."""
        return False

    def release(self) -> None:
        """Do nothing."""

    def go_to(self, k: int, links: LinkArrays) -> None:
        """Wait for the messages under way, agree on the iteration, and go on with another link state."""
        self.finish_early()
        kinds = sorted({(key.kind, key.place) for key in links})
        self.network.agree({"k": k, "links": repr(kinds)}, OWNER)
        self.load_links(links)
        self.k = k

    def close(self) -> None:
        """Finish the messages under way; every agent must call."""
        self.finish_early()

    def start_early(self, fields: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Send arrays ahead of iteration k, which mixes them, by primitive; several pushed ones are a pair.

        They must stay as they are until :meth:`finish_early`.
        """
        self.drop_early()
        self._early_fields = list(fields)
        keys = [LinkKey("early", place) for place in range(len(fields))]
        self._early = self._post(fields_sent(fields), keys, is_early=True) if fields else None

    def finish_early(self) -> None:
        """Wait until everything sent ahead has arrived and left; the next step finds it here."""
        if self._early:
            self._finish(self._early)

    def drop_early(self) -> None:
        """Wait as well, and let go of it: the step that mixes it is over."""
        self.finish_early()
        if self._early:
            self._early.release()
        self._early, self._early_fields = None, []

    def _exchange(self, primitive: str, x: Any) -> Any:
        arrays = list(arrays_sent(primitive, x))
        parts: list[Part | None] = [self._find_early(primitive, sent.array) for sent in arrays]
        late = [(primitive, sent) for sent, part in zip(arrays, parts, strict=True) if part is None]
        current = None
        if late:
            current = self._post(late, [self._next_key("late") for _ in late], is_early=False)
            self._finish(current)
            fresh = (self._decoded(part) for part in current.parts)
            parts = [part or next(fresh) for part in parts]
        mixed = tuple(
            combine(part.share, sent.array, part.wire, part.received)
            for sent, part in zip(arrays, parts, strict=True)
            if part is not None
        )
        if current is not None:
            current.release()
        return mixed if isinstance(x, tuple) else mixed[0]

    def _find_early(self, primitive: str, x: torch.Tensor) -> Part | None:
        """Return what the neighbours sent ahead to be mixed with ``x``, if they did."""
        if self._early is None:
            return None
        for position, (early_primitive, array) in enumerate(self._early_fields):
            if early_primitive == primitive and array is x:
                self._finish(self._early)
                self._early.parts[position] = self._decoded(self._early.parts[position])
                return self._early.parts[position]
        return None

    def _finish(self, current: PacketRound | DeviceRound) -> None:
        began = time.monotonic()
        try:
            current.finish()
        except CommunicationError as error:
            raise self.network.reason_of(error) from error
        self.waited += time.monotonic() - began

    def _part(self, primitive: str, sent: Sent, key: LinkKey | None) -> Part:
        """Return a row as it travels."""
        compression, me = self._compression, self.network.agent
        share = self._shares(primitive, sent)[me]
        if key is None or not compression.applies(sent):
            return Part(share, sent.array.contiguous())
        if not sent.keeps_reference(primitive):
            wire, value = compression.encode(sent.array, None)
            return Part(share, wire, value=value)
        wire, value = compression.encode(sent.array, key._replace(agent=me))
        return Part(
            share,
            wire,
            value=value,
            key=key,
            full_receivers=frozenset(
                r for r, _ in share.receivers if not compression.has_reference(primitive, me, r)
            ),
            full_senders=frozenset(
                s for s, _ in share.senders if not compression.has_reference(primitive, s, me)
            ),
        )

    def _decoded(self, part: Part) -> Part:
        """Return the rows that a message stands for, and advance its references: once for each message."""
        if part.value is None:
            return part
        received = {
            sender: self._compression.decode(
                message,
                part.value,
                None if part.key is None else part.key._replace(agent=sender),
                in_full=sender in part.full_senders,
            )
            for sender, message in part.received.items()
        }
        if part.key is not None:
            own = part.key._replace(agent=self.network.agent)
            self._compression.keep(own, part.value, sends=bool(part.share.receivers))
        return Part(part.share, part.value, received)

    def _post(
        self, arrays: Sequence[tuple[str, Sent]], keys: Sequence[LinkKey | None], *, is_early: bool
    ) -> PacketRound | DeviceRound:
        parts = [self._part(*array, key) for array, key in zip(arrays, keys, strict=True)]
        self._rounds += 1
        try:
            channel = self._channels[0 if is_early else 1]
            return self._round(parts, channel, self.network, self._rounds, self.k)
        except CommunicationError as error:
            raise self.network.reason_of(error) from error
