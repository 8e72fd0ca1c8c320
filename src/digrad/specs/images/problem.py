"""Private losses that are a network's cross entropy on an agent's images."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from digrad.data import ImageSet, Partition, augmented, normalized
from digrad.specs.images.models import MODELS, build_model

Indices = npt.NDArray[np.int64]

EVALUATION_BATCH = 100  # images at a time: more would not fit into the cache


@dataclass(frozen=True, eq=False)
class ImageProblem:
    r"""A network and the images of each agent: f_i is the mean cross entropy over the images of agent i.

    Args:
        model: A name of :data:`digrad.specs.images.models.MODELS`.
        norm: Its normalisation.
        images: The training images.
        chosen: Which of them are trained on, ``[m]``.
        partition: How the chosen ones are partitioned among the agents.
        test_images: Whose accuracy is reported.
        test_chosen: Which of them.
        augment: Whether training images are shifted and mirrored.
    """

    model: str
    norm: str
    images: ImageSet
    chosen: Indices
    partition: Partition
    test_images: ImageSet
    test_chosen: Indices
    augment: bool = True

    @property
    def name(self) -> str:
        """Its name in reports."""
        return f"{self.model} on {self.images.name}"

    @property
    def n_agents(self) -> int:
        """The number of private losses."""
        return self.partition.n_agents

    @property
    def targets(self) -> tuple[npt.NDArray[np.integer], ...]:
        """The labels of each agent's images."""
        labels = self.images.labels[self.chosen]
        return tuple(labels[index] for index in self.partition.indices)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of images of each agent."""
        return tuple(self.partition.sizes.tolist())

    @property
    def is_estimated_by_batches(self) -> bool:
        """Return whether the mean over a mini-batch estimates the loss of an agent: cross entropy is a mean."""
        return True

    @cached_property
    def dim(self) -> int:
        """The number of parameters of the network."""
        with torch.device("meta"):
            return sum(parameter.numel() for parameter in MODELS[self.model](self.norm).parameters())

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of everything that determines the losses."""
        digest = hashlib.sha256(f"{self.model} {self.norm} {self.augment}".encode())
        digest.update(self.images.content_hash.encode() + self.test_images.content_hash.encode())
        for part in (self.chosen, self.test_chosen, *self.partition.indices):
            digest.update(part.astype(np.int64).tobytes())
        return digest.hexdigest()

    def start(self, seed: int, scale: float = 1.0) -> torch.nn.Module:
        """Return the network as all agents start with it; ``scale`` multiplies its weight matrices."""
        model = build_model(self.model, norm=self.norm, seed=seed)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(scale)
        return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def batch(
        self, agent: int, rows: npt.NDArray[np.integer], seed: int, step: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images and labels of a mini-batch of one agent; ``rows`` count among its own images."""
        indices = self.chosen[self.partition.indices[agent][rows]]
        images = self.images.take(indices)
        if self.augment:
            images = augmented(images, seed=seed, agent=agent, step=step)
        return _tensor(images), torch.from_numpy(self.images.labels[indices])

    def training_part(self, count: int) -> "Evaluation":
        """Return ``count`` of the training images to evaluate on, the same for every run; fewer if there are fewer."""
        return Evaluation(self.images, _spread(self.chosen, count))

    def test_part(self, count: int) -> "Evaluation":
        """Return ``count`` of the test images to evaluate on; fewer if there are fewer."""
        return Evaluation(self.test_images, _spread(self.test_chosen, count))


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Images that a model is evaluated on, as they are: neither shifted nor mirrored."""

    images: ImageSet
    indices: Indices

    def batches(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield images and labels."""
        for first in range(0, len(self.indices), EVALUATION_BATCH):
            indices = self.indices[first : first + EVALUATION_BATCH]
            yield _tensor(self.images.take(indices)), torch.from_numpy(self.images.labels[indices])

    @torch.no_grad()
    def measure(self, model: torch.nn.Module) -> tuple[float, float]:
        """Return the mean cross entropy and the accuracy of ``model``, which is left in the mode it was in."""
        was_training = model.training
        model.eval()
        total, correct = 0.0, 0
        device = next(model.parameters()).device
        for images, labels in self.batches():
            outputs, labels = model(images.to(device)), labels.to(device)
            total += float(torch.nn.functional.cross_entropy(outputs, labels, reduction="sum"))
            correct += int((outputs.argmax(1) == labels).sum())
        model.train(was_training)
        return total / len(self.indices), correct / len(self.indices)


def _tensor(images: npt.NDArray[np.uint8]) -> torch.Tensor:
    return torch.from_numpy(normalized(images)).contiguous(memory_format=torch.channels_last)


def _spread(indices: Indices, count: int) -> Indices:
    # Equally spaced, so that files in which one kind follows the other are represented.
    if count >= len(indices):
        return indices
    return indices[np.linspace(0, len(indices) - 1, count).astype(np.int64)]
