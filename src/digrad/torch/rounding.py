"""Messages in a shorter format than the numbers they stand for, without a trace in the answer.

A tracker vanishes, and the rounding error with it: it is rounded as it is, and its sender keeps what it did
not send. An estimate does not vanish. Rounding it at every step would push the answer away for ever, so its
*change* is rounded instead, against a reference that the sender and all receivers advance alike; the first
message is the row in full. The change vanishes, so both ends agree in the end to the last bit.

References advance when a message is mixed, not when it is sent: before that it can be sent again as it was.
"""

import torch

from digrad.errors import ArgumentError
from digrad.torch.mixing_order import CHUNK


def is_shortened(x: torch.Tensor, dimension: int, dtype: torch.dtype | None) -> bool:
    """Return whether rows travel in another format: whole vectors ``[rows, dimension]`` only, no weights."""
    return dtype is not None and dtype != x.dtype and x.shape[1] == dimension


def needs_reference(verb: str, *, is_pair: bool) -> bool:
    """Return whether what is sent does not vanish: all but a tracker, which is pushed by itself.

    Args:
        verb: ``pull``, ``push`` or ``mix``.
        is_pair: Whether the array is pushed together with others, as the estimate and weight of push-sum are.
    """
    return verb != "push" or is_pair


def rounded(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return ``x`` in a shorter format.

    Raises:
        ArgumentError: A finite number is too large for the format.
    """
    message = x.to(dtype)
    if dtype == torch.float16 and message.isinf().any() and not x.isinf().any():
        raise ArgumentError(
            f"`message_dtype` is torch.float16, which ends at 65504, but {float(x.abs().max()):.3g} is to be sent; use "
            "torch.bfloat16."
        )
    return message


def encode(x: torch.Tensor, reference: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """Return the message that turns ``reference`` into ``x``, up to rounding: the first is ``x`` itself."""
    if reference is None:
        return x.contiguous()
    pairs = zip(x.split(CHUNK, 1), reference.split(CHUNK, 1), strict=True)
    return torch.cat([rounded(new - old, dtype) for new, old in pairs], 1)


def decode(message: torch.Tensor, reference: torch.Tensor | None) -> torch.Tensor:
    """Return the reference after a message, advanced in place; the first message becomes the reference."""
    return message.clone() if reference is None else reference.add_(message)
