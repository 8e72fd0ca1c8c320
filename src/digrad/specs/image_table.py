"""``kind = "images"`` in ``[problem]``: a torch network, a data set of images, and how they are partitioned.

This module does not load torch: a specification is checked without it.
"""

from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator, Field

from digrad import data
from digrad.errors import DataError
from digrad.sampling import HELD_OUT
from digrad.specs.graph_table import Count, File, Seed
from digrad.specs.messages import Section
from digrad.specs.partition_table import PartitionTable, as_partition

if TYPE_CHECKING:
    from digrad.specs.images.problem import ImageProblem


class ImagesTable(Section):
    """``kind = "images"``: each agent's loss is the mean cross entropy of a network over its images.

    Args:
        kind: ``"images"``.
        data: ``"cifar10"``.
        folder: Folder with the CIFAR-10 files; by default it is searched for, see :func:`digrad.data.cifar10`.
        model: ``"small_cnn"``, ``"resnet20"`` or ``"resnet18"``.
        norm: ``"batch"``, ``"group"`` or ``"none"``.
        partition: How images are partitioned among agents.
        augment: Shift and mirror training images at random.
        samples: Number of images to train on; all of them by default.
        held_out: Number of training images to hold out; accuracy is then measured on them, never on test images.
        held_out_seed: Random seed that selects the held-out images.
        evaluate: Number of training images, and of test images, on which each recorded row is evaluated.
        evaluate_last: The same for the last row.
    """

    kind: Literal["images"]
    data: Literal["cifar10"] = "cifar10"
    folder: File | None = None
    model: Literal["small_cnn", "resnet20", "resnet18"] = "small_cnn"
    norm: Literal["batch", "group", "none"] = "batch"
    partition: Annotated[PartitionTable, BeforeValidator(as_partition)] = PartitionTable(scheme="iid")
    augment: bool = True
    samples: Count | None = None
    held_out: Annotated[int, Field(ge=0)] = 0
    held_out_seed: Seed = 0
    evaluate: Count = 2000
    evaluate_last: Count = 10_000

    def build(self, agents: int) -> "ImageProblem":
        """Find and partition the images, and return the problem."""
        from digrad.torch.launch import require_torch

        require_torch("a problem of kind 'images'")
        from digrad.specs.images.problem import ImageProblem

        images = data.cifar10(self.folder)
        chosen, held_out = self._split(len(images))
        test_images = images if self.held_out else data.cifar10(self.folder, train=False)
        options = self.partition.model_dump(exclude_none=True)
        return ImageProblem(
            model=self.model,
            norm=self.norm,
            images=images,
            chosen=chosen,
            partition=data.partition(images.labels[chosen], agents, **options),
            test_images=test_images,
            test_chosen=held_out if self.held_out else np.arange(len(test_images)),
            augment=self.augment,
        )

    def _split(self, count: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        wanted = (count - self.held_out if self.samples is None else self.samples) + self.held_out
        if not self.held_out < wanted <= count:
            raise DataError(
                f"`samples` and `held_out` must be at most {count} together, and leave some to train on, but are "
                f"{self.samples} and {self.held_out}."
            )
        # Without either, all images in the order of their files.
        if wanted == count and not self.held_out:
            return np.arange(count), np.arange(0)
        generator = np.random.Generator(
            np.random.Philox(key=np.array([self.held_out_seed, HELD_OUT], np.uint64))
        )
        order = generator.permutation(count)
        return np.sort(order[self.held_out : wanted]), np.sort(order[: self.held_out])
