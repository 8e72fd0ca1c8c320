"""Churn: agents leave, crash and join between two steps, and edges exist while both their ends are present."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from digrad import checks
from digrad.errors import ArgumentError

REPAIRS = ("undo", "restart")


@dataclass(frozen=True)
class Leave:
    """An agent leaves in an orderly way before iteration ``at``.

    Its senders take back what it has not received, what it has sent arrives, and one of its receivers takes over its
    tracker, less its own gradient.
    """

    agent: int
    at: int

    def __post_init__(self) -> None:
        """Check the fields."""
        _check(self, "Leave")


@dataclass(frozen=True)
class Crash:
    """An agent crashes before iteration ``at``.

    Args:
        agent: Number of the agent.
        at: The iteration.
        repair: ``"undo"``: its neighbours undo everything they ever sent to it or received from it, of which they
            keep the sums; ``"restart"``: all agents begin to track anew from where they are.
    """

    agent: int
    at: int
    repair: Literal["undo", "restart"] = "undo"

    def __post_init__(self) -> None:
        """Check the fields."""
        _check(self, "Crash")
        checks.choice(self.repair, "repair", "Crash", REPAIRS)


@dataclass(frozen=True)
class Join:
    """An agent joins, or joins again, before iteration ``at``, with the estimate of an in-neighbour.

    An agent whose first event this is was not present before.
    """

    agent: int
    at: int

    def __post_init__(self) -> None:
        """Check the fields."""
        _check(self, "Join")


Event: TypeAlias = Leave | Crash | Join


class ChurnSchedule:
    """The agents that are present at each iteration.

    Args:
        events: In any order; at most one for each iteration.
        edges: ``[A, 2]`` sender and receiver.
        n: The number of agents, those that come later included.
        owner: Name of the caller in messages.

    Raises:
        ArgumentError: An agent leaves that is not there, or joins that is.
    """

    def __init__(
        self, events: Sequence[Event], edges: npt.NDArray[np.integer], n: int, owner: str = "simulate"
    ) -> None:
        self.events = tuple(sorted(events, key=lambda event: event.at))
        if len({event.at for event in self.events}) < len(self.events):
            raise ArgumentError(f"`churn` of {owner} has two events at one iteration; give each its own.")
        present = np.ones(n, bool)
        for event in reversed(self.events):
            if not 0 <= event.agent < n:
                raise ArgumentError(f"`churn` of {owner}: there is no agent {event.agent} among {n}.")
            present[event.agent] = not isinstance(event, Join)
        birth = np.zeros(len(edges), np.int64)
        self.present, self.births = [present], [birth]
        for event in self.events:
            if present[event.agent] == isinstance(event, Join):
                word = "joins, but is there already" if present[event.agent] else "leaves, but is not there"
                raise ArgumentError(f"`churn` of {owner}: at {event.at} agent {event.agent} {word}.")
            present = present.copy()
            present[event.agent] = isinstance(event, Join)
            concerned = (edges == event.agent).any(axis=1)
            is_anew = isinstance(event, Crash) and event.repair == "restart"
            birth = np.where(concerned | is_anew, event.at, birth)
            self.present.append(present)
            self.births.append(birth)
        self._edges = edges
        self._starts = np.array([event.at for event in self.events])

    @property
    def keeps_lifetime(self) -> bool:
        """Return whether edges must remember the sum of all that was sent over them."""
        return any(isinstance(event, Crash) and event.repair == "undo" for event in self.events)

    def phase(self, k: int) -> int:
        """Return how many events have happened before the step of iteration k."""
        return int(np.searchsorted(self._starts, k, side="right"))

    def event(self, k: int) -> Event | None:
        """Return the event right before the step of iteration k, if there is one."""
        return next((event for event in self.events if event.at == k), None)

    def weights(self, phase: int) -> npt.NDArray[np.float64]:
        """Return the weights of averages over the agents present after so many events, ``[n]`` with sum n."""
        present = self.present[phase]
        return present * (len(present) / present.sum())

    def awake(self, first: int, length: int) -> npt.NDArray[np.bool_]:
        """Return the agents that are present, ``[length, n]``."""
        return np.stack([self.present[self.phase(k)] for k in range(first, first + length)])

    def alive(self, first: int, length: int) -> npt.NDArray[np.bool_]:
        """Return which edges have both their ends, ``[length, A]``."""
        there = self.awake(first, length)
        return there[:, self._edges[:, 0]] & there[:, self._edges[:, 1]]

    def born(self, first: int, length: int) -> npt.NDArray[np.int64]:
        """Return the iteration since which each edge exists; packets sent before are void, ``[length, A]``."""
        return np.stack([self.births[self.phase(k)] for k in range(first, first + length)])


def _check(event: Any, owner: str) -> None:
    object.__setattr__(event, "agent", checks.count(event.agent, "agent", owner, minimum=0))
    object.__setattr__(event, "at", checks.count(event.at, "at", owner))
