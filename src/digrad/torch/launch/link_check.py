"""Check of the links, run by ``digrad launch --check``: can every edge carry messages, and how fast?

Agents take turns edge by edge, so that no two measurements share a wire.
"""

import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import torch

import digrad
from digrad._internal.error_text import first_line
from digrad.errors import CommunicationError
from digrad.graphs import complete
from digrad.torch.launch import GRAPH_VARIABLE
from digrad.torch.process_network import ProcessNetwork
from digrad.torch.transport.addresses import interface_of
from digrad.torch.transport.transports import Channel

PINGS = 5
PATIENCE = 10.0  # seconds without progress after which an edge counts as broken
BULK = 1 << 22  # bytes of the message by which bandwidth is measured
_SMALL = torch.zeros(1)


def main() -> None:
    """Measure, and let agent 0 print what was found, or write it to the file that the command line names."""
    size = int(os.environ["WORLD_SIZE"])
    network = ProcessNetwork(None if GRAPH_VARIABLE in os.environ else complete(size), timeout=60.0)
    facts = {"digrad": digrad.__version__, "torch": torch.__version__, "python": platform.python_version()}
    network.agree(facts, "digrad launch --check")
    here = {"time": time.time(), "address": network.address, "interface": interface_of(network.address)}
    everyone = network.exchange(here, "digrad launch --check")
    channel = network.transports.channel().open()
    found = [
        _measure(network, channel, sender, receiver)
        for sender, receiver in sorted(network.network.union.edges)
    ]
    clocks = [one.pop("time") for one in everyone]
    report = {
        "versions": facts,
        "clock_difference": max(clocks) - min(clocks),  # in seconds, as all times here
        "agents": everyone,
        "edges": found,
    }
    if network.agent == 0 and sys.argv[1:]:
        Path(sys.argv[1]).write_text(json.dumps(report))
    elif network.agent == 0:
        sys.stdout.write(_as_text(report))
    network.close()
    broken = [one for one in found if "failed" in one]
    if broken:
        listed = ", ".join("{} to {}".format(*one["edge"]) for one in broken)
        raise CommunicationError(
            f"{len(broken)} of {len(found)} edges carry nothing ({listed}); look at firewalls and routes, in both "
            "directions, or leave these edges out of the graph."
        )


def _measure(network: ProcessNetwork, channel: Channel, sender: int, receiver: int) -> dict[str, Any]:
    """Let a message go back and forth on one edge, then a long one; every agent must call."""
    agent, here = network.agent, {}
    if agent in (sender, receiver):
        peer, first = (receiver, True) if agent == sender else (sender, False)
        try:
            _turn(channel, peer, _SMALL, first=first)  # connects
            times = [_turn(channel, peer, _SMALL, first=first) for _ in range(PINGS)]
            seconds = _turn(channel, peer, torch.zeros(BULK, dtype=torch.uint8), first=first)
            here = {"latency": min(times) / 2, "bandwidth": 2 * BULK / max(seconds, 1e-9)}
        except (RuntimeError, TimeoutError) as error:  # the other edges are tried nevertheless
            here = {"failed": first_line(error)}
    ends = network.exchange(here, f"edge {sender} to {receiver}")
    return {
        "edge": (sender, receiver),
        **ends[sender],
        **{k: v for k, v in ends[receiver].items() if k == "failed"},
    }


def _turn(channel: Channel, peer: int, message: torch.Tensor, *, first: bool) -> float:
    """Return how long it takes to send a message and get it back."""
    began = time.perf_counter()
    for is_sending in (first, not first):
        if is_sending:
            channel.send(peer, b"", [message])
            continue
        since = time.monotonic()
        while channel.wait(peer, 1.0) is None:
            if time.monotonic() > max(since, channel.last_progress(peer)) + PATIENCE:
                raise TimeoutError(f"nothing moved for {PATIENCE:.0f} s")
        channel.release(peer)
    return time.perf_counter() - began


def _as_text(report: dict[str, Any]) -> str:
    lines = [
        ", ".join(f"{name} {version}" for name, version in report["versions"].items()),
        f"clocks differ by at most {report['clock_difference']:.1f} s, which digrad does not mind",
        *(
            f"agent {agent} listens on {one['address']} ({one['interface']})"
            for agent, one in enumerate(report["agents"])
        ),
    ]
    for one in report["edges"]:
        name = "edge {} to {}, and back".format(*one["edge"])
        if "failed" in one:
            lines.append(f"{name}: nothing passes ({one['failed']})")
        else:
            lines.append(f"{name}: {1e3 * one['latency']:.2f} ms, {8e-6 * one['bandwidth']:.0f} Mbit/s")
    if not any("failed" in one for one in report["edges"]):
        lines.append(f"all {len(report['edges'])} edges work in both directions")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
