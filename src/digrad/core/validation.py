"""Validation before the first step: what every engine asks of a method, a network and its links."""

from typing import Any

from digrad._internal.user_warnings import warn_user
from digrad.core.hyperparameters import check_columns
from digrad.core.net import bindings, connectivity, required
from digrad.errors import ArgumentError
from digrad.links import Links
from digrad.links.compressors import Cast
from digrad.network import Network, step_weights
from digrad.types import Method

MUCH_LOSS = 0.1  # above which push-sum weights are drained


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


def check_links(method: Method, network: Network, name: str) -> None:
    """Raise if a network that misbehaves makes the method, called ``name``, meaningless; warn if it biases it.

    Raises:
        ArgumentError: The message says what would do.
    """
    links = network.links
    learns = getattr(method, "learns", None)
    if learns and not _is_constant(network):
        raise ArgumentError(
            f"`network` does not suit {name}: it learns {learns}, which does not settle when the network changes with "
            "the iteration or packets are lost or late; use a method with row and column weights, such as CGT."
        )
    matrices = set(bindings(method).values())
    if links is None or links.is_reliable:
        if links is not None and matrices == {"C"} and not isinstance(links.compressor, Cast | None):
            _check_push_sum(network, links, name)
        return
    is_fair = links.mean_loss == 0 and not links.sleeps
    is_late = links.is_late
    if "mean" in method.needs:
        _refuse(
            name, "averages over all agents, which no edge of the network does", "a network without links"
        )
    if "W" in matrices:
        _check_two_way(network, links, name, is_fair=is_fair, is_late=is_late)
    if matrices == {"C"}:
        _check_push_sum(network, links, name)
    if links.is_naive:
        warn_user(
            f"{name}: push={links.push!r}, pull={links.pull!r} of Links forget what is lost, so that the answer is "
            'biased; push="sum", pull="self" are exact.'
        )


def _is_constant(network: Network) -> bool:
    """Return whether every iteration mixes with the same weights, of which all take effect at once."""
    links = network.links
    if network.period != 1 or links is None:
        return network.period == 1
    return links.mean_loss == 0 and not (links.sleeps or links.is_late)


def _check_two_way(network: Network, links: Links, name: str, *, is_fair: bool, is_late: bool) -> None:
    if is_late:
        _refuse(
            name,
            "mixes with doubly stochastic weights, which late packets break: what one end uses the other has changed",
            "Links without delay, or a method that pulls and pushes, such as CGT",
        )
    if is_fair:
        return
    if not links.two_way:
        _refuse(
            name,
            "mixes with doubly stochastic weights, which one-way loss breaks",
            "Links(two_way=True) on an undirected graph, row-stochastic weights (mixing='row') if it takes them, "
            "or a method that pulls and pushes, such as CGT",
        )
    span = 1 if network.period is None else network.period
    for row in range(span):
        weights = step_weights(network, "W", row, 1)
        pairs = {
            (s, r): w for (s, r), w in zip(weights.edges.tolist(), weights.weight[0].tolist(), strict=True)
        }
        if any(abs(w - pairs.get((r, s), 0.0)) > 1e-12 for (s, r), w in pairs.items()):
            _refuse(
                name,
                "loses packets in pairs, one each way, but W is not symmetric",
                "weights of an undirected graph, such as metropolis(graph)",
            )


def _check_push_sum(network: Network, links: Links, name: str) -> None:
    if links.compressor is not None and not _is_constant(network):
        _refuse(
            name,
            "divides by a weight that never settles when packets are lost or late, and neither does what is compressed",
            "no compressor, or CGT, AB or PushPull",
        )
    if links.mean_loss > MUCH_LOSS or links.sleeps:
        warn_user(
            f"{name} divides by a weight that loss and sleep drain, so that it needs a smaller step size or diverges; "
            "CGT, AB and PushPull do not."
        )


def _refuse(name: str, why: str, instead: str) -> None:
    raise ArgumentError(f"`links` of the network do not suit {name}: it {why}; use {instead}.")
