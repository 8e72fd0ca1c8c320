"""What the supervisor of several machines tells them, tried over loopback without any agents."""

import errno
import queue
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest

from digrad.torch.machines import supervisor as supervisor_module
from digrad.torch.machines.channel import CONTEXT, STRANGERS, Channel, Listener
from digrad.torch.machines.machine import Machine
from digrad.torch.machines.sealed import meet
from digrad.torch.machines.supervisor import Supervisor

SECRET = bytes(32)


class Fake:
    """A machine that says what a test wants it to say."""

    def __init__(self, address: tuple[str, int], **facts: Any) -> None:
        self.channel = Channel.over(socket.create_connection(address, timeout=5), SECRET, is_first=True)
        hello = {"version": "1", "nodes": 2, "agents": 1, "graph": None, "max_restarts": 3}
        self.channel.send({**hello, "node_rank": None, "attempt": -1, **facts})

    def hear(self, word: str) -> dict[str, Any]:
        """Return the next message that holds a word, whatever is said before."""
        while word not in (message := self.channel.receive()):
            pass
        return message

    def end(self, attempt: int, *failures: dict[str, Any]) -> None:
        self.channel.send({"ended": {"attempt": attempt, "succeeded": not failures, "failures": failures}})

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Give signs of life."""
        done = threading.Event()

        def beat() -> None:
            while not done.wait(0.02):
                self.channel.send({"beat": None})

        thread = threading.Thread(target=beat)
        thread.start()
        yield
        done.set()
        thread.join()

    def close(self) -> None:
        self.channel.close()


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    listener = socket.create_server(("127.0.0.1", 0))
    found = listener.getsockname()
    supervisor = Supervisor(listener, SECRET, nodes=2, max_restarts=1, rejoin_timeout=30.0)
    yield found
    supervisor.close()


def failure(attempt: int, reason: str, **facts: Any) -> dict[str, Any]:
    base = {
        "agent": 0,
        "attempt": attempt,
        "age": 0.1,
        "step": 3,
        "traceback": "",
        "is_final": False,
        "is_own": True,
        "has_left": False,
    }
    return {**base, "mark": None, "reason": reason, **facts}


def test_machines_are_numbered_as_they_wish_or_as_they_come(address: tuple[str, int]) -> None:
    with closing(Fake(address, node_rank=1)) as one, closing(Fake(address)) as two:
        assert one.hear("welcome") == {"welcome": 1}
        assert two.hear("welcome") == {"welcome": 0}
        orders = [machine.hear("start")["start"] for machine in (two, one)]
    assert [order["first"] for order in orders] == [0, 1]
    assert [order["world"] for order in orders] == [2, 2]
    assert orders[0]["secret"] == orders[1]["secret"]


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"nodes": 3}, "it was started for 3 machines, but the one with the endpoint for 2"),
        ({"version": "2"}, "version is 2 here, but 1 elsewhere"),
        ({"node_rank": 0}, "machine 0 is here already (127.0.0.1); choose another --node-rank"),
        ({"node_rank": 7}, "its number is 7, but there are 2 machines"),
    ],
)
def test_machine_that_does_not_fit_is_told_why(
    facts: dict[str, Any], reason: str, address: tuple[str, int]
) -> None:
    with closing(Fake(address)) as first:
        assert first.hear("welcome") == {"welcome": 0}
        with first.beating(), closing(Fake(address, **facts)) as other:
            assert other.hear("refused") == {"refused": reason}


@pytest.mark.parametrize("node_rank", [1, None])
def test_machine_that_gives_no_sign_of_life_makes_room_for_the_one_that_comes_back(
    node_rank: int | None, address: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has lost its power says no farewell: its connection stays open until its silence has lasted."""
    monkeypatch.setattr(supervisor_module, "_SIGN", 0.3)
    with closing(Fake(address, node_rank=0)) as one, closing(Fake(address, node_rank=1)) as two:
        two.hear("start")
        with one.beating(), closing(Fake(address, node_rank=node_rank)) as again:
            assert again.hear("welcome") == {"welcome": 1}
            assert one.hear("stop") == {"stop": 0}
            one.end(0, failure(0, "CommunicationError: lost", is_own=False))
            told = [machine.hear("start")["told"]["line"] for machine in (one, again)]
            assert set(told) == {"machine 1 (127.0.0.1) was lost; all agents have been started again"}


def test_strangers_who_say_nothing_keep_nobody_out(address: tuple[str, int]) -> None:
    with ExitStack() as stack:
        for _ in range(2 * STRANGERS):
            stack.enter_context(socket.create_connection(address))
        with closing(Fake(address)) as machine:
            assert machine.hear("welcome") == {"welcome": 0}


@pytest.mark.parametrize("nonsense", [b"[" * 100_000, b"[]", b"\xff", b"{}"], ids=len)
def test_nonsense_of_a_member_ends_its_connection_only(nonsense: bytes, address: tuple[str, int]) -> None:
    connection = socket.create_connection(address)
    with closing(meet(connection, SECRET, CONTEXT, is_first=True, timeout=5)) as wire:
        wire.send(struct.pack("<I", len(nonsense)))
        wire.send(nonsense)
        with pytest.raises(ConnectionResetError):
            wire.receive(1)
    with closing(Fake(address)) as machine:
        assert machine.hear("welcome") == {"welcome": 0}


def test_listener_stays_open_when_descriptors_were_short_for_a_moment() -> None:
    came: queue.SimpleQueue[str] = queue.SimpleQueue()
    events = iter(
        [OSError(errno.EMFILE, "too many"), (None, ("10.0.0.1", 1)), OSError(errno.EBADF, "closed")]
    )

    class Socket:
        def accept(self) -> Any:
            event = next(events)
            if isinstance(event, OSError):
                raise event
            return event

    socket: Any = Socket()
    Listener(socket, lambda connection, address: came.put(address))
    assert came.get(timeout=5) == "10.0.0.1"


def test_failure_anywhere_stops_all_and_starts_all_with_a_new_secret(address: tuple[str, int]) -> None:
    with closing(Fake(address, node_rank=0)) as one, closing(Fake(address, node_rank=1)) as two:
        before = [machine.hear("start")["start"] for machine in (one, two)]
        two.end(0, failure(0, "KeyError: 'x'.", agent=1))
        assert one.hear("stop") == {"stop": 0}
        one.end(0, failure(0, "CommunicationError: lost", is_own=False))
        after = [machine.hear("start") for machine in (one, two)]
        assert {message["told"]["line"] for message in after} == {
            "agent 1 failed: KeyError: 'x'; all agents have been started again"
        }
        assert after[0]["start"]["attempt"] == 1
        assert after[0]["start"]["secret"] != before[0]["secret"]
        two.end(1, failure(1, "OSError: full", agent=1))
        one.hear("stop")
        one.end(1, failure(1, "CommunicationError: lost", is_own=False))
        assert [machine.hear("end")["end"] for machine in (one, two)] == [1, 1]  # no restart is left


def test_wrong_setting_ends_the_run_at_once_with_code_2(address: tuple[str, int]) -> None:
    with closing(Fake(address, node_rank=0)) as one, closing(Fake(address, node_rank=1)) as two:
        for machine in (one, two):
            machine.hear("start")
            machine.end(0, failure(0, "ArgumentError: bad", is_final=True))
        assert [machine.hear("end")["end"] for machine in (one, two)] == [2, 2]


def test_lost_machine_may_come_back_and_costs_no_restart(address: tuple[str, int]) -> None:
    with closing(Fake(address, node_rank=0)) as one:
        with closing(Fake(address, node_rank=1)) as two:
            two.hear("start")
        assert one.hear("stop") == {"stop": 0}
        one.end(0, failure(0, "CommunicationError: lost", is_own=False))
        with closing(Fake(address, node_rank=1)) as again:
            told = [machine.hear("start")["told"]["line"] for machine in (one, again)]
            assert set(told) == {"machine 1 (127.0.0.1) was lost; all agents have been started again"}
            for machine in (one, again):
                machine.end(1)
            assert [machine.hear("end")["end"] for machine in (one, again)] == [0, 0]


def test_table_of_an_attempt_is_shared_and_forgotten_with_it(address: tuple[str, int]) -> None:
    with closing(Fake(address, node_rank=0)) as one, closing(Fake(address, node_rank=1)) as two:
        for machine in (one, two):
            machine.hear("start")
        one.channel.send({"store": 1, "attempt": 0, "request": {"op": "set", "key": "a", "value": "Yg=="}})
        one.hear("answer")
        for attempt, found in ((0, True), (-1, False)):
            two.channel.send({"store": 2, "attempt": attempt, "request": {"op": "check", "keys": ["a"]}})
            assert two.hear("answer")["content"]["found"] == found


def test_agent_that_has_gone_before_its_answer_is_no_error_of_the_launch() -> None:
    """As all have whose machine was cut off from the endpoint."""
    here, there = socket.socketpair()
    there.sendall(b'{"op": "facts"}\n')
    there.close()
    machine = object.__new__(Machine)
    machine._facts = lambda: {"secret": "none"}
    machine._answer(here)
