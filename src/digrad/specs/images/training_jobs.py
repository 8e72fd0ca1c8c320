"""The runs of engine ``torch``: every method and seed is a job of its own, two or more at a time."""

import functools
from dataclasses import asdict
from pathlib import Path
from typing import Any

from digrad._internal.json_files import write_json
from digrad.simulation.simulate import run_name
from digrad.specs.images.worker_pool import Job, JobWatch, Tell, run_jobs
from digrad.specs.run_directory import RunDirectory
from digrad.specs.spec import Built, Spec, load_spec

FAILURES = "failures.json"


def train_all(
    store: RunDirectory, built: Built, *, progress: Any = None, workers: int, seeds: int | None = None
) -> tuple[dict[str, str], bool]:
    """Train every method with every seed that is not stored yet.

    The seeds come one after the other, so that all methods have the first before any has the second.

    Args:
        store: The directory of results and checkpoints.
        built: Methods, problem and network of its specification.
        progress: An observer of the run.
        workers: Processes at a time.
        seeds: Only the first so many seeds.

    Returns:
        Why members failed, by name, also stored as ``failures.json``; and whether Ctrl-C ended it.
    """
    spec = store.spec
    chosen = range(spec.seed, spec.seed + min(seeds or spec.seeds, spec.seeds))
    wanted = [(label, seed) for seed in chosen for label in built.methods]
    missing = [member for member in wanted if store.load_member(*member) is None]
    names = {run_name(*member, spec.seeds): member for member in missing}
    jobs = [
        Job(name, train_member, {"run": str(store.path.absolute()), "label": label, "seed": seed})
        for name, (label, seed) in names.items()
    ]

    def end(name: str) -> None:
        trace = store.load_member(*names[name])
        if progress and trace:
            progress.on_method_end(trace)

    watch = JobWatch(names, spec.steps, spec.record_every, progress, end)
    try:
        failures, interrupted = run_jobs(jobs, workers=workers, on_event=watch.on_event), False
    except KeyboardInterrupt:
        failures, interrupted = watch.failures, True
    _tidy(store, failures)
    return failures, interrupted


def train_member(tell: Tell, *, run: str, label: str, seed: int) -> None:
    """Train one method of a run directory with one seed, and store its trace; the work of a job.

    It goes on from its checkpoint if there is one.
    """
    from digrad.specs.images.training import TrainingPlan, train

    spec, built = stored_spec(run)
    store = RunDirectory(Path(run), spec)
    trace = train(
        built.methods[label],
        built.problem,
        built.network,
        TrainingPlan.of(spec, seed, store.checkpoint(label, seed)),
        name=label,
        callback=lambda progress: tell({"event": "progress", **asdict(progress)}),
    )
    store.save_member(trace, seed)


@functools.lru_cache(maxsize=1)
def stored_spec(folder: str) -> tuple[Spec, Built]:
    """Return the specification in a folder, and what it describes: built once for all jobs of a worker."""
    spec = load_spec(Path(folder) / "spec.toml")
    return spec, spec.build()


def _tidy(store: RunDirectory, failures: dict[str, str]) -> None:
    if failures:
        write_json(store.path / FAILURES, failures)
    else:
        (store.path / FAILURES).unlink(missing_ok=True)
