"""A generator and its arguments given as text, as on the command line."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from digrad import checks
from digrad.errors import ArgumentError
from digrad.graphs.digraph import Digraph
from digrad.graphs.generators import GENERATORS
from digrad.graphs.sequences import GraphSequence, one_peer_exponential

NAMED: dict[str, Callable[..., Any]] = {**GENERATORS, "one_peer_exponential": one_peer_exponential}


def from_words(name: str, words: Sequence[str], *, seed: int = 0) -> Digraph | GraphSequence:
    """Return what a generator given as text makes, as the command line does.

    Args:
        name: A key of ``NAMED``.
        words: Its arguments, in order.
        seed: Random seed of a random generator.

    Example:
        >>> from_words("grid", ["2", "3"]).n
        6
    """
    checks.choice(name, "graph", "from_words", NAMED)
    parameters = inspect.signature(NAMED[name]).parameters
    wanted = [parameter for parameter in parameters if parameter != "seed"]
    if len(words) != len(wanted):
        raise ArgumentError(
            f"`{name}` takes {' '.join(wanted) or 'no arguments'}, but got {' '.join(words) or 'nothing'}."
        )
    values = [_number(word, parameter, name) for word, parameter in zip(words, wanted, strict=True)]
    return NAMED[name](*values, **({"seed": seed} if "seed" in parameters else {}))


def _number(word: str, parameter: str, owner: str) -> float:
    try:
        return float(word) if parameter == "p" else int(word)
    except ValueError:
        raise ArgumentError(f"`{parameter}` of {owner} must be a number, but got {word!r}.") from None
