"""The step sizes of trainings, found by :func:`digrad.sweeps.largest_stable`, with every trial stored at once.

What is measured is the loss on held-out data after a fixed budget of steps; test data are never looked at.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from digrad.experiments.image_table import ImagesTable
from digrad.experiments.spec import Built, Spec
from digrad.experiments.store import read_json, write_json
from digrad.files import file_stem
from digrad.sweeps.search import FACTOR, SLACK, Search, largest_stable, within_share_of_best

__all__ = ["FACTOR", "MOST", "SLACK", "read_search", "tune_method"]

MOST = 10  # step sizes tried


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
        folder: Where ``search-<label>.json`` is; trials found in it are not repeated.
        spec: Whose steps are the budget; its problem holds data back.
        built: What it describes.
        label: Of the method.
        each_step: Called before every step.
        tell: Told about every trial.
        most: Step sizes tried at most.
    """
    from digrad.torch.training import train

    assert isinstance(spec.problem, ImagesTable)
    path = folder / f"search-{file_stem(label)}.json"
    method: Any = built.methods[label]
    known = {
        trial["step_size"]: trial["loss"] for trial in (read_json(path)["trials"] if path.is_file() else ())
    }
    plan = spec.problem.plan(**spec.options(built.problem, spec.seed))

    def measure(step_size: float) -> float:
        if step_size not in known:
            tried = dataclasses.replace(method, step_size=step_size)
            trace = train(tried, built.problem, built.network, plan, name=label, each_step=each_step)
            last = trace.facts["last"]
            known[step_size] = (
                None if last is None or not math.isfinite(last["test_loss"]) else last["test_loss"]
            )
            write_json(path, {"method": label, "step_size": None, "trials": _trials(known)})
            if tell:
                tell({"event": "trial", "step_size": step_size, "loss": known[step_size]})
        loss = known[step_size]
        return math.inf if loss is None else loss

    rule = within_share_of_best(SLACK)
    found = largest_stable(measure, start=float(method.step_size), is_stable=rule, budget=most)
    stored = {
        "method": label,
        "step_size": found.value,
        "trials": _trials(known),
        "is_bounded": found.is_bounded,
    }
    write_json(path, stored)
    return found


def _trials(known: Mapping[float, float | None]) -> list[dict[str, float | None]]:
    return [{"step_size": size, "loss": known[size]} for size in sorted(known)]


def read_search(folder: Path, label: str) -> dict[str, Any] | None:
    """Return the finished search of a method as stored, or None."""
    path = folder / f"search-{file_stem(label)}.json"
    stored = read_json(path) if path.is_file() else {}
    return stored if "is_bounded" in stored else None
