"""Connections between agents of different machines: for one arc and one listener, and not for strangers."""

from typing import Any

import pytest
import torch

from digrad.torch.agent_links import AgentLinks, Place
from digrad.torch.reasons import MessageLostError


def links(agent: int, everyone: dict[int, dict[str, Any]]) -> AgentLinks:
    """Return the links of an agent that is told ``everyone``; what it says of itself is entered there."""

    def exchange(here: dict[str, Any]) -> list[dict[str, Any]]:
        everyone.setdefault(agent, here)
        return [everyone.get(other, here) for other in range(2)]

    return AgentLinks(agent, 2, Place(agent, "127.0.0.1", bytes(32), sealed=True), exchange, timeout=5.0)


def test_message_arrives_at_the_listener_it_was_sent_to() -> None:
    everyone: dict[int, dict[str, Any]] = {}
    receiver = links(1, everyone)
    sender, inbox = links(0, everyone), torch.zeros(6)
    received = receiver.receive(0, inbox, tag=1)
    sender.send(1, torch.arange(6.0), tag=1)
    received.future.result(10)
    assert torch.equal(inbox, torch.arange(6.0))
    for one in (sender, receiver):
        one.close()


def test_connection_that_is_led_to_another_listener_of_the_same_agent_carries_nothing() -> None:
    """Of two optimizers, say: both ends know the secret and mean the same arc, but not the same numbers."""
    wanted: dict[int, dict[str, Any]] = {}
    other: dict[int, dict[str, Any]] = {}
    receivers = [links(1, wanted), links(1, other)]
    sender = links(0, {1: {**wanted[1], "address": other[1]["address"]}})
    inbox = torch.zeros(6)
    receivers[1].receive(0, inbox, tag=1)
    sent = sender.send(1, torch.arange(6.0), tag=1)
    with pytest.raises(MessageLostError, match="sealed with another key"):
        sent.future.result(10)
    assert not inbox.any()
    for one in (sender, *receivers):
        one.close()
