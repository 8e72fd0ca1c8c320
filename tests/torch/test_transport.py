"""Packets between real processes: whole, in order, one under way at a time, and what happens when one ends."""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import zmq

from digrad.torch.transport import curve_keys
from digrad.torch.transport.curve_keys import KeyPair
from digrad.torch.transport.packets import MessageLostError, typed
from digrad.torch.transport.transports import Transports, ring_sum
from torch_processes import stop_for
from transport_processes import open_kind, run_agents

KINDS = ["memory", "zeromq", "curve"]
SIZES = [0, 1, 7, 1 << 15, (1 << 15) + 1, (1 << 20) + 3, 5 << 20]


def keys_for(kind: str) -> KeyPair | None:
    return KeyPair(*zmq.curve_keypair()) if kind == "curve" else None


def numbers(size: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def pass_around(agent: int, exchange: Any, kind: str, keys: Any) -> list[int]:
    """Send packets of all sizes around a ring of three, on two channels at once."""
    transports = open_kind(kind, agent, 3, exchange, keys)
    channels = [transports.channel().open() for _ in range(2)]
    after, before = (agent + 1) % 3, (agent - 1) % 3
    for number, size in enumerate(SIZES):
        for place, channel in enumerate(channels):
            pieces = numbers(size, 10 * number + place + 100 * agent).split([size // 3, size - size // 3])
            sent = channel.send(after, bytes([number]), pieces)
            assert sent.wait(60.0) is sent
            for piece in pieces:
                piece.zero_()  # what has left may change
            packet = channel.wait(before, 60.0)
            assert packet is not None
            assert packet.header == bytes([number])
            assert torch.equal(packet.payload, numbers(size, 10 * number + place + 100 * before))
            channel.release(before)
    exchange({})
    transports.close()
    return [channel.bytes_sent for channel in channels]


@pytest.mark.parametrize("kind", KINDS)
def test_packets_arrive_whole_and_in_order_and_are_counted(kind: str, tmp_path: Path) -> None:
    found = run_agents(3, tmp_path, pass_around, kind, keys_for(kind))
    assert found == [[sum(SIZES), sum(SIZES)]] * 3


def send_ahead(agent: int, exchange: Any, kind: str, keys: Any) -> None:
    """Send three packets to a receiver that releases none before it has looked."""
    transports = open_kind(kind, agent, 2, exchange, keys)
    channel, taken = transports.channel().open(), []
    if agent == 0:
        sendings = [
            channel.send(1, bytes([i]), [torch.full((1 << 18,), float(i))], lambda i=i: taken.append(i))
            for i in range(3)
        ]
        exchange({})
        assert [one.wait(60.0) is one for one in sendings] == [True] * 3
        exchange({})
        assert taken == [0, 1, 2]
    else:
        packet = channel.wait(0, 60.0)
        assert packet is not None
        time.sleep(0.2)  # whatever else was sent does not touch it
        assert (typed(packet.payload, torch.float32) == 0).all()
        exchange({})
        for i in range(3):
            packet = channel.wait(0, 60.0)
            assert packet is not None
            assert packet.header == bytes([i])
            assert (typed(packet.payload, torch.float32) == i).all()
            channel.release(0)
        time.sleep(0.3)
        exchange({})
    exchange({})
    transports.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_packet_leaves_when_the_one_before_was_released(kind: str, tmp_path: Path) -> None:
    run_agents(2, tmp_path, send_ahead, kind, keys_for(kind))


def lose_a_neighbour(agent: int, exchange: Any, kind: str, keys: Any) -> float:
    """Be killed, or wait for who is."""
    transports = open_kind(kind, agent, 3, exchange, keys)
    channel = transports.channel().open()
    for peer in {0, 1, 2} - {agent}:
        channel.send(peer, b"", [torch.ones(4)])
    for peer in {0, 1, 2} - {agent}:
        assert channel.wait(peer, 60.0) is not None
        channel.release(peer)
    exchange({})
    if agent == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if agent == 1:  # only sends
        sending = channel.send(2, b"", [torch.ones(4)])
        sending = channel.send(2, b"", [torch.ones(4)])
        with pytest.raises(MessageLostError):
            assert sending.wait(60.0) is None
    began = time.monotonic()
    with pytest.raises(MessageLostError):
        channel.wait(2, 60.0)
    seconds = time.monotonic() - began
    other, taken = 1 - agent, threading.Event()
    channel.send(other, b"", [torch.ones(4)], taken.set)
    assert channel.wait(other, 60.0) is not None  # it is still there
    channel.release(other)
    taken.wait(2.0)  # before this end closes; the other one may have closed already
    transports.close()
    return seconds


@pytest.mark.parametrize("kind", KINDS)
def test_a_neighbour_that_is_killed_is_noticed_at_once(kind: str, tmp_path: Path) -> None:
    found = run_agents(3, tmp_path, lose_a_neighbour, kind, keys_for(kind), codes=[0, 0, -signal.SIGKILL])
    assert max(found[:2]) < 30


def send_to_a_busy_agent(agent: int, exchange: Any, kind: str, keys: Any) -> None:
    """Begin a connection to an agent that is stopped for longer than a handshake may last."""
    if agent == 0:  # the one that begins; the other one has time
        curve_keys.HANDSHAKE_TIMEOUT = 0.8
    transports = open_kind(kind, agent, 2, exchange, keys)
    channel = transports.channel().open()
    exchange({})
    if agent == 0:
        time.sleep(0.2)  # until the other one stops
        for _ in range(2):
            taken = threading.Event()
            channel.send(1, b"", [torch.ones(4)], taken.set)
            assert taken.wait(20.0)
    else:
        stop_for(2.5)
        for _ in range(2):
            assert channel.wait(0, 60.0) is not None
            channel.release(0)
    exchange({})
    transports.close()


@pytest.mark.parametrize("kind", KINDS[1:])
def test_handshake_that_times_out_is_tried_again(kind: str, tmp_path: Path) -> None:
    run_agents(2, tmp_path, send_to_a_busy_agent, kind, keys_for(kind))


def add_up(agent: int, exchange: Any, kind: str, keys: Any) -> list[float]:
    transports = open_kind(kind, agent, 3, exchange, keys)
    channel = transports.channel().open()

    def wait(peer: int, look: Any) -> Any:
        found = look(60.0)
        assert found is not None
        return found

    values = torch.arange(10, dtype=torch.float64) * (agent + 1)
    ring_sum(values, agent, 3, channel, wait)
    exchange({})
    transports.close()
    return values.tolist()


@pytest.mark.parametrize("kind", [*KINDS, "ipv6"])
def test_ring_adds_up(kind: str, tmp_path: Path) -> None:
    for values in run_agents(3, tmp_path, add_up, kind, keys_for(kind)):
        assert values == [6.0 * i for i in range(10)]


def leave_tasks(agent: int, exchange: Any, kind: str) -> bool:
    """Let the thread of a transport leave itself more tasks than the socket that wakes it up has room for."""
    transports: Transports = open_kind(kind, agent, 1, exchange)
    done = threading.Event()

    def leave() -> None:
        for _ in range(5000):
            transports.each[0]._do(lambda: None)
        done.set()

    transports.each[0]._do(leave)
    return done.wait(20.0)


@pytest.mark.parametrize("kind", KINDS[:2])
def test_thread_of_a_transport_never_waits_for_itself(kind: str, tmp_path: Path) -> None:
    """It alone empties the socket that wakes it up: as many packets of many neighbours may be taken at once."""
    assert run_agents(1, tmp_path, leave_tasks, kind) == [True]


class Failing:
    """Receiver that fails."""

    def deliver(self, sender: int, packet: Any) -> None:
        raise ZeroDivisionError("a defect")

    def lose(self, peer: int, error: Exception) -> None:
        """Ignore it."""


def fail_to_take(agent: int, exchange: Any, kind: str) -> str:
    """Let the thread of agent 1 fail while it takes a packet; return what its main thread learns."""
    threading.excepthook = lambda _: None
    transports = open_kind(kind, agent, 2, exchange)
    first, second = transports.channel(), transports.channel().open()
    first.open(Failing()) if agent else first.open()
    exchange({})
    error = ""
    if agent == 0:
        first.send(1, b"", [torch.ones(3)])
    else:
        with pytest.raises(
            MessageLostError, match="the transport has failed: ZeroDivisionError: a defect"
        ) as found:
            second.wait(0, 20.0)
        error = str(found.value)
    exchange({})
    transports.close()
    return error


@pytest.mark.parametrize("kind", KINDS[:2])
def test_failure_of_the_thread_of_a_transport_is_not_waited_for(kind: str, tmp_path: Path) -> None:
    assert run_agents(2, tmp_path, fail_to_take, kind)[1]
