"""Who starts, watches and restarts the agents of all machines: a thread of the launch that has the endpoint.

torchrun does the same for one machine. For several it would unpickle what strangers write, compare the clocks of the
machines, number agents by the text of addresses, and wait for a lost machine in silence. Here the launches send one
another JSON over sealed connections; what counts is when the supervisor hears of something, by its own clock.

Attempts are numbered by the supervisor. An attempt ends when a machine says that its agents have, or is lost; the
others are told to stop, and once all of them have, the next attempt begins or the run is over.
"""

import contextlib
import math
import secrets
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from digrad.torch.failure_records import cause_of, repeated_failure, without_successes
from digrad.torch.failure_story import BAD_INPUT, FAILED, place_of
from digrad.torch.launch_folder import GRACE
from digrad.torch.machines.channel import BEAT, Channel, Listener, Message
from digrad.torch.machines.meeting import Meeting
from digrad.torch.machines.sealed import StrangerError
from digrad.torch.reasons import agents_text

_FIRST_WORD, _LATER_WORDS = 5.0, 60.0  # seconds until it is said that a machine is missing, and said again
_SIGN, _LOOK = (
    5.0,
    0.05,
)  # seconds for a machine whose place is wanted to give a sign of life, and between two looks
_FAREWELL = 5.0  # seconds for the machines to hear that the run is over
_SHARED = ("version", "nodes", "agents", "graph", "max_restarts")  # facts in which all machines must agree


@dataclass
class Member:
    """A machine that takes part.

    Args:
        channel: To its launch.
        address: Whence it came.
        facts: What it has said of itself.
        is_idle: Whether none of its agents runs.
        is_done: Whether its agents have succeeded.
        heard: When it last gave a sign of life.
    """

    channel: Channel
    address: str
    facts: dict[str, Any]
    is_idle: bool = True
    is_done: bool = False
    heard: float = field(default_factory=time.monotonic)


@dataclass
class Outcome:
    """What every machine is told of an attempt that has ended.

    Args:
        line: What happened.
        code: The exit code if there shall be no other attempt.
        cause: The agent whose failure explains those of the others.
    """

    line: str = ""
    code: int | None = None
    cause: int | None = None


class Supervisor:
    """The attempts of one run.

    Args:
        listener: Where the launches of all machines connect, this one's too; it belongs to the supervisor.
        secret: That they share; None takes whoever comes.
        nodes: Machines.
        max_restarts: How often to start again after a failure.
        rejoin_timeout: Seconds to wait for a machine that is missing.
    """

    def __init__(
        self,
        listener: socket.socket,
        secret: bytes | None,
        *,
        nodes: int,
        max_restarts: int,
        rejoin_timeout: float,
    ) -> None:
        self._secret, self._nodes = secret, nodes
        self._max_restarts, self._rejoin_timeout = max_restarts, rejoin_timeout
        self._lock = threading.RLock()
        self._members: dict[int, Member] = {}
        self._addresses: dict[int, str] = {}  # the last known ones, by machine
        self._attempt, self._restarts = -1, 0
        self._is_running = False
        self._meeting = Meeting()
        self._failures: list[dict[str, Any]] = []
        self._missing_since, self._last_word = time.monotonic(), -math.inf
        self._lost: list[str] = []  # machines that went during the attempt
        self._outcome: Outcome | None = None
        self._last_words: Outcome | None = None  # of a run that was told to end
        self._patience = math.inf
        self._listener = Listener(listener, self._serve)
        threading.Thread(target=self._watch, name="digrad-supervisor", daemon=True).start()

    def close(self) -> None:
        """End the run for everybody, if it has not ended, and stop listening."""
        with self._lock:
            self._end(Outcome("the machine with the endpoint has ended", FAILED))
            members = list(self._members.values())
        deadline = time.monotonic() + _FAREWELL
        while self._members and time.monotonic() < deadline:
            time.sleep(0.05)
        self._listener.close()
        for member in members:
            member.channel.close()

    def _serve(self, connection: socket.socket, address: str) -> None:
        """Talk with one machine until it goes."""
        rank = channel = None
        try:
            try:
                channel = Channel.over(connection, self._secret, is_first=False)
                self._listener.let_in(connection)
                hello = channel.receive()
                self._make_room(hello["node_rank"])
                rank = self._admit(channel, address, hello)
            except (OSError, StrangerError, KeyError, TypeError) as error:
                self._listener.refuse(connection, address, error)
                return
            while rank is not None:
                self._handle(rank, channel, channel.receive())
        except (OSError, StrangerError, KeyError, TypeError, ValueError):
            pass  # it has gone, or speaks nonsense, which is as bad
        finally:
            connection.close()
            if rank is not None and channel is not None:
                self._lose(rank, channel)

    def _make_room(self, asked: int | None) -> None:
        """Count a machine as lost whose place another one wants, unless it gives a sign of life now.

        One that lost its power or its network says no farewell, and comes back before its silence has lasted.
        """
        began = time.monotonic()
        with self._lock:
            is_full = asked is None and len(self._members) == self._nodes
            rivals = {r: member for r, member in self._members.items() if is_full or r == asked}
        while rivals and time.monotonic() - began < _SIGN:
            time.sleep(_LOOK)
            rivals = {r: member for r, member in rivals.items() if member.heard < began}
        for rank, member in rivals.items():
            self._lose(rank, member.channel)
            member.channel.close()

    def _admit(self, channel: Channel, address: str, hello: Message) -> int | None:
        """Take a machine in, or tell it why not; return its number."""
        with self._lock:
            reason = self._reason_against(hello)
            rank = self._number(hello["node_rank"])
            if not reason and rank is None:
                reason = f"all {self._nodes} machines are here already"
            elif not reason and rank in self._members:
                reason = f"machine {rank} is here already ({self._members[rank].address}); choose another --node-rank"
            if reason or rank is None:
                with contextlib.suppress(OSError):
                    channel.send({"refused": reason})
                return None
            self._attempt = max(self._attempt, hello["attempt"])
            member = Member(channel, address, hello)
            channel.send({"welcome": rank})
            self._members[rank], self._addresses[rank] = member, address
            if self._outcome is not None:
                channel.send({"end": self._outcome.code, "told": vars(self._outcome)})
            self._go_on()
        return rank

    def _reason_against(self, hello: Message) -> str:
        others = [member.facts for member in self._members.values()]
        if hello["nodes"] != self._nodes:
            return f"it was started for {hello['nodes']} machines, but the one with the endpoint for {self._nodes}"
        if hello["node_rank"] not in (None, *range(self._nodes)):
            return f"its number is {hello['node_rank']}, but there are {self._nodes} machines"
        differing = [name for name in _SHARED if others and hello[name] != others[0][name]]
        if not differing:
            return ""
        return "; ".join(
            f"{name} is {hello[name]} here, but {others[0][name]} elsewhere" for name in differing
        )

    def _number(self, asked: int | None) -> int | None:
        if asked is not None:
            return asked
        free = (rank for rank in range(self._nodes) if rank not in self._members)
        return next(free, None)

    def _handle(self, rank: int, channel: Channel, message: Message) -> None:
        self._members[rank].heard = time.monotonic()
        if "store" in message:
            request = message["request"]
            if request["op"] == "wait":
                threading.Thread(target=self._answer, args=(channel, message), daemon=True).start()
            else:
                self._answer(channel, message)
        elif "ended" in message:
            self._note_end(rank, message["ended"])
        elif "leaving" in message:
            self._let_go(rank, is_gentle=message["leaving"])

    def _let_go(self, rank: int, *, is_gentle: bool) -> None:
        """End the run because a machine was told to end; if it can, all agents save first."""
        with self._lock:
            told = Outcome(f"machine {rank} ({self._addresses[rank]}) was told to end", FAILED)
            if not is_gentle or not self._is_running:
                self._end(told)
            elif self._last_words is None:
                self._last_words, self._patience = told, time.monotonic() + GRACE
                for member in self._members.values():
                    with contextlib.suppress(OSError):
                        member.channel.send({"ask": None})

    def _answer(self, channel: Channel, message: Message) -> None:
        """Answer an agent; those of an earlier attempt find nothing."""
        with self._lock:
            meeting = self._meeting if message["attempt"] == self._attempt else Meeting()
        try:
            answer = meeting.answer(message["request"])
        except (KeyError, TypeError, ValueError) as error:
            answer = {"ok": False, "reason": repr(error)}
        with contextlib.suppress(OSError):
            channel.send({"answer": message["store"], "content": answer})

    def _note_end(self, rank: int, ended: Message) -> None:
        with self._lock:
            member = self._members[rank]
            member.is_idle, member.is_done = True, ended["succeeded"]
            now = time.monotonic()
            for failure in ended[
                "failures"
            ]:  # of the machine's clock only the difference means anything here
                self._failures.append(failure | {"time": now - failure["age"]})
            if not ended["succeeded"]:
                self._stop()
            self._go_on()

    def _lose(self, rank: int, channel: Channel) -> None:
        """Go on without the machine at the other end of a channel, unless another one has its place already."""
        with self._lock:
            member = self._members.get(rank)
            if member is None or member.channel is not channel:
                return
            del self._members[rank]
            if self._outcome is not None:
                return
            self._missing_since, self._last_word = time.monotonic(), -math.inf
            if not member.is_done:
                self._lost.append(f"machine {rank} ({member.address})")
                self._stop()
            self._go_on()

    def _stop(self) -> None:
        """Tell the machines whose agents still run to end them."""
        if not self._is_running:
            return
        self._is_running = False
        self._meeting.end()
        for member in self._members.values():
            member.is_done = False
            with contextlib.suppress(OSError):  # it is being lost as well
                member.channel.send({"stop": self._attempt})

    def _go_on(self) -> None:
        """Begin the next attempt, or end the run, if everybody is ready."""
        members = self._members.values()
        if self._outcome is not None or not all(member.is_idle for member in members):
            return
        if self._is_running:
            if all(member.is_done for member in members):
                self._end(self._last_words or Outcome(code=0))
            return
        told = self._last_words or self._story()
        if told.code is not None:
            self._end(told)
        elif len(self._members) == self._nodes:
            self._begin(told)

    def _story(self) -> Outcome:
        """Return what is to be said of the last attempt, and whether there shall be another."""
        failures = without_successes(self._failures)
        failed = [failure for failure in failures if failure["attempt"] == self._attempt]
        again = "; all agents have been started again"
        if self._lost:
            return Outcome(f"{', '.join(self._lost)} was lost{again}")
        if not failed:
            return Outcome()
        cause = cause_of(failed)
        told = Outcome(f"{agents_text([cause['agent']])} failed: {cause['reason']}", cause=cause["agent"])
        repeated = repeated_failure(failures)
        if cause["is_final"]:
            told.code = BAD_INPUT
        elif repeated is not None:
            hint = (
                f"; an earlier attempt failed in the same way {place_of(repeated)}, so it is not tried again"
            )
            told.line = told.line.rstrip(".") + hint  # the sentence goes on
            told.code = FAILED
        elif self._restarts >= self._max_restarts:
            told.code = FAILED
        else:
            told.line = told.line.rstrip(".") + again
        return told

    def _begin(self, told: Outcome) -> None:
        if told.cause is not None:
            self._restarts += 1
        self._attempt += 1
        self._is_running, self._meeting = True, Meeting()
        self._lost.clear()
        secret = secrets.token_hex(
            32
        )  # of this attempt: the numbers by which sealed pieces are counted begin anew
        agents = [self._members[rank].facts["agents"] for rank in range(self._nodes)]
        for rank in range(self._nodes):
            member = self._members[rank]
            member.is_idle = member.is_done = False
            order = {
                "attempt": self._attempt,
                "first": sum(agents[:rank]),
                "world": sum(agents),
                "secret": secret,
                "sealed": self._secret is not None,
            }
            with contextlib.suppress(OSError):  # it is being lost
                member.channel.send({"start": order, "told": vars(told)})

    def _end(self, outcome: Outcome) -> None:
        if self._outcome is not None:
            return
        self._outcome, self._is_running = outcome, False
        self._meeting.end()
        for member in self._members.values():
            with contextlib.suppress(OSError):
                member.channel.send({"end": outcome.code, "told": vars(outcome)})

    def _watch(self) -> None:
        """Give signs of life, and say which machines are missing."""
        while self._outcome is None or self._members:
            time.sleep(BEAT)
            with self._lock:
                for member in list(self._members.values()):
                    with contextlib.suppress(OSError):
                        member.channel.send({"beat": None})
                missing = [rank for rank in range(self._nodes) if rank not in self._members]
                if missing and self._outcome is None:
                    self._wait_for(missing)
                if self._last_words is not None and time.monotonic() > self._patience:
                    self._end(self._last_words)

    def _wait_for(self, missing: list[int]) -> None:
        now = time.monotonic()
        names = ", ".join(
            f"machine {rank}" + (f" ({self._addresses[rank]})" if rank in self._addresses else "")
            for rank in missing
        )
        if now - self._missing_since > self._rejoin_timeout:
            self._end(Outcome(f"{names} did not come within {self._rejoin_timeout:.0f} s", FAILED))
        elif now - self._missing_since > _FIRST_WORD and now - self._last_word > _LATER_WORDS:
            self._last_word = now
            left = self._rejoin_timeout - (now - self._missing_since)
            text = f"waiting for {names}, for at most {left:.0f} s more"
            for member in self._members.values():
                with contextlib.suppress(OSError):
                    member.channel.send({"say": text})
