"""The engine of one agent in its own process that waits for nobody beyond a deadline: late neighbours are tolerated.

Push: undelivered mass arrives with the next packet. Pull: what was not received in time is replaced by the agent's own
value. Both are exact for methods that push trackers and pull estimates, whatever arrives when.

A neighbour is waited for until the deadline unless it was late more than ``RECENT`` times in a row before: waiting
again would cost every step; its packets count when they come. Who is behind by ``max_lag`` of the steps at which it
sends something is waited for however long it takes, within the timeout.

Agents may be at different steps. Where all are needed (an average, a checkpoint, the end) those who come first go on
mixing, without a step along their gradients, until the others have come: who is behind would else receive nothing.
"""

import contextlib
import itertools
import math
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from digrad._internal.error_text import agents_text, first_line
from digrad.core.hyperparameters import with_fields
from digrad.core.net import Primitives, Sent, arrays_sent, fields_sent
from digrad.errors import ArgumentError, CommunicationError
from digrad.torch.engines.compression import Compression, LinkArrays, LinkKey, is_precise
from digrad.torch.engines.engine import OWNER, overwrite
from digrad.torch.engines.log_records import note_step
from digrad.torch.engines.mixing import Share, ShareSchedule, combine
from digrad.torch.engines.undelivered import RECENT, Arrived, Inbox, Item, Outgoing
from digrad.torch.launch.failures import say
from digrad.torch.launch.preemption import Preemption
from digrad.torch.process_network import ProcessNetwork

_EARLY, _OUTSIDE = 1 << 20, 1 << 30  # numbers of calls begin here if they are sent ahead, or outside of steps
_GO_TO = "load_state_dict"
_LOOK = 0.05  # seconds between two looks at whether all have come, at least
_HEARTBEAT = 1.0  # seconds between two reports that packets move
_TOLERANCE = 1e3  # times the rounding error of a number: sums of many of them


Taken = dict[int, dict[int, Item]]  # by sender and call


class AsynchronousEngine(Primitives):
    """Agent of a :class:`ProcessNetwork` with a deadline; see :class:`~digrad.torch.engines.engine.Engine`.

    Args:
        network: Who is connected to whom.
        matrices: The matrix behind each primitive of the method.
        dimension: Numbers per agent: arrays of this width travel in the short format of the network, if it has one.
        dtype: Of the rows.

    Raises:
        ArgumentError: The method needs a doubly stochastic matrix, or the links of the network do more to messages than
            shorten them.
    """

    def __init__(
        self, network: ProcessNetwork, matrices: Mapping[str, str], dimension: int, dtype: torch.dtype
    ) -> None:
        links = network.network.links
        if "W" in matrices.values():
            raise ArgumentError(
                "`deadline` of ProcessNetwork needs a method that pulls or pushes, because a late message breaks a "
                "doubly stochastic matrix; use CGT, AB or PushPull."
            )
        self.network, self.dtype = network, dtype
        self._links = links
        self._compression = Compression(links, dimension)
        self._shortens_pairs = links is not None and is_precise(links.compressor)
        assert network.deadline is not None
        self.deadline, self._max_lag = network.deadline, network.max_lag
        self._schedule = ShareSchedule(network.network, matrices)
        self._channel = network.transports.channel()
        self.inbox = Inbox(self._channel, links)
        self._edges: dict[int, Outgoing] = {}
        self._channel.open(self.inbox)
        self.k = self._ahead = 0
        self._base = -1  # the step that all agents have reached for certain
        self._place: int | None = None
        self._outside = 0
        self._early: Sequence[tuple[str, torch.Tensor]] = ()
        self._snapshot: Taken | None = None  # what was sent ahead to this step
        self._gone: dict[int, torch.Tensor] = {}  # pushed ahead and still part of the state, by call
        self._is_gone: frozenset[int] = frozenset()  # calls whose shares had left before the state was stored
        # Those of this step that nobody sends, because they had left.
        self._not_sent: frozenset[int] = frozenset()
        # The last steps when a neighbour was waited for, by neighbour and call.
        self._asked: dict[tuple[int, int], deque[int]] = {}
        self._since = time.monotonic()  # when this agent began to wait for what is sent ahead
        self.balance = self.scale = 0.0  # what pushing has added to the sum of all, and how much was pushed
        self.late = 0  # messages that were not there in time
        self.held_up = 0.0  # seconds, by neighbours that were too far behind
        self.lags: dict[int, int] = {}  # how many steps each neighbour was behind when it was furthest behind
        self.waited = 0.0  # seconds
        self._last: tuple[Any, Any, torch.Tensor] | None = None  # method, state and gradient of the last step
        self._gatherings = itertools.count()
        self.preemption: Preemption | None = None
        # Unless it is closed.
        self._tell_at_exit = weakref.finalize(self, tell_seen, network.agent, self.lags)
        self.one_hot = torch.zeros(1, network.n, dtype=torch.float64)
        self.one_hot[0, network.agent] = 1

    @property
    def bytes_sent(self) -> int:
        """Bytes that have left so far."""
        return self._channel.bytes_sent

    def stored_links(self) -> LinkArrays:
        """Return undelivered mass and what has arrived; only between :meth:`pause` and :meth:`release`."""
        found = {
            LinkKey("undelivered", call, receiver): item.values
            for receiver, edge in self._edges.items()
            for call, item in edge.undelivered.items()
        }
        with self.inbox.changed:
            for sender, arrived in self.inbox.arrived.items():
                found |= {
                    LinkKey("arrived", call, sender): item.values
                    for call, item in arrived.items.items()
                    if item.adds
                }
        return found | {
            LinkKey("ahead", call, self.network.agent): values for call, values in self._gone.items()
        }

    def load_links(self, stored: LinkArrays) -> None:
        """Go on from other mass, once :meth:`release` is called; what is under way counts no more."""
        parts: dict[str, dict[int, dict[int, Item]]] = {"undelivered": {}, "arrived": {}, "ahead": {}}
        for key, values in stored.items():
            assert key.agent is not None
            parts[key.kind].setdefault(key.agent, {})[key.place] = Item(values.clone(), True)
        with self.inbox.changed:
            self.inbox.epoch += 1
            now = time.monotonic()
            self.inbox.arrived = {s: Arrived({}, now, items) for s, items in parts["arrived"].items()}
        for receiver in {*self._edges, *parts["undelivered"]}:
            self._edge(receiver).replace(parts["undelivered"].get(receiver, {}))
        ahead = parts["ahead"].get(self.network.agent, {})
        self._gone, self._is_gone = {call: item.values for call, item in ahead.items()}, frozenset(ahead)
        self.begin_account()

    def begin_account(self) -> None:
        """Count from now on what pushing adds to the sum of all, and how much is pushed; only while all have paused."""
        self.balance = -self.in_transit()
        self.scale = sum(float(one.abs().sum(dtype=torch.float64)) for one in self.stored_links().values())

    def in_transit(self) -> float:
        """Return the sum of what is with this agent beyond its state; only while all have paused."""
        return sum(
            (-1.0 if key.kind == "ahead" else 1.0) * float(values.sum(dtype=torch.float64))
            for key, values in self.stored_links().items()
        )

    def pause(self) -> None:
        """Let nothing leave, and take all that comes."""
        self.inbox.reach(math.inf)
        for edge in self._edges.values():
            edge.pause()

    def is_drained(self, seconds: float) -> bool:
        """Return whether all that had left was confirmed, at most so many seconds from now.

        Raises:
            CommunicationError: A connection is lost.
        """
        until = time.monotonic() + seconds
        found = [edge.wait_drained(until) for edge in self._edges.values()]
        self._check_connections()
        return all(found)

    @property
    def moved(self) -> float:
        """Time at which bytes last came or left."""
        peers = {*self._edges, *self.inbox.arrived}
        return max(map(self._channel.last_progress, peers), default=-math.inf)

    def release(self) -> None:
        """Let packets leave again."""
        self._ahead, self._base, self._asked = 0, self.k - 1, {}
        assert self.network.deadline is not None
        self.deadline = self.network.deadline
        for edge in self._edges.values():
            edge.go_on(self.k)

    def _meet(self) -> None:
        """Count what has come as of the step at which all are, before the first of them goes on."""
        with self.inbox.changed:
            self.inbox.step = self.k
            for arrived in self.inbox.arrived.values():
                # What is sent ahead was sent to this step already, the rest is not.
                arrived.steps = {
                    call: min(step, self.k if call >= _EARLY else self.k - 1)
                    for call, step in arrived.steps.items()
                }
                arrived.when = time.monotonic()

    def begin_step(self) -> None:
        """Count the calls of a step from the first."""
        self._place, self._snapshot = 0, None

    def end_step(self) -> None:
        """Forget what was sent ahead to this step."""
        self._place, self._snapshot, self._gone = None, None, {}

    def start_early(self, fields: Sequence[tuple[str, torch.Tensor]], *, ahead: int = 0) -> None:
        """Send arrays ahead of iteration k; ``ahead`` counts the steps taken since while others were behind."""
        self._early, self._ahead, self._since = fields, ahead, time.monotonic()
        self.inbox.reach(self.k + ahead)
        self._not_sent, self._is_gone = self._is_gone, frozenset()
        calls = enumerate(fields_sent(fields), _EARLY)
        parts = {call: field for call, field in calls if call not in self._not_sent}
        self._offer(parts)
        for call, (primitive, sent) in parts.items():
            share = self._share(primitive)
            if share.conserves:
                self._gone[call] = sent.array.reshape(-1) * sum(weight for _, weight in share.receivers)

    def wait_for_packet(self, seconds: float) -> None:
        """Wait until something comes, at most so long."""
        with self.inbox.changed:
            self.inbox.changed.wait(seconds)

    def advance(self, method: Any, state: Any, grad: torch.Tensor) -> None:
        """Overwrite a state with the one after a step."""
        self._last = (method, state, grad.clone())
        self._step(method, state, grad)
        with self._explained():
            self.check_timeouts()

    def _step(self, method: Any, state: Any, grad: torch.Tensor) -> None:
        with self._explained():
            self.begin_step()
            overwrite(state, method.step(state, grad, self))
            self.end_step()

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Say why nothing came from the others, if they have said it."""
        try:
            yield
        except CommunicationError as error:
            raise self.network.reason_of(error) from error
        except dist.DistError as error:
            raise CommunicationError(
                f"step {self.k}: the store of the process group has gone ({first_line(error)}), and with it agent 0 or "
                "its machine; look at its log, and start all agents again."
            ) from error

    def publish(self, k: int, early: Sequence[tuple[str, torch.Tensor]]) -> None:
        """Begin iteration k: send what the method mixes before the gradient is known."""
        self.k = k
        note_step(k)
        self.start_early(early)

    def wait_for_all(self, name: str) -> None:
        """Wait until all agents have posted something."""
        while self.network.coordination.posted(name) is None:
            self.wait_for_packet(_LOOK)
            with self._explained():
                self.check_timeouts()

    def gather(self, call: str) -> bool:
        """Wait until all agents have come to ``call`` and nothing is under way; mix with those who have not.

        Returns:
            Whether the state has changed meanwhile.

        Raises:
            CommunicationError: An agent does not come within the timeout after the last sign of it, or mass was lost.
        """
        name, coordination, ahead = f"gathering {next(self._gatherings)}", self.network.coordination, 0
        with self._explained():
            coordination.post(name, {"call": call, "k": self.k})
        self.deadline = 0.0  # those who have come send no more
        while not self._have_come(name):
            if (
                self.preemption and call != _GO_TO
            ):  # else those who were asked would wait for this agent to step on
                self.preemption.post(self.k + 1)
            ahead += 1
            self._mix_on(ahead)
        drained = f"{name} drained"
        with self._explained():
            self._drain(name, drained)
        self._meet()
        self._check_mass(call)
        for one in (name, drained):  # all have read both
            coordination.withdraw(one)
        return ahead > 0

    def _have_come(self, name: str) -> bool:
        """Return whether all agents have come to a gathering, a moment later at most."""
        with self._explained():
            self.check_timeouts()
            return self.network.coordination.wait_posted(name, _LOOK)

    def _drain(self, name: str, drained: str) -> None:
        """Let nothing leave, and wait until nobody's packets are under way, however long, as long as they move.

        Args:
            name: Under which an agent says that its packets move.
            drained: Under which it says that all of them were confirmed.
        """
        coordination, timeout = self.network.coordination, self.network.timeout
        self.pause()
        is_drained, moved, known, since = False, 0.0, None, time.monotonic()
        while not coordination.wait_posted(drained, _HEARTBEAT if is_drained else 0.0):
            if not is_drained and self.is_drained(_HEARTBEAT):
                is_drained = True
                coordination.post(drained, {})
                continue
            if self.moved != moved:  # at either end: what has left may wait in a buffer of the system
                moved = self.moved
                coordination.post(name, {"moved": moved})
            now, everyone = time.monotonic(), coordination.posted(name)
            if everyone != known:
                known, since = everyone, now
            elif now - since > timeout:
                raise CommunicationError(
                    f"step {self.k}: the packets of {agents_text(coordination.missing(drained))} have not moved "
                    f"for {timeout:.1f} s; their sender or receiver is dead, stopped or cut off: look at the logs, "
                    "and start all agents again."
                )

    def _mix_on(self, ahead: int) -> None:
        """Take a step that moves along no gradient: the estimates are averaged, and trackers passed on."""
        if self._last is None or not hasattr(self._last[0], "step_size"):
            return
        method, state, grad = self._last
        self._step(with_fields(method, {"step_size": 0.0}), state, grad)
        self.start_early(self._early, ahead=ahead)

    def _check_mass(self, call: str) -> None:
        """Make sure that what is pushed is with somebody: nothing was lost or counted twice."""
        here = {"off": self.balance + self.in_transit(), "scale": self.scale, "k": self.k}
        self.begin_account()  # before anybody can go on: what is sent then is of the next account
        everyone = self.network.exchange(here, f"{OWNER}.{call}()")
        off, scale = (sum(one[name] for one in everyone) for name in ("off", "scale"))
        precision = torch.finfo(self.dtype).eps
        if abs(off) > _TOLERANCE * precision * (1.0 + scale):
            raise CommunicationError(
                f"{OWNER}.{call}(): the sum of all trackers is wrong by {off:.3g}, where {scale:.3g} was pushed; "
                "this is a bug in digrad, or a damaged message: restart the tracking."
            )

    def go_to(self, k: int, links: LinkArrays) -> None:
        """Wait for all agents, agree on the iteration, and go on with another state of the links."""
        self.gather(_GO_TO)
        self._last = None
        self.network.agree({"k": k}, OWNER)
        self.load_links(links)
        self.k = k
        self.network.agree({"k": k}, OWNER)  # nobody sends before all have forgotten what was
        self.release()

    def close(self) -> None:
        """Wait until all agents are done."""
        self.gather("close")
        here = {"lags": list(self.lags.items()), "held up": self.held_up}
        everyone = self.network.exchange(here, f"{OWNER}.close()")
        told = lag_text([dict(one["lags"]) for one in everyone], [one["held up"] for one in everyone])
        if told and self.network.agent == 0:
            say(told)
        self._tell_at_exit.detach()

    def mean(self, x: Any) -> Any:
        """Refuse: an average of all agents waits for all of them."""
        raise ArgumentError(
            "`deadline` of ProcessNetwork: a method that averages over all agents waits for everybody."
        )

    def _exchange(self, primitive: str, x: Any) -> Any:
        arrays = list(arrays_sent(primitive, x))
        calls = [call for sent in arrays if (call := self._early_call(primitive, sent.array)) is not None]
        if len(calls) == len(arrays):
            if self._snapshot is None:  # all at once: the parts of a pair arrive together
                early = {
                    call: early_primitive for call, (early_primitive, _) in enumerate(self._early, _EARLY)
                }
                self._snapshot = self._taken(early, self._since + self.deadline)
            taken = self._snapshot
        else:
            calls = [self._next_call() for _ in arrays]
            self._offer({call: (primitive, sent) for call, sent in zip(calls, arrays, strict=True)})
            taken = self._taken(dict.fromkeys(calls, primitive), time.monotonic() + self.deadline)
        rows = [
            self._mixed(primitive, sent.array, call, taken) for sent, call in zip(arrays, calls, strict=True)
        ]
        return tuple(rows) if isinstance(x, tuple) else rows[0]

    def _next_call(self) -> int:
        if self._place is None:
            self._outside += 1
            return _OUTSIDE + self._outside
        self._place += 1
        return self._place

    def _early_call(self, primitive: str, array: torch.Tensor) -> int | None:
        for call, (early_primitive, sent) in enumerate(self._early, _EARLY):
            if early_primitive == primitive and sent is array:
                return call
        return None

    def _share(self, primitive: str) -> Share:
        return self._schedule.at(self.k)[primitive][self.network.agent]

    def _offer(self, parts: Mapping[int, tuple[str, Sent]]) -> None:
        """Offer what is sent at the same moment, by call, to each receiver as one packet: lost or late as a whole."""
        packets: dict[int, dict[int, Item]] = {}
        weight_call = next((call for call, (_, sent) in parts.items() if sent.is_weight), None)
        for call, (primitive, sent) in parts.items():
            flat, share = sent.array.reshape(-1), self._share(primitive)
            is_short = call < _OUTSIDE and self._compression.applies(sent)
            per = weight_call if is_short and sent.is_pair and self._shortens_pairs else None
            is_short = is_short and (per is not None or not sent.is_pair)
            value = None if share.conserves else Item(flat.clone(), False, is_short)
            for receiver, weight in share.receivers:
                item = Item(flat * weight, True, is_short, per) if value is None else value
                packets.setdefault(receiver, {})[call] = item
        for receiver, items in packets.items():
            self._edge(receiver).offer(self.k + self._ahead, items)

    def _taken(self, calls: Mapping[int, str], until: float) -> Taken:
        """Wait for the neighbours, and return what has come of some calls, whose primitives these are, by sender."""
        senders = {primitive: {s for s, _ in self._share(primitive).senders} for primitive in calls.values()}
        expected = {
            sender: [
                call
                for call, primitive in calls.items()
                if sender in senders[primitive] and call not in self._not_sent
            ]
            for sender in set().union(*senders.values()) - {self.network.agent}
        }
        first = min(calls)
        if first >= _OUTSIDE:
            self._wait_until(lambda: all(self._has(s, first) for s in expected), math.inf, expected)
        else:
            self._wait_for_neighbours(first, expected, until)
        with self.inbox.changed:
            return {
                sender: {
                    call: arrived.items.pop(call)
                    for call, primitive in calls.items()
                    # A late estimate waits for the next step at which the edge is there; what was pushed does not.
                    if call in arrived.items
                    and (self._share(primitive).conserves or sender in senders[primitive])
                }
                for sender, arrived in self.inbox.arrived.items()
            }

    def _wait_for_neighbours(self, first: int, expected: Mapping[int, Sequence[int]], until: float) -> None:
        """Wait for neighbours that were in time lately, and for those too far behind however long it takes.

        Args:
            first: The first of the calls.
            expected: The calls under which each neighbour sends something.
            until: The deadline of the former.
        """
        step = self.k + self._ahead

        def have_come(wanted: Mapping[int, int]) -> bool:
            return all(self._step_of(s, expected[s]) >= bound for s, bound in wanted.items())

        recent = {s: step for s in expected if self._is_recent(s, first, expected[s])}
        edges = self._edges.values()
        self._wait_until(lambda: have_come(recent) and all(edge.has_left for edge in edges), until, expected)
        if not self._ahead:  # else all have come as far as they will
            bounds, began = {s: self._oldest(s, first) for s in expected}, time.monotonic()
            # Those who were asked to end take no step before all have agreed on the last one.
            self._wait_until(lambda: have_come(bounds) or self._is_ending(), math.inf, expected)
            self.held_up += time.monotonic() - began
            for sender, calls in expected.items():
                behind = step - self._step_of(sender, calls)
                self.lags[sender] = max(self.lags.get(sender, 0), behind)
        for sender in expected:
            kept = max(RECENT + 1, self._max_lag or 0)
            self._asked.setdefault((sender, first), deque(maxlen=kept)).append(step)
            self.late += self.deadline > 0 and not have_come({sender: step})

    def _is_ending(self) -> bool:
        return self.preemption is not None and self.preemption.is_undecided

    def _is_recent(self, sender: int, first: int, calls: Sequence[int]) -> bool:
        """Return whether a neighbour has sent something since it was waited for the time before last, or earlier."""
        asked = self._asked.get((sender, first), deque[int]())
        return len(asked) <= RECENT or self._step_of(sender, calls) >= asked[-RECENT - 1]

    def _oldest(self, sender: int, first: int) -> int:
        """Return the step that a neighbour must have reached: not counted are those at which it sends nothing."""
        asked = self._asked.get((sender, first), deque[int]())
        return asked[-self._max_lag] if self._max_lag is not None and len(asked) >= self._max_lag else -1

    def _has(self, sender: int, call: int) -> bool:
        return sender in self.inbox.arrived and call in self.inbox.arrived[sender].items

    def _step_of(self, sender: int, calls: Sequence[int]) -> int:
        """Return up to which step everything has come that a neighbour sends under some calls."""
        steps = self.inbox.arrived[sender].steps if sender in self.inbox.arrived else {}
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

    def check_timeouts(self) -> None:
        """Raise if a neighbour has been silent for too long, although nobody waits for it."""
        now, timeout = time.monotonic(), self.network.timeout
        with self.inbox.changed:
            silent = [s for s in self.inbox.arrived if self._quiet_for(s, now) > timeout]
            self._check_connections()
        if silent:
            raise self._silent(silent)

    def _quiet_for(self, sender: int, now: float) -> float:
        """Return for how long nothing of a neighbour has come, not even a part of a packet."""
        arrived = self.inbox.arrived.get(sender)
        packet = -math.inf if arrived is None else arrived.when
        return now - max(packet, self._channel.last_progress(sender))

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

    def _mixed(self, primitive: str, own: torch.Tensor, call: int, taken: Taken) -> torch.Tensor:
        share = self._share(primitive)
        received = {s: found[call].values[None] for s, found in taken.items() if call in found}
        if not share.conserves:
            missing = {sender: own for sender, _ in share.senders if sender not in received}
            return combine(share, own, own, missing | received)
        # What was pushed has its weight already; late mass may come over an edge that is not there now.
        senders = sorted((sender, 1.0) for sender in {share.agent, *received})
        mixed = combine(replace(share, senders=tuple(senders)), own, own, received)
        # Not in float64, which takes nine times as long as the mixing: torch adds up pairwise, so that the error
        # is far below what is tolerated, a thousand times the rounding error of `scale`.
        self.balance += float(mixed.sum()) - float(own.sum())
        self.scale += float(torch.linalg.vector_norm(own, 1))
        return mixed

    def _edge(self, receiver: int) -> Outgoing:
        if receiver not in self._edges:
            self._edges[receiver] = Outgoing(receiver, self._channel, self.inbox, self._links)
        return self._edges[receiver]


def tell_seen(agent: int, lags: Mapping[int, int]) -> None:
    """Say which neighbours were late, where an agent ends without having asked the others."""
    told = lag_text([lags], [0.0] * (max(lags, default=0) + 1))
    if told:
        say(f"{told}, as agent {agent} has seen it")


def lag_text(lags: Sequence[Mapping[int, int]], held_up: Sequence[float]) -> str:
    """Return who was behind by more steps than are normal, at worst; not those who were late because others were.

    Args:
        lags: By how many steps each neighbour was behind, as each agent has seen it.
        held_up: Seconds that each agent has waited for neighbours that were too far behind.

    >>> lag_text([{1: 0, 2: 20}, {0: 20, 2: 7}, {}], [2.0, 2.0, 0.0])
    'late: agent 2 was up to 20 steps behind'
    """
    worst: dict[int, int] = {}
    for seen in lags:
        for agent, behind in seen.items():
            worst[agent] = max(worst.get(agent, 0), behind)
    late = sorted(
        (-behind, agent)
        for agent, behind in worst.items()
        if behind > RECENT and 2 * held_up[agent] <= max(held_up)
    )
    listed = ", ".join(f"agent {agent} was up to {-behind} steps behind" for behind, agent in late)
    return f"late: {listed}" if listed else ""
