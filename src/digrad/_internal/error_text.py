"""Words of error messages that several modules use."""

import textwrap
from collections.abc import Iterable

LONGEST = 200  # characters of what torch says; its messages end in long advice


def agents_text(agents: Iterable[int]) -> str:
    """Return ``agent 3`` or ``agents 1, 3``.

    >>> agents_text([3]), agents_text([1, 3])
    ('agent 3', 'agents 1, 3')
    """
    numbers = [str(agent) for agent in agents]
    return f"agent{'s' if len(numbers) != 1 else ''} {', '.join(numbers)}"


def first_line(error: BaseException) -> str:
    """Return the first line of a message, shortened between words."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return textwrap.shorten(lines[0], LONGEST, placeholder=" ...")


def one_line(error: BaseException) -> str:
    """Return the kind of an error and its whole message, in one line.

    >>> one_line(ValueError("no such thing:\\n  x"))
    'ValueError: no such thing: x'
    """
    return " ".join(f"{type(error).__name__}: {error}".split())


def is_timeout(error: BaseException) -> bool:
    """Return whether torch has waited in vain, in one of the ways that it says so."""
    return "imed out" in str(error) or "imeout" in str(error)
