"""The executor of one agent in its own process: a stack of one row, mixed with what the neighbours send."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from digrad.core.net import Verbs
from digrad.core.traffic import all_reduce_messages
from digrad.errors import CommunicationError
from digrad.links.seam import keeps_reference
from digrad.torch.exchange import FUSED, Part, Round
from digrad.torch.link_state import LinkState, plain_link
from digrad.torch.mixing_order import Turns, combine
from digrad.torch.process_network import ProcessNetwork
from digrad.torch.route import Route
from digrad.torch.same_host import LARGE


class AgentNet(Verbs):
    """What a method sees of a :class:`ProcessNetwork`.

    Args:
        network: Who is connected to whom.
        letters: The matrix behind each verb of the method.
        dimension: Numbers per agent.
        dtype: Their format.
        device: Where the rows are.
    """

    def __init__(
        self,
        network: ProcessNetwork,
        letters: Mapping[str, str],
        dimension: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        network.settle_abandoned()
        self.network = network
        self._turns = Turns(network.network, letters)
        self._links = LinkState(plain_link(network.network), dimension)
        self._buffers: dict[Any, torch.Tensor] = {}
        if dimension * dtype.itemsize >= LARGE and device.type == "cpu":
            network.open_memory(letters.values())
        batched = "nccl" in dist.get_backend(network.group)
        carriers = (network.links, network.same_host) if device.type == "cpu" else ()
        self._route = Route(network.group, [one for one in carriers if one is not None], batched)
        self._rounds = self.k = self.bytes_sent = self.late = 0
        self.waited = 0.0  # seconds
        self._early: Round | None = None
        self._early_fields: list[tuple[str, torch.Tensor]] = []
        self._place: int | None = (
            None  # among the arrays of a step; none outside: messages arrive as they are
        )
        self.one_hot = torch.zeros(1, network.n, dtype=torch.float64, device=device)
        self.one_hot[0, network.agent] = 1

    def stored_links(self) -> dict[str, torch.Tensor]:
        """Return the state of the links, by name."""
        return self._links.stored()

    def load_links(self, stored: Mapping[str, torch.Tensor]) -> None:
        """Go on from another state of the links; all agents must do it."""
        self._links.load(stored)

    def begin_step(self) -> None:
        """Count the arrays of a step from the first."""
        self._place = 0

    def end_step(self) -> None:
        """Forget what was sent ahead, and note what has been heard."""
        self.finish_early()
        self._place = None
        self._links.end_step(self._turns.at(self.k))

    def mean(self, x: Any) -> Any:
        """Average over all agents: a ring all-reduce, of which this agent sends 2 (n - 1)/n of a row."""
        if isinstance(x, tuple):
            return tuple(self.mean(part) for part in x)
        self.bytes_sent += all_reduce_messages(self.network.n) * x.nbytes // self.network.n
        return self.network.sum(x) / self.network.n

    def start_early(self, fields: Sequence[tuple[str, torch.Tensor]], memory: torch.Tensor) -> None:
        """Send arrays ahead of iteration k, which mixes them, as ``(verb, array)``.

        Args:
            fields: They must stay as they are until :meth:`finish_early`. Several that are pushed are one pair.
            memory: The flat memory in which they follow one another.
        """
        self._early_fields = list(fields)
        is_alone = sum(verb == "push" for verb, _ in fields) <= 1
        names = [f"early {place}" for place in range(len(fields))]
        self._early = self._post(fields, names, memory, "early", is_alone=is_alone) if fields else None
        if self._early:
            self.network.hold(self._early, self)

    def settle_early(self) -> None:
        """Wait until everything sent ahead has arrived and left; the next step finds it here."""
        if self._early:
            self._finish(self._early)

    def finish_early(self) -> None:
        """Wait as well, and forget it: the step that mixes it is over."""
        self.settle_early()
        self._early, self._early_fields = None, []

    def carry(self, parts: list[Part]) -> None:
        """Send and receive parts that are each for one neighbour, and wait for them."""
        self._rounds += 1
        try:
            current = Round(
                parts, None, self._route, self._buffers, key="packets", tag=self._rounds, k=self.k
            )
        except CommunicationError as error:
            raise self.network.reason_of(error) from error
        self.bytes_sent += current.bytes_sent
        self._finish(current)

    def _exchange(self, verb: str, x: Any) -> Any:
        arrays = x if isinstance(x, tuple) else (x,)
        parts: list[Part | None] = [self._find_early(verb, array) for array in arrays]
        late = [(verb, array) for array, part in zip(arrays, parts, strict=True) if part is None]
        if late:
            widths = tuple(array.shape[1] for _, array in late)
            current = self._post(
                late, self._places(len(late)), None, widths, is_alone=not isinstance(x, tuple)
            )
            self._finish(current)
            fresh = (self._decoded(part) for part in current.parts)
            parts = [part or next(fresh) for part in parts]
        mixed = tuple(
            combine(part.share, array, part.wire, part.received)
            for array, part in zip(arrays, parts, strict=True)
            if part is not None
        )
        return mixed if isinstance(x, tuple) else mixed[0]

    def _find_early(self, verb: str, x: torch.Tensor) -> Part | None:
        if self._early is None:
            return None
        for position, (early_verb, array) in enumerate(self._early_fields):
            if early_verb == verb and array is x:
                self._finish(self._early)
                self._early.parts[position] = self._decoded(self._early.parts[position])
                return self._early.parts[position]
        return None

    def _finish(self, sent: Round) -> None:
        began = time.monotonic()
        try:
            sent.finish(self.network.timeout, self.network.waiting_for)
        except CommunicationError as error:
            raise self.network.reason_of(error) from error
        self.waited += time.monotonic() - began

    def _places(self, count: int) -> Sequence[str | None]:
        """Name the next arrays of this step, so that each finds its references; there are none outside of it."""
        if self._place is None:
            return [None] * count
        self._place += count
        return [f"late {place}" for place in range(self._place - count, self._place)]

    def _part(self, verb: str, x: torch.Tensor, name: str | None, *, is_alone: bool) -> Part:
        """Return a row as it travels."""
        share, links, me = self._turns.at(self.k)[verb][self.network.agent], self._links, self.network.agent
        if name is None or not links.changes(x):
            return Part(share, x.contiguous())
        if not keeps_reference(verb, is_alone=is_alone):
            word = links.say(x, None)
            return Part(share, word.wire, said=word.said)
        word = links.say(x, _of(name, me))
        return Part(
            share,
            word.wire,
            said=word.said,
            name=name,
            full_receivers=frozenset(r for r, _ in share.receivers if not links.knows(verb, me, r)),
            full_senders=frozenset(s for s, _ in share.senders if not links.knows(verb, s, me)),
        )

    def _decoded(self, part: Part) -> Part:
        """Return the rows that a message stands for, and advance its references: once for each message."""
        if part.said is None:
            return part
        heard = {
            sender: self._links.hear(
                message, part.said, _of(part.name, sender), in_full=sender in part.full_senders
            )
            for sender, message in part.received.items()
        }
        own = _of(part.name, self.network.agent)
        if own is not None:
            self._links.hold(own, part.said, [bool(part.share.receivers)])
        return Part(part.share, part.said, heard)

    def _post(
        self,
        fields: Sequence[tuple[str, torch.Tensor]],
        names: Sequence[str | None],
        memory: torch.Tensor | None,
        key: Any,
        *,
        is_alone: bool,
    ) -> Round:
        parts = [
            self._part(verb, array, name, is_alone=is_alone)
            for (verb, array), name in zip(fields, names, strict=True)
        ]
        is_coded = any(part.wire is not array for part, (_, array) in zip(parts, fields, strict=True))
        if memory is None or is_coded:
            memory = _join(parts, always=is_coded)
        self._rounds += 1
        try:
            current = Round(parts, memory, self._route, self._buffers, key=key, tag=self._rounds, k=self.k)
        except CommunicationError as error:
            raise self.network.reason_of(error) from error
        self.bytes_sent += current.bytes_sent
        return current


def _of(name: str | None, agent: int) -> str | None:
    """Return the name of an agent's reference."""
    return None if name is None else f"{name} of {agent}"


def _join(parts: Sequence[Part], *, always: bool) -> torch.Tensor | None:
    """Lay the wires out in one piece of memory and return it, or None if they should rather travel one by one."""
    wires = [part.wire for part in parts]
    if len(wires) == 1:
        return wires[0].reshape(-1)
    same = len({wire.dtype for wire in wires}) == 1
    short = sum(wire.shape[1] for wire in wires) <= FUSED
    if not (same and (always or short)):
        return None
    memory = torch.cat([wire.reshape(-1) for wire in wires])
    for part, piece in zip(parts, memory.split([wire.shape[1] for wire in wires]), strict=True):
        part.wire = piece[None]
    return memory
