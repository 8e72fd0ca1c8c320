"""Whom the simulated steps of a run wait for: agents that compute and edges that carry packets for long."""

from collections.abc import Mapping, Sequence
from typing import Any

from digrad.report.page import once_each, table


def slowest_section(data: Mapping[str, Any]) -> str | None:
    """Return the tables of stragglers and slow edges, as HTML; None if no run has a clock.

    Args:
        data: Result of :func:`digrad.report.model.model_of` for the runs.
    """
    found = [
        (_title(data, series), _tables(series["slowest"])) for series in data["series"] if series["slowest"]
    ]
    return f"{once_each(found)}\n{_NOTE}" if found else None


_NOTE = (
    '<p class="faint">Averages of simulated seconds, the slowest first. Waiting: for packets, and for the end of a '
    "step. Under way: from the end of computing to the last byte. Late: after the deadline of the step.</p>"
)


def _title(data: Mapping[str, Any], series: Mapping[str, Any]) -> str:
    run = data["runs"][series["run"]]
    return series["shown"] if len(data["runs"]) == 1 else f"{run['folder']}: {series['shown']}"


def _tables(slowest: Mapping[str, Any]) -> str:
    agents, edges = slowest["agents"], slowest["edges"]
    longest = max((computing + waiting for _, computing, waiting in agents), default=0.0)
    rows = [
        (
            f"agent {agent}",
            f"{computing:.3g} s",
            f"{waiting:.3g} s",
            _bar([("computing", computing), ("waiting", waiting)], longest),
        )
        for agent, computing, waiting in agents
    ]
    first = table(("agent", "computing per step", "waiting per step", ""), rows, numbers=(1, 2))
    longest = max((under_way for *_, under_way, _ in edges), default=0.0)
    has_deadline = slowest["deadline"] is not None
    rows = [
        (
            f"{sender} → {receiver}",
            f"{under_way:.3g} s",
            *([f"{100 * late:.3g} %"] if has_deadline else []),
            _bar([("waiting" if late else "computing", under_way)], longest),
        )
        for sender, receiver, under_way, late in edges
    ]
    head = ("edge", "under way", *(["late"] if has_deadline else []), "")
    second = table(head, rows, numbers=(1, 2) if has_deadline else (1,))
    return f'<div class="slowest">{first}\n{second}</div>'


def _bar(parts: Sequence[tuple[str, float]], longest: float) -> str:
    shares = [(look, 100 * value / longest if longest else 0.0) for look, value in parts]
    bars = "".join(f'<span class="bar {look}" style="width: {share:.1f}%"></span>' for look, share in shares)
    return f'<div class="bars">{bars}</div>'
