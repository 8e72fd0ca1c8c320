"""One agent's part of a mixing, in a fixed order of operations.

All engines but that of emulated loss call :func:`combine`, so that they agree to the last bit: the terms are added in
ascending order of the senders' numbers, the agent itself included. On the side where columns sum to one an agent keeps
what it did not send, ``x - sum(sent)``, which conserves the sum whatever rounding did to the messages.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from digrad.network import Mixing, Network

PIECE = 1 << 17  # numbers worked on at a time: they stay in the cache, and no large temporary is needed


@dataclass(frozen=True)
class Share:
    """Weights of what one agent receives and sends under one mixing matrix.

    Args:
        agent: Its number.
        senders: ``(agent, weight)`` of its in-neighbours, itself included, ascending.
        receivers: ``(agent, weight)`` of its out-neighbours, itself left out, ascending.
        conserves: Whether it keeps what it did not send, instead of its own weight times x.
    """

    agent: int
    senders: tuple[tuple[int, float], ...]
    receivers: tuple[tuple[int, float], ...]
    conserves: bool


class ShareSchedule:
    """Every agent's part in the mixings of a method, iteration by iteration.

    Args:
        network: Graph and weights, constant or not.
        matrices: The matrix ``R``, ``C`` or ``W`` behind each primitive.
    """

    def __init__(self, network: Network, matrices: Mapping[str, str]) -> None:
        self._network, self._matrices = network, matrices
        self._known: dict[tuple[int, float], dict[str, tuple[Share, ...]]] = {}

    def at(self, k: int, damping: float = 1.0) -> dict[str, tuple[Share, ...]]:
        """Return the shares of all agents at iteration k, by primitive; ``damping`` times as much is sent."""
        period = self._network.period
        phase = k if period is None else k % period
        if (phase, damping) not in self._known:
            if period is None:  # earlier ones never come back
                self._known = {key: one for key, one in self._known.items() if key[0] == phase}
            network = self._network.at(phase)
            self._known[phase, damping] = {
                primitive: shares(getattr(network, matrix), conserves=matrix != "R", damping=damping)
                for primitive, matrix in self._matrices.items()
            }
        return self._known[phase, damping]


def shares(mixing: Mixing, *, conserves: bool, damping: float = 1.0) -> tuple[Share, ...]:
    """Return the part of every agent in one mixing, of which others get ``damping`` times as much."""
    entries = mixing.matrix.tocoo()
    senders: list[list[tuple[int, float]]] = [[] for _ in range(mixing.n)]
    receivers: list[list[tuple[int, float]]] = [[] for _ in range(mixing.n)]
    ends = (end.tolist() for end in entries.coords)
    own = mixing.matrix.diagonal()
    absent = [(i, i, 0.0) for i in range(mixing.n) if own[i] == 0]  # every agent has a share of its own
    for receiver, sender, weight in sorted([*zip(*ends, entries.data.tolist(), strict=True), *absent]):
        weight = weight if sender == receiver else damping * weight
        senders[receiver].append((sender, weight))
        if sender != receiver:
            receivers[sender].append((receiver, weight))
    return tuple(
        Share(agent, tuple(senders[agent]), tuple(receivers[agent]), conserves) for agent in range(mixing.n)
    )


def combine(
    share: Share,
    own: torch.Tensor,
    sent: torch.Tensor,
    received: Mapping[int, torch.Tensor],
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the mixed row of one agent.

    Args:
        share: Its part of the mixing.
        own: ``[1, d]``, its own row.
        sent: ``[1, d]``, what the others received of it: ``own``, or its rounded form.
        received: ``[1, d]`` of each sender other than itself.
        out: Memory of the result, which may not overlap the others; by default it is new.
    """
    mixed = torch.empty_like(own, memory_format=torch.contiguous_format) if out is None else out
    scratch = own.new_empty(2, min(PIECE, own.shape[1]))
    for begin in range(0, own.shape[1], PIECE):
        piece = slice(begin, begin + PIECE)
        theirs = {sender: row[0, piece] for sender, row in received.items()}
        _combine_piece(share, own[0, piece], sent[0, piece], theirs, scratch, mixed[0, piece])
    return mixed


def _combine_piece(
    share: Share,
    own: torch.Tensor,
    sent: torch.Tensor,
    received: Mapping[int, torch.Tensor],
    scratch: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Write a mixed piece ``[PIECE]`` or shorter to ``out``; ``scratch`` has room for two."""
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
