"""A convolutional network of 0.11 million parameters, ten times cheaper than the smallest ResNet here."""

import torch

from digrad.specs.images.models.layers import convolution, normalization


def small_cnn(norm: str) -> torch.nn.Module:
    """Return three convolutions of 32, 64 and 128 channels, each followed by pooling, and a linear layer.

    Pooling comes before the normalisation and the ReLU: they then work on a quarter of the numbers.
    """
    layers: list[torch.nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 128)):
        layers += [
            convolution(inputs, outputs, 1, norm),
            torch.nn.MaxPool2d(2),
            normalization(norm, outputs),
            torch.nn.ReLU(),
        ]
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(128 * 4 * 4, 10))
