"""Packets sent and delivered where some are lost or late: bytes, and the fractions delivered and overtaken."""

import numpy as np
import numpy.typing as npt

from digrad.core.step_times import StepTimes
from digrad.links import DeliverySchedule

PACKET_COLUMNS = ("mass_error", "in_transit", "min_weight")  # NaN where a method has no such thing
STEPS_OF_PACKETS = 256  # iterations whose packets are looked at in one go


class PacketTraffic:
    """Bytes that all agents together have sent before iteration k, and what became of the packets.

    Args:
        start: Bytes sent before the first step.
        delivery: What becomes of the packets.

    Attributes:
        times: When steps end, where the links have a clock.
    """

    def __init__(self, start: int, delivery: DeliverySchedule) -> None:
        self._delivery = delivery
        self._bytes, self._arrived, self._lost, self._used = [start], [0], [0], [0]
        self.times = None if delivery.links.clock is None else StepTimes(delivery)

    def before(self, ks: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the bytes sent before each of the iterations ``ks``, in packets that are lost too."""
        ks = self._reach(ks)
        return np.array(self._bytes, np.int64)[ks]

    def shares(self, ks: npt.ArrayLike) -> dict[str, npt.NDArray[np.float64]]:
        """Return, before each of the iterations: which share of the packets not under way any more was ``delivered``.

        And which share of these was ``overtaken``: a newer one had arrived, so that they were not used.
        """
        ks = self._reach(ks)
        arrived, lost, used = (np.array(count)[ks] for count in (self._arrived, self._lost, self._used))
        delivered = np.where(arrived + lost > 0, arrived / np.maximum(arrived + lost, 1), 1.0)
        return {"delivered": delivered, "overtaken": (arrived - used) / np.maximum(arrived, 1)}

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
