"""The largest step size that ensures convergence: a written protocol instead of a hand.

A step size *ensures convergence* here if, after a fixed budget of steps, the run is finite and its loss on held-out
data is at most ``slack`` above the smallest that any step size tried reaches. Of those the largest is taken, as the
paper does for its baselines. Test data are never looked at.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from digrad import checks
from digrad.experiments.image_table import ImagesTable
from digrad.experiments.spec import Built, Spec
from digrad.experiments.store import read_json, write_json
from digrad.files import file_stem

FACTOR = 2.0  # between neighbouring step sizes
SLACK = 0.05
MOST = 10  # step sizes tried


@dataclass(frozen=True)
class Trial:
    """One step size and the loss it reached; None when the run diverged."""

    step_size: float
    loss: float | None


@dataclass(frozen=True)
class Search:
    """What :func:`largest_converging` found.

    Args:
        step_size: The largest that ensures convergence; None when none does.
        trials: All that were tried, from the smallest step size on.
        is_bounded: Whether a larger one was tried and failed; else the search ended at its limit.
    """

    step_size: float | None
    trials: tuple[Trial, ...]
    is_bounded: bool


def largest_converging(
    measure: Callable[[float], float],
    *,
    start: float,
    factor: float = FACTOR,
    slack: float = SLACK,
    most: int = MOST,
) -> Search:
    """Return the largest step size of ``start * factor**i`` that ensures convergence.

    From ``start`` the search goes up until a step size fails, and down until the smallest tried is not the best.

    Args:
        measure: Returns the loss after the budget with a step size, not finite if the run diverged.
        start: The first step size tried.
        factor: Between neighbours.
        slack: How much above the best a loss may be, as a share of it.
        most: Step sizes tried at most.

    Example:
        >>> found = largest_converging(lambda size: 1 / size if size < 1 else math.inf, start=0.1)
        >>> found.step_size, len(found.trials)
        (0.8, 5)
    """
    checks.positive(start, "start", "largest_converging")
    losses: dict[int, float] = {}

    def converges(place: int) -> bool:
        best = min(losses.values())
        return math.isfinite(losses[place]) and losses[place] <= best + slack * abs(best)

    def attempt(place: int) -> None:
        loss = measure(start * factor**place)
        losses[place] = loss if math.isfinite(loss) else math.inf

    attempt(0)
    while len(losses) < most and converges(max(losses)):
        attempt(max(losses) + 1)
    while len(losses) < most and (losses[min(losses)] <= min(losses.values())):
        attempt(min(losses) - 1)
    good = [place for place in losses if converges(place)]
    trials = tuple(
        Trial(start * factor**place, losses[place] if math.isfinite(losses[place]) else None)
        for place in sorted(losses)
    )
    chosen = max(good, default=None)
    return Search(
        step_size=None if chosen is None else start * factor**chosen,
        trials=trials,
        is_bounded=chosen is not None and chosen < max(losses),
    )


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
            trials = [asdict(Trial(size, known[size])) for size in sorted(known)]
            write_json(path, {"method": label, "step_size": None, "trials": trials})
            if tell:
                tell({"event": "trial", "step_size": step_size, "loss": known[step_size]})
        loss = known[step_size]
        return math.inf if loss is None else loss

    found = largest_converging(measure, start=float(method.step_size), most=most)
    write_json(path, {"method": label, **asdict(found)})
    return found


def read_search(folder: Path, label: str) -> dict[str, Any] | None:
    """Return the finished search of a method as stored, or None."""
    path = folder / f"search-{file_stem(label)}.json"
    stored = read_json(path) if path.is_file() else {}
    return stored if "is_bounded" in stored else None
