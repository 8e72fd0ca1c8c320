"""Batches on several processes, of this machine or of a cluster, through joblib.

What all runs share is sent as one array of bytes: joblib maps it into memory on this machine, and Dask scatters it
once. A worker unpacks it once and keeps it, with what it has compiled, for all its batches, also those of later sweeps.
Worker processes are started anew, never forked: a forked JAX hangs.
"""

import hashlib
import multiprocessing
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import joblib
import numpy as np
import numpy.typing as npt

from digrad import checks
from digrad.errors import ArgumentError, DigradError, WorkerError
from digrad.sweeps.space import Configuration
from digrad.sweeps.study import Batch, Study, run_batch
from digrad.sweeps.sweep_folder import part_name

KEPT = 2  # studies that a worker keeps
_studies: dict[str, Study] = {}  # by content, the latest last


@dataclass(frozen=True)
class Workers:
    """Processes that share the work of a sweep, of this machine or of a cluster.

    Args:
        count: How many; a cluster may have its own idea. One, without a backend, is this process.
        backend: A backend of joblib, e.g. ``"dask"`` for a cluster; ``"loky"`` (processes of this machine) by default.
        options: Options of the backend, e.g. ``{"scheduler_host": "10.8.0.1:8786"}``.
        part: Run only part i of n, given as ``(i, n)`` with 1 <= i <= n, and store it in a folder of its own below
            ``out``: for jobs that share a disk, but know nothing of each other. A sweep with ``resume`` takes over the
            rows of all parts.
    """

    count: int = 1
    backend: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    part: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        """Check the fields."""
        object.__setattr__(self, "count", checks.count(self.count, "workers", "sweep"))
        if self.backend == "multiprocessing":
            raise ArgumentError(
                "`backend` of Workers must not be 'multiprocessing', which forks: JAX hangs in a forked process; use "
                "'loky'."
            )
        if self.part is not None and not 1 <= self.part[0] <= self.part[1]:
            raise ArgumentError(
                f"`part` of Workers must be (i, n) with 1 <= i <= n, the parts being 1 to n, but got {self.part}."
            )

    def share(self, wanted: Sequence[Configuration]) -> list[Configuration]:
        """Return what is to be run here: neighbours in the grid, which share compiled code."""
        i, n = self.part or (1, 1)
        return [wanted[place] for place in np.array_split(np.arange(len(wanted)), n)[i - 1]]

    def folder(self, out: Path) -> Path:
        """Return the folder of what is run here."""
        return out if self.part is None else out / part_name(*self.part)


def run_all(
    study: Study, work: Sequence[Batch], workers: Workers
) -> Iterator[tuple[Batch, list[dict[str, Any]]]]:
    """Yield each batch and its rows as it is done: in this process in order, on workers in any.

    Raises:
        WorkerError: A worker has ended, or the backend does not work.
    """
    if workers.count == 1 and workers.backend is None:
        yield from ((batch, run_batch(study, batch)) for batch in work)
        return
    content = cloudpickle.dumps(study)
    key = hashlib.sha256(content).hexdigest()
    shared = np.frombuffer(content, np.uint8)
    tasks = [
        joblib.delayed(_run)(shared, key, place, cloudpickle.dumps(batch)) for place, batch in enumerate(work)
    ]
    try:
        with joblib.parallel_config(workers.backend or "loky", n_jobs=workers.count, **workers.options):
            done: Any = joblib.Parallel(return_as="generator_unordered")(tasks)
            for place, rows in done:
                yield work[place], rows
    except (DigradError, KeyboardInterrupt, GeneratorExit):
        raise
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        raise WorkerError(
            f"a worker of the joblib backend {workers.backend!r} failed ({type(error).__name__}: {reason})"
        ) from error


def _run(
    shared: npt.NDArray[np.uint8], key: str, place: int, batch: bytes
) -> tuple[int, list[dict[str, Any]]]:
    """Run one batch in a worker."""
    if key not in _studies:
        _share_cores()
        while len(_studies) >= KEPT:
            del _studies[next(iter(_studies))]
        _studies[key] = cloudpickle.loads(shared.tobytes())
    return place, run_batch(_studies[key], cloudpickle.loads(batch))


def _share_cores() -> None:
    """Let XLA have as many threads as joblib gives this process, before it starts: several on one core cost a third.

    XLA takes one per core, whatever OMP_NUM_THREADS says; what it obeys is NPROC.
    """
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads and multiprocessing.parent_process():  # not the user's own process, as with joblib's threads
        os.environ.setdefault("NPROC", threads)
