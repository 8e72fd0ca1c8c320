"""The executor of agents that live in one process: rows of the same arrays."""

from collections.abc import Callable
from typing import Any

import torch

from digrad.mixing import Network
from digrad.torch.mixing_order import as_message, combine, shares


class ReplicaNet:
    """All agents at once, mixed row by row in the order that a network of processes uses.

    Args:
        network: Graph and weights.
        needs: Of the method.
        dimension: Numbers per agent.
        message_dtype: The format of messages; by default that of the numbers.
        device: Where the rows are.
    """

    def __init__(
        self,
        network: Network,
        needs: frozenset[str],
        dimension: int,
        message_dtype: torch.dtype | None,
        device: torch.device,
    ) -> None:
        self._shares = [shares(network, needs, agent) for agent in range(network.n)]
        self._dimension, self._message_dtype = dimension, message_dtype
        self.one_hot = torch.eye(network.n, dtype=torch.float64, device=device)
        self.bytes_sent = 0

    def pull(self, x: Any) -> Any:
        """Mix with the row-stochastic R."""
        return _each(x, lambda part: self._mix("pull", part))

    def push(self, x: Any) -> Any:
        """Mix with the column-stochastic C."""
        return _each(x, lambda part: self._mix("push", part))

    def mix(self, x: Any) -> Any:
        """Mix with the doubly stochastic W."""
        return _each(x, lambda part: self._mix("mix", part))

    def mean(self, x: Any) -> Any:
        """Average over all agents, charged as a ring all-reduce."""
        return _each(x, self._mean)

    def _mix(self, verb: str, x: torch.Tensor) -> torch.Tensor:
        wire = as_message(x, self._dimension, self._message_dtype)
        rows = []
        for agent, by_verb in enumerate(self._shares):
            share, row = by_verb[verb], slice(agent, agent + 1)
            received = {sender: wire[sender : sender + 1] for sender, _ in share.senders if sender != agent}
            rows.append(combine(share, x[row], wire[row], received))
            self.bytes_sent += len(share.receivers) * wire[0].nbytes
        return torch.cat(rows)

    def _mean(self, x: torch.Tensor) -> torch.Tensor:
        self.bytes_sent += 2 * (len(x) - 1) * x[0].nbytes
        return x.mean(0, keepdim=True).expand_as(x).contiguous()


def _each(x: Any, apply: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    return tuple(apply(part) for part in x) if isinstance(x, tuple) else apply(x)
