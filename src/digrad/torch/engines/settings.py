"""Settings of an optimizer: what can be used, what all agents must share, and what each has of its own."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from digrad import checks
from digrad.core import hyperparameters, validation
from digrad.core.hyperparameters import numeric_fields, with_fields
from digrad.errors import ArgumentError
from digrad.network import Network
from digrad.torch.engines.flat_parameters import FlatParameters


def check_arguments(method: Any, network: Network, weight_decay: float, non_finite: str, owner: str) -> None:
    """Raise unless the arguments that both optimizers share can be used."""
    checks.choice(non_finite, "non_finite", owner, ("error", "repeat"))
    validation.check_method(method, owner)
    if weight_decay != 0:
        checks.positive(weight_decay, "weight_decay", owner)
    validation.check_network(network, owner)
    validation.check_fit(method, network, type(method).__name__)
    hyperparameters.check_schedules(method)


def shared_settings(method: Any, groups: Sequence[Mapping[str, Any]], k: int) -> dict[str, Any]:
    """Return the rates of groups and the schedules at k that all agents must share: those not given per agent."""
    shown = {"weight decay": [float(group["weight_decay"]) for group in groups]}
    if np.ndim(getattr(method, "step_size", 0.0)) == 0:
        shown["lr"] = [float(group["lr"]) for group in groups]
    now = hyperparameters.at_iteration(method, k)
    return shown | {name: getattr(now, name) for name in hyperparameters.scheduled_fields(method)}


def describe_shared(method: Any) -> str:
    """Return the method and what all agents must share of it; a step size may be their own."""
    scheduled = dict.fromkeys(hyperparameters.scheduled_fields(method), "schedule")
    shown = hyperparameters.describe(with_fields(method, scheduled))
    return f"{type(method).__name__}({', '.join(f'{k}={v}' for k, v in shown.items() if k != 'step_size')})"


def local_arrays(method: Any, agents: Sequence[int], flat: FlatParameters) -> dict[str, Any]:
    """Return the hyper-parameters given per agent, ``[n, 1]``, as tensors with the rows of these agents."""
    local: dict[str, Any] = {}
    for name in numeric_fields(type(method)):
        value = getattr(method, name)
        if callable(value) or np.ndim(value) == 0:
            continue
        rows = torch.tensor(np.asarray(value)[list(agents)], dtype=flat.dtype, device=flat.device)
        if name == "step_size" and len(set(rows.flatten().tolist())) > 1:
            raise ArgumentError(
                f"`step_size` of {type(method).__name__} differs between the agents of one process; "
                "give one number, because `lr` mirrors it."
            )
        local[name] = float(rows.flatten()[0]) if name == "step_size" else rows
    return local
