"""A worker process: jobs come on standard input, what happens goes to standard output; see `worker_pool`."""

import functools
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from digrad.errors import DigradError
from digrad.specs.images.step_size_search import tune_method
from digrad.specs.run_directory import RunDirectory
from digrad.specs.spec import Built, Spec, load_spec

Tell = Callable[[Mapping[str, Any]], None]


def train_member(tell: Tell, *, run: str, label: str, seed: int) -> None:
    """Train one method of a run directory with one seed, from its checkpoint if there is one, and store its trace."""
    from digrad.specs.images.training import TrainingPlan, train

    spec, built = _built(run)
    store = RunDirectory(Path(run), spec)
    trace = train(
        built.methods[label],
        built.problem,
        built.network,
        TrainingPlan.of(spec, seed, store.checkpoint(label, seed)),
        name=label,
        callback=lambda progress: tell({"event": "progress", **asdict(progress)}),
        each_step=_end_without_parent(),
    )
    store.save_member(trace, seed)


def search_step_size(tell: Tell, *, folder: str, label: str, most: int) -> None:
    """Search the step size of one method of the specification in a folder."""
    spec, built = _built(folder)
    tune_method(Path(folder), spec, built, label, each_step=_end_without_parent(), tell=tell, most=most)


WORK: dict[str, Callable[..., None]] = {"train": train_member, "tune": search_step_size}


@functools.lru_cache(maxsize=1)
def _built(run: str) -> tuple[Spec, Built]:
    spec = load_spec(Path(run) / "spec.toml")
    return spec, spec.build()


def _end_without_parent() -> Callable[[], None]:
    """Return a check that ends this process once the one that gave it its jobs is gone."""
    parent = os.getppid()

    def check() -> None:
        if os.getppid() != parent:
            sys.exit("the process that gave this job is gone")

    return check


def main() -> None:
    """Do the jobs of standard input until it ends."""
    import torch

    torch.set_num_threads(1)
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C reaches all processes: the one that gave the jobs decides
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints must not look like an event

    def tell(event: Mapping[str, Any]) -> None:
        answers.write(json.dumps(event) + "\n")
        answers.flush()

    for line in sys.stdin:
        job = json.loads(line)
        try:
            WORK[job["work"]](tell, **job["arguments"])
        except DigradError as error:
            tell({"event": "failed", "reason": str(error)})
        except Exception as error:  # a job's failure is a result of the run; the traceback goes to the log
            traceback.print_exc()
            tell({"event": "failed", "reason": f"{type(error).__name__}: {error}"})
        else:
            tell({"event": "done"})


if __name__ == "__main__":
    main()
