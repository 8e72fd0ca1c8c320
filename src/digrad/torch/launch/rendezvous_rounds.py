"""The rounds of a run: which machines take part, when the next attempt begins, and what is said of the last one.

Kept by the machine with the endpoint. Times are those of its own clock; clocks of machines are never compared.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from digrad._internal.error_text import agents_text
from digrad.torch.launch.failures import BAD_INPUT, FAILED, FINAL, LEFT, Failure
from digrad.torch.launch.rendezvous_endpoint import ANSWER_TIMEOUT, Message
from digrad.torch.launch.rendezvous_store import Table

FRESH = 10.0  # seconds in which every machine sends several heartbeats, however busy it is
TAKEOVER = 4.0  # seconds that a machine gets to send one if another wants its place
_SHARED = ("version", "nodes", "graph", "max_restarts")  # settings on which all machines must agree


@dataclass
class Outcome:
    """End of a round, as every machine is told of it.

    Args:
        line: What happened.
        code: The exit code if there shall be no other round.
        cause: The agent whose failure explains those of the others.
    """

    line: str = ""
    code: int | None = None
    cause: int | None = None


@dataclass
class Node:
    """A machine that takes part.

    Args:
        name: Drawn by its torchrun.
        address: Where its agents listen.
        facts: Its settings.
        heard: When its last heartbeat, or request, came.
        is_waiting: Whether it waits for the next round.
        is_done: Whether all its agents have succeeded, and it has left.
        failures: Of its agents in the present round, each with its time.
    """

    name: str
    address: str
    facts: dict[str, Any]
    heard: float
    is_waiting: bool = True
    is_done: bool = False
    failures: list[tuple[float, Failure]] = field(default_factory=list)


class Rounds:
    """The state of a run.

    Args:
        nodes: Machines.
        clock: For tests.
    """

    def __init__(self, nodes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._nodes, self._clock = nodes, clock
        self._lock = threading.Lock()
        self._round, self._restarts = -1, 0
        self._table: Table | None = None  # of the present round, once it has begun
        self._places: dict[int, Node] = {}  # by the number of the machine
        self._addresses: dict[int, str] = {}  # the last known ones
        self._arrivals: dict[str, float] = {}  # of machines whose place is taken, by name
        self._marks: set[str | None] = set()  # of the failures to which earlier rounds were put down
        self._lost: list[str] = []  # machines that went during the round
        self._first: str | None = None  # the machine that asked for the next round
        self._told, self._outcome = Outcome(), None

    def answer(self, request: Message) -> Message:
        """Return the answer to a request of a machine or a worker.

        Raises:
            KeyError, TypeError, ValueError: It is none.
        """
        with self._lock:
            for node in self._places.values():
                if node.name == request.get("name"):
                    node.heard = self._clock()
            self._forget_timed_out()
            match request["op"]:
                case "join":
                    return self._join(request)
                case "heartbeat":
                    return self._heartbeat(request)
                case "leave":
                    return self._leave(request["name"])
                case "close":
                    self._outcome = self._outcome or Outcome(request["line"], request["code"])
                    return {"closed": vars(self._outcome)}
            if self._table is None or request["round"] != self._round:
                return {"over": True}
            return self._table.answer(request)

    @property
    def is_empty(self) -> bool:
        """Return whether no machine is left that might still ask."""
        with self._lock:
            self._forget_timed_out()
            return all(node.is_done for node in self._places.values())

    def _join(self, request: Message) -> Message:
        """Take a machine in; the answer is a number of the round once all machines have come."""
        if self._outcome is not None:
            return self._dismiss(request["name"])
        self._round = max(
            self._round, request["after"]
        )  # the machine with the endpoint may have been restarted
        rank = next((i for i, node in self._places.items() if node.name == request["name"]), None)
        if rank is None:
            reason, rank = self._admit(request)
            if reason:
                return {"refused": reason}
            if rank is None:
                return {"missing": []}  # its place may become free
        node = self._places[rank]
        if not node.is_waiting:
            if request["after"] < self._round:
                return {"round": self._round, "rank": rank, "told": vars(self._told)}
            node.failures, node.is_waiting = self._timed(request), True
            self._first = self._first or f"machine {rank} ({node.address})"
        missing = self._missing()
        if missing:
            return {"missing": missing}
        self._begin()
        return self._dismiss(request["name"]) if self._outcome else self._join(request)

    def _dismiss(self, name: str) -> Message:
        assert self._outcome is not None
        self._leave(name)
        return {"closed": vars(self._outcome)}

    def _admit(self, request: Message) -> tuple[str, int | None]:
        """Return why a new machine may not take part, or its number, or neither if that is not known yet."""
        reason = self._reason_against(request)
        if reason:
            return reason, None
        asked = request["rank"]
        free = [rank for rank in range(self._nodes) if rank not in self._places or self._places[rank].is_done]
        wishes = [asked] if asked is not None else [*(r for r in free if r == request["last"]), *free]
        rank = next((wish for wish in wishes if wish in free), None)
        if rank is None:
            rivals = range(self._nodes) if asked is None else [asked]
            arrived = self._arrivals.setdefault(request["name"], self._clock())
            silent = [i for i in rivals if self._places[i].heard < arrived]
            if not silent and asked is None:
                return f"all {self._nodes} machines are here already", None
            if not silent and asked is not None:
                address = self._places[asked].address
                return f"machine {asked} is here already ({address}); choose another node rank", None
            if self._clock() - arrived < TAKEOVER:
                return "", None
            rank = silent[0]
            self._lose(rank)
        self._arrivals.pop(request["name"], None)
        node = Node(request["name"], request["address"], request["facts"], self._clock())
        node.failures = self._timed(request)
        self._places[rank] = node
        self._addresses[rank] = request["address"]
        return "", rank

    def _reason_against(self, request: Message) -> str:
        facts, asked = request["facts"], request["rank"]
        if facts["nodes"] != self._nodes:
            return f"it was started for {facts['nodes']} machines, but the one with the endpoint for {self._nodes}"
        if asked not in (None, *range(self._nodes)):
            return f"its number is {asked}, but there are {self._nodes} machines"
        others = [node.facts for node in self._places.values()]
        differing = [name for name in _SHARED if others and facts[name] != others[0][name]]
        return "; ".join(
            f"{name} is {facts[name]} here, but {others[0][name]} elsewhere" for name in differing
        )

    def _heartbeat(self, request: Message) -> Message:
        """Answer whether the round of the machine is over."""
        known = [node for node in self._places.values() if node.name == request["name"]]
        is_complete = len(self._places) == self._nodes
        is_over = not known or not is_complete or any(node.is_waiting for node in self._places.values())
        return {"over": is_over or request["round"] != self._round or self._outcome is not None}

    def _leave(self, name: str) -> Message:
        for node in self._places.values():
            if node.name == name:
                node.is_done, node.is_waiting = True, False
        return {}

    def _missing(self) -> list[str]:
        """Return the machines that have to come before the next round begins."""
        now = self._clock()
        found = []
        for rank in range(self._nodes):
            node = self._places.get(rank)
            if node is None or not node.is_waiting or now - node.heard > FRESH:
                address = self._addresses.get(rank)
                found.append(f"machine {rank}" + (f" ({address})" if address else ""))
        return found

    def _forget_timed_out(self) -> None:
        now = self._clock()
        for rank, node in list(self._places.items()):
            if now - node.heard > ANSWER_TIMEOUT and not node.is_done:
                self._lose(rank)

    def _lose(self, rank: int) -> None:
        self._lost.append(f"machine {rank} ({self._places.pop(rank).address})")

    def _begin(self) -> None:
        """Begin the next round, or end the run."""
        told = self._story([one for node in self._places.values() for one in node.failures])
        if told.code is not None:
            self._outcome = told
            return
        if told.cause is not None:
            self._restarts += 1
        self._told, self._table = told, Table()
        self._round += 1
        self._lost, self._first = [], None
        for node in self._places.values():
            node.is_waiting, node.failures = False, []

    def _timed(self, request: Message) -> list[tuple[float, Failure]]:
        """Return failures with the time of this machine: of another one's clock only differences mean anything."""
        failures = [Failure(**one) for one in request["failures"]]
        return [(self._clock() - one.age, one) for one in failures]

    def _story(self, failures: list[tuple[float, Failure]]) -> Outcome:
        """Return what is to be said of the last round, and whether there shall be another."""
        again = "; all agents have been started again"
        if self._lost and self._round >= 0:
            return Outcome(f"{', '.join(self._lost)} was lost{again}")
        if all(one.kind == LEFT for _, one in failures):
            return Outcome(f"{self._first} asked for a restart{again}" if self._first else "")
        # All agents have a final one at once; of others the first one explains the rest.
        cause = min(
            failures, key=lambda one: (one[1].kind, one[1].agent if one[1].kind == FINAL else one[0])
        )[1]
        earlier = self._marks
        self._marks = earlier | {one.mark for _, one in failures if one.kind == cause.kind and one.mark}
        limit = next(iter(self._places.values())).facts["max_restarts"]
        told = Outcome(f"{agents_text([cause.agent])} failed: {cause.reason}", cause=cause.agent)
        sentence = told.line.rstrip(".")  # which may go on
        if cause.kind == FINAL:
            told.code = BAD_INPUT
        elif cause.mark in earlier:
            told.code = FAILED
            told.line = f"{sentence}; an earlier attempt failed in the same way {cause.place}, so it is not tried again"
        elif limit is not None and self._restarts >= limit:
            told.code = FAILED
        else:
            told.line = sentence + again
        return told
