"""How a message gets from one process to another: over a link, through memory, over gloo, or in a batch over NCCL."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist

Messages = list[tuple[int, torch.Tensor]]  # (neighbour, numbers)
Works = list[tuple[int, Any]]  # (neighbour, what to wait for)


class Carrier(Protocol):
    """Something that carries some of the messages."""

    def receives(self, sender: int, message: torch.Tensor) -> bool:
        """Return whether it is the one for a message of ``sender``."""
        ...

    def sends(self, receiver: int, message: torch.Tensor) -> bool:
        """Return whether it is the one for a message to ``receiver``; both ends must find the same."""
        ...

    def inbox(self, sender: int, like: torch.Tensor) -> torch.Tensor:
        """Return memory like ``like`` for messages of ``sender``."""
        ...

    def receive(self, sender: int, message: torch.Tensor, tag: int, k: int) -> Any:
        """Start to receive into ``message``; return what to wait for."""
        ...

    def send(self, receiver: int, message: torch.Tensor, tag: int, k: int) -> Any:
        """Start to send ``message``; return what to wait for."""
        ...

    def keep_waiting(self) -> None:
        """Tell others that this agent waits itself, for something that makes progress."""
        ...


class PostingError(RuntimeError):
    """A message could not even be posted.

    Args:
        peer: The neighbour; none if NCCL refused a whole batch.
        error: Why.
    """

    def __init__(self, peer: int | None, error: RuntimeError) -> None:
        super().__init__(str(error))
        self.peer = peer


@dataclass
class Route:
    """What carries the messages of an agent.

    Args:
        group: A process group whose ranks are the agents.
        carriers: What takes messages before torch does, in this order.
        batched: Post everything in one call, as NCCL needs it.
    """

    group: Any
    carriers: Sequence[Carrier] = ()
    batched: bool = False

    def inbox(self, sender: int, like: torch.Tensor) -> torch.Tensor:
        """Return memory like ``like``, flat, to receive messages of ``sender`` into."""
        carrier = next((one for one in self.carriers if one.receives(sender, like)), None)
        return like if carrier is None else carrier.inbox(sender, like)

    def post(self, incoming: Messages, outgoing: Messages, tag: int, k: int) -> tuple[Works, Works]:
        """Start to receive and to send, in this order; return what to wait for.

        Raises:
            PostingError: A connection is lost.
        """
        receives: Works = []
        sends: Works = []
        for carrier in self.carriers:
            receives += [
                (peer, carrier.receive(peer, message, tag, k))
                for peer, message in incoming
                if carrier.receives(peer, message)
            ]
            sends += [
                _posted(peer, carrier.send, peer, message, tag, k)
                for peer, message in outgoing
                if carrier.sends(peer, message)
            ]
            incoming = [one for one in incoming if not carrier.receives(*one)]
            outgoing = [one for one in outgoing if not carrier.sends(*one)]
        post = self._post_batch if self.batched else self._post_each
        others = post(incoming, outgoing, tag)
        return receives + others[0], sends + others[1]

    def wait(self, work: Any, deadline: float, patience: float) -> bool:
        """Wait for a message until the deadline, and as long as it makes progress within ``patience`` seconds.

        Raises:
            RuntimeError: It is lost, or gloo has waited in vain.
        """
        if not hasattr(work, "last_progress"):  # gloo closes the connection when a wait ends without success
            return work.wait(timedelta(seconds=max(deadline - time.monotonic(), 0.001))) is not False
        while True:
            began = time.monotonic()
            until = max(deadline, work.last_progress + patience)
            if work.wait(timedelta(seconds=max(min(until - began, patience / 4), 0.001))):
                return True
            if time.monotonic() >= max(deadline, work.last_progress + patience):
                return False
            if work.last_progress > began:
                for carrier in self.carriers:
                    carrier.keep_waiting()

    def _post_each(self, incoming: Messages, outgoing: Messages, tag: int) -> tuple[Works, Works]:
        options = {"group": self.group, "tag": tag}
        return (
            [_posted(peer, dist.irecv, message, **options, group_src=peer) for peer, message in incoming],
            [_posted(peer, dist.isend, message, **options, group_dst=peer) for peer, message in outgoing],
        )

    def _post_batch(self, incoming: Messages, outgoing: Messages, tag: int) -> tuple[Works, Works]:
        options = {"group": self.group, "tag": tag}
        ops = [dist.P2POp(dist.irecv, message, **options, group_peer=peer) for peer, message in incoming]
        ops += [dist.P2POp(dist.isend, message, **options, group_peer=peer) for peer, message in outgoing]
        try:
            works = dist.batch_isend_irecv(ops) if ops else []
        except RuntimeError as error:
            raise PostingError(None, error) from error
        if len(works) != len(ops):  # NCCL returns one handle for the whole batch
            return [(ops[0].group_peer, work) for work in works], []
        both = [(op.group_peer, work) for op, work in zip(ops, works, strict=True)]
        return both[: len(incoming)], both[len(incoming) :]


def _posted(peer: int, post: Callable[..., Any], *args: Any, **options: Any) -> tuple[int, Any]:
    try:
        return peer, post(*args, **options)
    except RuntimeError as error:
        raise PostingError(peer, error) from error
