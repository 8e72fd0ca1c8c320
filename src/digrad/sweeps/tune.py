"""The step size to take: the largest that is stable, or the one that ends best, with the evidence."""

import dataclasses
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np

from digrad import checks, plots
from digrad.core.hyperparameters import numeric_fields
from digrad.core.validation import check_method
from digrad.errors import ArgumentError
from digrad.network import Network
from digrad.plots.saving import saved
from digrad.problems import Problem
from digrad.simulation.run_options import RunOptions, complete, lists_options
from digrad.sweeps.largest_stable import (
    FACTOR,
    SLACK,
    Ending,
    Search,
    best_value,
    is_stable,
    largest_stable,
    worst,
)
from digrad.sweeps.space import Configuration
from digrad.sweeps.study import Study, batches, configurations, make_study, run_batch
from digrad.sweeps.sweep_results import table_of
from digrad.types import Method

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

ROWS = 80  # recorded of a run, about, an odd number of steps apart: that shows cycles of two steps
LEAST_BUDGET = 3  # one value that is stable, one that is not, one between them
GOALS = ("largest stable step", "best final value")


@dataclass(frozen=True, eq=False)
class Tuning:
    """Result of :func:`tune`.

    Args:
        method: With the value found; as it came when none is stable.
        field: The hyper-parameter that was searched.
        value: Its value; None when no value tried is stable.
        is_bounded: Whether a larger value was tried and is not stable, and a smaller one is not the best (for the best
            final value: whether worse ones lie on both sides); else the search ended at its budget.
        goal: Goal of the search.
        metric: The column that decided.
        table: The evidence: a row per value and seed, as :func:`digrad.sweep` gives them, with ``farthest_loss`` (of
            the estimate farthest from the average), ``score`` (the worst of both, of all seeds), what remained of
            gradient and disagreement (``late_...``, ``settled_...``), ``planned_steps`` and ``is_stable``.
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
        """Draw the score against the values tried, those that are not stable apart, with the one found.

        Args:
            path: File for the figure; see :meth:`digrad.Trace.plot`.
        """
        rows: Any = self.table.sort_values(self.field).drop_duplicates([self.field, "planned_steps"])
        rows = rows[rows["planned_steps"] == rows["planned_steps"].min()]
        curves: dict[str, tuple[list[float], list[list[float]]]] = {}
        for label, stable in ((type(self.method).__name__, True), ("not stable", False)):
            part = rows[rows["is_stable"] == stable]
            if len(part):
                curves[label] = (part[self.field].tolist(), [[score] for score in part["score"]])
        return saved(plots.values_against(curves, self.field, self.metric, mark=self.value), path)

    def to_dict(self) -> dict[str, Any]:
        """Return the result without the rows, as plain values for JSON."""
        columns = [self.field, "planned_steps", "score", "is_stable"]
        scores = self.table.drop_duplicates(columns[:2])[columns]
        trials = [
            {
                self.field: float(value),
                "steps": int(steps),
                "score": score if math.isfinite(score) else None,
                "is_stable": bool(stable),
            }
            for value, steps, score, stable in scores.itertuples(index=False)
        ]
        return {
            "method": type(self.method).__name__, "goal": self.goal, "metric": self.metric, "field": self.field,
            "value": self.value, "is_bounded": self.is_bounded, "trials": trials,
        }  # fmt: skip


@lists_options(RunOptions)
def tune(
    method: Method,
    problem: Problem,
    network: Network,
    *,
    goal: Literal["largest stable step", "best final value"] = "largest stable step",
    field: str = "step_size",
    budget: int = 12,
    precision: float = 1.1,
    slack: float = SLACK,
    confirm: int = 5,
    seeds: int = 1,
    held_out: Problem | None = None,
    tell: Callable[[Mapping[str, Any]], None] | None = None,
    **options: Unpack[RunOptions],
) -> Tuning:
    """Find the step size of a method, by the protocol of the paper: the largest that ensures convergence.

    A value is stable if, for every seed, the run of ``steps`` steps does not diverge, its last loss is above the lowest
    of any value tried by at most 5 % (``slack``) of how far that one fell from the start, and the norm of the gradient
    and the disagreement of the agents vanish or still fall: the larger of each in the last quarter of the run is below
    that in the quarter before. Where a method or its samples leave a floor under these two, it must be at most twice as
    high as smaller values leave it, in proportion. The last loss is the larger of those at the average and at the
    estimate that is farthest from it. Adding a constant to the loss changes nothing. Values are tried up and down by
    factors of two from the one that ``method`` holds, then by bisection on a log scale; one that the method refuses,
    such as a momentum of 1.2, counts as not stable. The answer is confirmed by runs that are five times (``confirm``)
    as long; if they refute it, the search goes on below with such runs. With ``held_out`` the losses there decide, not
    those of the training samples. All runs of one seed use the same samples.

    Args:
        method: Whose ``field`` is where the search begins.
        problem: The private losses.
        network: The communication graph and its weights.
        goal: ``"largest stable step"`` or ``"best final value"``.
        field: The hyper-parameter to search; ``"threshold"`` is another candidate.
        budget: Values tried at most, at least 3; and as many with longer runs.
        precision: The ratio of the smallest unstable and the largest stable value at which the search stops.
        slack: See above.
        confirm: How many times as long the runs are that confirm the answer; 1 leaves them out.
        seeds: How many seeds; the worst of them counts.
        held_out: Losses on samples that no agent trains on.
        tell: Called after each value, with ``value``, ``steps``, ``score`` and how many are done.
        options: Keywords of :class:`digrad.RunOptions`, as in :func:`digrad.simulate`. ``record_every`` is about an
            eightieth of the steps by default; all runs are taken to their end and measured at the plain mean, so that
            ``tolerance``, ``stop_at_tolerance`` and ``record`` have no place here.

    Raises:
        ArgumentError: The budget is too small, or an argument is out of range.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> found = dg.tune(dg.CGT(step_size=0.05, threshold=5.0), problem, network, steps=200, budget=8)
        >>> found.is_bounded, 0.1 < found.value < 1.0
        (True, True)
    """
    begin = _begin(method, goal, field)
    budget = checks.count(budget, "budget", "tune", minimum=LEAST_BUDGET)
    checks.fraction(slack, "slack", "tune")
    confirm = checks.count(confirm, "confirm", "tune")
    for name in ("tolerance", "stop_at_tolerance", "record"):
        if name in options:
            raise ArgumentError(
                f"`{name}` is not an option of tune, which takes every run to its end; leave it out."
            )
    wanted = complete(options, "tune")

    def runs_of(steps: int) -> _Runs:
        every = wanted["record_every"] if "record_every" in options else max(1, steps // ROWS) | 1
        longer = {**wanted, "steps": steps, "record_every": every}
        study = make_study(
            problem, network, longer, "tune", held_out=held_out, share_samples=True, asks_settling=True
        )
        return _Runs(study, method, field, seeds, slack, budget, tell)

    limits: dict[str, Any] = {"precision": precision, "budget": budget}
    lengths = [runs_of(wanted["steps"])]
    if goal == GOALS[1]:
        search = best_value(lengths[0].measure, start=begin, **limits)
    else:
        search = largest_stable(lengths[0].measure, start=begin, is_stable=lengths[0].is_stable, **limits)
        if search.value is not None and confirm > 1:
            lengths.append(runs_of(confirm * wanted["steps"]))
            search = _confirmed(search, lengths[0], lengths[1], **limits)
    return Tuning(
        method=method if search.value is None else _with(method, field, search.value),
        field=field,
        value=search.value,
        is_bounded=search.is_bounded,
        goal=goal,
        metric=lengths[0].metric,
        table=_evidence(lengths, field, search.value if goal == GOALS[0] else math.inf),
    )


def _begin(method: Method, goal: str, field: str) -> float:
    """Return the value that a search begins at, from arguments that are checked here."""
    check_method(method, "tune")
    checks.choice(goal, "goal", "tune", GOALS)
    checks.choice(field, "field", "tune", numeric_fields(type(method)))
    begin = getattr(method, field)
    if callable(begin) or getattr(begin, "shape", ()) or not math.isfinite(begin):
        raise ArgumentError(
            f"`{field}` of {type(method).__name__} must be one finite number for tune to start from, but got {begin!r}."
        )
    return float(begin)


def _with(method: Any, field: str, value: float) -> Any:
    return dataclasses.replace(method, **{field: value})


@dataclass
class _Runs:
    """The runs of one length, and what they say of each value; the arguments are those of :func:`tune`."""

    study: Study
    method: Method
    field: str
    seeds: int
    slack: float
    budget: int
    tell: Callable[[Mapping[str, Any]], None] | None
    tables: dict[float, Any] = dataclasses.field(default_factory=dict)
    endings: dict[float, Ending] = dataclasses.field(default_factory=dict)
    scores: dict[float, float] = dataclasses.field(default_factory=dict)

    @property
    def steps(self) -> int:
        """The length of the runs."""
        return self.study.options["steps"]

    @property
    def metric(self) -> str:
        """The column of the last loss."""
        return "final_loss" if self.study.held_out is None else "held_out_loss"

    def measure(self, value: float) -> float:
        """Return the largest last loss of all seeds, at the average and at the estimate farthest from it."""
        try:
            tried = _with(self.method, self.field, value)
        except ArgumentError:  # a value that the method refuses
            return math.inf
        rows = self._run(Configuration(type(tried).__name__, tried, {self.field: value}))
        highest = rows[[self.metric, "farthest_loss"]].max(axis=1)
        is_bad = (rows["verdict"] == "diverged") | ~(highest < math.inf)
        # Agents that approach consensus are judged by the point they approach.
        judged = highest.where(~rows["settled_consensus_error"], rows[self.metric])
        start = rows["initial_loss" if self.study.held_out is None else "initial_held_out_loss"]
        last = math.inf if is_bad.any() else float(judged.max())
        rounding = float(np.finfo(self.study.options["dtype"]).eps)
        self.tables[value] = rows
        self.endings[value] = worst(value, float(start.max()), last, rows.to_dict("records"), rounding)
        self.scores[value] = math.inf if is_bad.any() else float(highest.max())
        if self.tell:
            told = {"value": value, "steps": self.steps, "score": self.scores[value]}
            self.tell({**told, "done": len(self.endings), "budget": self.budget})
        return self.scores[value]

    def is_stable(self, value: float) -> bool:
        """Return whether a value is stable by what has been run so far."""
        return is_stable(self.endings[value], self.endings.values(), self.slack)

    def _run(self, tried: Configuration) -> Any:
        runs = configurations(self.study, [tried], self.seeds, "tune")
        rows = [row for batch in batches(self.study, runs, 1) for row in run_batch(self.study, batch)]
        if len(rows) < len(runs):
            raise KeyboardInterrupt
        return table_of(rows)


def _confirmed(found: Search, shorter: _Runs, longer: _Runs, precision: float, budget: int) -> Search:
    """Return the largest value that longer runs find stable too: the one found, or one below by bisection."""
    assert found.value is not None
    longer.measure(found.value)
    if longer.is_stable(found.value) and longer.endings[found.value].is_settled:
        return found
    tried = sorted(shorter.endings.values(), key=lambda each: each.value)
    settled = [each.value for each in tried if each.is_settled and each.value <= found.value / FACTOR]
    good, bad = settled[-1] if settled else tried[0].value, found.value
    if good < bad:
        longer.measure(good)
    if longer.is_stable(bad):
        return found
    while bad > precision * good and len(longer.endings) < budget:
        middle = math.sqrt(good * bad)
        longer.measure(middle)
        good, bad = (middle, bad) if longer.is_stable(middle) else (good, middle)
    value = good if longer.is_stable(good) else None
    return dataclasses.replace(found, value=value, is_bounded=value is not None and bad <= precision * good)


def _evidence(lengths: list[_Runs], field: str, largest: float | None) -> Any:
    """Return all rows; whether a value is stable its longest runs decide, and none is above the largest."""
    import pandas as pd

    most = -math.inf if largest is None else largest
    stable = {value: value <= most and runs.is_stable(value) for runs in lengths for value in runs.endings}
    tables = [
        rows.assign(planned_steps=runs.steps, score=runs.scores[value], is_stable=stable[value])
        for runs in lengths
        for value, rows in runs.tables.items()
    ]
    return pd.concat(tables, ignore_index=True).sort_values(
        [field, "planned_steps", "seed"], kind="stable", ignore_index=True
    )
