"""The executor of agents that live in one process: rows of the same arrays."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from digrad.mixing import Network
from digrad.torch.mixing_order import combine, shares
from digrad.torch.rounding import decode, encode, is_shortened, needs_reference, rounded


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
        self._dimension, self.message_dtype = dimension, message_dtype
        self.one_hot = torch.eye(network.n, dtype=torch.float64, device=device)
        self.bytes_sent = 0
        self._references: dict[str, torch.Tensor] = {}  # [n, d] by the array's place among those of a step
        self._place: int | None = None  # none outside of a step: nothing is rounded then

    @property
    def references(self) -> dict[str, torch.Tensor]:
        """What rounded messages refer to, by name: state, like that of the method."""
        return dict(self._references)

    def set_references(self, references: Mapping[str, torch.Tensor]) -> None:
        """Go on from other references; from none, the next messages travel in full."""
        self._references = {name: value.clone() for name, value in references.items()}
        self._place = None

    def begin_step(self) -> None:
        """Count the arrays of a step from the first."""
        self._place = 0

    def pull(self, x: Any) -> Any:
        """Mix with the row-stochastic R."""
        return self._mix_all("pull", x)

    def push(self, x: Any) -> Any:
        """Mix with the column-stochastic C."""
        return self._mix_all("push", x)

    def mix(self, x: Any) -> Any:
        """Mix with the doubly stochastic W."""
        return self._mix_all("mix", x)

    def mean(self, x: Any) -> Any:
        """Average over all agents, charged as a ring all-reduce."""
        return _each(x, self._mean)

    def _mix_all(self, verb: str, x: Any) -> Any:
        refers = needs_reference(verb, is_pair=isinstance(x, tuple))
        return _each(x, lambda part: self._mix(verb, part, refers=refers))

    def _mix(self, verb: str, x: torch.Tensor, *, refers: bool) -> torch.Tensor:
        wire, sent = self._send(x, refers=refers)
        rows = []
        for agent, by_verb in enumerate(self._shares):
            share, row = by_verb[verb], slice(agent, agent + 1)
            received = {sender: sent[sender : sender + 1] for sender, _ in share.senders if sender != agent}
            rows.append(combine(share, x[row], sent[row], received))
            self.bytes_sent += len(share.receivers) * wire[0].nbytes
        return torch.cat(rows)

    def _send(self, x: torch.Tensor, *, refers: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the messages, and the rows that their receivers make of them."""
        dtype = self.message_dtype
        if self._place is None or dtype is None or not is_shortened(x, self._dimension, dtype):
            return x, x.contiguous()
        if not refers:
            message = rounded(x, dtype)
            return message, message
        name = str(self._place)
        self._place += 1
        message = encode(x, self._references.get(name), dtype)
        self._references[name] = decode(message, self._references.get(name))
        return message, self._references[name]

    def _mean(self, x: torch.Tensor) -> torch.Tensor:
        self.bytes_sent += 2 * (len(x) - 1) * x[0].nbytes
        return x.mean(0, keepdim=True).expand_as(x).contiguous()


def _each(x: Any, apply: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    return tuple(apply(part) for part in x) if isinstance(x, tuple) else apply(x)
