"""Waiting for the messages of a round."""

import contextlib
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from digrad.errors import CommunicationError
from digrad.torch.engines.mixing import Share
from digrad.torch.engines.synchronous import PacketRound, Part
from digrad.torch.transport.packets import Packet, Sending


class Slow:
    """A channel whose packet moves for a while, and arrives or not."""

    def __init__(self, seconds: float, *, arrives: bool) -> None:
        self._end, self._arrives, self.heartbeats = time.monotonic() + seconds, arrives, 0

    def send(self, receiver: int, header: bytes, segments: Any) -> Sending:
        self.header, sending = header, Sending(header, segments)
        sending.left.set_result(None)
        return sending

    def last_progress(self, peer: int) -> float:
        return min(time.monotonic(), self._end)

    def wait(self, sender: int, seconds: float) -> Packet | None:
        left = self._end - time.monotonic()
        time.sleep(max(min(seconds, left if self._arrives else 9.9), 0.0))
        if self._arrives and time.monotonic() >= self._end:
            return Packet(self.header, torch.ones(2).view(torch.uint8))
        return None

    def send_heartbeat(self, receiver: int) -> None:
        self.heartbeats += 1


def round_over(channel: Any) -> PacketRound:
    network: Any = SimpleNamespace(timeout=0.1, waiting_for=lambda *_: contextlib.nullcontext())
    part = Part(Share(0, ((0, 0.5), (1, 0.5)), ((1, 0.5),), False), torch.zeros(1, 2))
    return PacketRound([part], channel, network, 7, 3)


def test_packet_that_makes_progress_is_waited_for_beyond_the_timeout_and_others_are_told() -> None:
    channel = Slow(0.5, arrives=True)
    current = round_over(channel)
    current.finish()
    assert current.parts[0].received[1].tolist() == [[1.0, 1.0]]
    assert channel.heartbeats >= 4


def test_packet_that_stops_moving_is_given_up_after_the_timeout() -> None:
    began = time.monotonic()
    with pytest.raises(CommunicationError, match=r"step 3: nothing was heard from agent 1 within 0\.1 s"):
        round_over(Slow(0.2, arrives=False)).finish()
    assert 0.3 <= time.monotonic() - began < 2.0


def test_packet_of_another_round_is_an_error() -> None:
    channel = Slow(0.0, arrives=True)
    current = round_over(channel)
    channel.header = round_over(Slow(0.0, arrives=True))._header.replace(b"\x07", b"\x08")
    with pytest.raises(CommunicationError, match="round 8 of step 3 came for round 7 of step 3"):
        current.finish()
