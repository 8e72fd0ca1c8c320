"""The executor of one agent in its own process: a stack of one row, mixed with what the neighbours send."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from digrad.errors import CommunicationError
from digrad.torch.exchange import FUSED, Part, Round
from digrad.torch.mixing_order import Share, combine, shares
from digrad.torch.process_network import ProcessNetwork
from digrad.torch.rounding import decode, encode, is_shortened, needs_reference, rounded
from digrad.torch.route import Route
from digrad.torch.same_host import LARGE


class ProcessNet:
    """What a method sees of a :class:`ProcessNetwork`.

    Args:
        network: Who is connected to whom.
        needs: Of the method.
        dimension: Numbers per agent.
        dtype: Their format.
        message_dtype: The format of messages; by default that of the numbers.
        device: Where the rows are.
    """

    def __init__(
        self,
        network: ProcessNetwork,
        needs: frozenset[str],
        dimension: int,
        dtype: torch.dtype,
        message_dtype: torch.dtype | None,
        device: torch.device,
    ) -> None:
        network.settle_abandoned()
        self.network = network
        self.shares: dict[str, Share] = shares(network.network, needs, network.agent)
        self._dimension, self.message_dtype = dimension, message_dtype
        self._buffers: dict[Any, torch.Tensor] = {}
        if dimension * dtype.itemsize >= LARGE and device.type == "cpu":
            network.open_memory()
        batched = "nccl" in dist.get_backend(network.group)
        self._route = Route(network.group, network.same_host if device.type == "cpu" else None, batched)
        self._rounds = self.k = self.bytes_sent = 0
        self._early: Round | None = None
        self._early_fields: list[tuple[str, torch.Tensor]] = []
        self._references: dict[str, torch.Tensor] = {}  # [1, d] by the array's place and the agent
        self._place: int | None = None  # none outside of a step: nothing is rounded then
        eye = torch.eye(network.n, dtype=torch.float64, device=device)
        self.one_hot = eye[network.agent : network.agent + 1]

    @property
    def references(self) -> dict[str, torch.Tensor]:
        """What rounded messages refer to, by name: state, like that of the method."""
        return dict(self._references)

    def set_references(self, references: Mapping[str, torch.Tensor]) -> None:
        """Go on from other references; from none, the next messages travel in full. All agents must do it."""
        self._references = {name: value.clone() for name, value in references.items()}
        self._place = None

    def begin_step(self) -> None:
        """Count the arrays of a step from the first."""
        self._place = 0

    def pull(self, x: Any) -> Any:
        """Mix with the row-stochastic R."""
        return self._exchange("pull", x)

    def push(self, x: Any) -> Any:
        """Mix with the column-stochastic C."""
        return self._exchange("push", x)

    def mix(self, x: Any) -> Any:
        """Mix with the doubly stochastic W."""
        return self._exchange("mix", x)

    def mean(self, x: Any) -> Any:
        """Average over all agents: a ring all-reduce, of which this agent sends 2 (n - 1)/n of a row."""
        if isinstance(x, tuple):
            return tuple(self.mean(part) for part in x)
        self.bytes_sent += 2 * (self.network.n - 1) * x.nbytes // self.network.n
        return self.network.sum(x) / self.network.n

    def start_early(self, fields: Sequence[tuple[str, torch.Tensor]], memory: torch.Tensor) -> None:
        """Send arrays ahead of the step that mixes them, as ``(verb, array)``.

        Args:
            fields: They must stay as they are until :meth:`finish_early`. Several that are pushed are one pair.
            memory: The flat memory in which they follow one another.
        """
        self._early_fields = list(fields)
        is_pair = sum(verb == "push" for verb, _ in fields) > 1
        names = [f"early {place}" for place in range(len(fields))]
        self._early = self._post(fields, names, memory, "early", is_pair=is_pair) if fields else None
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

    def arrived(self, verb: str, x: torch.Tensor) -> Part:
        """Return what the neighbours sent ahead to be mixed with ``x``."""
        part = self._find_early(verb, x)
        assert part is not None
        return part

    def _exchange(self, verb: str, x: Any) -> Any:
        arrays = x if isinstance(x, tuple) else (x,)
        parts: list[Part | None] = [self._find_early(verb, array) for array in arrays]
        late = [(verb, array) for array, part in zip(arrays, parts, strict=True) if part is None]
        if late:
            widths = tuple(array.shape[1] for _, array in late)
            current = self._post(late, self._places(len(late)), None, widths, is_pair=isinstance(x, tuple))
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
        try:
            sent.finish(self.network.timeout)
        except CommunicationError as error:
            raise self.network.reason_of(error) from error

    def _places(self, count: int) -> Sequence[str | None]:
        """Name the next arrays of this step, so that each finds its references; none are rounded outside of it."""
        if self._place is None:
            return [None] * count
        self._place += count
        return [f"late {place}" for place in range(self._place - count, self._place)]

    def _encoded(self, x: torch.Tensor, name: str | None, *, refers: bool) -> tuple[torch.Tensor, str | None]:
        """Return a row as it travels, and the name of what it changes if it is a change."""
        dtype = self.message_dtype
        if name is None or dtype is None or not is_shortened(x, self._dimension, dtype):
            return x.contiguous(), None
        if not refers:
            return rounded(x, dtype), None
        return encode(x, self._references.get(f"{name} of {self.network.agent}"), dtype), name

    def _decoded(self, part: Part) -> Part:
        """Return the rows that a message stands for, and advance its references: once for each message."""
        if part.reference is None:
            return part
        for agent, message in ((self.network.agent, part.wire), *part.received.items()):
            name = f"{part.reference} of {agent}"
            self._references[name] = decode(message, self._references.get(name))
        known = {agent: self._references[f"{part.reference} of {agent}"] for agent in part.received}
        return Part(part.share, self._references[f"{part.reference} of {self.network.agent}"], known)

    def _post(
        self,
        fields: Sequence[tuple[str, torch.Tensor]],
        names: Sequence[str | None],
        memory: torch.Tensor | None,
        key: Any,
        *,
        is_pair: bool,
    ) -> Round:
        encoded = [
            self._encoded(array, name, refers=needs_reference(verb, is_pair=is_pair))
            for (verb, array), name in zip(fields, names, strict=True)
        ]
        wires = [wire for wire, _ in encoded]
        shortened = any(wire is not array for wire, (_, array) in zip(wires, fields, strict=True))
        if memory is None or shortened:
            memory = _joined(wires, always=shortened)
            wires = wires if memory is None else [w[None] for w in memory.split([w.shape[1] for w in wires])]
        parts = [
            Part(self.shares[verb], wire, reference=name)
            for (verb, _), wire, (_, name) in zip(fields, wires, encoded, strict=True)
        ]
        self._rounds += 1
        try:
            current = Round(parts, memory, self._route, self._buffers, key=key, tag=self._rounds, k=self.k)
        except CommunicationError as error:
            raise self.network.reason_of(error) from error
        self.bytes_sent += current.bytes_sent
        return current


def _joined(wires: Sequence[torch.Tensor], *, always: bool) -> torch.Tensor | None:
    """Return the arrays in one piece of memory, or None if they should rather travel one by one."""
    if len(wires) == 1:
        return wires[0].reshape(-1)
    same = len({wire.dtype for wire in wires}) == 1
    short = sum(wire.shape[1] for wire in wires) <= FUSED
    return torch.cat([wire.reshape(-1) for wire in wires]) if same and (always or short) else None
