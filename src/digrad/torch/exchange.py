"""One round of messages between an agent and its neighbours.

Receives are posted before sends and nothing blocks until the results are needed: gloo's ``send`` waits for
the receiver, so that blocking sends around a cycle never end. ``isend`` does not copy either: what is sent
must stay as it is until :meth:`Round.finish`.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from digrad.errors import CommunicationError
from digrad.torch.handshake import agents_text
from digrad.torch.mixing_order import Share
from digrad.torch.same_host import SameHost

FUSED = 1 << 16  # numbers; several short arrays are copied into one message, long ones travel as they are
TAGS = 1 << 16  # rounds are numbered modulo this, so that a message can only meet its own round

Messages = list[tuple[int, torch.Tensor]]  # (neighbour, numbers)
Works = list[tuple[int, Any]]  # (neighbour, what to wait for)


@dataclass
class Part:
    """One array of a round: who gets it, and what goes on the wire."""

    share: Share
    wire: torch.Tensor  # [1, width], in the format of the message
    received: dict[int, torch.Tensor] = field(default_factory=dict)  # [1, width] by sender


class Round:
    """Messages under way.

    Args:
        parts: The arrays, in the same order on every agent.
        joined: The flat memory in which the parts follow one another, if they do; a run of parts for the same
            receiver is then one message.
        group: Whose ranks are the agents.
        same_host: The neighbours whose memory can be read, if large messages are to be read there.
        buffers: Receive buffers to use again, by key.
        key: Of this round among the buffers.
        tag: Of the messages.
        batched: Post everything in one call, as NCCL needs it.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        joined: torch.Tensor | None,
        group: Any,
        same_host: SameHost | None,
        buffers: dict[Any, torch.Tensor],
        key: Any,
        tag: int,
        batched: bool,
    ) -> None:
        self.parts, self._joined, self._tag = parts, joined, tag % TAGS
        incoming = [
            (sender, self._inbox(run, sender, buffers, key)) for sender, run in self._runs(receiving=True)
        ]
        outgoing = [(receiver, self._outbox(run)) for receiver, run in self._runs(receiving=False)]
        self.bytes_sent = sum(message.nbytes for _, message in outgoing)
        self._receives: Works = []
        self._sends: Works = []
        if same_host:
            incoming, outgoing = self._post_direct(same_host, incoming, outgoing)
        post = _post_batch if batched else _post_each
        receives, sends = post(incoming, outgoing, group, self._tag)
        self._receives += receives
        self._sends += sends
        self.is_finished = False

    def finish(self, timeout: float, k: int) -> None:
        """Wait until everything has arrived and left.

        Raises:
            CommunicationError: A neighbour is silent for ``timeout`` seconds, or its connection is lost.
        """
        if self.is_finished:
            return
        deadline = time.monotonic() + timeout
        for verb, works in (("heard from", self._receives), ("taken by", self._sends)):
            for position, (peer, work) in enumerate(works):
                try:
                    done = work.wait(timedelta(seconds=max(deadline - time.monotonic(), 0.001)))
                except RuntimeError as error:
                    silent = sorted({peer, *(p for p, w in works[position + 1 :] if not _is_done(w))})
                    raise CommunicationError(_reason(error, verb, peer, silent, timeout, k)) from error
                if done is False:
                    raise CommunicationError(_reason(None, verb, peer, [peer], timeout, k))
        self.is_finished = True

    def _post_direct(
        self, same_host: SameHost, incoming: Messages, outgoing: Messages
    ) -> tuple[Messages, Messages]:
        """Post what is read from memory, and return the rest."""
        for sender, message in incoming:
            if same_host.receives(sender, message):
                self._receives.append((sender, same_host.receive(sender, message, self._tag)))
        for receiver, message in outgoing:
            if same_host.sends(receiver, message):
                try:
                    self._sends.append((receiver, same_host.send(receiver, message, self._tag)))
                except RuntimeError as error:
                    raise _connection_lost(error) from error
        return (
            [one for one in incoming if not same_host.receives(*one)],
            [one for one in outgoing if not same_host.sends(*one)],
        )

    def _runs(self, *, receiving: bool) -> list[tuple[int, list[int]]]:
        """Return ``(peer, parts)`` for every message, by peer and then by position."""
        peers = [
            {peer for peer, _ in (part.share.senders if receiving else part.share.receivers)}
            - {part.share.agent}
            for part in self.parts
        ]
        runs: list[tuple[int, list[int]]] = []
        for peer in sorted(set().union(*peers)):
            for position in (i for i, known in enumerate(peers) if peer in known):
                follows = runs and runs[-1][0] == peer and runs[-1][1][-1] == position - 1
                if follows and self._joined is not None:
                    runs[-1][1].append(position)
                else:
                    runs.append((peer, [position]))
        return runs

    def _inbox(self, run: list[int], sender: int, buffers: dict[Any, torch.Tensor], key: Any) -> torch.Tensor:
        widths = [self.parts[i].wire.shape[1] for i in run]
        like = self.parts[run[0]].wire
        name = (key, sender, tuple(run))
        if name not in buffers or buffers[name].numel() != sum(widths) or buffers[name].dtype != like.dtype:
            buffers[name] = like.new_empty(sum(widths))
        for i, piece in zip(run, buffers[name].split(widths), strict=True):
            self.parts[i].received[sender] = piece[None]
        return buffers[name]

    def _outbox(self, run: list[int]) -> torch.Tensor:
        if self._joined is None:
            return self.parts[run[0]].wire.reshape(-1)
        first = sum(self.parts[i].wire.shape[1] for i in range(run[0]))
        return self._joined[first : first + sum(self.parts[i].wire.shape[1] for i in run)]


def _post_each(incoming: Messages, outgoing: Messages, group: Any, tag: int) -> tuple[Works, Works]:
    try:
        receives = [(peer, dist.irecv(m, group=group, tag=tag, group_src=peer)) for peer, m in incoming]
        sends = [(peer, dist.isend(m, group=group, tag=tag, group_dst=peer)) for peer, m in outgoing]
    except RuntimeError as error:
        raise _connection_lost(error) from error
    return receives, sends


def _post_batch(incoming: Messages, outgoing: Messages, group: Any, tag: int) -> tuple[Works, Works]:
    ops = [dist.P2POp(dist.irecv, m, group=group, tag=tag, group_peer=peer) for peer, m in incoming]
    ops += [dist.P2POp(dist.isend, m, group=group, tag=tag, group_peer=peer) for peer, m in outgoing]
    works = dist.batch_isend_irecv(ops) if ops else []
    if len(works) != len(ops):  # NCCL returns one handle for the whole batch
        return [(ops[0].group_peer, work) for work in works], []
    both = [(op.group_peer, work) for op, work in zip(ops, works, strict=True)]
    return both[: len(incoming)], both[len(incoming) :]


def _connection_lost(error: RuntimeError) -> CommunicationError:
    return CommunicationError(
        f"a neighbour's connection is lost ({_first_line(error)}); start all agents again."
    )


def _reason(
    error: RuntimeError | None, verb: str, peer: int, silent: list[int], timeout: float, k: int
) -> str:
    text = _first_line(error) if error else ""
    timed_out = error is None or "imed out" in text or "imeout" in text
    if timed_out:
        return (
            f"step {k}: nothing was {verb} {agents_text(silent)} within {timeout:.1f} s; it is dead, stopped, "
            "slow or itself waiting: look at its log, raise `timeout` of ProcessNetwork if it is slow, and "
            "start all agents again."
        )
    return f"step {k}: the connection to agent {peer} is lost ({text}); start all agents again."


def _is_done(work: Any) -> bool:
    try:
        return work.is_completed()
    except RuntimeError:
        return False


def _first_line(error: RuntimeError) -> str:
    return str(error).strip().split("\n")[0][:200]
