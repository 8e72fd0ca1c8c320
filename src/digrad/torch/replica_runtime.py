"""All agents in this process: nothing is sent, and nobody else has to agree."""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch

from digrad.errors import NonFiniteError
from digrad.torch.fated_net import FatedNet, keep_sleepers
from digrad.torch.replica_net import ReplicaNet
from digrad.torch.runtime import overwrite


class ReplicaRuntime:
    """The runtime of :class:`~digrad.torch.Replicas`; see :class:`~digrad.torch.runtime.Runtime`.

    Args:
        net: The executor.
    """

    between_steps = None
    shares_memory = False  # the rows of the parameters are aligned, those of the state are not

    def __init__(self, net: ReplicaNet | FatedNet) -> None:
        self.net = net

    def lay_out(self, state: Any, early: Sequence[tuple[str, str]]) -> Any:
        """Return a copy of a state."""
        return type(state)(*(value.clone(memory_format=torch.contiguous_format) for value in state))

    def advance(self, method: Any, state: Any, grad: torch.Tensor) -> None:
        """Overwrite a state with the one after a step."""
        self.net.begin_step()
        after = method.step(state, grad, self.net)
        if isinstance(self.net, ReplicaNet):
            overwrite(state, after)
        else:
            overwrite(state, keep_sleepers(state, after, self.net))
            self.net.let_go_and_come(self.net.k + 1, state)
        self.net.end_step()

    def publish(self, k: int, state: Any) -> None:
        """Begin iteration k."""
        self.net.k = k

    def gather(self, call: str) -> None:
        """Do nothing: all agents are here."""

    def release(self) -> None:
        """Do nothing."""

    def go_to(self, k: int, links: Mapping[str, torch.Tensor]) -> None:
        """Go on at k with another state of the links."""
        self.net.load_links(links)
        self.net.k = k

    def close(self) -> None:
        """Wait for nothing."""

    def add_up(self, value: torch.Tensor, call: str) -> torch.Tensor:
        """Return the sum over all processes: there is one."""
        return value

    def fail(self, reason: str) -> NoReturn:
        """Raise."""
        raise NonFiniteError(reason)
