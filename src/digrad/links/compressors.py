r"""Compressors: what receivers decode of numbers that do not travel in full.

Every compressor brings what it is given nearer to zero in one piece or another, and zero is compressed to zero. Two
rules of :class:`~digrad.links.Links` then leave no bias. What is pushed alone (a tracker, which vanishes) is compressed
as it is, and its sender keeps what it did not send. What does not vanish, estimates and the pairs of push-sum methods,
is compressed as the change of a reference h that both ends keep:

.. math::
    h^{k} = h^{k-1} + Q(x^k - h^{k-1}), \qquad h^0 = x^0 \text{ (the first message travels in full)}

>>> import numpy as np
>>> top_k(1).compress(np.array([[0.5, -2.0, 1.0]]))
array([[ 0., -2.,  0.]])
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, TypeAlias

from digrad import checks
from digrad.arrays import amax, cast, cast_like, is_among_largest, nearest_whole, where, zeros_like
from digrad.types import Array, Count

BITS_PER_BYTE = 8
INDEX_BYTES = 4  # of the place of an entry


@dataclass(frozen=True)
class top_k:
    """The k largest entries of a message.

    Args:
        k: Entries of a message that travel.
    """

    k: Count
    damping: ClassVar = 0.3

    __post_init__ = checks.fields

    def compress(self, values: Array, chosen: Array | None = None) -> Array:
        """Keep the k largest entries of each row."""
        return where(is_among_largest(values, self.k), values, zeros_like(values))

    def wire_bytes(self, numbers: int, itemsize: int) -> int:
        """Return the size of k entries and their places."""
        return min(self.k, numbers) * (itemsize + INDEX_BYTES)


@dataclass(frozen=True)
class random_k:
    """Entries drawn anew for every message, the same for all receivers, unscaled.

    Args:
        k: Entries of a message that travel.
    """

    k: Count
    damping: ClassVar = 0.3

    __post_init__ = checks.fields

    def compress(self, values: Array, chosen: Array | None = None) -> Array:
        """Keep the chosen entries, unscaled."""
        assert chosen is not None
        return where(chosen, values, zeros_like(values))

    def wire_bytes(self, numbers: int, itemsize: int) -> int:
        """Return the size of k entries; their places follow from the seed."""
        return min(self.k, numbers) * itemsize


@dataclass(frozen=True)
class sign:
    """One bit per number: the signs, times the mean size."""

    damping: ClassVar = 1.0

    def compress(self, values: Array, chosen: Array | None = None) -> Array:
        """Return the signs, that of 0 being +, times the mean size of the row."""
        size = abs(values).mean(-1)[:, None]
        return where(values < 0, -size, size)

    def wire_bytes(self, numbers: int, itemsize: int) -> int:
        """Return the size of one bit per number, and of the mean."""
        return -(-numbers // BITS_PER_BYTE) + itemsize


@dataclass(frozen=True)
class quantize:
    """2^(bits-1) - 1 levels on either side of zero, relative to the largest entry.

    Args:
        bits: Bits per number, 2 to 32.

    Example:
        >>> import numpy as np
        >>> quantize(2).compress(np.array([[0.2, -0.6, 1.0]]))
        array([[ 0., -1.,  1.]])
    """

    bits: Annotated[int, partial(checks.count, minimum=2, maximum=32)]

    __post_init__ = checks.fields

    @property
    def damping(self) -> float:
        """1 from three bits on."""
        return 1.0 if self.bits >= 3 else 0.3

    def compress(self, values: Array, chosen: Array | None = None) -> Array:
        """Round to levels between plus and minus the largest entry of the row, halves to even."""
        levels = 2 ** (self.bits - 1) - 1
        largest = amax(abs(values))
        unit = where(largest > 0, largest / levels, zeros_like(largest) + 1.0)
        return nearest_whole(values / unit) * unit

    def wire_bytes(self, numbers: int, itemsize: int) -> int:
        """Return the size of the levels, and of the largest entry."""
        return -(-numbers * self.bits // BITS_PER_BYTE) + itemsize


@dataclass(frozen=True)
class Cast:
    """A shorter floating-point format; its name is that of the class."""

    damping: ClassVar = 1.0
    number_bytes: ClassVar[int]

    def compress(self, values: Array, chosen: Array | None = None) -> Array:
        """Round to the shorter format."""
        return cast_like(cast(values, self.dtype), values)

    def wire_bytes(self, numbers: int, itemsize: int) -> int:
        """Return the size of the numbers in the shorter format."""
        return numbers * min(itemsize, self.number_bytes)

    @property
    def dtype(self) -> str:
        """Name of the format."""
        return type(self).__name__


class bfloat16(Cast):
    """Two bytes per number, with the range of float32."""

    number_bytes = 2


class float16(Cast):
    """Two bytes per number, between 6e-8 and 65504."""

    number_bytes = 2


class float32(Cast):
    """Four bytes per number, for runs in float64."""

    number_bytes = 4


Compressor: TypeAlias = top_k | random_k | sign | quantize | Cast


def decoded(
    compressor: Compressor, value: Array, reference: Array | None, chosen: Array | None = None
) -> Array:
    """Return what receivers decode of a value that is compressed as it is, or as the change of a reference."""
    if reference is None:
        return compressor.compress(value, chosen)
    return reference + compressor.compress(value - reference, chosen)
