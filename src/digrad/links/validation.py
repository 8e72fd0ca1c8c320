"""What a network takes as its links, and how they are recognised: by content, never by identity."""

from dataclasses import dataclass, field
from typing import Any

from digrad._internal.fingerprints import fingerprint
from digrad.errors import ArgumentError
from digrad.links.description import Links
from digrad.links.rounded import Rounded
from digrad.links.seam import Link


def check_given(links: Any, n: int, owner: str) -> None:
    """Raise unless a network of ``n`` agents can have these links.

    Raises:
        ArgumentError: They are neither :class:`Links` for n agents, nor an object with the methods of :class:`Link`,
            nor None, with which messages arrive as they are.
    """
    if isinstance(links, Links):
        links.check_agents(n)
    elif links is not None and (isinstance(links, type) or not isinstance(links, Link)):
        got = repr(links) if isinstance(links, str | int | float | type) else type(links).__name__
        raise ArgumentError(
            f"`links` of {owner} must be digrad.Links(...), digrad.links.rounded(...), or None if messages arrive as "
            f"they are, but got {got}."
        )


def identity(links: Link | Links | None) -> str:
    """Return a text that is equal in every process for links that do the same.

    Raises:
        ArgumentError: A link of the user's own holds something whose content cannot be read.
    """
    if isinstance(links, Links | Rounded | None):
        return repr(links)
    return f"{type(links).__qualname__}:{fingerprint(links)}"


@dataclass(frozen=True)
class LinkCode:
    """A link that is compiled in: equal to all that do the same, and not to itself after a change."""

    link: Link = field(compare=False)
    key: Any


def code_of_link(link: Link) -> LinkCode:
    """Return a link as it is compiled in; one that cannot be recognised equals no other."""
    try:
        return LinkCode(link, identity(link))
    except ArgumentError:
        return LinkCode(link, object())
