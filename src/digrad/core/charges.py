"""What a step sends, array by array, in bytes: counted in a dry run that mixes nothing."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from digrad.core.net import Verbs, bindings
from digrad.links.coders import AnyCoder, RandomK
from digrad.methods.fields import numeric_fields, with_fields


class Charge(NamedTuple):
    """One array of a packet, in bytes."""

    verb: str
    short: int  # as it is coded
    full: int
    starts_in_full: bool  # whether a receiver that has heard nothing yet is sent all of it


class Sent(NamedTuple):
    """One array that a verb sends, and how it is coded."""

    array: Any
    is_pair: bool  # whether it is pushed together with its push-sum weight
    is_weight: bool  # whether it is that weight, which is neither coded nor noisy


def arrays_sent(letter: str, x: Any) -> Iterator[Sent]:
    """Yield the arrays of ``x``, one or a tuple, that is mixed with the matrix ``letter``."""
    parts = x if isinstance(x, tuple) else (x,)
    is_pair = isinstance(x, tuple) and letter == "C"
    for place, part in enumerate(parts):
        # The last of a pushed tuple is its weight if it is a column.
        yield Sent(part, is_pair, is_pair and place == len(parts) - 1 and part.shape[-1] == 1)


def charges_of(method: Any, coder: AnyCoder | None, x0: Any, one_hot: Any) -> list[Charge]:
    """Return what the arrays of a step take, in the order of sending.

    Args:
        method: Whose step.
        coder: How messages are shortened.
        x0: Estimates ``[rows, d]`` of any library; only shapes matter, so that they need not hold numbers.
        one_hot: The rows of the identity of these agents, likewise.
    """
    names = numeric_fields(type(method))
    varying = [
        name for name in names if callable(getattr(method, name)) or np.ndim(getattr(method, name)) > 0
    ]
    plain = with_fields(method, dict.fromkeys(varying, 1.0))
    net = _DryNet(bindings(method), coder, one_hot)
    state = plain.init(x0, net)
    net.charges.clear()
    plain.step(state, plain.query(state), net)
    return net.charges


class _DryNet(Verbs):
    """A network that returns what it is given, and takes notes."""

    def __init__(self, letters: dict[str, str], coder: AnyCoder | None, one_hot: Any) -> None:
        self._letters, self._coder, self.one_hot = letters, coder, one_hot
        self.charges: list[Charge] = []

    def mean(self, x: Any) -> Any:
        return x

    def _exchange(self, verb: str, x: Any) -> Any:
        letter = self._letters[verb]
        self.charges += [_charge(verb, letter, self._coder, sent) for sent in arrays_sent(letter, x)]
        return x


def _charge(verb: str, letter: str, coder: AnyCoder | None, sent: Sent) -> Charge:
    numbers, itemsize = int(np.prod(sent.array.shape[1:])), sent.array.dtype.itemsize
    full = numbers * itemsize
    if coder is None or sent.is_weight:
        return Charge(verb, full, full, starts_in_full=False)
    refers = letter != "C" or sent.is_pair
    has_reference = refers and not (isinstance(coder, RandomK) and letter == "R")
    return Charge(verb, min(full, coder.wire_bytes(numbers, itemsize)), full, starts_in_full=has_reference)
