"""The delivery of every packet: a table made on the host, a pure function of (seed, iteration)."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from digrad.errors import ArgumentError
from digrad.links.churn import ChurnSchedule
from digrad.links.clock import Clock, Floats
from digrad.links.compressors import random_k
from digrad.links.links import LONGEST_DELAY, Bursts, FixedDelay, Links
from digrad.sampling import AWAKE, COMPRESSOR, DELAY, LOSS, NOISE, uniforms

Ages = npt.NDArray[np.int8]
Mask = npt.NDArray[np.bool_]

NOTHING = -1  # the age of no packet
STATES_KEPT = 8  # of a chain, for those who ask in turn for different iterations
ROWS_AT_ONCE = 256  # of a chain
CALLS = 1 << 16  # the streams of array number c of a step begin at c times this


class Part(NamedTuple):
    """One array of the packets of a step, in bytes on each edge, ``[A]``."""

    short: npt.NDArray[np.int64]  # compressed
    full: npt.NDArray[np.int64]
    starts_in_full: bool  # whether a receiver that has received nothing yet is sent all of it


class DeliverySchedule:
    """The delivery of all packets of a run.

    Args:
        links: The links of the network.
        edges: ``[A, 2]`` sender and receiver, by receiver, then sender.
        n: The number of agents.
        presence: Which edges are there at the iterations first, ..., first + length - 1, ``[length, A]``; None if
            all of them always are.
        churn: Which agents are there when; None if all of them always are.
        parts: Parts of a packet: its size counts, and is seconds where the links have a clock with a bandwidth.

    Raises:
        ArgumentError: The clock is of another number of edges, or packets may be late by more steps than can be
            remembered.

    Example:
        >>> from digrad.graphs import example5
        >>> delivery = DeliverySchedule(Links(loss=0.3), example5().edge_array, 5)
        >>> int((delivery.ages(0, 1000) < 0).sum())  # packets lost, of 7000
        2091
    """

    def __init__(
        self,
        links: Links,
        edges: npt.NDArray[np.integer],
        n: int,
        presence: Callable[[int, int], Mask] | None = None,
        churn: ChurnSchedule | None = None,
        parts: Sequence[Part] = (),
    ) -> None:
        self.links, self.edges, self.n, self.churn = links, edges, n, churn
        self._presence = presence
        self._twin = _twins(edges, n) if links.two_way else None
        self._rates = np.array(links.rates(n))
        self._parts, self._full = parts, np.zeros(len(edges), np.int64)
        for part in parts:
            self._full = self._full + part.full
        if links.clock is not None:
            links.clock.check_edges(len(edges))
        self._bad = _Chain(np.zeros(len(edges), bool))  # which edges are in a burst
        self._work = _Chain(np.full(n, np.nan))  # seconds that agents have left to compute; NaN for none
        # How many packets the next one makes up for, who has received nothing yet, and what is due when.
        missed = np.ones(len(edges), np.int64)
        self._unheard = _Chain((missed, missed > 0, None))
        self.longest_delay = links.clock.most_late(self._full) if links.is_timed else links.longest_delay  # pyright: ignore[reportOptionalMemberAccess]
        if self.longest_delay > LONGEST_DELAY:
            raise ArgumentError(
                f"`deadline` of Clock is {links.clock.deadline:g} seconds, with which a packet may be late by "  # pyright: ignore[reportOptionalMemberAccess]
                f"{self.longest_delay} steps, but at most {LONGEST_DELAY} are supported; use a longer deadline."
            )

    def awake(self, first: int, length: int) -> Mask:
        """Return who acts at each iteration, ``[length, n]``."""
        clock = self.links.clock
        if clock is not None and clock.overruns:
            return np.isfinite(self.ready(first, length))
        return self._willing(first, length)

    def ready(self, first: int, length: int) -> Floats:
        """Return how many seconds after its beginning each agent has computed, ``[length, n]``; NaN if it has not."""
        clock, work = self.links.clock, self.work(first, length)
        assert clock is not None
        return work if clock.deadline is None else np.where(work <= clock.deadline, work, np.nan)

    def work(self, first: int, length: int) -> Floats:
        """Return the seconds that each agent has to compute when an iteration begins, ``[length, n]``; NaN for none.

        What the deadline interrupts goes on at the next iteration.
        """
        clock = self.links.clock
        assert clock is not None
        if not clock.overruns:
            return np.where(self._willing(first, length), clock.computing(first, length, self.n), np.nan)

        def advance(left: Floats, row: tuple[Mask, Mask, Floats]) -> tuple[Floats, Floats]:
            is_there, is_willing, anew = row
            work = np.where(is_there, np.where(np.isnan(left) & is_willing, anew, left), np.nan)
            return np.where(work <= clock.deadline, np.nan, work - clock.deadline), work

        def rows(k: int, count: int) -> Iterable[tuple[Mask, Mask, Floats]]:
            computing = clock.computing(k, count, self.n)
            return zip(self.present(k, count), self._willing(k, count), computing, strict=True)

        return self._work.replay(first, length, self.longest_delay, rows, advance)

    def travelling(self, first: int, length: int) -> Floats:
        """Return when the packets of each iteration arrive, in seconds after its beginning, ``[length, A]``."""
        return self.ready(first, length)[:, self.edges[:, 0]] + self.under_way(first, length)

    def under_way(self, first: int, length: int) -> Floats:
        """Return for how many seconds the packets of each iteration are under way, ``[length, A]``."""
        clock, n_edges = self.links.clock, len(self.edges)
        assert clock is not None
        latency = clock.sending(first, length, n_edges)
        return latency + self.sizes(first, length) * clock.per_byte(n_edges) if clock.is_narrow else latency

    def sizes(self, first: int, length: int) -> npt.NDArray[np.int64]:
        """Return the bytes of the packets of each iteration, ``[length, A]``.

        A compressed packet carries everything since the last one that arrived: after m - 1 missed ones it is m times as
        long, but never longer than the numbers in full.
        """
        if all((part.short == part.full).all() for part in self._parts):
            return np.broadcast_to(self._full, (length, len(self._full)))
        clock = self.links.clock
        if clock is not None and self.links.is_timed and clock.is_narrow:
            return self._timed_sizes(clock, first, length)

        def advance(state: Any, row: tuple[Mask, Mask]) -> tuple[Any, npt.NDArray[np.int64]]:
            missed, is_new, _ = state
            return (*self._heard(missed, is_new, *row), None), self._size(missed, is_new)

        def rows(k: int, count: int) -> Iterable[tuple[Mask, Mask]]:
            return zip(self.sent(k, count), self.ages(k, count) >= 0, strict=True)

        return self._unheard.replay(first, length, self.longest_delay, rows, advance)

    def _timed_sizes(self, clock: Clock, first: int, length: int) -> npt.NDArray[np.int64]:
        """Return the same where sizes decide what is late, and what is late decides the sizes that follow."""
        slots, every = self.longest_delay + 1, np.arange(len(self.edges))
        per_byte = clock.per_byte(len(self.edges))

        def advance(state: Any, row: tuple[Any, ...]) -> tuple[Any, npt.NDArray[np.int64]]:
            missed, is_new, due = state
            k, sent, is_lost, begun, since = row
            # The newest packet due at each of the coming iterations, and that of all that have arrived.
            due = np.full((slots + 1, len(every)), -1) if due is None else due.copy()
            size = self._size(missed, is_new)
            late = np.minimum(np.nan_to_num(clock.steps_late(begun + size * per_byte)), slots - 1).astype(int)
            comes = sent & ~is_lost
            due[((k + late) % slots)[comes], every[comes]] = k
            now = due[k % slots].copy()
            here = (now > due[-1]) & (now >= since)
            due[-1], due[k % slots] = np.maximum(due[-1], now), -1
            return (*self._heard(missed, is_new, sent, here), due), size

        def rows(k: int, count: int) -> Iterable[tuple[Any, ...]]:
            begun = self.ready(k, count)[:, self.edges[:, 0]] + clock.sending(k, count, len(every))
            since = np.zeros((count, len(every)), np.int64)
            if self.churn:
                since = np.where(self.churn.alive(k, count), self.churn.born(k, count), k + count)
            return zip(
                range(k, k + count), self.sent(k, count), self.lost(k, count), begun, since, strict=True
            )

        return self._unheard.replay(first, length, self.longest_delay, rows, advance)

    def _size(self, missed: npt.NDArray[np.int64], is_new: Mask) -> npt.NDArray[np.int64]:
        total = np.zeros_like(missed)
        for part in self._parts:
            short = np.minimum(missed * part.short, part.full)
            total += np.where(is_new & part.starts_in_full, part.full, short)
        return total

    @staticmethod
    def _heard(
        missed: npt.NDArray[np.int64], is_new: Mask, sent: Mask, here: Mask
    ) -> tuple[npt.NDArray[np.int64], Mask]:
        """Return how many packets the next one makes up for, itself included, and who has received nothing yet."""
        return np.where(here, 1, missed + sent), is_new & ~here

    def present(self, first: int, length: int) -> Mask:
        """Return which agents are there, ``[length, n]``, awake or not."""
        return np.ones((length, self.n), bool) if self.churn is None else self.churn.awake(first, length)

    def expected(self, first: int, length: int) -> Mask:
        """Return which edges are there and have both their ends, ``[length, A]``."""
        there = np.ones((length, len(self.edges)), bool)
        if self._presence:
            there &= self._presence(first, length)
        if self.churn:
            there &= self.churn.alive(first, length)
        return there

    def sent(self, first: int, length: int) -> Mask:
        """Return which packets are sent, ``[length, A]``: the edge is there and its sender awake."""
        there = self.expected(first, length)
        if self.links.sleeps:
            there &= self.awake(first, length)[:, self.edges[:, 0]]
        return there

    def ages(self, first: int, length: int) -> Ages:
        """Return how old the newest packet is that arrives at each iteration, ``[length, A]``; -1 for none.

        A packet that a newer one has overtaken is ignored.
        """
        start, comes, delays = self._coming(first, length)
        ages = newest(comes, delays, self.longest_delay)[first - start :]
        return ages if self.churn is None else np.where(self._is_valid(first, ages), ages, np.int8(NOTHING))

    def outcomes(self, first: int, length: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return how many packets arrive at each iteration, overtaken ones too, and how many are lost, ``[length]``.

        A packet is lost when it is sent, or when an agent has gone to which, or from which, it was under way.
        """
        start, comes, delays = self._coming(first, length)
        arrived, void = np.zeros(length, np.int64), np.zeros(length, np.int64)
        before = first - start
        for late in range(min(self.longest_delay, before + length - 1) + 1):
            row = max(0, late - before)  # the first at which packets that are so late arrive
            sent = slice(before + row - late, before + length - late)
            due = comes[sent] & (delays[sent] == late)
            valid = due
            if self.churn:
                valid = due & self._is_valid(first + row, np.full(due.shape, late))
            arrived[row:] += valid.sum(axis=1)
            void[row:] += due.sum(axis=1) - valid.sum(axis=1)
        return arrived, void + (self.sent(first, length) & self.lost(first, length)).sum(axis=1)

    def _coming(self, first: int, length: int) -> tuple[int, Mask, Ages]:
        """Return since when packets may arrive at these iterations, which of them do, and by how much they are late."""
        start = max(0, first - self.longest_delay)
        span = first + length - start
        comes = ~self.lost(start, span)
        if self._presence or self.links.sleeps or self.churn:
            comes &= self.sent(start, span)
        return start, comes, self._delays(start, span)

    def _is_valid(self, first: int, ages: npt.NDArray[np.integer]) -> Mask:
        """Return whether packets of these ages arrive although agents join and leave, ``[length, A]``."""
        assert self.churn is not None
        sent_at = np.arange(first, first + len(ages))[:, None] - ages
        return self.churn.alive(first, len(ages)) & (sent_at >= self.churn.born(first, len(ages)))

    def chosen(self, first: int, length: int, call: int, width: int) -> Mask:
        """Return the entries that a compressor draws of array number ``call`` of a step, ``[length, n, width]``."""
        assert isinstance(self.links.compressor, random_k)
        order = np.argsort(self._numbers(COMPRESSOR, first, length, call, width), axis=-1)
        return np.argsort(order, axis=-1) < self.links.compressor.k

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

    def lost(self, first: int, length: int) -> Mask:
        """Return which packets are lost if they are sent, ``[length, A]``."""
        loss = self.links.loss
        if isinstance(loss, Bursts):
            return self._shared(self._burst(loss, first, length))
        if not loss:
            return np.zeros((length, len(self.edges)), bool)
        return self._shared(uniforms(self.links.seed, LOSS, first, length, len(self.edges)) < loss)

    def _burst(self, bursts: Bursts, first: int, length: int) -> Mask:
        def advance(bad: Mask, draw: Floats) -> tuple[Mask, Mask]:
            stays = np.where(draw < bursts.enter + bursts.leave, False, bad)
            bad = np.where(draw < bursts.enter, True, stays)
            return bad, bad

        def rows(k: int, count: int) -> Iterable[Floats]:
            return uniforms(self.links.seed, LOSS, k, count, len(self.edges))

        return self._bad.replay(first, length, self.longest_delay, rows, advance)

    def _willing(self, first: int, length: int) -> Mask:
        """Return who is there and does not sleep, ``[length, n]``."""
        there = self.present(first, length)
        if (self._rates < 1).any():
            there &= uniforms(self.links.seed, AWAKE, first, length, self.n) < self._rates
        return there

    def _delays(self, first: int, length: int) -> Ages:
        delay, clock = self.links.delay, self.links.clock
        shape = (length, len(self.edges))
        if clock is not None and self.links.is_timed:
            late = clock.steps_late(self.travelling(first, length))
            return np.nan_to_num(np.minimum(late, self.longest_delay)).astype(np.int8)  # NaN: nothing is sent
        if isinstance(delay, FixedDelay) or not delay:
            return np.full(shape, self.longest_delay, np.int8)
        drawn = uniforms(self.links.seed, DELAY, first, *shape)
        return self._shared(np.floor(drawn * (delay + 1)).astype(np.int8))

    def _shared(self, table: npt.NDArray) -> npt.NDArray:
        return table if self._twin is None else table[:, self._twin]


class _Chain:
    """Chain of states, each following from the iteration before: replayed from the nearest state that is known.

    Args:
        start: The state before the first iteration.
    """

    def __init__(self, start: Any) -> None:
        self._known = {0: start}

    def replay(
        self,
        first: int,
        length: int,
        overlap: int,
        rows: Callable[[int, int], Iterable[Any]],
        advance: Callable[[Any, Any], tuple[Any, Any]],
    ) -> npt.NDArray:
        """Return what ``advance`` gives besides the next state at the iterations first, ..., ``[length, ...]``.

        Args:
            first: The first iteration.
            length: How many.
            overlap: How many of them the next call asks for again, as a rule.
            rows: Takes an iteration and how many; returns what is given to each.
            advance: Takes a state and what is given to an iteration.
        """
        k = max(known for known in self._known if known <= first)
        state, found = self._known[k], []
        end, again = first + length, max(first, first + length - overlap)
        while k < end:
            for row in rows(k, min(ROWS_AT_ONCE, end - k)):
                if k == again:
                    self._keep(k, state)
                state, value = advance(state, row)
                if k >= first:
                    found.append(value)
                k += 1
        self._keep(end, state)
        return np.stack(found)

    def _keep(self, k: int, state: Any) -> None:
        self._known[k] = state
        if len(self._known) > STATES_KEPT:
            del self._known[next(one for one in self._known if one)]


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


def _twins(edges: npt.NDArray[np.integer], n: int) -> npt.NDArray[np.int64]:
    """Return the number of the edge whose delivery each edge has, where both directions share one."""
    there, back = edges[:, 1] * n + edges[:, 0], edges[:, 0] * n + edges[:, 1]
    order = np.argsort(there)
    place = np.minimum(np.searchsorted(there, back, sorter=order), len(edges) - 1)
    found = order[place]
    return np.where(there[found] == back, np.minimum(found, np.arange(len(edges))), np.arange(len(edges)))
