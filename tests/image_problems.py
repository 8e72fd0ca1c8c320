"""Small image problems for tests: generated images in the format of CIFAR-10, and networks that train in moments."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from digrad.data import ImageSet, partition
from digrad.data.cifar import BATCHES
from digrad.data.images import RECORD
from digrad.specs.images.problem import ImageProblem


def records(count: int, seed: int) -> np.ndarray:
    """Return records of images of ten classes that differ in their colour, so that they can be learnt."""
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


def tiny_problem(
    agents: int = 5, *, model: str = "small_cnn", norm: str = "batch", count: int = 100
) -> ImageProblem:
    """Return a problem of generated images, partitioned at random."""
    images, test = ImageSet("generated", [records(count, 1)]), ImageSet("generated (test)", [records(40, 2)])
    assert images.records[0].shape[1] == RECORD
    return ImageProblem(
        model=model,
        norm=norm,
        images=images,
        chosen=np.arange(count),
        partition=partition(images.labels, agents, scheme="iid"),
        test_images=test,
        test_chosen=np.arange(40),
    )


@contextmanager
def jobs_here(*modules: str) -> Iterator[None]:
    """Let modules do their jobs in this process: starting a worker takes longer than a job."""

    def run_jobs(jobs: Any, *, workers: int, on_event: Any) -> dict[str, str]:
        for job in jobs:
            on_event(job.name, {"event": "started"})
            job.work(lambda event, name=job.name: on_event(name, event), **job.arguments)
            on_event(job.name, {"event": "done"})
        return {}

    with pytest.MonkeyPatch.context() as patch:
        for module in modules:
            patch.setattr(f"{module}.run_jobs", run_jobs)
        yield
