"""One agent's ends of the arcs of a network that misbehaves: what it owes, what waits for it, what it makes of packets.

Fates are a table that every agent computes alike, so that both ends of an arc know which packets arrive and keep the
same books; what is never used need not be sent. Replicas and processes call the same lines, which makes them equal to
the last bit.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch

from digrad.core.charges import Charge
from digrad.links import Fates
from digrad.links.coders import RandomK
from digrad.torch.mixing_order import Share

BLOCK = 256  # iterations whose fates are drawn at once
IN_BOOKS = ("past in", "inbox in", "new")  # of what the agent receives
ARC_BOOKS = (*IN_BOOKS, "owed", "lifetime", "past out", "inbox out")  # that are void when an arc begins anew


class FateTable:
    """The fates of a run, iteration by iteration.

    Args:
        fates: What becomes of packets.
    """

    def __init__(self, fates: Fates) -> None:
        self.fates, self.links = fates, fates.links
        self.number = {(s, r): a for a, (s, r) in enumerate(fates.arcs.tolist())}
        self._ages = lru_cache(2)(lambda block: fates.ages(block * BLOCK, BLOCK))
        self._awake = lru_cache(2)(lambda block: fates.awake(block * BLOCK, BLOCK))
        self._sent = lru_cache(2)(lambda block: fates.sent(block * BLOCK, BLOCK))
        self.keeps_ledger = fates.timeline is not None and fates.timeline.keeps_ledger

    def age(self, k: int, arc: int) -> int:
        """Return how old the packet is that arrives, or -1."""
        return int(self._ages(k // BLOCK)[k % BLOCK, arc])

    def is_awake(self, k: int, agent: int) -> bool:
        """Return whether an agent acts."""
        return bool(self._awake(k // BLOCK)[k % BLOCK, agent])

    def is_sent(self, k: int, arc: int) -> bool:
        """Return whether there is a packet."""
        return bool(self._sent(k // BLOCK)[k % BLOCK, arc])

    def is_used(self, k: int, arc: int) -> bool:
        """Return whether the packet of an iteration ever arrives before a newer one."""
        return any(self.age(k + late, arc) == late for late in range(self.fates.longest_delay + 1))


class FatedAgent:
    """The ends of the arcs of one agent.

    Args:
        agent: Its number.
        table: The fates of all packets.
        state: Where its books are kept, by name; shared by the agents of a process.
    """

    def __init__(self, agent: int, table: FateTable, state: dict[str, torch.Tensor]) -> None:
        self.agent, self.table, self.state = agent, table, state
        self._in = [(s, a) for (s, r), a in sorted(table.number.items()) if r == agent]
        self._out = [(r, a) for (s, r), a in sorted(table.number.items()) if s == agent]

    @property
    def incoming(self) -> list[tuple[int, int]]:
        """Sender and number of each in-arc, ascending."""
        return self._in

    @property
    def outgoing(self) -> list[int]:
        """The number of each out-arc, in the order of the rows of its books."""
        return [arc for _, arc in self._out]

    def forget(self, void: Sequence[bool]) -> None:
        """Clear the books of the arcs that begin anew."""
        for name, book in self.state.items():
            what, end = name.rsplit(" of ", 1)
            if int(end) == self.agent and (kind := what.rsplit(" ", 1)[0]) in ARC_BOOKS:
                arcs = self._in if kind in IN_BOOKS else self._out
                book[[row for row, (_, arc) in enumerate(arcs) if void[arc]]] = 0

    def is_awake(self, k: int) -> bool:
        """Return whether the agent acts."""
        return self.table.is_awake(k, self.agent)

    def code(self, x: torch.Tensor, call: int, k: int, *, letter: str, refers: bool) -> torch.Tensor:
        """Return what receivers would understand of a row ``[1, d]``; NaN where they hear nothing."""
        links, value = self.table.links, x
        if links.is_noisy:
            noise = self.table.fates.noise(k, 1, call, x.shape[1])[0, self.agent]
            value = x + torch.tensor(noise, dtype=x.dtype, device=x.device)
        if links.coder is None:
            return value
        chosen = None
        if isinstance(links.coder, RandomK):
            drawn = self.table.fates.chosen(k, 1, call, x.shape[1])[0, self.agent]
            chosen = torch.tensor(drawn, device=x.device)[None]
        if not refers:
            return links.coder.code(value, chosen)
        if chosen is not None and letter == "R":
            return torch.where(chosen, value, torch.full_like(value, torch.nan))
        known = self._kept("known", call, x)
        if k == 0:
            known.copy_(value)
        elif self.is_awake(k):
            known += links.coder.code(value - known, chosen)
        return known.clone()

    def send(
        self,
        share: Share,
        x: torch.Tensor,
        sent: torch.Tensor,
        call: int,
        k: int,
        *,
        letter: str,
        damping: float,
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """Return what the agent keeps of a row, and the packets that will be used, by receiver."""
        if letter != "C":
            return x, {r: sent for r, a in self._out if self.table.is_used(k, a)}
        weights, policy = dict(share.receivers), self.table.links.push
        sent = sent if self.is_awake(k) else torch.zeros_like(sent)
        kept, packets = x.clone(), {}
        for row, (receiver, arc) in enumerate(self._out):
            part = damping * weights.get(receiver, 0.0) * sent
            in_time = self._in_time(k, arc, receiver)
            if policy != "keep" or in_time:
                kept -= part
            packet = part if policy != "sum" else self._owe(part, row, arc, receiver, call, k)
            if self.table.is_used(k, arc):
                packets[receiver] = packet
        return kept, packets

    def receive(
        self,
        share: Share,
        x: torch.Tensor,
        sent: torch.Tensor,
        kept: torch.Tensor,
        packets: Mapping[int, torch.Tensor],
        call: int,
        k: int,
        *,
        letter: str,
    ) -> torch.Tensor:
        """Return the mixed row of the agent, the terms added in ascending order of the senders."""
        terms = {"R": self._pulled, "C": self._pushed, "W": self._mixed}[letter](
            share, x, sent, kept, packets, call, k
        )
        total = torch.zeros_like(x)
        for sender in sorted(terms):
            total += terms[sender]
        return total if letter == "W" or not self._is_scaled(letter) else total * _scale(share, terms)

    def _pushed(self, share, x, sent, kept, packets, call, k) -> dict[int, torch.Tensor]:
        policy, terms = self.table.links.push, {self.agent: kept}
        for row, (sender, arc) in enumerate(self._in):
            if policy == "sum":
                terms[sender] = self._take("in", packets.get(sender), row, arc, self.agent, call, k, x)
                continue
            in_time = self._in_time(k, arc, self.agent)
            if policy == "last":
                seen = self._kept("seen", call, x, len(self._in))
                if in_time:
                    seen[row] = packets[sender][0]
                terms[sender] = seen[row : row + 1]
            elif in_time:
                terms[sender] = packets[sender]
        return terms

    def _pulled(self, share, x, sent, kept, packets, call, k) -> dict[int, torch.Tensor]:
        links, weights = self.table.links, dict(share.senders)
        terms = {self.agent: weights[self.agent] * x}
        for row, (sender, arc) in enumerate(self._in):
            seen = self._hear(packets.get(sender), row, arc, call, k, x)
            if seen is None and links.pull in ("drop", "renormalise"):
                continue
            if seen is None:
                seen = x
            elif isinstance(links.coder, RandomK):
                seen = torch.where(seen.isnan(), x, seen)
            terms[sender] = weights.get(sender, 0.0) * seen
        return terms

    def _mixed(self, share, x, sent, kept, packets, call, k) -> dict[int, torch.Tensor]:
        weights, terms = dict(share.senders), {self.agent: x.clone()}
        for sender, arc in self._in:
            if self._in_time(k, arc, self.agent) and self.is_awake(k) and self.table.is_awake(k, sender):
                weight = weights.get(sender, 0.0)
                terms[sender] = weight * packets[sender]
                terms[self.agent] -= weight * sent
        return terms

    def _hear(self, packet, row: int, arc: int, call: int, k: int, x: torch.Tensor) -> torch.Tensor | None:
        """Return the estimate that a pull uses of one in-arc, or None for none."""
        links, age = self.table.links, self.table.age(k, arc)
        if links.pull == "drop":
            return packet if age == 0 and self.is_awake(k) else None
        now = packet if age == 0 else None
        if self.table.fates.longest_delay:
            past = self._kept("past", call, x, len(self._in), self.table.fates.longest_delay + 1)
            if packet is not None:
                past[row, k % past.shape[1]] = packet[0]
            now = past[row, (k - age) % past.shape[1]][None].clone() if age >= 0 else None
        if links.pull != "last" and not links.sleeps:
            return now
        seen = self._kept("seen", call, x, len(self._in))
        new = self._kept("new", call, x[:, :1], len(self._in))
        if now is not None:
            seen[row], new[row] = now[0], 1.0
        use = bool(new[row])
        if links.pull != "last" and self.is_awake(k):
            new[row] = 0.0
        return seen[row][None].clone() if use else None

    def _owe(self, part, row: int, arc: int, receiver: int, call: int, k: int) -> torch.Tensor:
        """Return the packet: everything owed, and settle what arrives now."""
        owed = self._kept("owed", call, part, len(self._out))
        owed[row] += part[0]
        if self.table.keeps_ledger:
            self._kept("lifetime", call, part, len(self._out))[row] += part[0]
        packet = owed[row][None].clone()
        owed[row] -= self._take("out", packet, row, arc, receiver, call, k, part)[0]
        return packet

    def _take(
        self, end: str, packet, row: int, arc: int, receiver: int, call: int, k: int, like: torch.Tensor
    ) -> torch.Tensor:
        """Return what the receiver of an arc takes, as both of its ends know it."""
        links, age = self.table.links, self.table.age(k, arc)
        arrives = packet if age == 0 else None
        arcs = len(self._in if end == "in" else self._out)
        nothing = torch.zeros_like(like)
        past = None
        if self.table.fates.longest_delay:
            past = self._kept(f"past {end}", call, like, arcs, self.table.fates.longest_delay + 1)
            if packet is not None:
                past[row, k % past.shape[1]] = packet[0]
            arrives = past[row, (k - age) % past.shape[1]][None].clone() if age >= 0 else None
        if links.sleeps:
            inbox = self._kept(f"inbox {end}", call, like, arcs)
            if arrives is not None:
                inbox[row] = arrives[0]
            taken = inbox[row][None].clone() if self.table.is_awake(k, receiver) else nothing
            inbox[row] -= taken[0]
        else:
            taken = nothing if arrives is None else arrives
        if past is not None:
            past[row] -= taken
        return taken

    def _in_time(self, k: int, arc: int, receiver: int) -> bool:
        return self.table.age(k, arc) == 0 and self.table.is_awake(k, receiver)

    def _is_scaled(self, letter: str) -> bool:
        links = self.table.links
        return (links.pull if letter == "R" else links.push) == "renormalise"

    def _kept(self, what: str, call: int, like: torch.Tensor, *shape: int) -> torch.Tensor:
        """Return a book of the agent, opened empty."""
        name = f"{what} {call} of {self.agent}"
        if name not in self.state:
            self.state[name] = like.new_zeros(*(shape or (1,)), like.shape[1])
        return self.state[name]

    def bytes_of(self, charge: Charge, call: int, k: int) -> int:
        """Return what the packets of an iteration take of an array, lost ones too, and count those missed."""
        _, short, full, starts_in_full = charge
        if short == full:
            return full * sum(self.table.is_sent(k, arc) for _, arc in self._out)
        books = self._kept("missed", call, torch.zeros(1, 2, dtype=torch.int64), len(self._out))
        total = 0
        for row, (_, arc) in enumerate(self._out):
            missed, has_heard = books[row].tolist()
            is_sent = self.table.is_sent(k, arc)
            if is_sent:
                total += full if starts_in_full and not has_heard else min((missed + 1) * short, full)
            if self.table.age(k, arc) >= 0:
                books[row] = torch.tensor([0, 1])
            else:
                books[row, 0] += is_sent
        return total


def _scale(share: Share, terms: Mapping[int, torch.Tensor]) -> float:
    """Return by how much the weights of the terms fall short of all."""
    weights = dict(share.senders)
    return sum(weights.values()) / sum(weights.get(sender, 0.0) for sender in sorted(terms))
