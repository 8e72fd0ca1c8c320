"""Traffic: bytes sent, and what became of packets, from the messages of a dry run and the edges of every iteration."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from digrad.core.communication import Charge
from digrad.core.step_times import StepTimes
from digrad.links import DeliverySchedule
from digrad.network import Network, edges_used, step_weights

STEPS_OF_EDGES = 1000  # iterations whose edges are looked at in one go
STEPS_OF_PACKETS = 256  # and whose packets


def all_reduce_messages(n: int) -> int:
    """Return how many messages of the size of a row a ring all-reduce of n agents sends."""
    return 2 * (n - 1)


class Traffic:
    """Bytes that all agents together have sent before iteration k.

    Args:
        network: Whose edges carry the messages.
        matrices: The matrix of each primitive.
        opening: What is sent before the first step.
        step: What every step sends.
    """

    def __init__(
        self, network: Network, matrices: Mapping[str, str], opening: Sequence[Charge], step: Sequence[Charge]
    ) -> None:
        self._network, self._matrices = network, matrices
        self._in_means = self._averaged(step)
        self._short: dict[str, int] = {}  # bytes along each edge of a primitive
        self._full: dict[str, int] = {}  # those to a receiver that did not get the message before
        for one in step:
            if one.primitive != "mean":
                in_full = one.full if one.starts_in_full else one.short
                self._short[one.primitive] = self._short.get(one.primitive, 0) + one.short
                self._full[one.primitive] = self._full.get(one.primitive, 0) + in_full
        self._period = network.period if self._short == self._full else None
        self._received: dict[
            str, npt.NDArray[np.bool_]
        ] = {}  # by primitive, [A]: whether the receiver has the last message of its sender
        on_edges = [one for one in opening if one.primitive != "mean"]
        sent = sum(one.full * int(self._edges(one.primitive, 0, 1)[0]) for one in on_edges)
        self._done = [self._averaged(opening) + sent]

    def before(self, ks: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the bytes sent before each of the iterations ``ks``."""
        ks = np.asarray(ks, np.int64)
        span = int(ks.max(initial=0)) if self._period is None else self._period
        while len(self._done) <= span:
            self._extend(min(len(self._done) - 1 + STEPS_OF_EDGES, span))
        table = np.array(self._done, np.int64)
        if self._period is None:
            return table[ks]
        rounds, rest = np.divmod(ks, self._period)
        return rounds * (table[span] - table[0]) + table[rest]

    def columns(self, ks: npt.ArrayLike) -> dict[str, npt.NDArray[np.float64]]:
        """Return what else is known of the messages before each of the iterations: nothing, all arrive in time."""
        return {}

    def facts(self, k: int) -> dict[str, Any]:
        """Return what is known of the messages of the first k steps together: nothing."""
        return {}

    def _averaged(self, charges: Sequence[Charge]) -> int:
        sizes = [one.full for one in charges if one.primitive == "mean"]
        return all_reduce_messages(self._network.n) * sum(sizes)

    def _extend(self, last: int) -> None:
        first = len(self._done) - 1
        sent = np.full(last - first, self._in_means, np.int64)
        for primitive in self._short:
            sent += self._sent(primitive, first, last - first)
        self._done.extend((self._done[-1] + np.cumsum(sent)).tolist())

    def _sent(self, primitive: str, first: int, length: int) -> npt.NDArray[np.int64]:
        size, in_full = self._short[primitive], self._full[primitive]
        if size == in_full:
            return size * self._edges(primitive, first, length)
        weights = step_weights(self._network, self._matrices[primitive], first, length)
        sender = weights.edges[:, 0]
        received = self._received.get(primitive, np.zeros(len(sender), bool))
        sent = np.zeros(length, np.int64)
        for row, there in enumerate(weights.weight != 0):
            sent[row] = size * (there & received).sum() + in_full * (there & ~received).sum()
            sends = np.zeros(self._network.n, bool)
            sends[sender[there]] = True
            received = np.where(sends[sender], there, received)
        self._received[primitive] = received
        return sent

    def _edges(self, primitive: str, first: int, length: int) -> npt.NDArray[np.int64]:
        return edges_used(self._network, self._matrices[primitive], first, length)


class PacketTraffic:
    """Bytes that all agents together have sent before iteration k, and what became of the packets.

    Args:
        start: Bytes sent before the first step.
        delivery: What becomes of the packets.
    """

    def __init__(self, start: int, delivery: DeliverySchedule) -> None:
        self._delivery = delivery
        self._bytes, self._arrived, self._lost, self._used = [start], [0], [0], [0]
        self._times = None if delivery.links.clock is None else StepTimes(delivery)

    def before(self, ks: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the bytes sent before each of the iterations ``ks``, in packets that are lost too."""
        ks = self._reach(ks)
        return np.array(self._bytes, np.int64)[ks]

    def columns(self, ks: npt.ArrayLike) -> dict[str, npt.NDArray[np.float64]]:
        """Return, before each of the iterations: which share of the packets not under way any more was ``delivered``.

        And which share of these was ``overtaken``: a newer one had arrived, so that they were not used. With a clock
        also the time, ``seconds_simulated``.
        """
        ks = self._reach(ks)
        arrived, lost, used = (np.array(count)[ks] for count in (self._arrived, self._lost, self._used))
        delivered = np.where(arrived + lost > 0, arrived / np.maximum(arrived + lost, 1), 1.0)
        seconds = {"seconds_simulated": self._times.before(ks)} if self._times else {}
        return {"delivered": delivered, "overtaken": (arrived - used) / np.maximum(arrived, 1), **seconds}

    def facts(self, k: int) -> dict[str, Any]:
        """Return, with a clock, whom the first k steps waited for."""
        return {"slowest": self._times.slowest(k)} if self._times else {}

    def _reach(self, ks: npt.ArrayLike) -> npt.NDArray[np.int64]:
        ks = np.asarray(ks, np.int64)
        last = int(ks.max(initial=0))
        while (first := len(self._bytes) - 1) < last:
            self._extend(first, min(STEPS_OF_PACKETS, last - first))
        return ks

    def _extend(self, first: int, length: int) -> None:
        delivery = self._delivery
        sizes = zip(delivery.sizes(first, length), delivery.sent(first, length), strict=True)
        arrived, lost = delivery.outcomes(first, length)
        used = (delivery.ages(first, length) >= 0).sum(axis=1)
        for counts, new in (
            (self._bytes, [int(size[now].sum()) for size, now in sizes]),
            (self._arrived, arrived),
            (self._lost, lost),
            (self._used, used),
        ):
            counts.extend((counts[-1] + np.cumsum(new)).tolist())
