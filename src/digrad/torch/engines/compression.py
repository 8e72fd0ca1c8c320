"""Compressed messages between agents: their bytes, and the references that both ends of every edge keep.

An estimate travels as the compressed change of a reference, what the receivers have decoded so far. On a network that
changes with the iteration a receiver may have missed a change: the next message to it is then in full, as the very
first is to everybody. The reference of a sender without receivers stays.

References advance when a message is mixed, not when it is sent: before that it can be sent again as it was.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import torch

from digrad.core.net import Primitives, Sent
from digrad.errors import ArgumentError
from digrad.links import Links
from digrad.links.compressors import Cast, Compressor, decoded, float16, quantize, sign, top_k
from digrad.network import Network
from digrad.torch.engines.mixing import Share, ShareSchedule

_PRIMITIVES = ("pull", "push", "mix")


class LinkKey(NamedTuple):
    """Key of one array in the link state of an engine.

    Args:
        kind: For example ``reference`` or ``undelivered``.
        place: The number of the array among those that a step sends; of ``received``, the number of a primitive.
        agent: Whose it is: the other end of an edge, or the agent itself; None for all of them.
    """

    kind: str
    place: int = 0
    agent: int | None = None


LinkArrays: TypeAlias = Mapping[LinkKey, torch.Tensor]


class Encoded(NamedTuple):
    """An array on its way."""

    wire: torch.Tensor  # flat: the bytes that travel to those who have the reference
    value: torch.Tensor  # what the receivers decode; it travels itself to those who have no reference


class Compression:
    """Compression of arrays, with the references of an engine.

    Args:
        links: Of the network; None, or without a compressor, for nothing.
        dimension: Numbers per agent: arrays of this width are compressed, shorter ones are not.
    """

    def __init__(self, links: Links | None, dimension: int) -> None:
        self._compressor = links.compressor if links else None
        self._dimension = dimension
        self.damping = links.pair_damping if links else 1.0
        self.references: dict[LinkKey, torch.Tensor] = {}  # [1, d]
        self._received: dict[
            str, set[tuple[int, int]]
        ] = {}  # by primitive, edges whose receiver has the reference

    def stored(self) -> LinkArrays:
        """Return everything: state, like that of the method."""
        received = {
            LinkKey("received", place): torch.tensor(
                sorted(self._received[primitive]), dtype=torch.int64
            ).reshape(-1, 2)
            for place, primitive in enumerate(_PRIMITIVES)
            if primitive in self._received
        }
        return self.references | received

    def load(self, stored: LinkArrays) -> None:
        """Go on from what was stored; from nothing, the next messages are the first."""
        self.references, self._received = {}, {}
        for key, value in stored.items():
            if key.kind == "received":
                self._received[_PRIMITIVES[key.place]] = {(s, r) for s, r in value.tolist()}
            else:
                self.references[key] = value.clone()

    def applies(self, sent: Sent) -> bool:
        """Return whether an array is compressed."""
        return self._compressor is not None and sent.is_compressible(self._dimension)

    def has_reference(self, primitive: str, sender: int, receiver: int) -> bool:
        """Return whether an agent has the reference of another one."""
        return (sender, receiver) in self._received.get(primitive, ())

    def size(self, row: torch.Tensor) -> int:
        """Return the bytes of a compressed row."""
        assert self._compressor is not None
        return min(row.nbytes, self._compressor.wire_bytes(row.numel(), row.dtype.itemsize))

    def value(self, x: torch.Tensor, key: LinkKey | None) -> torch.Tensor:
        """Return what the receivers of a row ``[1, d]`` decode, given the reference ``key`` if there is one.

        Raises:
            ArgumentError: A finite number is too large for the format of messages.
        """
        assert self._compressor is not None
        if key is not None and key not in self.references:
            return x.contiguous()
        found = decoded(self._compressor, x, self._reference(key))
        _check_overflow(self._compressor, found, x)
        return found

    def encode(self, x: torch.Tensor, key: LinkKey | None) -> Encoded:
        """Return what travels of a row ``[1, d]``, as the change of the reference ``key`` if there is one."""
        assert self._compressor is not None
        if key is not None and key not in self.references:
            return Encoded(x.contiguous(), x.contiguous())
        before = self._reference(key)
        wire = pack(self._compressor, x[0] if before is None else (x - before)[0])
        value = self._unpacked(wire, x, before)
        _check_overflow(self._compressor, value, x)
        return Encoded(wire[None], value)

    def decode(
        self, wire: torch.Tensor, like: torch.Tensor, key: LinkKey | None, *, in_full: bool
    ) -> torch.Tensor:
        """Return the row that a wire stands for, and remember it as the reference ``key`` if there is one."""
        # A message is received into memory that the next one uses again.
        value = (
            wire.view(like.dtype).clone() if in_full else self._unpacked(wire[0], like, self._reference(key))
        )
        if key is not None:
            self.references[key] = value
        return value

    def keep(self, key: LinkKey, value: torch.Tensor, *, sends: bool) -> None:
        """Remember what a sender has sent as its reference ``key``, if it has receivers."""
        if key not in self.references:  # the first is the estimate itself, sent or not
            self.references[key] = value.clone()
        elif sends:
            self.references[key] = value

    def end_step(self, shares: Mapping[str, Sequence[Share]]) -> None:
        """Note who has received from whom at an iteration, whose shares these are: the others have missed it."""
        if self._compressor is None:
            return
        for primitive, everyone in shares.items():
            now = {(share.agent, receiver) for share in everyone for receiver, _ in share.receivers}
            senders = {sender for sender, _ in now}
            before = self._received.get(primitive, set())
            self._received[primitive] = {edge for edge in before if edge[0] not in senders} | now

    def _reference(self, key: LinkKey | None) -> torch.Tensor | None:
        return None if key is None else self.references[key]

    def _unpacked(self, wire: torch.Tensor, like: torch.Tensor, before: torch.Tensor | None) -> torch.Tensor:
        assert self._compressor is not None
        change = unpack(self._compressor, wire, like.shape[1], like.dtype)[None]
        return change if before is None else before + change


class CompressedNet(Primitives):
    """A net on which all messages arrive in time: the part that replicas and agents in processes share.

    Args:
        network: Graph and weights, constant or not, with links that at most compress.
        matrices: The matrix behind each primitive of the method.
        dimension: Numbers per agent.
    """

    def __init__(self, network: Network, matrices: Mapping[str, str], dimension: int) -> None:
        self._schedule = ShareSchedule(network, matrices)
        self._compression = Compression(network.links, dimension)
        self.k = 0
        # Among the arrays of a step; none outside: messages arrive as they are.
        self._place: int | None = None

    def stored_links(self) -> LinkArrays:
        """Return the link state."""
        return self._compression.stored()

    def load_links(self, stored: LinkArrays) -> None:
        """Go on from another link state; all agents must do it."""
        self._compression.load(stored)

    def begin_step(self) -> None:
        """Count the arrays of a step from the first."""
        self._place = 0

    def end_step(self) -> None:
        """Note who has received from whom."""
        self._place = None
        self._compression.end_step(self._schedule.at(self.k))

    def _next_key(self, kind: str) -> LinkKey | None:
        """Return the key of the references of the next array of this step; None outside of it."""
        if self._place is None:
            return None
        self._place += 1
        return LinkKey(kind, self._place - 1)

    def _shares(self, primitive: str, sent: Sent) -> tuple[Share, ...]:
        damping = self._compression.damping if sent.is_pair else 1.0
        return self._schedule.at(self.k, damping)[primitive]


def is_precise(compressor: Compressor | None) -> bool:
    """Return whether what a compressor leaves out is less than a third of the largest entry, whatever the entries.

    Only then may what it leaves out be sent later as part of what is compressed as the change of a reference: both feed
    back, and the change c of step k is at most 2r times that of step k - 1 plus r times that of step k - 2, r being the
    part left out. Two bits, signs and few entries diverge.
    """
    return isinstance(compressor, Cast) or (isinstance(compressor, quantize) and _most(compressor) >= 2)


def check_packable(links: Links | None, device: torch.device, owner: str) -> None:
    """Raise unless real messages can be what these links make of them.

    Raises:
        ArgumentError: The links lose, delay or disturb packets, which real networks do by themselves, or their
            compressor packs bits or places, which is done on the CPU.
    """
    if links is None:
        return
    if links.is_reliable:
        if isinstance(links.compressor, quantize | sign | top_k) and device.type != "cpu":
            raise ArgumentError(
                f"`compressor` of Links is {links.compressor!r}, which needs tensors on the CPU, but those of {owner} "
                f"are on {device}; use bfloat16() or float16()."
            )
        return
    raise ArgumentError(
        f"`network` of {owner} has links={links!r}, but real processes have a real network: there `deadline` tolerates "
        "late neighbours, and only `compressor` (other than random_k) and `damping` of Links apply; loss, "
        "delay, sleep, noise and clocks are emulated by digrad.simulate and Replicas."
    )


def pack(compressor: Compressor, values: torch.Tensor) -> torch.Tensor:
    """Return the bytes that travel of numbers ``[width]``; :func:`unpack` makes ``compressor.compress`` of them."""
    if isinstance(compressor, Cast):
        return values.to(_shorter(compressor, values.dtype)).view(torch.uint8)
    if isinstance(compressor, top_k):
        count = min(compressor.k, values.numel())
        places = torch.argsort(-values.abs(), stable=True)[:count].sort().values
        return torch.cat([values[places].view(torch.uint8), places.to(torch.int32).view(torch.uint8)])
    if isinstance(compressor, sign):
        size = values.abs()[None].mean(-1)
        return torch.cat([size.view(torch.uint8), _bits((values < 0).to(torch.uint8).numpy())])
    assert isinstance(compressor, quantize)
    most = _most(compressor)
    largest = values.abs().amax().reshape(1)
    unit = torch.where(largest != 0, largest / most, torch.ones_like(largest))  # NaN stays NaN
    levels = (torch.round(values / unit) + most).to(torch.int64).numpy()
    digits = np.empty((len(levels), compressor.bits), dtype=np.uint8)
    for place in range(compressor.bits):
        digits[:, place] = (levels >> place) & 1
    return torch.cat([unit.view(torch.uint8), _bits(digits)])


def unpack(compressor: Compressor, packed: torch.Tensor, width: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the numbers ``[width]`` that bytes stand for."""
    if isinstance(compressor, Cast):
        return packed.view(_shorter(compressor, dtype)).to(dtype)
    if isinstance(compressor, top_k):
        count = min(compressor.k, width)
        entries, places = packed.split([count * dtype.itemsize, packed.numel() - count * dtype.itemsize])
        values = torch.zeros(width, dtype=dtype)
        values[places.clone().view(torch.int32).long()] = entries.clone().view(dtype)
        return values
    unit, rest = packed[: dtype.itemsize].clone().view(dtype), packed[dtype.itemsize :].numpy()
    if isinstance(compressor, sign):
        digits = np.unpackbits(rest, count=width)
        return (1 - 2 * torch.from_numpy(digits).to(dtype)) * unit
    assert isinstance(compressor, quantize)
    digits = np.unpackbits(rest, count=width * compressor.bits).reshape(width, compressor.bits)
    levels = np.zeros(width, dtype=np.int64)
    for place in range(compressor.bits):
        levels |= digits[:, place].astype(np.int64) << place
    return torch.from_numpy(levels - _most(compressor)).to(dtype) * unit


def _most(compressor: quantize) -> int:
    return 2 ** (compressor.bits - 1) - 1


def _bits(digits: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.packbits(digits))


def _shorter(compressor: Cast, dtype: torch.dtype) -> torch.dtype:
    """Return the format of messages; what has no more bytes travels as it is."""
    short = getattr(torch, compressor.dtype)
    return short if short.itemsize < dtype.itemsize else dtype


def _check_overflow(compressor: Compressor, value: torch.Tensor, x: torch.Tensor) -> None:
    if compressor == float16() and value.isinf().any() and not x.isinf().any():
        raise ArgumentError(
            "`compressor` of Links is float16, whose largest number is 65504, but a message holds larger ones; use "
            "bfloat16()."
        )
