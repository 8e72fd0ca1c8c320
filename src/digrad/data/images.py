"""Labelled 32 x 32 colour images, read from mapped files, and the random crops and flips that training sees."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from digrad.errors import DataError
from digrad.sampling import AUGMENTATIONS

CHANNELS, SIDE = 3, 32
RECORD = (
    1 + CHANNELS * SIDE * SIDE
)  # bytes of an image in a file: its label, then red, green and blue row by row
PADDING = 4  # pixels of black around an image, of which a crop may show some

# Mean and standard deviation of the pixels of the CIFAR-10 training set, per channel; a test computes them anew.
MEAN = np.array([0.491400, 0.482158, 0.446531], np.float32)
STD = np.array([0.247032, 0.243485, 0.261588], np.float32)

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images with one label each.

    Args:
        name: Its name in reports.
        records: One array ``[m, 3073]`` per file, of bytes: the label and the pixels; mapped, not loaded.
    """

    name: str
    records: Sequence[Pixels]

    def __post_init__(self) -> None:
        shapes = [part.shape for part in self.records]
        if not shapes or any(len(shape) != 2 or shape[1] != RECORD or not shape[0] for shape in shapes):
            raise DataError(
                f"`ImageSet` {self.name!r} needs records [m, {RECORD}] with m >= 1, but got shapes {shapes}."
            )

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.labels)

    def __repr__(self) -> str:
        """Return one line."""
        return f"ImageSet({self.name!r}, {len(self)} images)"

    @cached_property
    def labels(self) -> npt.NDArray[np.int64]:
        """The label of each image, ``[m]``."""
        return np.concatenate([part[:, 0] for part in self.records]).astype(np.int64)

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of all records."""
        digest = hashlib.sha256()
        for part in self.records:
            digest.update(np.ascontiguousarray(part).data)
        return digest.hexdigest()

    @cached_property
    def _starts(self) -> npt.NDArray[np.int64]:
        return np.cumsum([0, *(len(part) for part in self.records)])

    def take(self, indices: npt.NDArray[Any]) -> Pixels:
        """Return a copy of the images ``indices``, ``[len(indices), 3, 32, 32]``."""
        pixels = np.empty((len(indices), RECORD - 1), np.uint8)
        files = np.searchsorted(self._starts, indices, side="right") - 1
        for file in np.unique(files):
            chosen = files == file
            pixels[chosen] = self.records[file][indices[chosen] - self._starts[file], 1:]
        return pixels.reshape(-1, CHANNELS, SIDE, SIDE)


def augmented(images: Pixels, *, seed: int, agent: int, step: int) -> Pixels:
    """Return each image shifted by up to four pixels and, every other time, mirrored.

    A pure function of its arguments: nothing has to be replayed to know what an agent saw at a step.

    Args:
        images: ``[b, 3, 32, 32]``.
        seed: Random seed of the run.
        agent: Whose images they are.
        step: At which they are used.

    Example:
        >>> images = np.zeros((2, 3, 32, 32), np.uint8)
        >>> augmented(images, seed=0, agent=0, step=7).shape
        (2, 3, 32, 32)
    """
    counter = np.array([0, step, agent, 0], np.uint64)
    words = np.random.Philox(key=[seed, AUGMENTATIONS], counter=counter).random_raw(len(images))
    places = 2 * PADDING + 1
    down, right = (
        ((words >> np.uint64(shift)) & np.uint64(0xFFFF)) * places >> np.uint64(16) for shift in (0, 16)
    )
    is_mirrored = (words >> np.uint64(32)) & np.uint64(1) == 1
    padded = np.zeros((*images.shape[:2], SIDE + 2 * PADDING, SIDE + 2 * PADDING), np.uint8)
    padded[:, :, PADDING:-PADDING, PADDING:-PADDING] = images
    crops = np.lib.stride_tricks.sliding_window_view(padded, (SIDE, SIDE), axis=(2, 3))  # type: ignore[call-overload]
    shifted = crops[np.arange(len(images)), :, down.astype(np.int64), right.astype(np.int64)]
    shifted[is_mirrored] = shifted[is_mirrored, :, :, ::-1]
    return shifted


def normalized(images: Pixels) -> npt.NDArray[np.float32]:
    """Return pixels with mean 0 and standard deviation 1 per channel over the CIFAR-10 training set."""
    scale, shift = ((1 / (255 * STD))[:, None, None], (MEAN / STD)[:, None, None])
    return np.subtract(images.astype(np.float32) * scale, shift, dtype=np.float32)
