"""The runs of engine ``torch``: every method and seed is a job of its own, two or more at a time."""

import time
from typing import Any

from digrad._internal.json_files import write_json
from digrad.specs.images.jobs import Event, Job, JobProgress, run_jobs
from digrad.specs.spec import Built
from digrad.specs.store import RunDirectory

FAILURES = "failures.json"


def train_all(
    store: RunDirectory, built: Built, *, progress: Any = None, workers: int, seeds: int | None = None
) -> tuple[dict[str, str], bool]:
    """Train every method with every seed that is not stored yet.

    The seeds come one after the other, so that all methods have the first before any has the second.

    Args:
        store: Where results and checkpoints go.
        built: What its specification describes.
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
    names = {_name(store, *member): member for member in missing}
    jobs = [
        Job(name, "train", {"run": str(store.path.absolute()), "label": label, "seed": seed})
        for name, (label, seed) in names.items()
    ]
    watch = _Watch(store, names, progress)
    try:
        failures, interrupted = run_jobs(jobs, workers=workers, on_event=watch.on_event), False
    except KeyboardInterrupt:
        failures, interrupted = watch.failures, True
    _tidy(store, failures)
    return failures, interrupted


def _name(store: RunDirectory, label: str, seed: int) -> str:
    return label if store.spec.seeds == 1 else f"{label}, seed {seed}"


def _tidy(store: RunDirectory, failures: dict[str, str]) -> None:
    if failures:
        write_json(store.path / FAILURES, failures)
    else:
        (store.path / FAILURES).unlink(missing_ok=True)


class _Watch:
    """Turns events of jobs into calls of an observer, with the time that is left."""

    def __init__(self, store: RunDirectory, names: dict[str, tuple[str, int]], progress: Any) -> None:
        self._store, self._names, self._progress = store, names, progress
        self._done = dict.fromkeys(names, 0)
        self._first: dict[str, int] = {}  # steps that were done before, by an earlier run
        self._began = time.monotonic()
        self.failures: dict[str, str] = {}

    def on_event(self, name: str, event: Event) -> None:
        """Pass an event on."""
        kind, steps = event["event"], self._store.spec.steps
        if kind == "failed":
            self.failures[name] = event["reason"]
        if kind == "progress":
            self._first.setdefault(name, event["k"] - self._store.spec.record_every)
            self._done[name] = event["k"]
        elif kind in ("done", "failed"):
            self._done[name] = steps
        if self._progress is None:
            return
        if kind == "started":
            self._progress.on_method_start(name, steps)
        elif kind == "progress":
            told = {key: value for key, value in event.items() if key != "event"}
            told |= {"name": name, "seconds_left": self._seconds_left()}
            self._progress.on_progress(JobProgress(**told))
        elif kind == "done":
            trace = self._store.load_member(*self._names[name])
            if trace is not None:
                self._progress.on_method_end(trace)

    def _seconds_left(self) -> float | None:
        computed = sum(self._done.values()) - sum(max(0, first) for first in self._first.values())
        left = len(self._names) * self._store.spec.steps - sum(self._done.values())
        elapsed = time.monotonic() - self._began
        return left * elapsed / computed if computed > 0 else None
