"""Generated images in the format of CIFAR-10, for tests."""

from pathlib import Path

import numpy as np

from digrad.data.cifar import BATCHES


def records(count: int, seed: int) -> np.ndarray:
    """Return records of ten kinds of images that differ in their colour, so that they can be learnt."""
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 10
    colours = np.random.default_rng(0).integers(40, 216, (10, 3))
    noise = rng.integers(-40, 40, (count, 3, 1024))
    pixels = np.clip(colours[labels][:, :, None] + noise, 0, 255).reshape(count, -1)
    return np.concatenate([labels[:, None], pixels], axis=1).astype(np.uint8)


def write_batches(folder: Path, count: int = 40) -> Path:
    """Write six binary batches of ``count`` generated images each."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate(BATCHES):
        (folder / f"{name}.bin").write_bytes(records(count, seed).tobytes())
    return folder
