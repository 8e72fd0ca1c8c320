"""What becomes of every packet: a table made on the host, a pure function of (seed, iteration)."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from digrad.links.churn import Timeline
from digrad.links.coders import RandomK
from digrad.links.description import Bursts, FixedDelay, Links
from digrad.sampling import AWAKE, CODER, DELAY, LOSS, NOISE, uniforms

Ages = npt.NDArray[np.int8]
Mask = npt.NDArray[np.bool_]

NOTHING = -1  # the age of no packet
CALLS = 1 << 16  # the streams of array number c of a step begin at c times this


class Fates:
    """The fates of all packets of a run.

    Args:
        links: What happens to packets.
        arcs: ``[A, 2]`` sender and receiver, by receiver, then sender.
        n: The number of agents.
        presence: Which arcs are there at the iterations first, ..., first + length - 1, ``[length, A]``; None if
            all of them always are.
        timeline: Which agents are there when; None if all of them always are.

    Example:
        >>> from digrad.graphs import example5
        >>> fates = Fates(Links(loss=0.3), example5().arcs, 5)
        >>> int((fates.ages(0, 1000) < 0).sum())  # packets lost, of 7000
        2091
    """

    def __init__(
        self,
        links: Links,
        arcs: npt.NDArray[np.integer],
        n: int,
        presence: Callable[[int, int], Mask] | None = None,
        timeline: Timeline | None = None,
    ) -> None:
        self.links, self.arcs, self.n, self.timeline = links, arcs, n, timeline
        self._presence = presence
        self._twin = _twins(arcs, n) if links.two_way else None
        self._rates = np.array(links.rates(n))
        self._bad: dict[int, Mask] = {0: np.zeros(len(arcs), bool)}  # by iteration, of bursts, where known

    def awake(self, first: int, length: int) -> Mask:
        """Return who acts at each iteration, ``[length, n]``."""
        there = (
            np.ones((length, self.n), bool) if self.timeline is None else self.timeline.awake(first, length)
        )
        if self.links.sleeps:
            there &= uniforms(self.links.seed, AWAKE, first, length, self.n) < self._rates
        return there

    def sent(self, first: int, length: int) -> Mask:
        """Return which packets are sent, ``[length, A]``: the arc is there and its sender awake."""
        there = np.ones((length, len(self.arcs)), bool)
        if self._presence:
            there &= self._presence(first, length)
        if self.timeline:
            there &= self.timeline.alive(first, length)
        if self.links.sleeps:
            there &= self.awake(first, length)[:, self.arcs[:, 0]]
        return there

    def ages(self, first: int, length: int) -> Ages:
        """Return how old the newest packet is that arrives at each iteration, ``[length, A]``; -1 for none.

        A packet that a newer one has overtaken is ignored.
        """
        longest = self.links.longest_delay
        start = max(0, first - longest)  # packets sent before cannot arrive any more
        span = first + length - start
        alive = ~self._lost(start, span)
        if self._presence or self.links.sleeps or self.timeline:
            alive &= self.sent(start, span)
        ages = newest(alive, self._delays(start, span), longest)[first - start :]
        if self.timeline is None:
            return ages
        sent_at = np.arange(first, first + length)[:, None] - ages
        is_valid = self.timeline.alive(first, length) & (sent_at >= self.timeline.born(first, length))
        return np.where(is_valid, ages, np.int8(NOTHING))

    def chosen(self, first: int, length: int, call: int, width: int) -> Mask:
        """Return the entries that a coder draws of array number ``call`` of a step, ``[length, n, width]``."""
        assert isinstance(self.links.coder, RandomK)
        order = np.argsort(self._numbers(CODER, first, length, call, width), axis=-1)
        return np.argsort(order, axis=-1) < self.links.coder.k

    def noise(self, first: int, length: int, call: int, width: int) -> npt.NDArray[np.float64]:
        """Return what is added to array number ``call`` of a step, ``[length, n, width]``."""
        sizes = np.array([self.links.noise_at(k) for k in range(first, first + length)])
        numbers = self._numbers(NOISE, first, length, call, width) + 2.0**-54  # never at 0
        return sizes[:, None, None] * ndtri(numbers)

    def _numbers(
        self, stream: int, first: int, length: int, call: int, width: int
    ) -> npt.NDArray[np.float64]:
        own = stream + CALLS * call  # so that no array need know of the others
        return uniforms(self.links.seed, own, first, length, self.n * width).reshape(length, self.n, width)

    def _lost(self, first: int, length: int) -> Mask:
        loss = self.links.loss
        if isinstance(loss, Bursts):
            return self._shared(self._burst(loss, first, length))
        if not loss:
            return np.zeros((length, len(self.arcs)), bool)
        return self._shared(uniforms(self.links.seed, LOSS, first, length, len(self.arcs)) < loss)

    def _burst(self, bursts: Bursts, first: int, length: int) -> Mask:
        since = max(k for k in self._bad if k <= first)
        draws = uniforms(self.links.seed, LOSS, since, first + length - since, len(self.arcs))
        bad, rows = self._bad[since], []
        for draw in draws:
            bad = np.where(
                draw < bursts.enter, True, np.where(draw < bursts.enter + bursts.leave, False, bad)
            )
            rows.append(bad)
        known = max(first, first + length - self.links.longest_delay)  # where the next call begins, as a rule
        if known > since:
            self._bad = {0: self._bad[0], known: rows[known - since - 1]}
        return np.stack(rows)[first - since :]

    def _delays(self, first: int, length: int) -> Ages:
        delay = self.links.delay
        shape = (length, len(self.arcs))
        if isinstance(delay, FixedDelay) or not delay:
            return np.full(shape, self.links.longest_delay, np.int8)
        drawn = uniforms(self.links.seed, DELAY, first, *shape)
        return self._shared(np.floor(drawn * (delay + 1)).astype(np.int8))

    def _shared(self, table: npt.NDArray) -> npt.NDArray:
        return table if self._twin is None else table[:, self._twin]


def newest(sent: Mask, delay: Ages, longest: int) -> Ages:
    """Return how old the newest packet is that arrives at each iteration, if it is newer than all before, else -1.

    Args:
        sent: ``[length, A]``, which packets are sent and not lost.
        delay: ``[length, A]``, by how many steps each is late.
        longest: The longest delay.

    >>> newest(np.array([[1], [1], [1], [0], [1]], bool), np.array([[2], [0], [1], [0], [0]]), 2).ravel()
    array([-1,  0, -1,  1,  0], dtype=int8)
    """
    if not longest:
        return sent.astype(np.int8) - np.int8(1)
    length = len(sent)
    age = np.full(sent.shape, NOTHING, np.int8)
    for late in range(min(longest, length - 1), -1, -1):
        np.copyto(age[late:], np.int8(late), where=sent[: length - late] & (delay[: length - late] == late))
    newest_before = np.full(sent.shape[1], -1, np.int32)
    for k, row in enumerate(age):
        number = np.where(row >= 0, np.int32(k) - row, np.int32(-1))
        row[number <= newest_before] = NOTHING
        np.maximum(newest_before, number, out=newest_before)
    return age


def _twins(arcs: npt.NDArray[np.integer], n: int) -> npt.NDArray[np.int64]:
    """Return the number of the arc whose fate each arc has, where both directions share one."""
    there, back = arcs[:, 1] * n + arcs[:, 0], arcs[:, 0] * n + arcs[:, 1]
    order = np.argsort(there)
    place = np.minimum(np.searchsorted(there, back, sorter=order), len(arcs) - 1)
    found = order[place]
    return np.where(there[found] == back, np.minimum(found, np.arange(len(arcs))), np.arange(len(arcs)))
