"""A step of CGT in place: the numbers of :meth:`digrad.CGT.step` to the last bit, without large temporaries.

A fresh array of the size of a model costs more in page faults than in arithmetic. Here every row is worked on
in pieces that stay in the cache, and the received messages serve as scratch memory once they are consumed.
"""

from itertools import repeat
from typing import Any

import torch

from digrad.arrays import maximum, shrinkage
from digrad.methods import CGT
from digrad.torch.exchange import Part
from digrad.torch.mixing_order import PIECE, combine_piece, pieces, received_pieces


def cgt_step(method: CGT, state: Any, grad: torch.Tensor, pushed: Part, pulled: Part) -> None:
    """Overwrite ``state`` with the state after one step.

    Args:
        method: With its hyper-parameters at this iteration.
        state: ``[1, d]`` arrays x, y and g; no message may be reading them any more.
        grad: ``[1, d]``.
        pushed: What the neighbours sent of their y.
        pulled: What the neighbours sent of their x.
    """
    threshold: Any = method.threshold
    step_size: Any = method.step_size
    scratch = grad.new_empty(3, min(PIECE, grad.shape[1]))
    largest = []
    rows = (pieces(row) for row in (state.y, pushed.wire, grad, state.g))
    for y, sent, new, old, theirs in zip(*rows, received_pieces(pushed.received, grad), strict=True):
        mixed = scratch[2, : y.shape[0]]
        combine_piece(pushed.share, y, sent, theirs, scratch, mixed)
        torch.sub(mixed.add_(new), old, out=y)  # (2)
        old.copy_(new)
        largest.extend(torch.aminmax(y))
    scale = torch.stack(largest).abs().amax().reshape(1, 1)
    shrink = shrinkage(scale)
    norm = _norm(state.y, scale, shrink, _free_row(pushed, state.y))
    factor = 1 / maximum(norm / threshold, shrink)
    sizes = pieces(step_size) if isinstance(step_size, torch.Tensor) else repeat(step_size)
    rows = (pieces(row) for row in (state.x, pulled.wire, state.y))
    theirs_of_all = received_pieces(pulled.received, grad)
    for (x, sent, y), theirs, size in zip(zip(*rows, strict=True), theirs_of_all, sizes, strict=False):
        mixed = scratch[2, : x.shape[0]]
        combine_piece(pulled.share, x, sent, theirs, scratch, mixed)
        move = torch.mul(y, shrink[0], out=scratch[0, : x.shape[0]]).mul_(factor[0]).mul_(size)
        torch.sub(mixed, move, out=x)  # (1)


def _norm(
    y: torch.Tensor, largest: torch.Tensor, shrink: torch.Tensor, scratch: torch.Tensor
) -> torch.Tensor:
    """Return the norm times ``shrink`` as :func:`digrad.arrays.clip_rows` computes it."""
    scale = torch.where(largest > 0, largest, torch.ones_like(largest))
    for part, values in zip(pieces(scratch), pieces(y), strict=True):
        torch.div(values, scale[0], out=part)
        part.mul_(part)
    return scale * shrink * scratch.sum(-1)[:, None] ** 0.5


def _free_row(consumed: Part, like: torch.Tensor) -> torch.Tensor:
    for row in consumed.received.values():
        if row.dtype == like.dtype and row.shape == like.shape:
            return row
    return torch.empty_like(like)
