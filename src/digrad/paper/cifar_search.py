"""Step sizes for the methods of an experiment with images: a written protocol on held-out images.

What is measured is the loss on held-out data after a fixed budget of steps; test data are never looked at.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from digrad._internal.files import file_stem, write_atomically
from digrad._internal.json_files import read_json, write_json
from digrad.errors import ArgumentError, DigradError
from digrad.specs.images.training_jobs import stored_spec
from digrad.specs.images.worker_pool import Job, JobWatch, Tell, run_jobs
from digrad.specs.method_table import MethodTable
from digrad.specs.runner import Observer
from digrad.specs.spec import Spec, load_spec
from digrad.sweeps.largest_stable import FACTOR, FLOOR, SLACK, is_stable, largest_stable, remains, worst
from digrad.trace import Trace

SIZES = ", step sizes"  # ends the name of a job
SEARCHED = "-search"  # ends the name of the folder beside that of the run
FIXED = ("CGT",)  # the paper gives its step size
SEARCH_SEED = 1000  # added to the seed, so that no run shares its start and samples with the search
FEW_IMAGES = 100  # for runs that only show that everything works
_ROUNDING = float(np.finfo(np.float32).eps)


@dataclass(frozen=True)
class SearchPlan:
    """Limits of a search.

    Args:
        steps: Steps of a trial.
        held_out: Training images that are held out.
        most: Step sizes tried for a method.
    """

    steps: int
    held_out: int = 2000
    most: int = 10


def with_step_sizes(
    spec: Spec, folder: Path, plan: SearchPlan, workers: int, progress: Observer | None, *, overwrite: bool
) -> tuple[Spec, dict[str, str]]:
    """Search the step sizes of all methods but those that the paper gives; what is stored is not searched again.

    Returns:
        The specification with the step sizes found, without the methods that have none, and why they have none.

    Raises:
        ArgumentError: ``folder`` holds the search of another specification, and ``overwrite`` does not allow for it.
        DigradError: No method has a step size.
    """
    trial = _trial(spec, plan)
    labels = [label for label in spec.methods if label not in FIXED]
    _open(folder, trial, overwrite=overwrite)
    jobs = [
        Job(
            f"{label}{SIZES}",
            search_step_size,
            {"folder": str(folder.absolute()), "label": label, "most": plan.most},
        )
        for label in labels
        if read_search(folder, label) is None
    ]
    watch = JobWatch([job.name for job in jobs], plan.most, 1, progress)
    failed = run_jobs(jobs, workers=workers, on_event=watch.on_event)
    failures = {name.removesuffix(SIZES): reason for name, reason in failed.items()}
    found = {label: read_search(folder, label) for label in labels}
    write_json(
        folder / "search.json", {"protocol": _protocol(trial, plan), "methods": found, "failures": failures}
    )
    sizes = {label: entry["step_size"] for label, entry in found.items() if entry and entry["step_size"]}
    lost = {
        label: f"no step size: {failures.get(label, 'every one diverged')}"
        for label in labels
        if label not in sizes
    }
    if lost and not sizes:
        label, reason = next(iter(lost.items()))
        raise DigradError(f"No method has a step size. {label}: {reason}")
    methods = {
        label: _with_step_size(table, sizes[label]) if label in sizes else table
        for label, table in spec.methods.items()
        if label not in lost
    }
    return spec.model_copy(update={"methods": methods}), lost


def _trial(spec: Spec, plan: SearchPlan) -> Spec:
    held_out = spec.problem.model_copy(
        update={
            "held_out": plan.held_out,
            "evaluate": min(FEW_IMAGES, plan.held_out),
            "evaluate_last": plan.held_out,
        }
    )
    return spec.model_copy(
        update={
            "name": f"{spec.name}: search for step sizes",
            "steps": plan.steps,
            "record_every": plan.steps,
            "seed": spec.seed + SEARCH_SEED,
            "seeds": 1,
            "problem": held_out,
        }
    )


def _open(folder: Path, trial: Spec, *, overwrite: bool) -> None:
    """Make or reuse the folder; trials of another specification are no trials of this one."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = list(folder.glob("search*.json"))
    if overwrite:
        for path in stored:
            path.unlink()
    elif stored and load_spec(folder / "spec.toml") != trial:
        raise ArgumentError(
            f"`out`: {folder} holds step sizes that were searched with another specification; give another --out, or "
            "--overwrite."
        )
    write_atomically(folder / "spec.toml", trial.to_toml())


def _with_step_size(table: MethodTable, step_size: float) -> MethodTable:
    return MethodTable(method=table.method, **{**table.fields, "step_size": step_size})


def _protocol(trial: Spec, plan: SearchPlan) -> str:
    return (
        f"{plan.held_out} of the training images are held out; a trial trains on the others for {plan.steps} steps "
        f"with seed {trial.seed} and is judged by the loss of the average model on these. Step sizes are the "
        f"preset's times powers of {FACTOR:g}: upwards until one fails, downwards until the smallest is not the best, "
        f"at most {plan.most}. A step size ensures convergence if its run stays finite, its last loss is above the "
        f"smallest of any step size tried by at most {SLACK:.0%} of how far that one fell from the start, and it "
        f"leaves at most {FLOOR:g} times as much gradient and disagreement as smaller ones leave, in proportion; the "
        "largest of these is used. Test images are never looked at."
    )


def search_step_size(tell: Tell, *, folder: str, label: str, most: int) -> None:
    """Search the step size of one method of the specification in a folder; the work of a job.

    Args:
        tell: Called after every trial.
        folder: Folder of ``spec.toml``, of engine ``torch``, whose steps are the budget and whose problem holds data
            back; and of ``search-<label>.json``, which every trial is stored in at once, and whose trials are not
            repeated.
        label: Label of the method.
        most: Step sizes tried at most.
    """
    from digrad.specs.images.training import TrainingPlan, train

    spec, built = stored_spec(folder)
    path = _stored_search(Path(folder), label)
    method: Any = built.methods[label]
    stored = read_json(path)["trials"] if path.is_file() else []
    known = {trial["step_size"]: trial for trial in stored}
    plan = TrainingPlan.of(spec, spec.seed)

    def loss_of(step_size: float) -> float:
        loss = known[step_size]["loss"]
        return math.inf if loss is None else loss

    def measure(step_size: float) -> float:
        if step_size not in known:
            tried = dataclasses.replace(method, step_size=step_size)
            trace = train(tried, built.problem, built.network, plan, name=label)
            known[step_size] = {"step_size": step_size, **_ending(trace)}
            write_json(path, {"method": label, "step_size": None, "trials": _trials(known)})
            tell({"event": "progress", "k": len(known), "steps": most, "loss": loss_of(step_size)})
        return loss_of(step_size)

    def holds(step_size: float) -> bool:
        endings = {
            size: worst(size, trial["initial_loss"], trial["loss"], [trial], _ROUNDING)
            for size, trial in known.items()
            if trial["loss"] is not None
        }
        return is_stable(endings[step_size], endings.values())

    found = largest_stable(measure, start=float(method.step_size), is_stable=holds, budget=most)
    stored = {
        "method": label,
        "step_size": found.value,
        "trials": _trials(known),
        "is_bounded": found.is_bounded,
    }
    write_json(path, stored)


def _ending(trace: Trace) -> dict[str, Any]:
    """Return what a trial is judged by; ``loss`` is None where it diverged."""
    last = trace.facts["last"]
    found = remains(trace.columns, {"grad_norm": 0.0, "consensus_error": 0.0}, _ROUNDING)
    if last is None or not math.isfinite(last["test_loss"]) or not all(map(math.isfinite, found.values())):
        return {"loss": None, "initial_loss": float(trace.columns["test_loss"][0])}
    return {"loss": last["test_loss"], "initial_loss": float(trace.columns["test_loss"][0]), **found}


def _trials(known: Mapping[float, dict[str, Any]]) -> list[dict[str, Any]]:
    return [known[size] for size in sorted(known)]


def read_search(folder: Path, label: str) -> dict[str, Any] | None:
    """Return the finished search of a method as stored, or None."""
    path = _stored_search(folder, label)
    stored = read_json(path) if path.is_file() else {}
    return stored if "is_bounded" in stored else None


def _stored_search(folder: Path, label: str) -> Path:
    return folder / f"search-{file_stem(label)}.json"
