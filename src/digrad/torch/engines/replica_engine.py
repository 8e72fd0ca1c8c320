"""The engine of agents that all live in this process: rows of the same arrays, nothing is sent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NoReturn

import torch

from digrad.core.net import Sent, arrays_sent
from digrad.core.traffic import all_reduce_messages
from digrad.errors import DigradError
from digrad.network import Network
from digrad.torch.engines.compression import CompressedNet
from digrad.torch.engines.engine import InOneProcess, overwrite
from digrad.torch.engines.mixing import Share, combine

ALL = "all"  # stands for the number of the agent where one process has all of them


class ReplicaEngine(InOneProcess, CompressedNet):
    """All agents at once, mixed row by row in the order that a network of processes uses.

    Args:
        network: Graph and weights, constant or not, with links that at most compress.
        matrices: The matrix behind each primitive of the method.
        dimension: Numbers per agent.
        device: Where the rows are.
    """

    def __init__(
        self, network: Network, matrices: Mapping[str, str], dimension: int, device: torch.device
    ) -> None:
        super().__init__(network, matrices, dimension)
        self._n, self._device = network.n, device
        self.bytes_sent = 0

    @cached_property
    def one_hot(self) -> torch.Tensor:
        """The identity, made for methods that ask for it: row i is agent i."""
        return torch.eye(self._n, dtype=torch.float64, device=self._device)

    def advance(self, method: Any, state: Any, grad: torch.Tensor) -> None:
        """Overwrite a state with the one after a step."""
        self.begin_step()
        overwrite(state, method.step(state, grad, self))
        self.end_step()

    def mean(self, x: Any) -> Any:
        """Average over all agents, charged as a ring all-reduce."""
        if isinstance(x, tuple):
            return tuple(self.mean(part) for part in x)
        self.bytes_sent += all_reduce_messages(len(x)) * x[0].nbytes
        return x.mean(0, keepdim=True).expand_as(x).contiguous()

    def _exchange(self, primitive: str, x: Any) -> Any:
        mixed = tuple(self._mix(primitive, sent) for sent in arrays_sent(primitive, x))
        return mixed if isinstance(x, tuple) else mixed[0]

    def _mix(self, primitive: str, sent: Sent) -> torch.Tensor:
        x, compression, shares = sent.array, self._compression, self._shares(primitive, sent)
        key, refers = self._next_key("reference"), sent.keeps_reference(primitive)
        if key is None or not compression.applies(sent):
            return self._combined(shares, x, x, [x[0].nbytes] * len(x), full_for=None)
        keys = [key._replace(agent=agent) if refers else None for agent in range(len(x))]
        values = torch.cat([compression.value(x[i : i + 1], own) for i, own in enumerate(keys)])
        for agent, own in enumerate(keys):
            if own is not None:
                value = values[agent : agent + 1]
                compression.keep(own, value, sends=bool(shares[agent].receivers))
        sizes = [compression.size(row) for row in x]
        return self._combined(shares, x, values, sizes, full_for=primitive if refers else None)

    def _combined(
        self,
        shares: Sequence[Share],
        x: torch.Tensor,
        sent: torch.Tensor,
        sizes: Sequence[int],
        full_for: str | None,
    ) -> torch.Tensor:
        mixed = torch.empty_like(x, memory_format=torch.contiguous_format)
        for agent, share in enumerate(shares):
            row = slice(agent, agent + 1)
            received = {sender: sent[sender : sender + 1] for sender, _ in share.senders if sender != agent}
            combine(share, x[row], sent[row], received, mixed[row])
            self.bytes_sent += sum(
                x[agent].nbytes
                if full_for is not None and not self._compression.has_reference(full_for, agent, receiver)
                else sizes[agent]
                for receiver, _ in share.receivers
            )
        return mixed


@dataclass(frozen=True)
class SingleProcess:
    """The one process of replicas, with the part of the interface of a ``ProcessNetwork`` that optimizers need.

    Args:
        network: Graph and weights.
    """

    network: Network
    agent: str = ALL

    @property
    def n(self) -> int:
        """Number of agents."""
        return self.network.n

    @property
    def coordination(self) -> "SingleProcess":
        """Coordination with the other agents."""
        return self

    def exchange(self, facts: dict[str, Any], purpose: str) -> list[dict[str, Any]]:
        """Return the facts of every process."""
        return [facts]

    def add_up(self, values: torch.Tensor, call: str) -> torch.Tensor:
        """Return the sum over all processes."""
        return values

    def fail(self, error: DigradError) -> NoReturn:
        """Raise ``error``."""
        raise error

    def leave_together(self) -> None:
        """Wait for nobody."""
