"""What is sent and what arrives where packets have fates: bytes, and the fraction delivered."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from digrad.engine.fates import all_arcs, numbers_among
from digrad.engine.step_times import StepTimes
from digrad.links import Fates
from digrad.links.coders import AnyCoder, RandomK
from digrad.mixing import AnyNetwork, step_weights

PACKET_COLUMNS = ("mass_error", "in_transit", "min_weight")  # NaN where a method has no such thing
STEPS_OF_PACKETS = 256  # iterations whose packets are looked at in one go


class Charge(NamedTuple):
    """One array of a packet, in bytes."""

    verb: str
    short: int  # as it is coded
    full: int
    starts_in_full: bool  # whether a receiver that has heard nothing yet is sent all of it


def charge(
    verb: str,
    letter: str,
    coder: AnyCoder | None,
    numbers: int,
    itemsize: int,
    *,
    refers: bool,
    is_weight: bool,
) -> Charge:
    """Return what an array of a packet takes.

    Args:
        verb: That sends it, and
        letter: the matrix behind.
        coder: How messages are shortened.
        numbers: Of a row, and
        itemsize: the bytes of each.
        refers: Whether it is coded against a reference.
        is_weight: Whether it is a push-sum weight, which is not coded.
    """
    full = numbers * itemsize
    if coder is None or is_weight:
        return Charge(verb, full, full, starts_in_full=False)
    has_reference = refers and not (isinstance(coder, RandomK) and letter == "R")
    return Charge(verb, min(full, coder.wire_bytes(numbers, itemsize)), full, starts_in_full=has_reference)


class PacketTraffic:
    """Bytes that all agents together have sent before iteration k, and the fraction of packets delivered.

    A coded packet carries everything since the last one that arrived: after m - 1 missed ones it is m times as long,
    but never longer than the numbers in full. A lost packet was sent too.

    Args:
        network: Whose arcs carry the packets.
        letters: The matrix of each verb.
        start: Bytes sent before the first step.
        step: What every step sends along every arc.
        fates: What becomes of the packets.

    Attributes:
        times: When steps end, where the links have a clock.
    """

    def __init__(
        self,
        network: AnyNetwork,
        letters: Mapping[str, str],
        start: int,
        step: Sequence[Charge],
        fates: Fates,
    ) -> None:
        self._fates, self._step = fates, step
        graph = all_arcs(network)
        turns = range(1 if network.period is None else network.period)
        self._carries = {  # [A] by verb: an arc that only R uses carries nothing that is pushed
            verb: np.isin(
                np.arange(graph.n_arcs),
                numbers_among(step_weights(network, letter, 0, len(turns)).arcs, graph),
            )
            for verb, letter in letters.items()
        }
        self._missed = np.ones(
            graph.n_arcs, np.int64
        )  # packets since the last that arrived, the next included
        self._is_new = np.ones(graph.n_arcs, bool)  # whether none has arrived yet
        self._bytes, self._sent, self._arrived = [start], [0], [0]
        self.times: StepTimes | None = None
        if fates.links.clock is not None:
            sizes = np.zeros(graph.n_arcs, np.int64)
            for one in step:
                sizes += one.short * self._carries[one.verb]
            self.times = StepTimes(fates, sizes)

    def before(self, ks: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the bytes sent before each of the iterations ``ks``."""
        ks = self._reach(ks)
        return np.array(self._bytes, np.int64)[ks]

    def delivered(self, ks: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return the fraction of the packets sent before each of the iterations that has arrived; 1 of none."""
        ks = self._reach(ks)
        sent, arrived = np.array(self._sent)[ks], np.array(self._arrived)[ks]
        return np.where(sent > 0, arrived / np.maximum(sent, 1), 1.0)

    def _reach(self, ks: npt.ArrayLike) -> npt.NDArray[np.int64]:
        ks = np.asarray(ks, np.int64)
        last = int(ks.max(initial=0))
        while (first := len(self._bytes) - 1) < last:
            self._extend(first, min(STEPS_OF_PACKETS, last - first))
        return ks

    def _extend(self, first: int, length: int) -> None:
        sent, arrives = self._fates.sent(first, length), self._fates.ages(first, length) >= 0
        is_plain = all(one.short == one.full for one in self._step)
        sizes = self._plain(sent) if is_plain else self._coded(sent, arrives)
        self._bytes.extend((self._bytes[-1] + np.cumsum(sizes)).tolist())
        self._sent.extend((self._sent[-1] + np.cumsum(sent.sum(axis=1))).tolist())
        self._arrived.extend((self._arrived[-1] + np.cumsum(arrives.sum(axis=1))).tolist())

    def _plain(self, sent: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        total = np.zeros(len(sent), np.int64)
        for one in self._step:
            total += one.full * (sent & self._carries[one.verb]).sum(axis=1)
        return total

    def _coded(self, sent: npt.NDArray[np.bool_], arrives: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        total = np.zeros(len(sent), np.int64)
        for row, (now, here) in enumerate(zip(sent, arrives, strict=True)):
            for one in self._step:
                size = np.minimum(self._missed * one.short, one.full)
                size = np.where(self._is_new & one.starts_in_full, one.full, size)
                total[row] += size[now & self._carries[one.verb]].sum()
            self._missed = np.where(here, 1, self._missed + now)
            self._is_new &= ~here
        return total
