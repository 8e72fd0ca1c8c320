"""Where the agents of an optimizer live, and how a step of them is run: the interface of both torch engines."""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Protocol

import torch

from digrad.errors import NonFiniteError
from digrad.torch.process_network import ProcessNetwork
from digrad.types import Net

OWNER = "DecentralizedOptimizer"


class Executor(Net, Protocol):
    """The net that methods see, with what an optimizer asks of it."""

    k: int  # the iteration whose weights are used

    @property
    def bytes_sent(self) -> int:
        """Bytes that the agents of this process have sent so far."""
        ...

    def stored_links(self) -> dict[str, torch.Tensor]:
        """Return the state of the links, by name."""
        ...


class Runtime(Protocol):
    """The agents of one process, rows of the same arrays."""

    early: Sequence[tuple[str, str]]  # primitives and fields of the state that are sent ahead

    @property
    def net(self) -> Executor:
        """What methods see."""
        ...

    @property
    def shares_memory(self) -> bool:
        """Whether parameters may be views of the state itself."""
        ...

    def advance(self, method: Any, state: Any, grad: torch.Tensor) -> None:
        """Overwrite a state with the one after a step."""
        ...

    def publish(self, k: int, state: Any) -> None:
        """Begin iteration k: what is known of its messages may leave."""
        ...

    def gather(self, call: str) -> None:
        """Wait until all agents have come to ``call``; their states belong together until :meth:`release`."""
        ...

    def release(self) -> None:
        """Let the agents go on."""
        ...

    def go_to(self, k: int, links: Mapping[str, torch.Tensor]) -> None:
        """Make sure that the state may be overwritten, and that all agents go on at k with this state of the links."""
        ...

    def close(self) -> None:
        """Finish the messages under way."""
        ...

    def add_up(self, value: torch.Tensor, call: str) -> torch.Tensor:
        """Return the sum over all processes, in the memory of ``value``; ``call`` is what the user has called."""
        ...

    def fail(self, reason: str) -> NoReturn:
        """Raise :class:`~digrad.errors.NonFiniteError` on every agent."""
        ...


class ProcessRuntime:
    """The part of a runtime that both engines of one agent in its own process share.

    Args:
        network: The processes.
        net: What methods see.
    """

    shares_memory = True

    def __init__(self, network: ProcessNetwork, net: Any) -> None:
        self.net, self._network = net, network
        self.early: Sequence[tuple[str, str]] = ()

    def early_fields(self, state: Any) -> list[tuple[str, torch.Tensor]]:
        """Return what a method mixes before the gradient is known, by primitive."""
        return [(primitive, getattr(state, name)) for primitive, name in self.early]

    def add_up(self, value: torch.Tensor, call: str) -> torch.Tensor:
        """Return the sum over all agents, in the memory of ``value``."""
        return self._network.add_up(value, f"{OWNER}.{call}()")

    def fail(self, reason: str) -> NoReturn:
        """Raise here, and on every other agent in its next step or call."""
        self._network.fail(NonFiniteError(reason))


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
