"""Agreement between processes through the key-value store of torch.distributed: short texts, no pickle.

Disagreement must be an error everywhere within seconds. Messages of different lengths would instead be
accepted silently or end a process, so everything that decides a message is compared before the first one.
"""

import json
import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from digrad.errors import CommunicationError, DisagreementError
from digrad.torch.reasons import agents_text

LINGER = 5.0  # seconds that the owner of the store stays for the others when all are about to fail


class Handshake:
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

    def exchange(self, facts: dict[str, Any], timeout: float, purpose: str) -> list[dict[str, Any]]:
        """Return the facts of every agent, by agent.

        Raises:
            CommunicationError: An agent did not come within ``timeout`` seconds; the message names it.
        """
        self._count += 1
        self._store.set(self._key(self._count, self._agent), json.dumps(facts))
        if self._count > 2:  # everybody has read what is two exchanges old
            self._store.delete_key(self._key(self._count - 2, self._agent))
        deadline = time.monotonic() + timeout
        return [json.loads(self._read(agent, deadline, timeout, purpose)) for agent in range(self._n)]

    def agree(self, facts: dict[str, Any], timeout: float, purpose: str) -> None:
        """Raise on every agent unless all have the same facts."""
        everyone = self.exchange(facts, timeout, purpose)
        differing = [
            name
            for name in sorted({name for one in everyone for name in one})
            if len({json.dumps(one.get(name)) for one in everyone}) > 1
        ]
        if differing:
            self.leave_together()
            listed = "; ".join(f"{name}: {_who(name, everyone)}" for name in differing)
            raise DisagreementError(
                f"{purpose}: the agents disagree on {listed}; start all of them with the same settings."
            )

    def leave_together(self) -> None:
        """Let the owner of the store go last, so that the others can still read the reason."""
        keys = [f"{self._key(self._count, agent)}/left" for agent in range(self._n)]
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
            raise CommunicationError(
                f"{purpose}: {self._missing(timeout)}; look at their logs, and start all agents again."
            ) from error

    def _missing(self, timeout: float) -> str:
        try:
            keys = {agent: self._key(self._count, agent) for agent in range(self._n)}
            silent = [agent for agent, key in keys.items() if not self._store.check([key])]
        except (dist.DistError, RuntimeError):
            return "agent 0, which keeps the store of the group, has gone"
        self.leave_together()
        return f"nothing was heard from {agents_text(silent)} within {timeout:.1f} s"

    def _key(self, count: int, agent: int) -> str:
        return f"digrad/{self._prefix}/{count}/{agent}"


def _who(name: str, everyone: list[dict[str, Any]]) -> str:
    values: dict[str, list[int]] = {}
    for agent, one in enumerate(everyone):
        values.setdefault(str(one.get(name)), []).append(agent)
    return ", ".join(f"{agents_text(agents)} {value}" for value, agents in values.items())
