"""Comparing rates and schedules between processes now and then, without making anybody wait."""

from collections.abc import Callable
from typing import Any

from digrad.errors import DisagreementError
from digrad.torch.handshake import difference
from digrad.torch.process_network import ProcessNetwork

COMPARED = 100  # steps between two comparisons


class SettingsWatch:
    """The settings that the agents leave in the store for one another.

    After k + n steps on a constant network everybody has left those of step k, because messages have gone round; on one
    that changes an agent may be ahead of others, and looks again at its next step.

    Args:
        network: The processes.
    """

    def __init__(self, network: ProcessNetwork) -> None:
        self._network, self._number = network, network.count_optimizer()
        self._epoch = 0  # how often the agents have gone to another step together
        self._posted: list[list[int]] = []  # epochs and steps whose settings were left, and not compared yet
        self._kept: list[list[int]] = []  # those that others may still read
        self._compared = [0, -1]

    def forget(self) -> None:
        """Compare nothing that was left before; every agent must call."""
        self._epoch += 1
        self._kept += self._posted
        self._posted = []

    def after_step(
        self, k: int, settings: Callable[[], dict[str, Any]], news: Callable[[], Any] = lambda: None
    ) -> list[Any] | None:
        """Leave the settings of step k and compare those of an earlier one, each if it is time.

        Args:
            k: The step that has ended.
            settings: What all agents must share.
            news: What an agent leaves beside them.

        Returns:
            What every agent left beside the settings that were compared; None if none were.
        """
        if k % COMPARED == 0:
            self._posted.append([self._epoch, k])
            facts = {"settings": settings(), "compared": self._compared, "news": news()}
            self._network.handshake.post(self._name(self._posted[-1]), facts)
        if self._posted and self._posted[0][1] + self._network.n <= k:
            return self._compare(k)
        return None

    def _compare(self, k: int) -> list[Any] | None:
        everyone = self._network.handshake.posted(self._name(self._posted[0]))
        if everyone is None:
            return None
        differing = difference([one["settings"] for one in everyone], range(self._network.n))
        if differing:
            self._network.fail(DisagreementError(f"step {k}: {differing}"))
        self._compared = self._posted.pop(0)
        self._kept.append(self._compared)
        while self._kept[0] <= min(one["compared"] for one in everyone):  # nobody reads that any more
            self._network.handshake.withdraw(self._name(self._kept.pop(0)))
        return [one["news"] for one in everyone]

    def _name(self, when: list[int]) -> str:
        return f"settings {self._number} {when[0]} {when[1]}"
