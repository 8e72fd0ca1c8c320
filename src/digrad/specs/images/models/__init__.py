"""Networks for 32 x 32 colour images: what the paper trains, and smaller ones for machines without a GPU."""

from collections.abc import Callable

import torch

from digrad import checks
from digrad.specs.images.models.resnet import resnet18, resnet20
from digrad.specs.images.models.small_cnn import small_cnn

MODELS: dict[str, Callable[[str], torch.nn.Module]] = {
    "resnet18": resnet18,
    "resnet20": resnet20,
    "small_cnn": small_cnn,
}
NORMS = ("batch", "group", "none")


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


__all__ = ["MODELS", "NORMS", "build_model", "resnet18", "resnet20", "small_cnn"]
