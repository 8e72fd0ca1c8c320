"""Which networks the theory is about: one graph, and messages that arrive as they were sent."""

from digrad.errors import ArgumentError
from digrad.graphs import Digraph
from digrad.network import AnyNetwork, Network, NetworkSequence

CHANGES = "the network changes with time"
LOSSY = "packets may be lost or late, so that the figures of the perfect network are indicative, not a certificate"
ALTERED = "its links alter messages, but in the proof they arrive as sent"


def uncovered(network: AnyNetwork, owner: str) -> str:
    """Return why the theory says nothing of a network, or an empty string.

    Raises:
        ArgumentError: It is no network.
    """
    if not isinstance(network, Network | NetworkSequence):
        raise ArgumentError(
            f"`network` of {owner} must be a Network, but got {type(network).__name__}; build one with Network(graph)."
        )
    if not isinstance(network.graph, Digraph):
        return CHANGES
    if network.links is None:
        return ""
    return ALTERED if network.links.is_reliable else LOSSY


def check_covered(network: AnyNetwork, owner: str) -> None:
    """Raise unless the theory is about networks like this one."""
    if reason := uncovered(network, owner):
        raise ArgumentError(f"`network` of {owner} is not covered: {reason}.")
