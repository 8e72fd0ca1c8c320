"""Messages through memory that agents of one host share: who may, and what happens when it cannot."""

import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
import torch

from digrad.errors import CommunicationError
from digrad.torch import same_host

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory files are a facility of Linux")

SOON = timedelta(seconds=10)


class Ends(NamedTuple):
    reader: Any
    incoming: Any
    writer: Any
    outgoing: Any

    def inbox(self, size: int) -> torch.Tensor:
        return self.reader.inbox(torch.empty(size)).zero_()


@pytest.fixture
def arc() -> Iterator[Ends]:
    """The two ends of an arc from this process to itself."""
    sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    reader, writer = same_host._Reader(receiver), same_host._Writer(sender)
    ends = Ends(reader, same_host._Arc(receiver, reader.take), writer, same_host._Arc(sender, writer.write))
    yield ends
    for end in (ends.incoming, ends.outgoing):
        end.close()
        end.thread.join(10)


def test_messages_are_taken_in_the_order_in_which_they_are_posted(arc: Ends) -> None:
    sent = [torch.rand(1000), torch.rand(7)]
    writings = [arc.outgoing.post(message, tag) for tag, message in enumerate(sent)]
    received = [arc.inbox(1000), arc.inbox(7)]
    readings = [arc.incoming.post(message, tag) for tag, message in enumerate(received)]
    assert writings[1].wait(SOON)  # the later one first
    assert all(work.wait(SOON) for work in (*readings, writings[0]))
    assert all(torch.equal(*pair) for pair in zip(sent, received, strict=True))


def test_memory_is_handed_over_once_and_forgotten_with_its_last_reader(arc: Ends) -> None:
    def carry(target: torch.Tensor, tag: int) -> None:
        message = torch.full((target.numel(),), float(tag))
        works = arc.outgoing.post(message, tag), arc.incoming.post(target, tag)
        assert all(work.wait(SOON) for work in works)
        assert torch.equal(target, message)

    first = arc.inbox(5)
    carry(first, 0)
    (mapped,), files = arc.writer._memory.values(), len(os.listdir("/proc/self/fd"))
    carry(first, 1)
    assert list(arc.writer._memory.values()) == [mapped]
    del first
    carry(arc.inbox(9), 2)
    assert [memory.nbytes for memory in arc.writer._memory.values()] == [36]
    assert len(os.listdir("/proc/self/fd")) == files


def test_silent_neighbour_is_waited_for_and_no_longer_than_asked(arc: Ends) -> None:
    target = arc.inbox(3)
    reading = arc.incoming.post(target, 1)
    assert not reading.wait(timedelta(seconds=0.05))
    writing = arc.outgoing.post(torch.ones(3), 1)
    assert reading.wait(SOON)
    assert writing.wait(SOON)
    assert target.all()
    assert not arc.outgoing.post(target, 2).wait(timedelta(seconds=0.05))


@pytest.mark.parametrize(("tag", "size"), [(1, 4), (2, 3)])
def test_message_of_another_round_or_size_is_refused_before_anything_is_written(
    tag: int, size: int, arc: Ends
) -> None:
    target = arc.inbox(3)
    arc.outgoing.post(torch.ones(size), tag)
    expected = f"round {tag} with {4 * size} bytes came for round 1 with 12"
    with pytest.raises(same_host.MessageLostError, match=expected):
        arc.incoming.post(target, 1).wait(SOON)
    assert not target.any()


@pytest.mark.parametrize("end", ["sender", "receiver"])
def test_end_of_a_neighbour_is_noticed_at_once(end: str, arc: Ends) -> None:
    here, there = (arc.incoming, arc.outgoing) if end == "sender" else (arc.outgoing, arc.incoming)
    work = here.post(arc.inbox(3), 1)
    there.close()
    with pytest.raises(same_host.MessageLostError, match=r"the process has ended|reset|Broken pipe"):
        work.wait(SOON)


def test_memory_that_could_shrink_is_not_written_into(arc: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    def unsealed(size: int) -> int:
        file = os.memfd_create("test", os.MFD_ALLOW_SEALING)
        os.ftruncate(file, size)
        return file

    monkeypatch.setattr(same_host, "memory_file", unsealed)
    arc.incoming.post(arc.inbox(3), 1)
    with pytest.raises(same_host.MessageLostError, match="is not sealed"):
        arc.outgoing.post(torch.ones(3), 1).wait(SOON)


USERS = """
import ctypes, json, os, socket, sys, torch
from datetime import timedelta
from digrad.torch.same_host import LARGE, SameHost

if os.getuid() == 0:
    os.setresuid(65534, 65534, 65534)
ctypes.CDLL(None).prctl(4, 0)  # PR_SET_DUMPABLE: as under Ubuntu's defaults, nobody may look into this process
ends = socket.socketpair()
agent = 0 if os.fork() else 1
ends[1 - agent].close()
said, heard = ends[agent].makefile("w"), ends[agent].makefile("r")

def exchange(facts):
    print(json.dumps(facts), file=said, flush=True)
    both = [facts, json.loads(heard.readline())]
    return both if agent == 0 else both[::-1]

links = SameHost(agent, [(0, 1), (1, 0)], exchange, 120.0)
assert links.senders == {1 - agent}, links.senders
sent = torch.full((LARGE,), float(agent))
target = links.inbox(1 - agent, torch.empty(LARGE))
works = links.receive(1 - agent, target, 1, 0), links.send(1 - agent, sent, 1, 0)
assert all(work.wait(timedelta(seconds=120)) for work in works)
assert torch.equal(target, 1 - sent)
exchange({})
if agent == 0:
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_ordinary_users_share_memory_without_rights_to_trace_one_another() -> None:
    done = subprocess.run(
        [sys.executable, "-c", USERS], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
        one.bind(f"\0digrad-test-{secrets.token_hex(8)}")
        one.listen()
        yield one


@pytest.mark.parametrize("wrong", ["pid", "socket"])
def test_sender_that_is_not_what_it_says_is_not_trusted(wrong: str, listener: socket.socket) -> None:
    facts = same_host._describe_self(listener)
    connection = same_host._connect(facts)
    assert connection is not None
    connection.close()
    lie = {"pid": os.getppid(), "socket": "nobody"}[wrong]
    assert same_host._connect({**facts, wrong: lie}) is None


def test_stranger_who_connects_is_turned_away(listener: socket.socket) -> None:
    stranger = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import socket, sys\n"
            "link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
            "link.connect(chr(0) + sys.argv[1])\n"
            "sys.exit(0 if link.recv(8) == b'' else 1)",
            listener.getsockname()[1:].decode(),
        ]
    )
    found: dict[int, socket.socket] = {}
    friend = threading.Thread(
        target=lambda: found.update(same_host._accept(listener, {os.getpid(): 3}, timeout=30))
    )
    friend.start()
    assert stranger.wait(30) == 0
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
        link.connect(listener.getsockname())
        friend.join(30)
    assert list(found) == [3]
    found[3].close()


def test_receiver_that_does_not_connect_is_named(listener: socket.socket) -> None:
    with pytest.raises(CommunicationError, match="agent 4 did not connect"):
        same_host._accept(listener, {1: 4}, timeout=0.05)
