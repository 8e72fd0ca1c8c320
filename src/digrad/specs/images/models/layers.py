"""Layers that the networks share."""

import torch

CHANNELS_PER_GROUP = 8  # the customary 32 groups would leave narrow layers less than one channel each


def normalization(norm: str, channels: int) -> torch.nn.Module:
    """Return BatchNorm (``batch``), GroupNorm (``group``) or nothing (``none``) for so many channels.

    BatchNorm keeps running statistics, which belong to one agent's parameters and data; GroupNorm has none, so that
    agents whose data differ do not see each other through other statistics.
    """
    if norm == "batch":
        return torch.nn.BatchNorm2d(channels)
    if norm == "group":
        return torch.nn.GroupNorm(channels // CHANNELS_PER_GROUP, channels)
    return torch.nn.Identity()


def convolution(inputs: int, outputs: int, stride: int, norm: str) -> torch.nn.Conv2d:
    """Return a 3 x 3 convolution; its bias would be cancelled by a normalisation behind it."""
    return torch.nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=norm == "none")
