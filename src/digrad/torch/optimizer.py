"""The optimizer of one agent that lives in its own process."""

import dataclasses
import time
from typing import Any

import torch

from digrad.algorithms import CGT
from digrad.errors import ArgumentError
from digrad.torch.cgt_kernel import cgt_step
from digrad.torch.failure_records import note_step
from digrad.torch.flat import FlatParameters, parameter_groups
from digrad.torch.method_optimizer import MethodOptimizer, check_arguments
from digrad.torch.process_net import ProcessNet
from digrad.torch.process_network import ProcessNetwork
from digrad.types import Method


class DecentralizedOptimizer(MethodOptimizer):
    """Train a model together with the neighbours of this agent, one process per agent.

    An ordinary loop: ``zero_grad``, ``backward``, ``step``. Construct the model in its final dtype, device and
    memory format first. Messages that a method knows before the gradient travel while the next forward and
    backward passes run. Every agent must construct it, and step equally often.

    Args:
        params: Parameters or parameter groups with ``lr`` and ``weight_decay``, as for torch optimizers. ``lr``
            mirrors ``step_size`` of the method, so that schedulers work.
        method: Any method of :mod:`digrad.algorithms`.
        network: The processes.
        weight_decay: Added to the gradient as ``weight_decay * x`` before it is tracked.
        message_dtype: Send in this format, for example ``torch.bfloat16``; sums are conserved all the same.

    Raises:
        ArgumentError: An argument cannot be used.
        CommunicationError: The agents disagree on method, model, dtype or messages; raised on every agent.
    """

    def __init__(
        self,
        params: Any,
        method: Method,
        network: ProcessNetwork,
        *,
        weight_decay: float = 0.0,
        message_dtype: torch.dtype | None = None,
    ) -> None:
        if not isinstance(network, ProcessNetwork):
            raise ArgumentError(
                f"`network` of DecentralizedOptimizer must be a ProcessNetwork, but got {type(network).__name__}; "
                "wrap it: ProcessNetwork(graph)."
            )
        check_arguments(method, network.network, weight_decay, message_dtype, "DecentralizedOptimizer")
        self._processes = network
        groups = parameter_groups(params, "DecentralizedOptimizer")
        flat = FlatParameters([[group["params"] for group in groups]], "DecentralizedOptimizer")
        facts = {
            "method": _describe(method),
            "dimension": flat.dimension,
            "model": flat.signature,
            "dtype": str(flat.dtype),
            "messages": str(message_dtype or flat.dtype),
        }
        network.agree(facts, "DecentralizedOptimizer")
        net = ProcessNet(network, method.needs, flat.dimension, flat.dtype, message_dtype, flat.device)
        groups = [{**group, "params": list(dict.fromkeys(group["params"]))} for group in groups]
        self._last_end: float | None = None
        super().__init__(flat, groups, method, network.network, net, (network.agent,), weight_decay)

    @property
    def network(self) -> ProcessNetwork:
        """The processes."""
        return self._processes

    def step(self, closure: Any = None) -> Any:
        """Take one step with the gradients at the current parameters; see :class:`MethodOptimizer`."""
        began = self._last_end
        loss = super().step(closure)
        self._last_end = time.monotonic()
        if began is not None:
            self._processes.note_step(self._last_end - began)
        return loss

    def close(self) -> None:
        """Finish the messages under way; every agent must call, before the process group ends."""
        self._net.settle_early()

    def _advance(self, method: Any, grad: torch.Tensor) -> None:
        if type(method) is CGT:
            pushed, pulled = (
                self._net.arrived("push", self._state.y),
                self._net.arrived("pull", self._state.x),
            )
            cgt_step(method, self._state, grad, pushed, pulled)
        else:
            state = method.step(self._state, grad, self._net)
            self._net.finish_early()
            self._store(state)
        self._net.finish_early()

    def _publish(self) -> None:
        super()._publish()
        self._net.k = self.k
        note_step(self.k)
        self._net.start_early(
            [(verb, getattr(self._state, name)) for verb, name in self._early], self._early_memory
        )

    def _settle(self, k: int) -> None:
        self._net.settle_early()
        self._processes.agree({"k": k}, "DecentralizedOptimizer")

    def _sum(self, value: torch.Tensor) -> torch.Tensor:
        return self._processes.add_up(value)

    def _allocate(self, state: Any) -> Any:
        """Lay the state out in one piece: x first, then what is sent early, so that this is one message."""
        fields = state._asdict()
        early = [(verb, name) for verb, name in getattr(self._method, "early", ())]
        self._early = sorted(early, key=lambda item: item[1] != "x")
        sent = [name for _, name in self._early]
        order = ["x", *(name for name in sent if name != "x")]
        order += [name for name in fields if name not in order]
        memory = fields["x"].new_empty(sum(fields[name].shape[1] for name in order))
        views = dict(zip(order, memory.split([fields[name].shape[1] for name in order]), strict=True))
        first = 0 if "x" in sent else fields["x"].shape[1]
        self._early_memory = memory[first:]
        kept = type(state)(**{name: views[name][None] for name in fields})
        for target, value in zip(kept, state, strict=True):
            target.copy_(value)
        return kept


def _describe(method: Any) -> str:
    """Return the method and what all agents must share of it; a step size may be their own."""
    shown = []
    for name in (field.name for field in dataclasses.fields(method) if field.name != "step_size"):
        value = getattr(method, name)
        plain = value.tolist() if hasattr(value, "tolist") else value
        shown.append(f"{name}={'schedule' if callable(value) else plain}")
    return f"{type(method).__name__}({', '.join(shown)})"
