"""The seam between a method's verbs and the wire: one object per run, one state per array that a step sends.

An array is opened once, before the first step. At every step the sender makes a wire of it, and every receiver, and
the sender for itself, makes of the wire what the receivers understand; only that changes the state, so both ends
hold the same one.

What goes through the seam are the arrays of width d that ``step`` mixes along arcs. What ``init`` mixes, shorter arrays
such as push-sum weights, and averages over all agents arrive as they are. Without a link (``links=None``) nothing goes
through it. :class:`digrad.Links` stand beside it: where whole packets have fates, one holds all arrays of a step, and
executors of their own carry it.
"""

from typing import Any, Protocol, runtime_checkable

from digrad.arrays import where
from digrad.types import Array


@runtime_checkable
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


def keeps_reference(verb: str, *, is_alone: bool) -> bool:
    """Return whether what is sent does not vanish: all but a tracker, which is pushed alone."""
    return verb != "push" or not is_alone


def heard(link: Link, state: Any, x: Array, is_first: Any) -> tuple[Any, Array]:
    """Return the state after one message and what all receivers understand, where both ends are in one process."""
    later, value = link.arrive(state, link.send(state, x), x)
    begun, full = link.first(state, x)
    if later is None:
        return None, where(is_first, full, value)
    return where(is_first, begun, later), where(is_first, full, value)
