"""Memory of the links of a network between two steps: undelivered mass and estimates, by edge, in any library."""

from typing import NamedTuple

from digrad.arrays import where, zeros_like
from digrad.types import Array


class LinkState(NamedTuple):
    """The state of A edges for one array that a step sends, with packets up to D steps late; None where nothing is.

    Args:
        reference: ``[n, d]``, what is decoded of compressed estimates.
        pushed: ``[A, d]``, undelivered mass, except where ``delivered``.
        delivered: ``[A]``, which takes a pass over ``pushed`` less than setting it to zero.
        packets: ``[D + 1, A, d]``, the undelivered mass in each of the last packets.
        total: ``[n or A, d]``, everything pushed.
        totals: ``[D + 1, n or A, d]``, the same when each of the last packets was sent; instead of ``packets``.
        lifetime: ``[A, d]``, everything ever pushed, for the neighbours of an agent that crashes.
        inbox: ``[A, d]``, mass that arrived while its receiver was asleep.
        sent: ``[D + 1, n, d]``, the last estimates sent.
        seen: ``[A, d]``, the last one that arrived.
        new: ``[A]``, whether it still is to be used.
    """

    reference: Array | None = None
    pushed: Array | None = None
    delivered: Array | None = None
    packets: Array | None = None
    total: Array | None = None
    totals: Array | None = None
    lifetime: Array | None = None
    inbox: Array | None = None
    sent: Array | None = None
    seen: Array | None = None
    new: Array | None = None

    @property
    def undelivered(self) -> Array | None:
        """The mass that was pushed and not yet received, ``[A, d]``; None for an array that is not pushed."""
        if self.pushed is None or self.delivered is None:
            return self.pushed
        return where(self.delivered[:, None], zeros_like(self.pushed), self.pushed)

    def without(self, void: Array) -> "LinkState":
        """Return what remains when some edges, ``[A]``, begin anew."""

        def kept(rows: Array | None, axis: int = 0) -> Array | None:
            if rows is None:
                return None
            mask = void.reshape(*[1] * axis, -1, *[1] * (rows.ndim - axis - 1))
            return where(mask, zeros_like(rows), rows)

        return self._replace(
            pushed=kept(self.pushed),
            delivered=kept(self.delivered),
            packets=kept(self.packets, axis=1),
            lifetime=kept(self.lifetime),
            inbox=kept(self.inbox),
            new=kept(self.new),
        )
