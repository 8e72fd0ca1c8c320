"""All agents in one process: n copies of a model, for experiments and for tests of the real thing."""

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch

from digrad import metrics
from digrad.core.net import bindings
from digrad.core.state_repair import check_churn
from digrad.errors import ArgumentError
from digrad.graphs import Digraph, GraphSequence
from digrad.network import Network
from digrad.torch.engines.base_optimizer import BaseOptimizer
from digrad.torch.engines.flat_parameters import FlatParameters, parameter_groups
from digrad.torch.engines.replica_engine import ReplicaEngine, SingleProcess
from digrad.torch.engines.settings import check_arguments
from digrad.torch.engines.unreliable_replicas import UnreliableEngine
from digrad.types import Method


class Replicas(BaseOptimizer):
    """The agents of a network as copies of a model in this process, and the optimizer of all of them.

    The parameters of agent i are views of row i of one flat array. The numbers are those of one process per
    agent, to the last bit when torch uses one thread.

    Args:
        model: A module, copied for every agent, or a sequence with one module per agent.
        method: Any method of :mod:`digrad.methods`.
        network: Graph and weights, constant or not, or a digraph with uniform weights; its ``links`` decide what
            becomes of messages.
        groups: Returns the parameter groups of a module, as for torch optimizers; by default one group.
        weight_decay: Added to the gradient as ``weight_decay * x`` before it is tracked.
        non_finite: Policy for a gradient with NaN or infinity: ``"error"`` on every agent, or
            ``"repeat"`` that agent's previous gradient (zero at the first step), with a warning.

    Raises:
        ArgumentError: The number of modules is not the number of agents, or they differ in shape.

    Example:
        >>> import torch
        >>> import digrad as dg
        >>> network = dg.Network(dg.graphs.ring(3))
        >>> replicas = Replicas(torch.nn.Linear(2, 1), dg.CGT(step_size=0.1, threshold=1.0), network)
        >>> for k in range(100):
        ...     replicas.zero_grad()
        ...     for i, model in enumerate(replicas.models):
        ...         ((model(torch.eye(2)) - i) ** 2).mean().backward()
        ...     _ = replicas.step()
        >>> with replicas.averaged_parameters():
        ...     print(replicas.models[0](torch.eye(2)).detach().flatten().round(decimals=3))
        tensor([1., 1.])
    """

    def __init__(
        self,
        model: torch.nn.Module | Sequence[torch.nn.Module],
        method: Method,
        network: Network | Digraph | GraphSequence,
        *,
        groups: Callable[[torch.nn.Module], Iterable[Any]] | None = None,
        weight_decay: float = 0.0,
        non_finite: Literal["error", "repeat"] = "error",
    ) -> None:
        network = Network(network) if isinstance(network, Digraph | GraphSequence) else network
        check_arguments(method, network, weight_decay, non_finite, "Replicas")
        check_churn(method, network, type(method).__name__, "Replicas")
        self.models = _models(model, network.n)
        self._options = {"groups": groups, "weight_decay": weight_decay, "non_finite": non_finite}
        found = [
            parameter_groups(m.parameters() if groups is None else groups(m), "Replicas") for m in self.models
        ]
        flat = FlatParameters([[group["params"] for group in one] for one in found], "Replicas")
        merged = [
            {**settings, "params": list(dict.fromkeys(p for one in found for p in one[i]["params"]))}
            for i, settings in enumerate(found[0])
        ]
        churn, engine = None, ReplicaEngine(network, bindings(method), flat.dimension, flat.device)
        if network.is_unreliable:
            engine = UnreliableEngine(method, network, flat, engine)
            churn = engine.churn
        agents = range(network.n)
        super().__init__(
            flat,
            merged,
            method,
            SingleProcess(network),
            engine,
            agents,
            weight_decay,
            non_finite,
            churn,
        )

    @torch.no_grad()
    def __deepcopy__(self, memo: dict[int, Any]) -> "Replicas":
        """Return other replicas, at the same point with the same gradients, that share nothing with these."""
        models = copy.deepcopy(self.models, memo)
        copied = memo[id(self)] = type(self)(models, self._given, self._network, **self._options)
        copied.models = models  # the very list, which others may hold
        copied.load_state_dict(copy.deepcopy(self.state_dict(), memo))
        copied._flat.grad.copy_(self.gradients)
        return copied

    @property
    def network(self) -> SingleProcess:
        """The agents, all in this process."""
        return self._processes  # pyright: ignore[reportReturnType]

    @property
    def present(self) -> list[int]:
        """The agents that are there; the gradients of the others are not used."""
        return [i for i, weight in enumerate(self._presence()) if weight]

    @torch.no_grad()
    def link_metrics(self) -> dict[str, float]:
        """Return what a trace of the simulator records of :class:`digrad.Links`; nothing on a network without.

        ``delivered``, ``overtaken`` and, where the links have a clock, ``seconds_simulated`` before this iteration;
        ``mass_error``, ``in_transit`` and ``min_weight`` after the last step, NaN where the method has no such thing.
        """
        if not isinstance(self._engine, UnreliableEngine):
            return {}
        found = metrics.packet_figures(self.state_fields, self._engine.undelivered)
        row = {name: float(found.get(name, math.nan)) for name in metrics.PACKET_COLUMNS}
        packets = self._engine.packets.columns([self.k])
        return row | {name: float(column[0]) for name, column in packets.items()}

    def slowest(self) -> dict[str, Any] | None:
        """Return which agents and edges steps wait for, on average so far; None without a clock, or before a step."""
        packets = self._engine.packets if isinstance(self._engine, UnreliableEngine) else None
        return packets.facts(self.k).get("slowest") if packets and self.k else None


def _models(model: torch.nn.Module | Sequence[torch.nn.Module], n: int) -> list[torch.nn.Module]:
    if isinstance(model, torch.nn.Module):
        return [copy.deepcopy(model) for _ in range(n)]
    models = list(model)
    if len(models) != n or len({id(one) for one in models}) != n:
        raise ArgumentError(
            f"`model` of Replicas must be one module, or {n} different ones, one per agent of the network, "
            f"but got {len(models)}."
        )
    return models
