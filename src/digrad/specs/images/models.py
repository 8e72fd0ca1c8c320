"""Networks for 32 x 32 colour images: what the paper trains, and smaller ones for machines without a GPU.

Reference: K. He, X. Zhang, S. Ren, J. Sun, "Deep residual learning for image recognition", CVPR 2016: ResNet-20 is that
of its section 4.2 (shortcuts without parameters); ResNet-18 is that of its table 1 with the first layer that is
customary for CIFAR (3 x 3, stride 1, no pooling).
"""

from collections.abc import Callable

import torch
from torch.nn.functional import pad, relu

from digrad import checks

NORMS = ("batch", "group", "none")
CHANNELS_PER_GROUP = 8  # the customary 32 groups would leave narrow layers less than one channel each


def build_model(name: str, *, norm: str = "batch", seed: int = 0) -> torch.nn.Module:
    """Return a network with ten outputs whose start depends on ``seed`` alone.

    Args:
        name: ``resnet18``, ``resnet20`` or ``small_cnn``.
        norm: ``batch``, ``group`` or ``none``.
        seed: Random seed of the start; torch's own random state is left as it was.

    Raises:
        ArgumentError: There is no such model or normalisation.

    Example:
        >>> sum(parameter.numel() for parameter in build_model("resnet20").parameters())
        269722
    """
    checks.choice(name, "name", "build_model", MODELS)
    checks.choice(norm, "norm", "build_model", NORMS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name](norm)


def small_cnn(norm: str) -> torch.nn.Module:
    """Return three convolutions of 32, 64 and 128 channels, each followed by pooling, and a linear layer.

    Pooling comes before the normalisation and the ReLU: they then work on a quarter of the numbers.
    """
    layers: list[torch.nn.Module] = []
    for inputs, outputs in ((3, 32), (32, 64), (64, 128)):
        layers += [
            _convolution(inputs, outputs, 1, norm),
            torch.nn.MaxPool2d(2),
            _normalization(norm, outputs),
            torch.nn.ReLU(),
        ]
    return torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(128 * 4 * 4, 10))


def resnet18(norm: str) -> torch.nn.Module:
    """Return ResNet-18 with ten outputs: 11.17 million parameters."""
    return _resnet((64, 128, 256, 512), 2, norm, projects=True)


def resnet20(norm: str) -> torch.nn.Module:
    """Return ResNet-20 with ten outputs: 0.27 million parameters."""
    return _resnet((16, 32, 64), 3, norm, projects=False)


MODELS: dict[str, Callable[[str], torch.nn.Module]] = {
    "resnet18": resnet18,
    "resnet20": resnet20,
    "small_cnn": small_cnn,
}


def _resnet(widths: tuple[int, ...], blocks: int, norm: str, *, projects: bool) -> torch.nn.Module:
    layers: list[torch.nn.Module] = [
        _convolution(3, widths[0], 1, norm),
        _normalization(norm, widths[0]),
        torch.nn.ReLU(),
    ]
    before = widths[0]
    for stage, width in enumerate(widths):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            layers.append(_Block(before, width, stride, norm, projects=projects))
            before = width
    head = (torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(before, 10))
    model = torch.nn.Sequential(*layers, *head)
    for layer in model.modules():
        if isinstance(layer, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return model


class _Block(torch.nn.Module):
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
            _convolution(inputs, outputs, stride, norm), _normalization(norm, outputs)
        )
        self.second = torch.nn.Sequential(
            _convolution(outputs, outputs, 1, norm), _normalization(norm, outputs)
        )
        self.stride, self.added = stride, outputs - inputs
        self.projection = None
        if projects and (stride > 1 or self.added):
            one_by_one = torch.nn.Conv2d(inputs, outputs, 1, stride=stride, bias=norm == "none")
            self.projection = torch.nn.Sequential(one_by_one, _normalization(norm, outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of both ways."""
        return relu(self.second(relu(self.first(x))) + self._shortcut(x))

    def _shortcut(self, x: torch.Tensor) -> torch.Tensor:
        if self.projection is not None:
            return self.projection(x)
        if not self.added:
            return x
        return pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))


def _normalization(norm: str, channels: int) -> torch.nn.Module:
    """Return BatchNorm (``batch``), GroupNorm (``group``) or nothing (``none``) for so many channels.

    BatchNorm keeps running statistics, which belong to one agent's parameters and data; GroupNorm has none, so that
    agents whose data differ do not see each other through other statistics.
    """
    if norm == "batch":
        return torch.nn.BatchNorm2d(channels)
    if norm == "group":
        return torch.nn.GroupNorm(channels // CHANNELS_PER_GROUP, channels)
    return torch.nn.Identity()


def _convolution(inputs: int, outputs: int, stride: int, norm: str) -> torch.nn.Conv2d:
    """Return a 3 x 3 convolution; its bias would be cancelled by a normalisation behind it."""
    return torch.nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=norm == "none")
