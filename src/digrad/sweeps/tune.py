"""The step size to take: the largest that is stable, or the one that ends best, with the evidence."""

import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy.typing as npt

from digrad import checks, plots
from digrad.algorithms.fields import numeric_fields
from digrad.engine.door import check_method
from digrad.errors import ArgumentError
from digrad.mixing import AnyNetwork
from digrad.problems import Problem
from digrad.simulation.arguments import make_batch_size, make_dtype
from digrad.sweeps.batches import batches, run_batch
from digrad.sweeps.search import (
    FACTOR,
    SLACK,
    Search,
    Trial,
    best_value,
    largest_stable,
    within_share_of_best,
)
from digrad.sweeps.sweep import TOLERANCE, plan, table_of
from digrad.types import Method

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

NEGLIGIBLE = 1e-6  # a loss below this share of the initial one counts as zero
LEAST_BUDGET = 3  # one value that is stable, one that is not, one between them
GOALS = ("largest stable step", "best final value")


@dataclass(frozen=True, eq=False)
class Tuning:
    """What :func:`tune` found.

    Args:
        method: With the value found; as it came when none is stable.
        field: The hyper-parameter that was searched.
        value: Its value; None when no value tried is stable.
        is_bounded: Whether a larger value was tried and is not stable, and a smaller one is not the best (for the best
            final value: whether worse ones lie on both sides); else the search ended at its budget.
        goal: What was searched for.
        metric: The column that decided.
        table: The evidence: a row per value and seed, as :func:`digrad.sweep` gives them, with ``farthest_loss`` (of
            the estimate farthest from the average), ``score`` (the worst of both, of all seeds) and ``is_stable``.
    """

    method: Method
    field: str
    value: float | None
    is_bounded: bool
    goal: str
    metric: str
    table: "pd.DataFrame"

    def __repr__(self) -> str:
        """Return one line."""
        found = "none" if self.value is None else f"{self.value:.4g}"
        edge = "" if self.is_bounded else ", not bounded: the budget ended first"
        values = self.table[self.field].nunique()
        return f"Tuning({type(self.method).__name__}: {self.goal}, {self.field} = {found}{edge}; {values} values tried)"

    def plot(self, path: str | os.PathLike[str] | None = None) -> "Figure":
        """Draw the score against the values tried, with the one found.

        Args:
            path: Where to save the figure; see :meth:`digrad.Trace.plot`.
        """
        rows: Any = self.table.sort_values(self.field)
        grouped = rows.groupby(self.field)[self.metric].apply(list)
        diverged = rows.groupby(self.field)["verdict"].apply(lambda verdicts: (verdicts == "diverged").any())
        values = [[math.inf] if diverged[x] else grouped[x] for x in grouped.index]
        label = type(self.method).__name__
        figure = plots.values_against(
            {label: (grouped.index.tolist(), values)}, self.field, self.metric, mark=self.value
        )
        if path is not None:
            stem, formats = plots.split_suffix(path, "path", "plot")
            plots.save_figure(figure, stem, formats=formats)
        return figure

    def to_dict(self) -> dict[str, Any]:
        """Return the result without the rows, as plain values for JSON."""
        scores = self.table.drop_duplicates(self.field)
        trials = [
            {
                self.field: float(value),
                "score": score if math.isfinite(score) else None,
                "is_stable": bool(stable),
            }
            for value, score, stable in zip(
                scores[self.field], scores["score"], scores["is_stable"], strict=True
            )
        ]
        return {
            "method": type(self.method).__name__, "goal": self.goal, "metric": self.metric, "field": self.field,
            "value": self.value, "is_bounded": self.is_bounded, "trials": trials,
        }  # fmt: skip


def tune(
    method: Method,
    problem: Problem,
    network: AnyNetwork,
    *,
    steps: int,
    goal: Literal["largest stable step", "best final value"] = "largest stable step",
    field: str = "step_size",
    budget: int = 12,
    precision: float = 1.1,
    slack: float = SLACK,
    seed: int = 0,
    seeds: int = 1,
    x0: npt.ArrayLike | Literal["zeros", "normal"] | None = None,
    batch_size: int | None = None,
    held_out: Problem | None = None,
    record_every: int | None = None,
    dtype: npt.DTypeLike = "float64",
    sampling: Literal["replacement", "epoch"] = "replacement",
    tell: Callable[[Mapping[str, Any]], None] | None = None,
) -> Tuning:
    """Find the step size of a method, by the protocol of the paper: the largest that ensures convergence.

    A value is stable if, for every seed, the run of ``steps`` steps does not diverge and its last loss is at most 5 %
    (``slack``) above the lowest that any value tried reaches. The last loss is the larger of those at the average and
    at the estimate that is farthest from it: agents that do not agree have found nothing. Values are tried up and down
    by factors of two from the one that ``method`` holds, then by bisection on a log scale; one that the method refuses,
    such as a momentum of 1.2, counts as not stable. With ``held_out`` the losses
    there decide, not those of the training samples. All runs of one seed use the same samples.

    Args:
        method: Whose ``field`` is where the search begins.
        problem: The private losses.
        network: Who hears whom.
        steps: Of each run.
        goal: ``"largest stable step"`` or ``"best final value"``.
        field: The hyper-parameter to search; ``"threshold"`` is another candidate.
        budget: Values tried at most, at least 3.
        precision: The ratio of the smallest unstable and the largest stable value at which the search stops.
        slack: See above.
        seed: The first seed.
        seeds: How many seeds; the worst of them counts.
        x0: The start.
        batch_size: Samples per agent and step.
        held_out: Losses on samples that no agent trains on.
        record_every: Iterations between two recorded rows; a twentieth of the steps by default.
        dtype: ``float64`` or ``float32``.
        sampling: ``replacement`` or ``epoch``.
        tell: Called after each value, with ``value``, ``score`` and how many are done.

    Raises:
        ArgumentError: The budget is too small, or an argument is out of range.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> found = dg.tune(dg.CGT(step_size=0.05, threshold=5.0), problem, network, steps=200, budget=8)
        >>> found.is_bounded, 0.1 < found.value < 1.0
        (True, True)
    """
    check_method(method, "tune")
    checks.choice(goal, "goal", "tune", GOALS)
    checks.choice(field, "field", "tune", numeric_fields(type(method)))
    begun: Any = method
    begin = getattr(method, field)
    if callable(begin) or getattr(begin, "shape", ()) or not math.isfinite(begin):
        raise ArgumentError(
            f"`{field}` of {type(method).__name__} must be one finite number for tune to begin at, but got {begin!r}."
        )
    budget = checks.count(budget, "budget", "tune", minimum=LEAST_BUDGET)
    checks.fraction(slack, "slack", "tune")
    metric = "final_loss" if held_out is None else "held_out_loss"
    steps = checks.count(steps, "steps", "tune")
    record_every = max(1, steps // 20) if record_every is None else record_every
    tables: list[Any] = []

    def measure(value: float) -> float:
        if tables and not _is_taken(begun, field, value):
            return math.inf
        study, wanted = plan(
            method, problem, network, grid={field: [value]}, random=None, samples=None, seed=seed, seeds=seeds, x0=x0,
            share_samples=True, target=None, held_out=held_out, asks_farthest=True,
            options={
                "steps": steps, "batch_size": make_batch_size(batch_size), "record_every": record_every,
                "dtype": make_dtype(dtype), "tolerance": TOLERANCE, "stop_at_tolerance": False, "sampling": sampling,
            },
        )  # fmt: skip
        rows = [row for batch in batches(study, wanted, 1) for row in run_batch(study, batch)]
        if len(rows) < len(wanted):
            raise KeyboardInterrupt
        found: Any = table_of(rows)
        worst = found[[metric, "farthest_loss"]].max(axis=1)
        is_bad = (found["verdict"] == "diverged") | ~(worst < math.inf)
        score = math.inf if is_bad.any() else float(worst.max())
        tables.append(found.assign(score=score))
        if tell:
            tell({"value": value, "score": score, "done": len(tables), "budget": budget})
        return score

    def is_stable(score: float, best: float) -> bool:
        initial = float(tables[0]["initial_loss"].abs().max())
        return within_share_of_best(slack, NEGLIGIBLE * initial)(score, best)

    options: dict[str, Any] = {
        "start": float(begin),
        "factor": FACTOR,
        "precision": precision,
        "budget": budget,
    }
    if goal == GOALS[0]:
        search = largest_stable(measure, is_stable=is_stable, **options)
    else:
        search = best_value(measure, **options)
    return Tuning(
        method=method if search.value is None else dataclasses.replace(begun, **{field: search.value}),
        field=field,
        value=search.value,
        is_bounded=search.is_bounded,
        goal=goal,
        metric=metric,
        table=_evidence(tables, search, field, is_stable),
    )


def _is_taken(method: Any, field: str, value: float) -> bool:
    try:
        dataclasses.replace(method, **{field: value})
    except ArgumentError:
        return False
    return True


def _evidence(
    tables: list[Any], search: Search, field: str, is_stable: Callable[[float, float], bool]
) -> Any:
    import pandas as pd

    best = min(trial.score for trial in search.trials)
    stable = {trial.value: _holds(trial, best, is_stable) for trial in search.trials}
    table = pd.concat(tables, ignore_index=True).sort_values(
        [field, "seed"], kind="stable", ignore_index=True
    )
    return table.assign(is_stable=[stable[value] for value in table[field]])


def _holds(trial: Trial, best: float, is_stable: Callable[[float, float], bool]) -> bool:
    return math.isfinite(trial.score) and is_stable(trial.score, best)
