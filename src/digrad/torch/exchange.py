"""One round of messages between an agent and its neighbours.

Receives are posted before sends and nothing blocks until the results are needed: gloo's ``send`` waits for
the receiver, so that blocking sends around a cycle never end. ``isend`` does not copy either: what is sent
must stay as it is until :meth:`Round.finish`.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from digrad.errors import CommunicationError
from digrad.torch.mixing_order import Share
from digrad.torch.reasons import agents_text, first_line, is_timeout
from digrad.torch.route import PostingError, Route

FUSED = 1 << 16  # numbers; several short arrays are copied into one message, long ones travel as they are
TAGS = 1 << 16  # rounds are numbered modulo this, so that a message can only meet its own round


@dataclass
class Part:
    """One array of a round: who gets it, and what goes on the wire.

    Args:
        share: This agent's part of the mixing.
        wire: ``[1, width]``, in the format of the message.
        received: ``[1, width]`` of each sender.
        said: ``[1, width]``, what a coded wire stands for.
        name: Of the reference that a coded wire changes, if it is a change.
        full_receivers: Who does not know the reference, and is sent ``said`` instead of the wire.
        full_senders: Whose reference this agent does not know, so that they send in full.
    """

    share: Share
    wire: torch.Tensor
    received: dict[int, torch.Tensor] = field(default_factory=dict)
    said: torch.Tensor | None = None
    name: str | None = None
    full_receivers: frozenset[int] = frozenset()
    full_senders: frozenset[int] = frozenset()

    def message(self, peer: int, *, receiving: bool) -> torch.Tensor:
        """Return what travels to a neighbour, or something like what comes from it."""
        in_full = self.full_senders if receiving else self.full_receivers
        return self.said if self.said is not None and peer in in_full else self.wire


class Round:
    """Messages under way.

    Args:
        parts: The arrays, in the same order on every agent.
        joined: The flat memory in which the parts follow one another, if they do; a run of parts for the same
            receiver is then one message.
        route: What carries the messages.
        buffers: Receive buffers to use again, by key.
        key: Of this round among the buffers.
        tag: Of the messages.
        k: The step, for messages.

    Raises:
        CommunicationError: A connection is lost.
    """

    def __init__(
        self,
        parts: list[Part],
        joined: torch.Tensor | None,
        route: Route,
        buffers: dict[Any, torch.Tensor],
        *,
        key: Any,
        tag: int,
        k: int,
    ) -> None:
        self.parts, self._joined, self._k, self._route = parts, joined, k, route
        incoming = [
            (sender, self._inbox(run, sender, buffers, key)) for sender, run in self._runs(receiving=True)
        ]
        outgoing = [(receiver, self._outbox(run, receiver)) for receiver, run in self._runs(receiving=False)]
        self.bytes_sent = sum(message.nbytes for _, message in outgoing)
        try:
            self._receives, self._sends = route.post(incoming, outgoing, tag % TAGS, k)
        except PostingError as error:
            raise CommunicationError(self._lost(error.peer, error)) from error
        self.is_finished = False

    def finish(
        self,
        timeout: float,
        waiting_for: Callable[[list[int], Any], AbstractContextManager[None]] | None = None,
    ) -> None:
        """Wait until everything has arrived and left.

        Args:
            timeout: Seconds.
            waiting_for: Is told whom each wait is for, and what.

        Raises:
            CommunicationError: A neighbour is silent for ``timeout`` seconds, or its connection is lost.
        """
        if self.is_finished:
            return
        deadline = time.monotonic() + timeout
        for verb, works in (("heard from", self._receives), ("taken by", self._sends)):
            for position, (peer, work) in enumerate(works):
                try:
                    with waiting_for([peer], work) if waiting_for else nullcontext():
                        done = self._route.wait(work, deadline, timeout)
                except RuntimeError as error:
                    if not is_timeout(error):
                        raise CommunicationError(self._lost(peer, error)) from error
                    done = False
                if not done:
                    waiting = sorted({peer, *(p for p, w in works[position + 1 :] if not _is_done(w))})
                    raise CommunicationError(self._silent(verb, waiting, timeout))
        self.is_finished = True

    def _silent(self, verb: str, silent: list[int], timeout: float) -> str:
        return (
            f"step {self._k}: nothing was {verb} {agents_text(silent)} within {timeout:.1f} s; it is dead, stopped, "
            "slow or itself waiting: look at its log, raise `timeout` of ProcessNetwork if it is slow, and "
            "start all agents again."
        )

    def _lost(self, peer: int | None, error: RuntimeError) -> str:
        who = "a neighbour" if peer is None else f"agent {peer}"
        return (
            f"step {self._k}: the connection to {who} is lost ({first_line(error)}); start all agents again."
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
            is_joined = [
                self._joined is not None and part.message(peer, receiving=receiving) is part.wire
                for part in self.parts
            ]
            for position in (i for i, known in enumerate(peers) if peer in known):
                follows = runs and runs[-1][0] == peer and runs[-1][1][-1] == position - 1
                if follows and is_joined[position] and is_joined[position - 1]:
                    runs[-1][1].append(position)
                else:
                    runs.append((peer, [position]))
        return runs

    def _inbox(self, run: list[int], sender: int, buffers: dict[Any, torch.Tensor], key: Any) -> torch.Tensor:
        widths = [self.parts[i].wire.shape[1] for i in run]
        like = self.parts[run[0]].message(sender, receiving=True)
        name = (key, sender, tuple(run))
        if name not in buffers or buffers[name].numel() != sum(widths) or buffers[name].dtype != like.dtype:
            buffers[name] = self._route.inbox(sender, like.new_empty(sum(widths)))
        for i, piece in zip(run, buffers[name].split(widths), strict=True):
            self.parts[i].received[sender] = piece[None]
        return buffers[name]

    def _outbox(self, run: list[int], receiver: int) -> torch.Tensor:
        message = self.parts[run[0]].message(receiver, receiving=False)
        if self._joined is None or message is not self.parts[run[0]].wire:
            return message.reshape(-1)
        first = sum(self.parts[i].wire.shape[1] for i in range(run[0]))
        return self._joined[first : first + sum(self.parts[i].wire.shape[1] for i in run)]


def _is_done(work: Any) -> bool:
    try:
        return work.is_completed()
    except RuntimeError:
        return False
