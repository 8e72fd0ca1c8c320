"""What ``digrad launch --check`` runs instead of a script: can every arc carry messages, and how fast?

Agents take turns arc by arc, so that no two measurements share a wire.
"""

import os
import platform
import sys
import time
from typing import Any

import torch

import digrad
from digrad.graphs import complete
from digrad.torch.agent_links import AgentLinks
from digrad.torch.launch import GRAPH_VARIABLE
from digrad.torch.process_network import ProcessNetwork
from digrad.torch.route import Route

PINGS = 5
BULK = 1 << 22  # bytes of the message by which bandwidth is measured
_SMALL = torch.zeros(1)


def main() -> None:
    """Measure, and let agent 0 print what was found."""
    size = int(os.environ["WORLD_SIZE"])
    network = ProcessNetwork(None if GRAPH_VARIABLE in os.environ else complete(size), timeout=60.0)
    facts = {"digrad": digrad.__version__, "torch": torch.__version__, "python": platform.python_version()}
    network.agree(facts, "digrad launch --check")
    clocks = [one["time"] for one in network.exchange({"time": time.time()}, "digrad launch --check")]
    links = network.links or network.keep(
        AgentLinks(
            network.agent, network.n, network.place(), lambda one: network.exchange(one, "links"), 60.0
        )
    )
    found = [
        _measure(network, links, sender, receiver) for sender, receiver in sorted(network.network.union.edges)
    ]
    if network.agent == 0:
        _show(facts, clocks, found)
    network.close()


def _measure(network: ProcessNetwork, links: AgentLinks, sender: int, receiver: int) -> dict[str, Any]:
    """Let a message go back and forth on one arc, then a long one; every agent must call."""
    agent, here = network.agent, {}
    if agent in (sender, receiver):
        peer, first = (receiver, True) if agent == sender else (sender, False)
        _turn(network, links, peer, _SMALL, first=first)  # connects
        times = [_turn(network, links, peer, _SMALL, first=first) for _ in range(PINGS)]
        bulk = torch.zeros(BULK, dtype=torch.uint8)
        seconds = _turn(network, links, peer, bulk, first=first)
        if first:
            here = {"latency": min(times) / 2, "bandwidth": 2 * BULK / max(seconds, 1e-9)}
    return {"arc": (sender, receiver), **network.exchange(here, f"arc {sender} to {receiver}")[sender]}


def _turn(
    network: ProcessNetwork, links: AgentLinks, peer: int, message: torch.Tensor, *, first: bool
) -> float:
    """Return how long it takes to send a message and get it back."""
    route, began = Route(network.group, [links]), time.perf_counter()
    for is_sending in (first, not first):
        carry = links.send if is_sending else links.receive
        work = carry(peer, message, 0)
        if not route.wait(work, time.monotonic() + network.timeout, network.timeout):
            raise TimeoutError(f"nothing moved between agents {network.agent} and {peer}")
    return time.perf_counter() - began


def _show(facts: dict[str, str], clocks: list[float], found: list[dict[str, Any]]) -> None:
    lines = [
        ", ".join(f"{name} {version}" for name, version in facts.items()),
        f"clocks differ by at most {max(clocks) - min(clocks):.1f} s, which digrad does not mind",
    ]
    for one in found:
        sender, receiver = one["arc"]
        latency, bandwidth = 1e3 * one["latency"], 8e-6 * one["bandwidth"]
        lines.append(f"arc {sender} to {receiver}, and back: {latency:.2f} ms, {bandwidth:.0f} Mbit/s")
    lines.append(f"all {len(found)} arcs work in both directions")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
