"""The seam between a method's verbs and the wire: one object per run, one state per array that a step sends.

An array is opened once, before the first step. At every step the sender makes a wire of it, and every receiver, and
the sender for itself, makes of the wire what the receivers understand; only that changes the state, so both ends
hold the same one.
"""

from typing import Any, Protocol

from digrad.arrays import where
from digrad.types import Array


class Link(Protocol):
    """What happens to messages on every arc of a network."""

    def open(self, x: Array, *, keeps_reference: bool) -> Any:
        """Return the state before the first message of an array like ``x`` ``[rows, d]``.

        Args:
            x: The first array.
            keeps_reference: Whether both ends remember what was said: so for estimates, which do not vanish, and
                not for a tracker that is pushed alone.
        """
        ...

    def send(self, state: Any, x: Array) -> Array:
        """Return the wire: what travels of ``x``."""
        ...

    def arrive(self, state: Any, wire: Array, like: Array) -> tuple[Any, Array]:
        """Return the state after a wire, and what it says, in the format of ``like``."""
        ...

    def first(self, state: Any, x: Array) -> tuple[Any, Array]:
        """Return the state after the very first message, which travels in full, and what it says."""
        ...

    def wire_bytes(self, numbers: int, itemsize: int) -> int:
        """Return the size on the wire of ``numbers`` numbers of ``itemsize`` bytes."""
        ...


def heard(link: Link, state: Any, x: Array, is_first: Any) -> tuple[Any, Array]:
    """Return the state after one message and what all receivers understand, where both ends are in one process."""
    later, value = link.arrive(state, link.send(state, x), x)
    begun, full = link.first(state, x)
    if later is None:
        return None, where(is_first, full, value)
    return where(is_first, begun, later), where(is_first, full, value)
