"""Validation before the first step: what every engine asks of a method and a network."""

from typing import Any

from digrad.core.hyperparameters import check_columns
from digrad.core.link_validation import check_links
from digrad.core.net import connectivity, required
from digrad.errors import ArgumentError
from digrad.network import Network
from digrad.types import Method


def check_method(method: Any, owner: str) -> None:
    """Raise unless ``method`` is a method with its hyper-parameters."""
    if isinstance(method, type) or not isinstance(method, Method):
        raise ArgumentError(
            f"`method` of {owner} must be a method such as CGT(step_size=0.05, threshold=5.0), but got {method!r}."
        )


def check_network(network: Any, owner: str) -> None:
    """Raise unless ``network`` is one, constant or not."""
    if not isinstance(network, Network):
        raise ArgumentError(
            f"`network` of {owner} must be a digrad Network, but got {type(network).__name__}; "
            "wrap a graph: Network(graph)."
        )
    if network.partial:
        raise ArgumentError(
            f"`network` of {owner} is one step of a sequence (partial=True); pass Network([network, ...])."
        )


def check_fit(method: Method, network: Network, name: str) -> None:
    """Raise unless the network has what the method, called ``name``, mixes with, and as many agents as its columns.

    The number of agents comes first: what a method carries for each of them may not fit into memory.
    """
    _check_agents(method, network.n, name)
    check_columns(method, network.n)
    _check_rounds(method, network, name)
    network.require(required(method), name, connectivity(method))
    if network.links is not None or network.period != 1:
        check_links(method, network, name)


def _check_agents(method: Method, n: int, name: str) -> None:
    most = getattr(method, "max_agents", n)
    if n > most:
        raise ArgumentError(
            f"`network` of {name} must have at most {most} agents, because the state of each agent grows with "
            f"n, but got {n}; use another method, such as AB, CGT or PushDIGing."
        )


def _check_rounds(method: Method, network: Network, name: str) -> None:
    """Raise if a method with rounds of local steps ends them while a network with local steps is silent."""
    between = getattr(network.graph, "every", 1)
    steps = getattr(method, "local_steps", between)
    if between not in (1, steps):
        raise ArgumentError(
            f"`local_steps` of {name} must be {between}, the steps from one message to the next of the network "
            f"(graphs.every), but got {steps}."
        )
