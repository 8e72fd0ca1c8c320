"""How bytes get from one agent to another: through memory that agents of one host share, or over ZeroMQ."""

from collections.abc import Callable
from typing import Any

import torch

from digrad.torch.transport.curve import KeyPair
from digrad.torch.transport.packets import Channel, MessageLostError, Transports
from digrad.torch.transport.shared_memory import open_shared_memory

__all__ = ["Channel", "MessageLostError", "Transports", "open_transports", "ring_sum"]

Facts = dict[str, Any]


def open_transports(
    agent: int,
    address: str,
    keys: KeyPair | None,
    exchange: Callable[[Facts], list[Facts]],
    *,
    direct: bool = True,
) -> Transports:
    """Connect an agent with all others; all must call.

    Args:
        agent: This agent.
        address: To listen on for agents of other hosts.
        keys: Of the run; None sends everything as it is.
        exchange: Gathers short facts of every agent, by agent.
        direct: Whether agents of one host share memory.
    """
    near = open_shared_memory(agent, exchange, is_wanted=direct)
    reached = exchange({"near": sorted(near.peers) if near else [agent]})
    if all(len(one["near"]) == len(reached) for one in reached):
        return Transports([near] if near else [])
    from digrad.torch.transport.zeromq import ZeroMQ  # which needs pyzmq

    far = ZeroMQ(agent, address, keys, exchange)
    return Transports([near, far] if near else [far])


def ring_sum(
    values: torch.Tensor,
    agent: int,
    n: int,
    channel: Channel,
    wait: Callable[[int, Callable[[float], Any]], Any],
) -> None:
    """Replace ``values``, contiguous, by the sum over all agents: each part is added up around a ring, then passed on.

    Args:
        values: Of this agent.
        agent: Its number.
        n: How many there are.
        channel: That carries the parts.
        wait: Returns what a function of seconds finds of a neighbour, which is None at first.
    """
    parts = values.view(-1).tensor_split(n)
    after, before = (agent + 1) % n, (agent - 1) % n
    for turn in range(2 * (n - 1)):
        is_adding = turn < n - 1
        shift = turn if is_adding else turn - n
        mine, theirs = parts[(agent - shift) % n], parts[(agent - shift - 1) % n]
        sending = channel.send(after, b"", [mine])
        packet = wait(before, lambda seconds: channel.wait(before, seconds))
        received = packet.payload.view(values.dtype)
        theirs.add_(received) if is_adding else theirs.copy_(received)
        channel.release(before)
        wait(after, sending.wait)
