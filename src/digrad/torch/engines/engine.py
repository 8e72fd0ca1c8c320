"""Interface of the engines, which run a step of the agents of one process."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from digrad.torch.engines.compression import LinkArrays
from digrad.types import Net, Shapes

OWNER = "DecentralizedOptimizer"


class Engine(Net, Protocol):
    """Agents of one process, rows of the same arrays: the net that methods see, and what an optimizer asks of it."""

    shapes: Shapes | None  # of the parameters in a row
    k: int  # the iteration whose weights are used

    @property
    def bytes_sent(self) -> int:
        """Bytes that the agents of this process have sent so far."""
        ...

    def stored_links(self) -> LinkArrays:
        """Return the state of the links."""
        ...

    def advance(self, method: Any, state: Any, grad: torch.Tensor) -> None:
        """Overwrite a state with the one after a step."""
        ...

    def publish(self, k: int, early: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Begin iteration k: what it mixes before the gradient is known, fields of the state, may leave."""
        ...

    def gather(self, call: str) -> bool:
        """Wait until all agents have come to ``call``; their states belong together until :meth:`release`.

        Returns:
            Whether the state has changed meanwhile.
        """
        ...

    def release(self) -> None:
        """Let the agents go on."""
        ...

    def go_to(self, k: int, links: LinkArrays) -> None:
        """Make sure that the state may be overwritten, and that all agents go on at k with this state of the links."""
        ...

    def close(self) -> None:
        """Finish the messages under way."""
        ...


class InOneProcess:
    """Part of the engines of replicas, which wait for nobody."""

    k: int
    load_links: Callable[[LinkArrays], None]

    def publish(self, k: int, early: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Begin iteration k."""
        self.k = k

    def gather(self, call: str) -> bool:
        """Do nothing: all agents are here."""
        return False

    def release(self) -> None:
        """Do nothing."""

    def go_to(self, k: int, links: LinkArrays) -> None:
        """Go on at k with another state of the links."""
        self.load_links(links)
        self.k = k

    def close(self) -> None:
        """Wait for nothing."""


def overwrite(state: Any, after: Any) -> None:
    """Copy the arrays of a state into those of another one; a field may become what another field was."""
    old = {kept.untyped_storage().data_ptr() for kept in state}
    moved = [
        value.clone() if kept is not value and value.untyped_storage().data_ptr() in old else value
        for kept, value in zip(state, after, strict=True)
    ]
    for kept, value in zip(state, moved, strict=True):
        if kept is not value:
            kept.copy_(value)
