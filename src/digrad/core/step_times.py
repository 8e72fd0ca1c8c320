"""Times at which steps end by the clock of the links, and the agents that are waited for."""

from typing import Any

import numpy as np
import numpy.typing as npt

from digrad.links import DeliverySchedule

STEPS_OF_TIMES = 256  # iterations whose times are drawn in one go
SLOWEST = 8  # agents and edges that a report names


class StepTimes:
    """The simulated time at which all agents have ended each iteration.

    Without a deadline an agent ends its step when it has computed and the packets of that step have come that are
    not lost. With one, a step ends for all when every agent has computed and every packet has come, and
    at the deadline otherwise.

    Args:
        delivery: What becomes of packets, with a clock.
    """

    def __init__(self, delivery: DeliverySchedule) -> None:
        assert delivery.links.clock is not None
        self._delivery, self._clock = delivery, delivery.links.clock
        self._ends = np.zeros(delivery.n)  # of the steps of the agents
        self._computed = np.zeros(delivery.n)  # seconds so far
        self._travelled, self._sent, self._late = (np.zeros(len(delivery.edges)) for _ in range(3))
        self._seconds = [0.0]

    def before(self, ks: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return when the iterations before each of ``ks`` have ended."""
        last = int(ks.max(initial=0))
        while (first := len(self._seconds) - 1) < last:
            self._extend(first, min(STEPS_OF_TIMES, last - first))
        return np.array(self._seconds)[ks]

    def slowest(self, k: int) -> dict[str, Any]:
        """Return who computes and which edges carry packets for longest, on average over the iterations before k."""
        times = StepTimes(self._delivery)  # others may have gone further
        total = float(times.before(np.array([k]))[0])
        agents = np.argsort(-times._computed, kind="stable")[:SLOWEST]
        sent = np.maximum(times._sent, 1)
        edges = np.argsort(-times._travelled / sent, kind="stable")[:SLOWEST]
        waited = total - times._computed
        return {
            "steps": k,
            "seconds": total,
            "agents": [[int(i), times._computed[i] / max(k, 1), waited[i] / max(k, 1)] for i in agents],
            "edges": [
                [*self._delivery.edges[a].tolist(), times._travelled[a] / sent[a], times._late[a] / sent[a]]
                for a in edges
            ],
            "deadline": self._clock.deadline,
        }

    def _extend(self, first: int, length: int) -> None:
        delivery, clock = self._delivery, self._clock
        sent, under_way = delivery.sent(first, length), delivery.under_way(first, length)
        if clock.deadline is None:
            self._wait(first, under_way)
            computed, late = delivery.ready(first, length), np.zeros_like(sent)
        else:
            travelling = delivery.travelling(first, length)
            late = sent & (travelling > clock.deadline)
            computed = np.minimum(delivery.work(first, length), clock.deadline)
            self._keep_deadline(clock.deadline, first, travelling)
        self._computed += np.nansum(computed, axis=0)
        self._travelled += np.where(sent, under_way, 0).sum(axis=0)
        self._sent += sent.sum(axis=0)
        self._late += late.sum(axis=0)

    def _wait(self, first: int, under_way: npt.NDArray[np.float64]) -> None:
        sender, receiver = self._delivery.edges.T
        arrives = self._delivery.ages(first, len(under_way)) == 0
        computing = np.nan_to_num(self._delivery.ready(first, len(under_way)))
        for spent, takes, now in zip(computing, under_way, arrives, strict=True):
            ready = self._ends + spent
            self._ends = ready.copy()
            np.maximum.at(self._ends, receiver[now], (ready[sender] + takes)[now])
            self._seconds.append(float(self._ends.max()))

    def _keep_deadline(self, deadline: float, first: int, travelling: npt.NDArray[np.float64]) -> None:
        delivery, length = self._delivery, len(travelling)
        ready, expected = delivery.ready(first, length), delivery.expected(first, length)
        comes = (travelling <= deadline) & ~delivery.lost(first, length)
        is_done = ~(delivery.present(first, length) & np.isnan(ready)).any(axis=1)
        is_done &= ~(expected & ~comes).any(axis=1)
        last = np.maximum(
            np.nan_to_num(ready).max(axis=1),
            np.where(expected & comes, travelling, 0).max(axis=1, initial=0),
        )
        lengths = np.where(is_done, last, deadline)
        self._seconds.extend(np.cumsum([self._seconds[-1], *lengths.tolist()])[1:].tolist())
