"""How a message gets from one process to another: over gloo, as a batch over NCCL, or out of its memory."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from digrad.torch.same_host import SameHost

Messages = list[tuple[int, torch.Tensor]]  # (neighbour, numbers)
Works = list[tuple[int, Any]]  # (neighbour, what to wait for)


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
        same_host: The neighbours whose memory can be read, if large messages are to be read there.
        batched: Post everything in one call, as NCCL needs it.
    """

    group: Any
    same_host: SameHost | None = None
    batched: bool = False

    def post(self, incoming: Messages, outgoing: Messages, tag: int) -> tuple[Works, Works]:
        """Start to receive and to send, in this order; return what to wait for.

        Raises:
            PostingError: A connection is lost.
        """
        direct, memory = self.same_host, ([], [])
        if direct:
            memory = (
                [
                    (peer, direct.receive(peer, message, tag))
                    for peer, message in incoming
                    if direct.receives(peer, message)
                ],
                [
                    _posted(peer, direct.send, peer, message, tag)
                    for peer, message in outgoing
                    if direct.sends(peer, message)
                ],
            )
            incoming = [one for one in incoming if not direct.receives(*one)]
            outgoing = [one for one in outgoing if not direct.sends(*one)]
        post = self._post_batch if self.batched else self._post_each
        receives, sends = post(incoming, outgoing, tag)
        return memory[0] + receives, memory[1] + sends

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
