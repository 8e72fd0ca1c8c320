"""Residual networks for 32 x 32 images.

Reference: K. He, X. Zhang, S. Ren, J. Sun, "Deep residual learning for image recognition", CVPR 2016: ResNet-20 is that
of its section 4.2 (shortcuts without parameters); ResNet-18 is that of its table 1 with the first layer that is
customary for CIFAR (3 x 3, stride 1, no pooling).
"""

import torch
from torch.nn.functional import pad, relu

from digrad.specs.images.models.layers import convolution, normalization


class Block(torch.nn.Module):
    """Two convolutions, and what came in added to what goes out.

    Args:
        inputs: Channels.
        outputs: Channels.
        stride: Stride of the first convolution.
        norm: See :func:`digrad.specs.images.models.build_model`.
        projects: Whether a shortcut that changes the shape is a 1 x 1 convolution; else every other pixel is taken, and
            new channels are zero.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, norm: str, *, projects: bool) -> None:
        super().__init__()
        self.first = torch.nn.Sequential(
            convolution(inputs, outputs, stride, norm), normalization(norm, outputs)
        )
        self.second = torch.nn.Sequential(
            convolution(outputs, outputs, 1, norm), normalization(norm, outputs)
        )
        self.stride, self.added = stride, outputs - inputs
        self.projection = None
        if projects and (stride > 1 or self.added):
            one_by_one = torch.nn.Conv2d(inputs, outputs, 1, stride=stride, bias=norm == "none")
            self.projection = torch.nn.Sequential(one_by_one, normalization(norm, outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of both ways."""
        return relu(self.second(relu(self.first(x))) + self._shortcut(x))

    def _shortcut(self, x: torch.Tensor) -> torch.Tensor:
        if self.projection is not None:
            return self.projection(x)
        if not self.added:
            return x
        return pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))


def resnet18(norm: str) -> torch.nn.Module:
    """Return ResNet-18 with ten outputs: 11.17 million parameters."""
    return _resnet((64, 128, 256, 512), 2, norm, projects=True)


def resnet20(norm: str) -> torch.nn.Module:
    """Return ResNet-20 with ten outputs: 0.27 million parameters."""
    return _resnet((16, 32, 64), 3, norm, projects=False)


def _resnet(widths: tuple[int, ...], blocks: int, norm: str, *, projects: bool) -> torch.nn.Module:
    layers: list[torch.nn.Module] = [
        convolution(3, widths[0], 1, norm),
        normalization(norm, widths[0]),
        torch.nn.ReLU(),
    ]
    before = widths[0]
    for stage, width in enumerate(widths):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            layers.append(Block(before, width, stride, norm, projects=projects))
            before = width
    head = (torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(before, 10))
    model = torch.nn.Sequential(*layers, *head)
    for layer in model.modules():
        if isinstance(layer, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return model
