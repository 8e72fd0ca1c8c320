"""One agent's part of a mixing, in a fixed order of operations.

Both torch engines call :func:`combine`, so that they agree to the last bit: the terms are added in ascending
order of the senders' numbers, the agent itself included. On the side where columns sum to one an agent keeps
what it did not send, ``x - sum(sent)``, which conserves the sum whatever rounding did to the messages.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from digrad.mixing import Mixing, Network

VERBS = {"row": "pull", "column": "push", "doubly": "mix"}  # what a need of a method is called on the net
CHUNK = 1 << 17  # numbers worked on at a time: they stay in the cache, and no large temporary is needed


@dataclass(frozen=True)
class Share:
    """What one agent hears and sends under one mixing matrix.

    Args:
        agent: Its number.
        senders: ``(agent, weight)`` of whom it hears, itself included, ascending.
        receivers: ``(agent, weight)`` of who hears it, itself left out, ascending.
        conserves: Whether it keeps what it did not send, instead of its own weight times x.
    """

    agent: int
    senders: tuple[tuple[int, float], ...]
    receivers: tuple[tuple[int, float], ...]
    conserves: bool


def shares(network: Network, needs: frozenset[str], agent: int) -> dict[str, Share]:
    """Return the part of ``agent`` in each mixing that a method needs, by verb."""
    matrices = {"row": lambda: network.R, "column": lambda: network.C, "doubly": lambda: network.W}
    return {VERBS[need]: _share(matrices[need](), agent, need != "row") for need in VERBS if need in needs}


def _share(mixing: Mixing, agent: int, conserves: bool) -> Share:
    row = mixing.matrix[[agent], :].tocoo()
    column = mixing.matrix[:, [agent]].tocoo()
    senders = sorted(zip(row.coords[1].tolist(), row.data.tolist(), strict=True))
    receivers = sorted(zip(column.coords[0].tolist(), column.data.tolist(), strict=True))
    others = tuple((other, weight) for other, weight in receivers if other != agent)
    return Share(agent, tuple(senders), others, conserves)


def combine(
    share: Share, own: torch.Tensor, sent: torch.Tensor, received: Mapping[int, torch.Tensor]
) -> torch.Tensor:
    """Return the mixed row of one agent.

    Args:
        share: Its part of the mixing.
        own: ``[1, d]``, its own row.
        sent: ``[1, d]``, what the others received of it: ``own``, or its rounded form.
        received: ``[1, d]`` of each sender other than itself.
    """
    mixed = torch.empty_like(own, memory_format=torch.contiguous_format)
    scratch = own.new_empty(2, min(CHUNK, own.shape[1]))
    for out, own_piece, sent_piece, theirs in zip(
        pieces(mixed), pieces(own), pieces(sent), received_pieces(received, own), strict=True
    ):
        combine_piece(share, own_piece, sent_piece, theirs, scratch, out)
    return mixed


def pieces(row: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return a row ``[1, d]`` as the views that it is worked on in, each ``[CHUNK]`` or shorter."""
    return row[0].split(CHUNK)


def received_pieces(
    received: Mapping[int, torch.Tensor], like: torch.Tensor
) -> list[dict[int, torch.Tensor]]:
    """Return what was received, by sender, for every piece of ``like``."""
    by_sender = {sender: pieces(row) for sender, row in received.items()}
    count = -(-like.shape[1] // CHUNK)
    return [{sender: parts[i] for sender, parts in by_sender.items()} for i in range(count)]


def combine_piece(
    share: Share,
    own: torch.Tensor,
    sent: torch.Tensor,
    received: Mapping[int, torch.Tensor],
    scratch: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Write a mixed piece to ``out``, which may not overlap ``own``; ``scratch`` has room for two pieces."""
    term, spare = scratch[0, : out.shape[0]], scratch[1, : out.shape[0]]
    for position, (sender, weight) in enumerate(share.senders):
        target = spare if position else out  # the first term is the sum so far
        if sender == share.agent:
            _keep(share, weight, own, sent, term, target)
        else:
            _weigh(received[sender], weight, target)
        if position:
            out.add_(target)


def _keep(
    share: Share,
    weight: float,
    own: torch.Tensor,
    sent: torch.Tensor,
    term: torch.Tensor,
    kept: torch.Tensor,
) -> None:
    if not share.conserves:
        torch.mul(own, weight, out=kept)
        return
    kept.copy_(own)
    for _, sent_weight in share.receivers:
        _weigh(sent, sent_weight, term)
        kept.sub_(term)


def _weigh(values: torch.Tensor, weight: float, out: torch.Tensor) -> None:
    # A product with a short message would be rounded to its format: widen it first.
    if values.dtype == out.dtype:
        torch.mul(values, weight, out=out)
    else:
        out.copy_(values).mul_(weight)
