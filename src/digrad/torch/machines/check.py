"""What ``digrad launch --check`` runs instead of a script: can every arc carry messages, and how fast?

Agents take turns arc by arc, so that no two measurements share a wire.
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
from digrad.errors import CommunicationError
from digrad.graphs import complete
from digrad.torch.addresses import interface_of
from digrad.torch.agent_links import AgentLinks
from digrad.torch.launch import GRAPH_VARIABLE
from digrad.torch.process_network import ProcessNetwork
from digrad.torch.reasons import first_line
from digrad.torch.route import Route

PINGS = 5
PATIENCE = 10.0  # seconds without progress after which an arc counts as broken
BULK = 1 << 22  # bytes of the message by which bandwidth is measured
_SMALL = torch.zeros(1)


def main() -> None:
    """Measure, and let agent 0 print what was found, or write it to the file that the command line names."""
    size = int(os.environ["WORLD_SIZE"])
    network = ProcessNetwork(None if GRAPH_VARIABLE in os.environ else complete(size), timeout=60.0)
    facts = {"digrad": digrad.__version__, "torch": torch.__version__, "python": platform.python_version()}
    network.agree(facts, "digrad launch --check")
    place = network.place()
    here = {"time": time.time(), "address": place.address, "interface": interface_of(place.address)}
    everyone = network.exchange(here, "digrad launch --check")
    links = network.keep(
        AgentLinks(network.agent, network.n, place, lambda one: network.exchange(one, "links"), PATIENCE)
    )
    found = [
        _measure(network, links, sender, receiver) for sender, receiver in sorted(network.network.union.edges)
    ]
    if network.agent == 0 and sys.argv[1:]:
        Path(sys.argv[1]).write_text(json.dumps(_as_dict(facts, everyone, found)))
    elif network.agent == 0:
        _show(facts, everyone, found)
    network.close()
    broken = [one for one in found if "failed" in one]
    if broken:
        listed = ", ".join("{} to {}".format(*one["arc"]) for one in broken)
        raise CommunicationError(
            f"{len(broken)} of {len(found)} arcs carry nothing ({listed}); look at firewalls and routes, in both "
            "directions, or leave these arcs out of the graph."
        )


def _measure(network: ProcessNetwork, links: AgentLinks, sender: int, receiver: int) -> dict[str, Any]:
    """Let a message go back and forth on one arc, then a long one; every agent must call."""
    agent, here = network.agent, {}
    if agent in (sender, receiver):
        peer, first = (receiver, True) if agent == sender else (sender, False)
        try:
            _turn(network, links, peer, _SMALL, first=first)  # connects
            times = [_turn(network, links, peer, _SMALL, first=first) for _ in range(PINGS)]
            bulk = torch.zeros(BULK, dtype=torch.uint8)
            seconds = _turn(network, links, peer, bulk, first=first)
            here = {"latency": min(times) / 2, "bandwidth": 2 * BULK / max(seconds, 1e-9)}
        except (RuntimeError, TimeoutError) as error:  # the other arcs are tried nevertheless
            here = {"failed": first_line(error)}
    ends = network.exchange(here, f"arc {sender} to {receiver}")
    return {
        "arc": (sender, receiver),
        **ends[sender],
        **{k: v for k, v in ends[receiver].items() if k == "failed"},
    }


def _turn(
    network: ProcessNetwork, links: AgentLinks, peer: int, message: torch.Tensor, *, first: bool
) -> float:
    """Return how long it takes to send a message and get it back."""
    route, began = Route(network.group, [links]), time.perf_counter()
    for is_sending in (first, not first):
        carry = links.send if is_sending else links.receive
        work = carry(peer, message, 0)
        if not route.wait(work, time.monotonic() + 2 * PATIENCE, PATIENCE):
            raise TimeoutError(f"nothing moved for {PATIENCE:.0f} s")
    return time.perf_counter() - began


def _as_dict(
    facts: dict[str, str], everyone: list[dict[str, Any]], found: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return what :func:`_show` prints: seconds, and bytes per second."""
    clocks = [one["time"] for one in everyone]
    agents = [{"address": one["address"], "interface": one["interface"]} for one in everyone]
    return {"versions": facts, "clock_difference": max(clocks) - min(clocks), "agents": agents, "arcs": found}


def _show(facts: dict[str, str], everyone: list[dict[str, Any]], found: list[dict[str, Any]]) -> None:
    clocks = [one["time"] for one in everyone]
    lines = [
        ", ".join(f"{name} {version}" for name, version in facts.items()),
        f"clocks differ by at most {max(clocks) - min(clocks):.1f} s, which digrad does not mind",
        *(
            f"agent {agent} listens on {one['address']} ({one['interface']})"
            for agent, one in enumerate(everyone)
        ),
    ]
    for one in found:
        name = "arc {} to {}, and back".format(*one["arc"])
        if "failed" in one:
            lines.append(f"{name}: nothing passes ({one['failed']})")
        else:
            lines.append(f"{name}: {1e3 * one['latency']:.2f} ms, {8e-6 * one['bandwidth']:.0f} Mbit/s")
    if not any("failed" in one for one in found):
        lines.append(f"all {len(found)} arcs work in both directions")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
