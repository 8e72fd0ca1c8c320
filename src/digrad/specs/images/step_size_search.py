"""The step sizes of trainings, found by :func:`digrad.sweeps.largest_stable`, with every trial stored at once.

What is measured is the loss on held-out data after a fixed budget of steps; test data are never looked at.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from digrad._internal.files import file_stem
from digrad._internal.json_files import read_json, write_json
from digrad.specs.spec import Built, Spec
from digrad.sweeps.largest_stable import FACTOR, Search, largest_stable
from digrad.sweeps.stability_rule import is_stable, remains, worst
from digrad.trace import Trace

__all__ = ["FACTOR", "MOST", "read_search", "tune_method"]

MOST = 10  # step sizes tried
_ROUNDING = float(np.finfo(np.float32).eps)


def tune_method(
    folder: Path,
    spec: Spec,
    built: Built,
    label: str,
    *,
    each_step: Callable[[], None] | None = None,
    tell: Callable[[Mapping[str, Any]], None] | None = None,
    most: int = MOST,
) -> Search:
    """Search the step size of one method of a specification of engine ``torch``, and store every trial at once.

    Args:
        folder: Folder of ``search-<label>.json``, whose trials are not repeated.
        spec: Whose steps are the budget; its problem holds data back.
        built: Its methods, problem and network.
        label: Label of the method.
        each_step: Called before every step.
        tell: Called after every trial.
        most: Step sizes tried at most.
    """
    from digrad.specs.images.training import TrainingPlan, train

    path = folder / f"search-{file_stem(label)}.json"
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
            trace = train(tried, built.problem, built.network, plan, name=label, each_step=each_step)
            if each_step:  # who has lost its parent must not write over what another process found since
                each_step()
            known[step_size] = {"step_size": step_size, **_ending(trace)}
            write_json(path, {"method": label, "step_size": None, "trials": _trials(known)})
            if tell:
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
    return found


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
    path = folder / f"search-{file_stem(label)}.json"
    stored = read_json(path) if path.is_file() else {}
    return stored if "is_bounded" in stored else None
