"""Rates and schedules are compared without anybody waiting, however far an agent is ahead."""

from typing import Any

import pytest

from digrad.errors import DigradError, DisagreementError
from digrad.torch.settings_watch import COMPARED, SettingsWatch


class Network:
    """Two agents and the store between them, without processes."""

    n = 2

    def __init__(self, agent: int, store: dict[str, dict[int, Any]]) -> None:
        self._agent, self._store, self.handshake = agent, store, self

    def count_optimizer(self) -> int:
        return 1

    def post(self, name: str, facts: Any) -> None:
        self._store.setdefault(name, {})[self._agent] = facts

    def posted(self, name: str) -> list[Any] | None:
        found = self._store.get(name, {})
        return [found[agent] for agent in range(2)] if len(found) == 2 else None

    def withdraw(self, name: str) -> None:
        del self._store[name][self._agent]

    def fail(self, error: DigradError) -> None:
        raise error


def watches() -> tuple[dict[str, dict[int, Any]], list[Any]]:
    store: dict[str, dict[int, Any]] = {}
    networks: list[Any] = [Network(agent, store) for agent in range(2)]
    return store, [SettingsWatch(network) for network in networks]


def run(watch: Any, first: int, last: int, rate: float) -> None:
    for k in range(first, last):
        watch.after_step(k, lambda: {"lr": rate})


def test_agent_that_is_ahead_compares_once_the_other_has_come() -> None:
    _, (ahead, behind) = watches()
    run(ahead, 1, 3 * COMPARED, 0.1)  # on a network of local steps nothing holds it back
    run(behind, 1, COMPARED + 1, 0.2)
    with pytest.raises(DisagreementError, match=r"disagree on lr: agent 0 0\.1, agent 1 0\.2"):
        ahead.after_step(3 * COMPARED + 1, lambda: {"lr": 0.1})


def test_what_all_have_compared_is_withdrawn() -> None:
    store, (one, other) = watches()
    for k in range(1, 10 * COMPARED):
        run(one, k, k + 1, 0.1)
        run(other, k, k + 1, 0.1)
    assert sum(bool(left) for left in store.values()) <= 2


def test_what_was_left_before_a_restart_is_not_compared() -> None:
    _, both = watches()
    run(both[0], COMPARED, COMPARED + 1, 0.1)
    run(both[1], COMPARED, COMPARED + 1, 0.2)
    for watch in both:
        watch.forget()
    for k in range(COMPARED, COMPARED + 5):
        for watch in both:
            run(watch, k, k + 1, 0.3)
    run(both[0], 2 * COMPARED, 2 * COMPARED + 1, 0.1)
    run(both[1], 2 * COMPARED, 2 * COMPARED + 1, 0.3)
    with pytest.raises(DisagreementError, match=r"agent 0 0\.1, agent 1 0\.3"):
        both[0].after_step(2 * COMPARED + 2, lambda: {"lr": 0.1})
