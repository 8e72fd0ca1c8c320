"""BatchNorm and averages: statistics belong to one agent's parameters, not to the average of all."""

from collections.abc import Iterable

import torch
from torch.nn.modules.batchnorm import _BatchNorm


@torch.no_grad()
def recalibrate(model: torch.nn.Module, batches: Iterable[torch.Tensor]) -> None:
    """Replace the running statistics of BatchNorm by those of the current parameters on ``batches``.

    During training every agent keeps the statistics of its own parameters and data; they are never mixed. The
    average of the agents has other activations, so call this inside ``averaged_parameters()`` before an
    evaluation; save and restore the model's buffers around it if training goes on.

    Args:
        model: Left in the mode (train or eval) that it was in.
        batches: Inputs of the model; their plain average is taken.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm)]
    was_training, momenta = model.training, [layer.momentum for layer in layers]
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a cumulative average
    model.train()
    try:
        for batch in batches:
            model(batch)
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        model.train(was_training)
