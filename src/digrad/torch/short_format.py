"""How late packets carry numbers in fewer bytes, so that what travels is what a coder says."""

from dataclasses import dataclass, fields
from typing import Protocol

import numpy as np
import torch

from digrad.errors import ArgumentError
from digrad.links import Links, Rounded
from digrad.links.coders import BFloat16, Quantize
from digrad.network import AnyNetwork

_MOST_BITS = 16  # of a level


class ShortFormat(Protocol):
    """A format of flat arrays ``[width]``."""

    def pack(self, values: torch.Tensor) -> torch.Tensor:
        """Return the bytes that travel."""
        ...

    def unpack(self, packed: torch.Tensor, width: int, dtype: torch.dtype) -> torch.Tensor:
        """Return the numbers that bytes stand for."""
        ...


@dataclass(frozen=True)
class Cast:
    """Every number in a shorter format."""

    dtype: torch.dtype

    def pack(self, values: torch.Tensor) -> torch.Tensor:
        """Round."""
        return values.to(self.dtype).view(torch.uint8)

    def unpack(self, packed: torch.Tensor, width: int, dtype: torch.dtype) -> torch.Tensor:
        """Widen."""
        return packed.view(self.dtype).to(dtype)


@dataclass(frozen=True)
class Levels:
    """The levels of :func:`digrad.links.coders.quantize`, so many bits each, behind the size of one."""

    bits: int

    def pack(self, values: torch.Tensor) -> torch.Tensor:
        """Return the unit and the levels."""
        largest = values.abs().amax().reshape(1)
        unit = torch.where(largest != 0, largest / self._most, torch.ones_like(largest))  # NaN stays NaN
        levels = (torch.round(values / unit) + self._most).to(torch.int32).numpy()
        digits = np.empty((len(levels), self.bits), dtype=np.uint8)
        for place in range(self.bits):
            digits[:, place] = (levels >> place) & 1
        return torch.cat([unit.view(torch.uint8), torch.from_numpy(np.packbits(digits))])

    def unpack(self, packed: torch.Tensor, width: int, dtype: torch.dtype) -> torch.Tensor:
        """Return the levels times the unit."""
        unit, rest = packed[: dtype.itemsize].clone().view(dtype), packed[dtype.itemsize :].numpy()
        digits = np.unpackbits(rest, count=width * self.bits).reshape(width, self.bits)
        levels = np.zeros(width, dtype=np.int32)
        for place in range(self.bits):
            levels |= digits[:, place].astype(np.int32) << place
        return torch.from_numpy(levels - self._most).to(dtype) * unit

    @property
    def _most(self) -> int:
        return 2 ** (self.bits - 1) - 1


def short_format(network: AnyNetwork) -> ShortFormat | None:
    """Return how a network shortens messages; None if it leaves them as they are.

    Raises:
        ArgumentError: Its links do something else to messages, which real lateness leaves no room for.
    """
    links = network.links
    if links is None:
        return None
    if isinstance(links, Rounded):
        return Cast(getattr(torch, links.dtype))
    if isinstance(links, Links) and all(
        getattr(links, f.name) == f.default for f in fields(links) if f.name != "coder"
    ):
        if isinstance(links.coder, BFloat16):
            return Cast(torch.bfloat16)
        if isinstance(links.coder, Quantize) and links.coder.bits <= _MOST_BITS:
            return Levels(links.coder.bits)
    raise ArgumentError(
        "`deadline` of ProcessNetwork carries numbers as they are, rounded, or by `quantize` with at most "
        f"{_MOST_BITS} bits, and is late by itself, but `links` of the network is {links!r}; leave the rest out."
    )
