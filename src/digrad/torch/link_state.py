"""What the ends of every arc remember of the words that went over it, where links change messages on their way.

An estimate travels as the change of a reference, the sender's last word, which both ends keep. On a network that
changes with the iteration a receiver may have missed that word: the next one is then sent to it in full, as the very
first is to everybody. A sender without receivers says nothing, and its reference stays.

References advance when a message is mixed, not when it is sent: before that it can be sent again as it was.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from digrad.errors import ArgumentError
from digrad.links import Link, Links
from digrad.network import AnyNetwork
from digrad.torch.mixing_order import Share

HEARD = "heard "  # begins the names under which it is stored who has heard whom


class Word(NamedTuple):
    """An array on its way."""

    wire: torch.Tensor  # what travels to those who know the word before
    said: torch.Tensor  # what the receivers make of it; it travels itself to those who do not


class LinkState:
    """The state of the links of an executor.

    Args:
        link: What happens to messages; None for nothing.
        dimension: Numbers per agent: arrays of this width are changed on their way, shorter ones are not.
    """

    def __init__(self, link: Link | None, dimension: int) -> None:
        self._link, self._dimension = link, dimension
        self.known: dict[str, torch.Tensor] = {}  # the last words, [rows, d] by name
        self._heard: dict[str, set[tuple[int, int]]] = {}  # by verb, arcs whose end knows the last word
        self._is_fresh = True  # whether nothing has been said yet

    def stored(self) -> dict[str, torch.Tensor]:
        """Return everything by name: state, like that of the method."""
        heard = {
            HEARD + verb: torch.tensor(sorted(arcs), dtype=torch.int64).reshape(-1, 2)
            for verb, arcs in self._heard.items()
        }
        return {**self.known, **heard}

    def load(self, stored: Mapping[str, torch.Tensor]) -> None:
        """Go on from what was stored; from nothing, the next words are the first."""
        self.known = {name: value.clone() for name, value in stored.items() if not name.startswith(HEARD)}
        self._heard = {
            name.removeprefix(HEARD): {(sender, receiver) for sender, receiver in arcs.tolist()}
            for name, arcs in stored.items()
            if name.startswith(HEARD)
        }
        self._is_fresh = not stored

    def changes(self, x: torch.Tensor) -> bool:
        """Return whether an array ``[rows, width]`` is changed on its way."""
        return self._link is not None and x.shape[1] == self._dimension

    def knows(self, verb: str, sender: int, receiver: int) -> bool:
        """Return whether an agent knows the last word of another one."""
        return (sender, receiver) in self._heard.get(verb, ())

    def say(self, x: torch.Tensor, name: str | None) -> Word:
        """Return what travels of ``x``, as the change of the reference ``name`` if there is one.

        Raises:
            ArgumentError: A finite number is too large for the format of messages.
        """
        assert self._link is not None
        if name is not None and self._is_fresh:
            return Word(x.contiguous(), x.contiguous())
        before = None if name is None else self.known[name]
        wire = self._link.send(before, x)
        if wire.dtype == torch.float16 and wire.isinf().any() and not x.isinf().any():
            largest = float((x if before is None else x - before).abs().max())
            raise ArgumentError(
                f"`links` of the network carry float16, which ends at 65504, but {largest:.3g} is to be sent; use "
                'rounded("bfloat16").'
            )
        return Word(wire, self._link.arrive(before, wire, x)[1])

    def hear(
        self, wire: torch.Tensor, like: torch.Tensor, name: str | None, *, in_full: bool
    ) -> torch.Tensor:
        """Return what a wire from elsewhere says, and remember it as the reference ``name`` if there is one."""
        assert self._link is not None
        if name is None:
            return self._link.arrive(None, wire, like)[1]
        # A message is received into memory that the next one uses again.
        self.known[name] = wire.clone() if in_full else self._link.arrive(self.known[name], wire, like)[1]
        return self.known[name]

    def hold(self, name: str, said: torch.Tensor, speaks: Sequence[bool]) -> None:
        """Remember own words ``[rows, d]`` as the reference ``name``, of the rows that have receivers."""
        assert self._link is not None
        if self._is_fresh:
            self.known[name] = said.clone()  # the first word is the estimate itself, said aloud or not
            return
        rows = torch.tensor(speaks, device=said.device)[:, None]
        self.known[name] = said if all(speaks) else torch.where(rows, said, self.known[name])

    def end_step(self, shares: Mapping[str, Sequence[Share]]) -> None:
        """Note who has heard whom at an iteration, whose shares these are: who was not spoken to has missed it."""
        if self._link is None:
            return
        for verb, everyone in shares.items():
            now = {(share.agent, receiver) for share in everyone for receiver, _ in share.receivers}
            speakers = {sender for sender, _ in now}
            before = self._heard.get(verb, set())
            self._heard[verb] = {arc for arc in before if arc[0] not in speakers} | now
        self._is_fresh = False


def plain_link(network: AnyNetwork) -> Link | None:
    """Return the links of a network on which every message arrives; None where packets have fates of their own."""
    return None if isinstance(network.links, Links) else network.links
