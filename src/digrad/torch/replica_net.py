"""The executor of agents that live in one process: rows of the same arrays."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from digrad.core.net import Verbs
from digrad.core.traffic import all_reduce_messages
from digrad.links.seam import keeps_reference
from digrad.network import AnyNetwork
from digrad.torch.link_state import LinkState, Word, plain_link
from digrad.torch.mixing_order import Share, Turns, combine


class ReplicaNet(Verbs):
    """All agents at once, mixed row by row in the order that a network of processes uses.

    Args:
        network: Graph and weights, constant or not.
        letters: The matrix behind each verb of the method.
        dimension: Numbers per agent.
        device: Where the rows are.
    """

    def __init__(
        self, network: AnyNetwork, letters: Mapping[str, str], dimension: int, device: torch.device
    ) -> None:
        self._turns = Turns(network, letters)
        self._links = LinkState(plain_link(network), dimension)
        self._n, self._device = network.n, device
        self.k = self.bytes_sent = 0
        self._place: int | None = (
            None  # among the arrays of a step; none outside: messages arrive as they are
        )

    @cached_property
    def one_hot(self) -> torch.Tensor:
        """The identity, made for methods that ask for it: row i is agent i."""
        return torch.eye(self._n, dtype=torch.float64, device=self._device)

    def stored_links(self) -> dict[str, torch.Tensor]:
        """Return the state of the links, by name."""
        return self._links.stored()

    def load_links(self, stored: Mapping[str, torch.Tensor]) -> None:
        """Go on from another state of the links."""
        self._links.load(stored)

    def begin_step(self) -> None:
        """Count the arrays of a step from the first."""
        self._place = 0

    def end_step(self) -> None:
        """Note what has been heard."""
        self._place = None
        self._links.end_step(self._turns.at(self.k))

    def mean(self, x: Any) -> Any:
        """Average over all agents, charged as a ring all-reduce."""
        return _each(x, self._mean)

    def _exchange(self, verb: str, x: Any) -> Any:
        refers = keeps_reference(verb, is_alone=not isinstance(x, tuple))
        return _each(x, lambda part: self._mix(verb, part, refers=refers))

    def _mix(self, verb: str, x: torch.Tensor, *, refers: bool) -> torch.Tensor:
        shares = self._turns.at(self.k)[verb]
        wire, sent = self._send(x, shares, refers=refers)
        short, full = wire[0].nbytes, sent[0].nbytes
        rows = []
        for agent, share in enumerate(shares):
            row = slice(agent, agent + 1)
            received = {sender: sent[sender : sender + 1] for sender, _ in share.senders if sender != agent}
            rows.append(combine(share, x[row], sent[row], received))
            self.bytes_sent += sum(
                full if refers and not self._links.knows(verb, agent, receiver) else short
                for receiver, _ in share.receivers
            )
        return torch.cat(rows)

    def _send(self, x: torch.Tensor, shares: Sequence[Share], *, refers: bool) -> Word:
        if self._place is None or not self._links.changes(x):
            return Word(x, x.contiguous())
        if not refers:
            return self._links.say(x, None)
        name = str(self._place)
        self._place += 1
        word = self._links.say(x, name)
        self._links.hold(name, word.said, [bool(share.receivers) for share in shares])
        return word

    def _mean(self, x: torch.Tensor) -> torch.Tensor:
        self.bytes_sent += all_reduce_messages(len(x)) * x[0].nbytes
        return x.mean(0, keepdim=True).expand_as(x).contiguous()


def _each(x: Any, apply: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    return tuple(apply(part) for part in x) if isinstance(x, tuple) else apply(x)
