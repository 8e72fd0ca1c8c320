"""BatchNorm and averages: statistics belong to one agent's parameters, not to the average of all."""

from collections.abc import Iterable

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from digrad.errors import ArgumentError


@torch.no_grad()
def recalibrate(model: torch.nn.Module, batches: Iterable[torch.Tensor]) -> None:
    """Replace the running statistics of BatchNorm by those of the current parameters on ``batches``.

    During training every agent keeps the statistics of its own parameters and data; they are never mixed. The
    average of the agents has other activations, so call this inside ``averaged_parameters()`` before an
    evaluation; save and restore the model's buffers around it if training goes on.

    Args:
        model: Evaluated with dropout off; every module is left in the mode (train or eval) that it was in.
        batches: Inputs of the model; their plain average is taken.

    Raises:
        ArgumentError: There are no batches; the statistics are as they were.
    """
    inputs = iter(batches)
    first = next(inputs, None)
    if first is None:
        raise ArgumentError("`batches` of recalibrate is empty; pass at least one batch of inputs.")
    modes = [(module, module.training) for module in model.modules()]
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
    momenta = [layer.momentum for layer in layers]
    model.eval()
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a cumulative average
        layer.train()
    try:
        model(first)
        for batch in inputs:
            model(batch)
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        for module, mode in modes:
            module.training = mode
