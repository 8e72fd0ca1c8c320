"""Agreement between processes through the key-value store of torch.distributed: short texts, no pickle.

Disagreement must be an error everywhere within seconds. Messages of different lengths would instead be
accepted silently or end a process, so everything that decides a message is compared before the first one.

The calls in which all agents must take part are numbered. An agent says in the store which call it has entered
under the next number, and one that gives up says where; so whoever waits in vain can tell where the others are.
"""

import json
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from digrad._internal.error_text import agents_text
from digrad.errors import CommunicationError, DigradError, DisagreementError, NonFiniteError

GRACE = 2.0  # seconds for agents that wait elsewhere to notice that something is wrong
_POLL = 0.01  # seconds between two looks at whether all have left something
LINGER = 5.0  # seconds that the owner of the store stays for the others when all are about to fail

_FAILURES = {kind.__name__: kind for kind in (DisagreementError, NonFiniteError)}


class Coordination:
    """Exchanges of facts among all agents of a group; every agent takes part in every exchange.

    Args:
        store: Of the process group.
        agent: This agent's number.
        n: How many agents there are.
        prefix: Separates the keys of this group from all others.
    """

    def __init__(self, store: Any, agent: int, n: int, prefix: str) -> None:
        self._store, self._agent, self._n, self._prefix = store, agent, n, prefix
        self._count = 0
        self.hang_up: Callable[[], None] = lambda: (
            None
        )  # lets those who wait for this agent know that it fails

    def exchange(self, facts: dict[str, Any], timeout: float, purpose: str) -> list[dict[str, Any]]:
        """Return the facts of every agent, by agent.

        Raises:
            CommunicationError: An agent did not come within ``timeout`` seconds; the message names it.
        """
        self.announce(purpose, facts)
        deadline = time.monotonic() + timeout
        found = []
        for agent in range(self._n):
            found.append(json.loads(self._read(agent, deadline, timeout, purpose)))
            if found[-1]["call"] != purpose:
                raise self.why(purpose, GRACE) or CommunicationError(f"{purpose}: agent {agent} has ended.")
        return [one["facts"] for one in found]

    def announce(self, call: str, facts: dict[str, Any] | None = None) -> None:
        """Say which call of all agents this one has entered."""
        self._count += 1
        self._store.set(self._key(self._count, self._agent), json.dumps({"call": call, "facts": facts}))
        if self._count > 2:  # everybody has read what is two exchanges old
            self._store.delete_key(self._key(self._count - 2, self._agent))

    def fail(self, error: DigradError) -> None:
        """Let all agents fail with ``error``, which is known to this one only, as soon as they ask."""
        self.announce(type(error).__name__, {"reason": str(error)})

    def why(self, call: str, grace: float = 0.0) -> DigradError | None:
        """Return what keeps the others from taking part in ``call``, which this agent gives up, if they have said it.

        Args:
            call: Which must have been announced.
            grace: Seconds to wait for what they say.
        """
        found = self._announced(grace)
        failed = [one for one in found.values() if one["call"] in _FAILURES]
        elsewhere: dict[str, list[int]] = {}
        for agent, one in found.items():
            if one["call"] != call:
                elsewhere.setdefault(one["call"], []).append(agent)
        if not elsewhere:
            return None
        self.hang_up()
        self.leave_together()
        if failed:
            return _FAILURES[failed[0]["call"]](failed[0]["facts"]["reason"])
        listed = ", ".join(f"{agents_text(agents)} in {other}" for other, agents in elsewhere.items())
        return DisagreementError(
            f"{call}: this agent waits here, but {listed}; all agents must make the same calls, and step equally often."
        )

    def is_elsewhere(self, agents: Sequence[int], call: str | None) -> bool:
        """Return whether one of some agents has entered another call of all agents than this one; nobody waits.

        Args:
            agents: Who is asked.
            call: What this agent has announced; None if it has announced nothing since the last one.
        """
        number = self._count + (call is None)
        keys = [self._key(number, agent) for agent in agents if agent != self._agent]
        found = (json.loads(self._store.get(key)) for key in keys if self._store.check([key]))
        return any(one["call"] != call for one in found)

    def post(self, name: str, facts: dict[str, Any]) -> None:
        """Leave facts for whoever reads them later; nobody waits."""
        self._store.set(self._key(name, self._agent), json.dumps(facts))

    def flag(self, name: str) -> None:
        """Let everybody know that something under a name has happened; nobody waits."""
        self._store.set(self._key(name, "flag"), "")

    def is_flagged(self, name: str) -> bool:
        """Return whether something under a name has happened."""
        return self._store.check([self._key(name, "flag")])

    def posted(self, name: str) -> list[dict[str, Any]] | None:
        """Return what all agents have left under a name, or None if one has not yet; nobody waits."""
        keys = self._keys(name)
        if not self._store.check(keys):
            return None
        return [json.loads(self._store.get(key)) for key in keys]

    def wait_posted(self, name: str, seconds: float) -> bool:
        """Return whether all agents have left something under a name, at most so many seconds from now."""
        keys, until = self._keys(name), time.monotonic() + seconds
        # torch logs a wait that ends in vain.
        while not (is_there := self._store.check(keys)) and (left := until - time.monotonic()) > 0.0:
            time.sleep(min(left, _POLL))
        return is_there

    def missing(self, name: int | str) -> list[int]:
        """Return the agents that have left nothing under a name."""
        return [agent for agent, key in enumerate(self._keys(name)) if not self._store.check([key])]

    def withdraw(self, name: str) -> None:
        """Delete what this agent has left."""
        self._store.delete_key(self._key(name, self._agent))

    def _announced(self, grace: float) -> dict[int, dict[str, Any]]:
        """Return what the agents have said under the present number, by agent."""
        found: dict[int, dict[str, Any]] = {}
        deadline = time.monotonic() + grace
        for agent, key in enumerate(self._keys(self._count)):
            try:
                if not self._store.check([key]):
                    remaining = deadline - time.monotonic()
                    if remaining <= 0.0:  # torch logs a wait that ends in vain
                        continue
                    self._store.wait([key], timedelta(seconds=remaining))
                found[agent] = json.loads(self._store.get(key))
            except (dist.DistError, RuntimeError):
                continue  # it has said nothing
        return found

    def agree(self, facts: dict[str, Any], timeout: float, purpose: str) -> None:
        """Raise on every agent unless all have the same facts."""
        everyone = self.exchange(facts, timeout, purpose)
        differing = difference(everyone, range(self._n))
        if differing:
            self.leave_together()
            raise DisagreementError(f"{purpose}: {differing}")

    def leave_together(self) -> None:
        """Let the owner of the store go last, so that the others can still read the reason."""
        keys = [f"{key}/left" for key in self._keys(self._count)]
        self._store.set(keys[self._agent], "")
        if self._agent == 0:
            try:
                self._store.wait(keys, timedelta(seconds=LINGER))
            except (dist.DistError, RuntimeError):
                return  # an agent that has gone already cannot be waited for

    def _read(self, agent: int, deadline: float, timeout: float, purpose: str) -> str:
        key = self._key(self._count, agent)
        remaining = max(deadline - time.monotonic(), 0.05)
        try:
            self._store.wait([key], timedelta(seconds=remaining))
            return self._store.get(key).decode()
        except (dist.DistError, RuntimeError) as error:
            raise self._reason(purpose) or CommunicationError(
                f"{purpose}: {self._missing(timeout)}; look at their logs, and start all agents again."
            ) from error

    def _reason(self, purpose: str) -> DigradError | None:
        try:
            return self.why(purpose, GRACE)
        except (dist.DistError, RuntimeError):
            return None

    def _missing(self, timeout: float) -> str:
        try:
            silent = self.missing(self._count)
        except (dist.DistError, RuntimeError):
            return "agent 0, which keeps the store of the group, has ended"
        self.leave_together()
        return f"nothing was heard from {agents_text(silent)} within {timeout:.1f} s"

    def _keys(self, name: int | str) -> list[str]:
        return [self._key(name, agent) for agent in range(self._n)]

    def _key(self, name: int | str, agent: int | str) -> str:
        """Return under what an agent says something: in a call of all agents by its number, else by name."""
        return f"digrad/{self._prefix}/{name}/{agent}"


def difference(everyone: Sequence[dict[str, Any]], agents: Sequence[int]) -> str:
    """Return the facts on which the agents differ in one line, or nothing.

    >>> difference([{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.1}], range(3))
    'the agents disagree on lr: agents 0, 2 0.1, agent 1 0.2; start all of them with the same settings.'
    """
    differing = [
        name
        for name in sorted({name for one in everyone for name in one})
        if len({json.dumps(one.get(name)) for one in everyone}) > 1
    ]
    if not differing:
        return ""
    listed = "; ".join(f"{name}: {_who(name, everyone, agents)}" for name in differing)
    return f"the agents disagree on {listed}; start all of them with the same settings."


def _who(name: str, everyone: Sequence[dict[str, Any]], agents: Sequence[int]) -> str:
    values: dict[str, list[int]] = {}
    for agent, one in zip(agents, everyone, strict=True):
        values.setdefault(str(one.get(name)), []).append(agent)
    return ", ".join(f"{agents_text(sorted(set(found)))} {value}" for value, found in values.items())
