"""Replicas where a network of processes is expected: nobody else has to agree."""

from dataclasses import dataclass
from typing import Any

from digrad.network import AnyNetwork

ALL = "all"  # stands for the number of the agent where one process has all of them


@dataclass(frozen=True)
class SingleProcess:
    """The one process of replicas, with the part of the interface of a ``ProcessNetwork`` that checkpoints need.

    Args:
        network: Graph and weights.
    """

    network: AnyNetwork
    agent: str = ALL

    @property
    def n(self) -> int:
        """Number of agents."""
        return self.network.n

    @property
    def coordination(self) -> "SingleProcess":
        """What asks the others."""
        return self

    def exchange(self, facts: dict[str, Any], purpose: str) -> list[dict[str, Any]]:
        """Return the facts of every process."""
        return [facts]

    def leave_together(self) -> None:
        """Wait for nobody."""
