"""The agreement of agents on their last step, without processes."""

import os
import signal
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from digrad.torch.launch import preemption
from digrad.torch.launch.preemption import Preemption


class Coordination:
    """Facts of two agents that see at once what the other one has posted."""

    def __init__(self, posted: dict[int, Any], agent: int) -> None:
        self._posted, self._agent = posted, agent

    def flag(self, name: str) -> None:
        """Leave it: both agents are asked themselves."""

    def post(self, name: str, facts: dict[str, Any]) -> None:
        self._posted[self._agent] = facts

    def posted(self, name: str) -> list[dict[str, Any]] | None:
        return list(self._posted.values()) if len(self._posted) == 2 else None


def test_agents_that_exchange_at_every_fifth_step_end_at_one_that_none_has_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "test")
    before = signal.getsignal(preemption.SAVE)
    posted: dict[int, Any] = {}
    agents = []
    for agent in range(2):
        network: Any = SimpleNamespace(
            n=2, agent=agent, network=SimpleNamespace(period=5), count_optimizer=lambda: 1,
            coordination=Coordination(posted, agent),
        )  # fmt: skip
        agents.append(Preemption(network))
        agents[-1].enable()
    monkeypatch.setattr(preemption, "asked", threading.Event())
    os.kill(os.getpid(), preemption.SAVE)  # as launch does after SIGTERM
    signal.signal(preemption.SAVE, before)
    ended: list[list[int]] = [[], []]

    def step(agent: int, k: int) -> None:
        agents[agent].after_step(k)
        if agents[agent].is_over:
            ended[agent].append(k)

    for block in range(6):  # one agent is done with the five steps when the other one begins them
        for agent in (0, 1):
            for k in range(5 * block + 1, 5 * block + 6):
                if not ended[agent]:
                    step(agent, k)
    assert ended[0] == ended[1]
    assert len(ended[0]) == 1
