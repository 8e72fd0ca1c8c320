"""The table of final accuracies: one row per method that was trained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from digrad._internal.formatting import markdown_table
from digrad.paper.claims import figure
from digrad.specs.run_directory import Result
from digrad.specs.runner import RunResult
from digrad.trace import Trace
from digrad.trace.ensemble import members


@dataclass(frozen=True)
class AccuracyRow:
    """Final figures of one method; medians over the seeds that did not diverge, None where none is left.

    Args:
        method: Its label.
        step_size: That was used.
        verdict: The worst of any seed.
        train_accuracy: Training accuracy of the average model.
        test_accuracy: Test accuracy of the average model.
        test_accuracy_of_agents: Mean over the agents' own models.
        lowest_agent: The least accurate agent's test accuracy.
        clipped: Share of agents and steps that clipped; None for methods that do not.
        largest_tracker: The largest norm of a tracker; None for methods without.
        bytes_sent: By all agents.
        seconds_per_step: Seconds of training alone, without evaluation.
        cpu_seconds_per_step: The same as time of one core: what it takes on a machine that does nothing else.
        seeds: How many.
    """

    method: str
    step_size: Any
    verdict: str
    train_accuracy: float | None
    test_accuracy: float | None
    test_accuracy_of_agents: float | None
    lowest_agent: float | None
    clipped: float | None
    largest_tracker: float | None
    bytes_sent: int
    seconds_per_step: float
    cpu_seconds_per_step: float
    seeds: int


def accuracy_table(done: RunResult) -> list[AccuracyRow]:
    """Return one row per method of a run."""
    return [_row(done, label, result) for label, result in done.results.items()]


def _row(done: RunResult, label: str, result: Result) -> AccuracyRow:
    traces = members(result)
    last = [trace.facts["last"] for trace in traces if trace.facts["last"] is not None]
    trackers = np.concatenate([trace.columns["tracker_norm"] for trace in traces])
    return AccuracyRow(
        method=label,
        step_size=done.spec.methods[label].fields["step_size"],
        verdict=result.verdict,
        train_accuracy=_median([entry["train_accuracy"] for entry in last]),
        test_accuracy=_median([entry["test_accuracy"] for entry in last]),
        test_accuracy_of_agents=_median([float(np.mean(entry["test_accuracy_of_agents"])) for entry in last]),
        lowest_agent=_median([min(entry["test_accuracy_of_agents"]) for entry in last]),
        clipped=_clipped(traces),
        largest_tracker=float(np.nanmax(trackers)) if np.isfinite(trackers).any() else None,
        bytes_sent=int(np.median([trace.bytes_sent[-1] for trace in traces])),
        seconds_per_step=_per_step(traces, "training_seconds"),
        cpu_seconds_per_step=_per_step(traces, "training_cpu_seconds"),
        seeds=len(traces),
    )


def _per_step(traces: Sequence[Trace], fact: str) -> float:
    return float(np.median([trace.facts[fact] / max(1, trace.steps) for trace in traces]))


def table_markdown(name: str, rows: Sequence[AccuracyRow]) -> str:
    """Return the table of one setting for people."""
    head = (
        "method", "step size", "training accuracy", "test accuracy", "mean over agents", "lowest agent", "clipped",
        "largest tracker", "sent", "s/step", "CPU s/step", "seeds",
    )  # fmt: skip
    cells = [
        (
            row.method if row.verdict != "diverged" else f"{row.method} (diverged)",
            figure(row.step_size),
            *(percent(value) for value in (row.train_accuracy, row.test_accuracy)),
            *(percent(value) for value in (row.test_accuracy_of_agents, row.lowest_agent)),
            percent(row.clipped),
            figure(row.largest_tracker, absent="-"),
            f"{row.bytes_sent / 1e9:.3g} GB",
            f"{row.seconds_per_step:.3g}",
            f"{row.cpu_seconds_per_step:.3g}",
            str(row.seeds),
        )
        for row in rows
    ]
    return "\n".join([f"## {name}", "", *markdown_table(head, cells)]) + "\n"


def failures_markdown(failures: Mapping[str, Mapping[str, str]]) -> str:
    """Return what could not be run, if anything."""
    lines = [
        f"- {setting}, {name}: {reason}"
        for setting, found in failures.items()
        for name, reason in found.items()
    ]
    return "\n".join(["## What failed", "", *lines, ""]) if lines else ""


def _median(values: Sequence[float]) -> float | None:
    return float(np.median(values)) if values else None


def _clipped(traces: Sequence[Trace]) -> float | None:
    """Return the share of agents and steps; rows cover as many steps as lie between them."""
    shares = np.concatenate([trace.columns["fraction_clipped"][1:] for trace in traces])
    steps = np.concatenate([np.diff(trace.k) for trace in traces])
    known = np.isfinite(shares)
    return float(np.average(shares[known], weights=steps[known])) if known.any() else None


def percent(value: float | None) -> str:
    """Return a share for people."""
    return "-" if value is None else f"{value:.1%}"
