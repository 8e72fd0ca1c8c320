"""Reading messages from the memory of a neighbour: who may, and what happens when it cannot."""

import ctypes
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch

from digrad.errors import CommunicationError
from digrad.torch import same_host

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reading memory is a facility of Linux")

SOON = timedelta(seconds=10)


@pytest.fixture
def arc() -> Iterator[tuple[Any, Any]]:
    """The two ends of an arc from this process to itself."""
    sender, receiver = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    outgoing, incoming = same_host._Outgoing(sender), same_host._Incoming(receiver, os.getpid())
    yield outgoing, incoming
    incoming.close()
    incoming.thread.join(10)
    outgoing.close()


def test_messages_are_taken_in_the_order_in_which_they_are_posted(arc: tuple[Any, Any]) -> None:
    outgoing, incoming = arc
    sent = [torch.rand(1000), torch.rand(7)]
    offers = [outgoing.post(message, tag) for tag, message in enumerate(sent)]
    received = [torch.empty(1000), torch.empty(7)]
    readings = [incoming.post(message, tag) for tag, message in enumerate(received)]
    assert offers[1].wait(SOON)  # the later one first
    assert all(work.wait(SOON) for work in (*readings, offers[0]))
    assert all(torch.equal(*pair) for pair in zip(sent, received, strict=True))


def test_silent_neighbour_is_waited_for_and_no_longer_than_asked(arc: tuple[Any, Any]) -> None:
    outgoing, incoming = arc
    target = torch.zeros(3)
    reading = incoming.post(target, 1)
    assert not reading.wait(timedelta(seconds=0.05))
    offer = outgoing.post(torch.ones(3), 1)
    assert reading.wait(SOON)
    assert offer.wait(SOON)
    assert target.all()
    assert not outgoing.post(target, 2).wait(timedelta(seconds=0.05))


@pytest.mark.parametrize(("tag", "size"), [(1, 4), (2, 3)])
def test_offer_of_another_round_or_size_is_refused_before_anything_is_written(
    tag: int, size: int, arc: tuple[Any, Any]
) -> None:
    outgoing, incoming = arc
    target, message = torch.zeros(3), torch.ones(size)
    outgoing.post(message, tag)
    expected = f"round {tag} with {4 * size} bytes came for round 1 with 12"
    with pytest.raises(same_host.MessageLostError, match=expected):
        incoming.post(target, 1).wait(SOON)
    assert not target.any()


@pytest.mark.parametrize("end", ["sender", "receiver"])
def test_end_of_a_neighbour_is_noticed_at_once(end: str, arc: tuple[Any, Any]) -> None:
    outgoing, incoming = arc
    work = incoming.post(torch.empty(3), 1) if end == "sender" else outgoing.post(torch.empty(3), 1)
    (outgoing if end == "sender" else incoming).close()
    with pytest.raises(same_host.MessageLostError, match=r"the process has ended|reset"):
        work.wait(SOON)


def test_memory_of_a_process_that_has_ended_is_an_error() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    target = ctypes.create_string_buffer(8)
    with pytest.raises(same_host.MessageLostError, match="cannot be read: No such process"):
        same_host._read(process.pid, ctypes.addressof(target), ctypes.addressof(target), 8)


def test_unmapped_memory_is_an_error() -> None:
    target = ctypes.create_string_buffer(8)
    with pytest.raises(same_host.MessageLostError, match="cannot be read: Bad address"):
        same_host._read(os.getpid(), 8, ctypes.addressof(target), 8)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as one:
        one.bind(f"\0digrad-test-{secrets.token_hex(8)}")
        one.listen()
        yield one


@pytest.mark.parametrize("wrong", ["nonce", "pid", "socket", "address"])
def test_sender_that_is_not_what_it_says_is_not_read(wrong: str, listener: socket.socket) -> None:
    nonce = ctypes.create_string_buffer(secrets.token_bytes(16), 16)
    facts = same_host._describe_self(listener, nonce)
    connection = same_host._connect(facts)
    assert connection is not None
    connection.close()
    lie = {"nonce": "00" * 16, "pid": os.getppid(), "socket": "nobody", "address": 8}[wrong]
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
