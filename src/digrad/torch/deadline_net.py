"""The executor of an agent that waits for nobody beyond a deadline: late is tolerated.

Push: what was not delivered is owed, and arrives with the next packet. Pull: what was not heard in time is replaced by
the agent's own value. Both are exact for methods that push trackers and pull estimates, whatever arrives when.

A neighbour is waited for until the deadline unless it was late more than ``RECENT`` times in a row before: waiting
again would cost every step; its packets count when they come. Who is behind by ``max_lag`` of the steps at which it
sends something is waited for however long it takes, within the timeout.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from digrad.core.net import Verbs
from digrad.errors import ArgumentError, CommunicationError
from digrad.network import LETTERS
from digrad.torch.agent_links import AgentLinks, Facts
from digrad.torch.late_links import Heard, Inbox, Item, LateIncoming, LateOutgoing
from digrad.torch.mixing_order import Share, Turns
from digrad.torch.process_network import ProcessNetwork
from digrad.torch.reasons import agents_text, first_line
from digrad.torch.short_format import short_format

RECENT = 2  # times that a neighbour may be late in a row and still be waited for
_EARLY, _OUTSIDE = 1 << 20, 1 << 30  # numbers of calls begin here if they are sent ahead, or outside of steps
_OWED, _ARRIVED, _AHEAD = "owed", "arrived", "ahead"  # how stored arrays are called

Taken = dict[int, dict[int, Item]]  # by sender and call


class DeadlineNet(Verbs):
    """What a method sees of a :class:`ProcessNetwork` with a deadline.

    Args:
        network: Who is connected to whom.
        letters: The matrix behind each verb of the method.
        dimension: Numbers per agent: arrays of this width travel in the short format of the network, if it has one.
        dtype: Of the rows.

    Raises:
        ArgumentError: The method needs a doubly stochastic matrix, or the links of the network do more to messages than
            shorten them.
    """

    def __init__(
        self, network: ProcessNetwork, letters: Mapping[str, str], dimension: int, dtype: torch.dtype
    ) -> None:
        form = short_format(network.network)
        if LETTERS["doubly"] in letters.values():
            raise ArgumentError(
                "`deadline` of ProcessNetwork needs a method that pulls or pushes, because a late message breaks a "
                "doubly stochastic matrix; use CGT, AB or PushPull."
            )
        self.network, self.dtype = network, dtype
        self._short_width = None if form is None else dimension
        assert network.deadline is not None
        self._deadline, self._max_lag = network.deadline, network.max_lag
        self._turns = Turns(network.network, letters)
        self._adds = {verb: letter != LETTERS["row"] for verb, letter in letters.items()}
        self.inbox = Inbox()
        self._links = AgentLinks(
            network.agent,
            network.n,
            network.place(),
            self._exchange_facts,
            network.timeout,
            make_incoming=lambda sender: LateIncoming(sender, self.inbox, form),
            make_outgoing=lambda receiver, connect: LateOutgoing(receiver, connect, self.inbox, form),
        )
        network.keep(self._links)
        self.k = self._ahead = 0
        self._base = -1  # the step that all agents have reached for certain
        self._place: int | None = None
        self._outside = 0
        self._early: list[tuple[str, torch.Tensor]] = []
        self._snapshot: Taken | None = None  # what was sent ahead to this step
        self._gone: dict[int, torch.Tensor] = {}  # pushed ahead and still part of the state, by call
        self._is_gone: frozenset[int] = frozenset()  # calls whose shares had left before the state was stored
        self._not_sent: frozenset[int] = (
            frozenset()
        )  # those of this step that nobody sends, because they had left
        self._asked: dict[
            tuple[int, int], deque[int]
        ] = {}  # the last steps when a neighbour was waited for, by call
        self._since = time.monotonic()  # when this agent began to wait for what is sent ahead
        self.balance = self.scale = 0.0  # what pushing has added to the sum of all, and how much was pushed
        self.late = self.awaited = 0  # messages that were not there in time, and all
        self.held_up = 0.0  # seconds, by neighbours that were too far behind
        self.lags: dict[int, int] = {}  # how many steps each neighbour was behind when it was furthest behind
        self.waited = 0.0  # seconds
        self.one_hot = torch.zeros(1, network.n, dtype=torch.float64)
        self.one_hot[0, network.agent] = 1

    def _exchange_facts(self, facts: Facts) -> list[Facts]:
        return self.network.exchange(facts, "DecentralizedOptimizer")

    @property
    def bytes_sent(self) -> int:
        """Bytes that have left so far."""
        return sum(link.bytes_sent for link in self._outgoing().values())

    def stored_links(self) -> dict[str, torch.Tensor]:
        """Return what is owed and what has arrived, by name; only between :meth:`pause` and :meth:`go_on`."""
        stored = {}
        for receiver, link in self._outgoing().items():
            stored |= {f"{_OWED} {c} of {receiver}": item.values for c, item in link.owed.items()}
        with self.inbox.changed:
            for sender, heard in self.inbox.heard.items():
                stored |= {
                    f"{_ARRIVED} {c} of {sender}": one.values for c, one in heard.items.items() if one.adds
                }
        return stored | {f"{_AHEAD} {c} of {self.network.agent}": values for c, values in self._gone.items()}

    def load_links(self, stored: Mapping[str, torch.Tensor]) -> None:
        """Go on from what was owed and had arrived, once :meth:`go_on` is called; what is under way counts no more."""
        parts: dict[str, dict[int, dict[int, Item]]] = {_OWED: {}, _ARRIVED: {}, _AHEAD: {}}
        for name, values in stored.items():
            kind, call, _, peer = name.split()
            parts[kind].setdefault(int(peer), {})[int(call)] = Item(values.clone(), True)
        with self.inbox.changed:
            self.inbox.epoch += 1
            now = time.monotonic()
            self.inbox.heard = {s: Heard({}, now, items) for s, items in parts[_ARRIVED].items()}
        for receiver in {*self._outgoing(), *parts[_OWED]}:
            self._link(receiver).replace(parts[_OWED].get(receiver, {}))
        ahead = parts[_AHEAD].get(self.network.agent, {})
        self._gone, self._is_gone = {call: item.values for call, item in ahead.items()}, frozenset(ahead)
        self.begin_account()

    def begin_account(self) -> None:
        """Count from now on what pushing adds to the sum of all, and how much is pushed; only while all have paused."""
        self.balance = -self.in_transit()
        self.scale = sum(float(one.abs().sum(dtype=torch.float64)) for one in self.stored_links().values())

    def in_transit(self) -> float:
        """Return the sum of what is with this agent beyond its state; only while all have paused."""
        return sum(
            (-1.0 if name.startswith(_AHEAD) else 1.0) * float(values.sum(dtype=torch.float64))
            for name, values in self.stored_links().items()
        )

    def pause(self) -> None:
        """Let nothing leave."""
        for link in self._outgoing().values():
            link.pause()

    def is_settled(self, seconds: float) -> bool:
        """Return whether all that had left was confirmed, at most so many seconds from now.

        Raises:
            CommunicationError: A connection is lost.
        """
        until = time.monotonic() + seconds
        found = [link.wait_settled(until) for link in self._outgoing().values()]
        self._check_connections()
        return all(found)

    @property
    def moved(self) -> float:
        """When bytes last came or left."""
        return self._links.last_progress

    def go_on(self) -> None:
        """Let packets leave again; all agents are at the same step now."""
        self._ahead, self._base, self._asked = 0, self.k - 1, {}
        with self.inbox.changed:
            for heard in self.inbox.heard.values():
                heard.steps = {call: min(step, self._base) for call, step in heard.steps.items()}
                heard.when = time.monotonic()
        for link in self._outgoing().values():
            link.go_on()

    def begin_step(self) -> None:
        """Count the calls of a step from the first."""
        self._place, self._snapshot = 0, None

    def end_step(self) -> None:
        """Forget what was sent ahead to this step."""
        self._place, self._early, self._snapshot, self._gone = None, [], None, {}

    def start_early(self, fields: Sequence[tuple[str, torch.Tensor]], *, ahead: int = 0) -> None:
        """Send arrays ahead of iteration k; ``ahead`` counts the steps taken since while others were behind."""
        self._early, self._ahead, self._since = list(fields), ahead, time.monotonic()
        is_pair = sum(self._adds[verb] for verb, _ in fields) > 1
        self._not_sent, self._is_gone = self._is_gone, frozenset()
        parts = {call: field for call, field in enumerate(fields, _EARLY) if call not in self._not_sent}
        self._offer(
            {call: (verb, array.reshape(-1)) for call, (verb, array) in parts.items()}, is_pair=is_pair
        )
        for call, (verb, array) in parts.items():
            if self._adds[verb]:
                self._gone[call] = array.reshape(-1) * sum(
                    weight for _, weight in self._share(verb).receivers
                )

    def wait_for_packet(self, seconds: float) -> None:
        """Wait until something comes, at most so long."""
        with self.inbox.changed:
            self.inbox.changed.wait(seconds)

    def mean(self, x: Any) -> Any:
        """Refuse: an average of all agents waits for all of them."""
        raise ArgumentError(
            "`deadline` of ProcessNetwork: a method that averages over all agents waits for everybody."
        )

    def _exchange(self, verb: str, x: Any) -> Any:
        arrays = [array for array in (x if isinstance(x, tuple) else (x,))]
        places = [self._early_place(verb, array) for array in arrays]
        early = [place for place in places if place is not None]
        if len(early) == len(arrays):
            if self._snapshot is None:  # all at once: the parts of a pair share their fate
                calls = {_EARLY + place: early_verb for place, (early_verb, _) in enumerate(self._early)}
                self._snapshot = self._taken(calls, self._since + self._deadline)
            rows = [
                self._mixed(verb, array, _EARLY + place, self._snapshot)
                for array, place in zip(arrays, early, strict=True)
            ]
        else:
            call, flat = self._next_call(), torch.cat([array.reshape(-1) for array in arrays])
            self._offer({call: (verb, flat)})
            taken = self._taken({call: verb}, time.monotonic() + self._deadline)
            rows = self._mixed(verb, flat[None], call, taken).split([array.shape[1] for array in arrays], 1)
        return tuple(rows) if isinstance(x, tuple) else rows[0]

    def _next_call(self) -> int:
        if self._place is None:
            self._outside += 1
            return _OUTSIDE + self._outside
        self._place += 1
        return self._place

    def _early_place(self, verb: str, array: torch.Tensor) -> int | None:
        for place, (early_verb, sent) in enumerate(self._early):
            if early_verb == verb and sent is array:
                return place
        return None

    def _share(self, verb: str) -> Share:
        return self._turns.at(self.k)[verb][self.network.agent]

    def _offer(self, parts: Mapping[int, tuple[str, torch.Tensor]], *, is_pair: bool = False) -> None:
        """Offer what is sent at the same moment, by call, to each receiver as one packet: its parts share a fate."""
        packets: dict[int, dict[int, Item]] = {}
        for call, (verb, flat) in parts.items():
            adds = self._adds[verb]
            is_short = not is_pair and call < _OUTSIDE and flat.numel() == self._short_width
            value = None if adds else Item(flat.clone(), adds, is_short)
            for receiver, weight in self._share(verb).receivers:
                item = Item(flat * weight, adds, is_short) if value is None else value
                packets.setdefault(receiver, {})[call] = item
        for receiver, items in packets.items():
            self._link(receiver).offer(self.k + self._ahead, items)

    def _taken(self, calls: Mapping[int, str], until: float) -> Taken:
        """Wait for the neighbours, and return what has come of some calls, whose verbs these are, by sender."""
        senders = {verb: {s for s, _ in self._share(verb).senders} for verb in calls.values()}
        expected = {
            sender: [
                call for call, verb in calls.items() if sender in senders[verb] and call not in self._not_sent
            ]
            for sender in set().union(*senders.values()) - {self.network.agent}
        }
        step, first = self.k + self._ahead, min(calls)
        if first >= _OUTSIDE:
            self._wait_until(lambda: all(self._has(s, first) for s in expected), math.inf, expected)
        else:
            recent = [s for s in expected if self._is_recent(s, first, expected[s])]
            is_there = lambda s, wanted: self._step_of(s, expected[s]) >= wanted  # noqa: E731
            self._wait_until(lambda: all(is_there(s, step) for s in recent), until, expected)
            if not self._ahead:  # else all have come as far as they will
                bounds, began = {s: self._oldest(s, first) for s in expected}, time.monotonic()
                self._wait_until(
                    lambda: all(is_there(s, bound) for s, bound in bounds.items()), math.inf, expected
                )
                self.held_up += time.monotonic() - began
                for sender in expected:
                    behind = step - self._step_of(sender, expected[sender])
                    self.lags[sender] = max(self.lags.get(sender, 0), behind)
            for sender in expected:
                kept = max(RECENT + 1, self._max_lag or 0)
                self._asked.setdefault((sender, first), deque(maxlen=kept)).append(step)
            self.awaited += len(expected)
            self.late += sum(not is_there(s, step) for s in expected)
        with self.inbox.changed:
            taken = {
                sender: {
                    call: heard.items.pop(call)
                    for call, verb in calls.items()
                    # A late estimate waits for the next step at which the arc is there; what was pushed does not.
                    if call in heard.items and (self._adds[verb] or sender in senders[verb])
                }
                for sender, heard in self.inbox.heard.items()
            }
        return taken

    def _is_recent(self, sender: int, first: int, calls: Sequence[int]) -> bool:
        """Return whether a neighbour has sent something since it was waited for the time before last, or earlier."""
        asked = self._asked.get((sender, first), deque[int]())
        return len(asked) <= RECENT or self._step_of(sender, calls) >= asked[-RECENT - 1]

    def _oldest(self, sender: int, first: int) -> int:
        """Return the step that a neighbour must have reached: not counted are those at which it sends nothing."""
        asked = self._asked.get((sender, first), deque[int]())
        return asked[-self._max_lag] if self._max_lag is not None and len(asked) >= self._max_lag else -1

    def _has(self, sender: int, call: int) -> bool:
        return sender in self.inbox.heard and call in self.inbox.heard[sender].items

    def _step_of(self, sender: int, calls: Sequence[int]) -> int:
        """Return up to which step everything has come that a neighbour sends under some calls."""
        steps = self.inbox.heard[sender].steps if sender in self.inbox.heard else {}
        return max(min((steps.get(call, -1) for call in calls), default=self.k + self._ahead), self._base)

    def _wait_until(self, is_there: Callable[[], bool], until: float, expected: Iterable[int]) -> None:
        """Wait for what others send, until a moment or until they count as silent."""
        began, timeout = time.monotonic(), self.network.timeout
        with self.inbox.changed:
            while not is_there():
                self._check_connections()
                now = time.monotonic()
                if now >= until:
                    break
                silent = [s for s in expected if self._quiet_for(s, now) > timeout]
                if silent and now - began > timeout:
                    raise self._silent(silent)
                self.inbox.changed.wait(min(until - now, 1.0))
            self._check_connections()
        self.waited += time.monotonic() - began

    def check_silence(self) -> None:
        """Raise if a neighbour has been silent for too long, although nobody waits for it."""
        now, timeout = time.monotonic(), self.network.timeout
        with self.inbox.changed:
            silent = [s for s in self.inbox.heard if self._quiet_for(s, now) > timeout]
            self._check_connections()
        if silent:
            raise self._silent(silent)

    def _quiet_for(self, sender: int, now: float) -> float:
        """Return for how long nothing of a neighbour has come, not even a part of a packet."""
        heard = self.inbox.heard.get(sender)
        packet = -math.inf if heard is None else heard.when
        return now - max(packet, self._links.incoming(sender).last_progress)

    def _silent(self, silent: Sequence[int]) -> CommunicationError:
        return CommunicationError(
            f"step {self.k}: nothing was heard from {agents_text(silent)} within {self.network.timeout:.1f} s; it is "
            "dead, stopped or cut off: look at its log, raise `timeout` of ProcessNetwork, and start all agents again."
        )

    def _check_connections(self) -> None:
        if self.inbox.error is not None:
            peer, error = self.inbox.error
            lost = CommunicationError(
                f"step {self.k}: the connection to agent {peer} is lost ({first_line(error)}); start all agents again."
            )
            raise lost from error

    def _mixed(self, verb: str, own: torch.Tensor, call: int, taken: Taken) -> torch.Tensor:
        share, items = self._share(verb), {s: heard[call] for s, heard in taken.items() if call in heard}
        if self._adds[verb]:
            mixed = own.clone()
            for _, weight in share.receivers:
                mixed -= own * weight
            for sender in sorted(items):
                mixed += items[sender].values[None]
            self.balance += float(mixed.sum(dtype=torch.float64) - own.sum(dtype=torch.float64))
            self.scale += float(own.abs().sum(dtype=torch.float64))
            return mixed
        mixed = torch.zeros_like(own)
        for sender, weight in share.senders:
            mixed += weight * (items[sender].values[None] if sender in items else own)
        return mixed

    def _link(self, receiver: int) -> LateOutgoing:
        return self._links.outgoing(receiver)

    def _outgoing(self) -> dict[int, LateOutgoing]:
        return self._links.made_outgoing()
