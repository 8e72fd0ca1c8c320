"""Bytes sent: messages per primitive, counted in a dry run, times the edges of every iteration."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from digrad.network import Network, edges_used, step_weights

STEPS_OF_EDGES = 1000  # iterations whose edges are looked at in one go


def all_reduce_messages(n: int) -> int:
    """Return how many messages of the size of a row a ring all-reduce of n agents sends."""
    return 2 * (n - 1)


@dataclass
class Meter:
    """Counter of what one step sends: bytes along each edge, by primitive, and in all-reduces of all agents together.

    ``in_full`` is what a message takes whose receiver did not get the one before, if it is coded against that.
    """

    per_edge: dict[str, int] = field(default_factory=dict)
    in_full: dict[str, int] = field(default_factory=dict)
    in_means: int = 0

    def charge(self, primitive: str, size: int, in_full: int | None = None) -> None:
        """Count a message of ``size`` bytes along every edge of a primitive."""
        self.per_edge[primitive] = self.per_edge.get(primitive, 0) + size
        self.in_full[primitive] = self.in_full.get(primitive, 0) + (size if in_full is None else in_full)

    def charge_mean(self, n: int, size: int) -> None:
        """Count an all-reduce of rows of ``size`` bytes."""
        self.in_means += all_reduce_messages(n) * size


class Traffic:
    """Bytes that all agents together have sent before iteration k.

    Args:
        network: Whose edges carry the messages.
        matrices: The matrix of each primitive.
        start: What was sent before the first step.
        step: What every step sends.
    """

    def __init__(self, network: Network, matrices: Mapping[str, str], start: Meter, step: Meter) -> None:
        self._network, self._matrices, self._step = network, matrices, step
        self._is_coded = step.per_edge != step.in_full
        self._period = None if self._is_coded else network.period
        # By primitive, [E]: whether the receiver of an edge has the last message of its sender.
        self._received: dict[str, npt.NDArray[np.bool_]] = {}
        self._done = [
            start.in_means
            + sum(s * self._edges(primitive, 0, 1)[0] for primitive, s in start.per_edge.items())
        ]

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

    def _extend(self, last: int) -> None:
        first = len(self._done) - 1
        sent = np.full(last - first, self._step.in_means, np.int64)
        for primitive in self._step.per_edge:
            sent += self._sent(primitive, first, last - first)
        self._done.extend((self._done[-1] + np.cumsum(sent)).tolist())

    def _sent(self, primitive: str, first: int, length: int) -> npt.NDArray[np.int64]:
        size, in_full = self._step.per_edge[primitive], self._step.in_full[primitive]
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
