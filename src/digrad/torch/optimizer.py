"""The optimizer of one agent that lives in its own process."""

import time
from typing import Any, Literal

from digrad.core import hyperparameters
from digrad.core.net import bindings
from digrad.errors import ArgumentError
from digrad.torch.engines.asynchronous import AsynchronousEngine
from digrad.torch.engines.base_optimizer import BaseOptimizer
from digrad.torch.engines.compression import check_packable
from digrad.torch.engines.flat_parameters import FlatParameters, parameter_groups
from digrad.torch.engines.settings import check_arguments, describe_shared, shared_settings
from digrad.torch.engines.step_metrics import StepMetrics
from digrad.torch.engines.synchronous import SynchronousEngine
from digrad.torch.launch.preemption import Preemption
from digrad.torch.process_network import ProcessNetwork
from digrad.types import Method


class DecentralizedOptimizer(BaseOptimizer):
    """Train a model together with the neighbours of this agent, one process per agent.

    An ordinary loop: ``zero_grad``, ``backward``, ``step``. Construct the model in its final dtype, device and
    memory format first. Messages that a method knows before the gradient travel while the next forward and
    backward passes run. Every agent must construct it, and step equally often.

    Args:
        params: Parameters or parameter groups with ``lr`` and ``weight_decay``, as for torch optimizers. ``lr``
            mirrors ``step_size`` of the method, so that schedulers work.
        method: Any method of :mod:`digrad.methods`.
        network: The processes; ``links`` of its network decide how messages travel.
        weight_decay: Added to the gradient as ``weight_decay * x`` before it is tracked.
        non_finite: Policy for a gradient with NaN or infinity: ``"error"`` on every agent, or
            ``"repeat"`` that agent's previous gradient (zero at the first step), with a warning.

    Raises:
        ArgumentError: An argument cannot be used.
        CommunicationError: The agents disagree on method, model or dtype; raised on every agent.
    """

    def __init__(
        self,
        params: Any,
        method: Method,
        network: ProcessNetwork,
        *,
        weight_decay: float = 0.0,
        non_finite: Literal["error", "repeat"] = "error",
    ) -> None:
        if not isinstance(network, ProcessNetwork):
            raise ArgumentError(
                f"`network` of DecentralizedOptimizer must be a ProcessNetwork, but got {type(network).__name__}; "
                "wrap it: ProcessNetwork(graph)."
            )
        check_arguments(method, network.network, weight_decay, non_finite, "DecentralizedOptimizer")
        groups = parameter_groups(params, "DecentralizedOptimizer")
        flat = FlatParameters([[group["params"] for group in groups]], "DecentralizedOptimizer")
        first = {
            "lr": getattr(hyperparameters.at_iteration(method, 0), "step_size", 0.0),
            "weight_decay": weight_decay,
        }
        facts = {
            "method": describe_shared(method),
            "dimension": flat.dimension,
            "model": flat.signature,
            "dtype": str(flat.dtype),
            "non_finite": non_finite,
            **shared_settings(method, [{**first, **group} for group in groups], 0),
        }
        network.agree(facts, "DecentralizedOptimizer")
        check_packable(network.network.links, flat.device, "ProcessNetwork")
        if network.deadline is None:
            engine = SynchronousEngine(network, bindings(method), flat.dimension, flat.device)
            self._preemption = Preemption(network)
        else:
            engine = AsynchronousEngine(network, bindings(method), flat.dimension, flat.dtype)
            self._preemption = engine.preemption = Preemption(network, engine.wait_for_all)
        self._metrics = StepMetrics(network.agent, engine)
        self._last_end: float | None = None
        groups = [{**group, "params": list(dict.fromkeys(group["params"]))} for group in groups]
        super().__init__(
            flat,
            groups,
            method,
            network,
            engine,
            (network.agent,),
            weight_decay,
            non_finite,
        )
        self.register_step_pre_hook(_before_step)
        self.register_step_post_hook(_after_step)

    @property
    def network(self) -> ProcessNetwork:
        """The processes."""
        return self._processes  # pyright: ignore[reportReturnType]

    def close(self) -> None:
        """Finish the messages under way; every agent must call, before the process group ends."""
        self._engine.close()
        if self._metrics:
            self._metrics.close()


def _before_step(optimizer: Any, *_: Any) -> None:
    """Save and end here if all agents have agreed to."""
    optimizer._preemption.before_step(optimizer.k)


def _after_step(optimizer: Any, *_: Any) -> None:
    """Note how long a step takes and what it has cost, and whether it was the last one."""
    began, optimizer._last_end = optimizer._last_end, time.monotonic()
    if began is not None:
        optimizer.network.note_step(optimizer._last_end - began)
    optimizer._metrics.write(optimizer.k)
    optimizer._preemption.after_step(optimizer.k)
