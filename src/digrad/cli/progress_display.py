"""Observers of runs and sweeps under way: bars, lines of JSON, or nothing."""

import json
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import click

from digrad._internal.formatting import duration, shown
from digrad._internal.json_files import strict

_WATCHED = 5.0  # seconds between two lines about one method, where there is no terminal
_UNWATCHED = 60.0  # the same without --watch, of jobs that take long
_FIGURES = ("loss", "grad_norm", "consensus_error")


@dataclass
class Row:
    """State of one method."""

    steps: int
    k: int = 0
    first: int | None = None  # where the first progress was reported, after compiling or from a checkpoint
    first_at: float = 0.0
    values: dict[str, float] = field(default_factory=dict)
    printed_at: float = -math.inf

    def seconds_left(self) -> float | None:
        """Return how long the rest takes at the speed so far; None before it is known."""
        if self.first is None or self.k <= self.first:
            return None
        return (self.steps - self.k) * (time.monotonic() - self.first_at) / (self.k - self.first)

    def is_due(self, every: float) -> bool:
        """Return whether the last line was printed that many seconds ago; a new one then is."""
        is_due = time.monotonic() - self.printed_at >= every
        if is_due:
            self.printed_at = time.monotonic()
        return is_due


class Observer:
    """Follows a run, and shows nothing: a row per method, under the name that it began with."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}
        self._latest = ""

    def __enter__(self) -> "Observer":
        """Begin to show."""
        return self

    def __exit__(self, *error: object) -> None:
        """End."""

    def on_method_start(self, name: str, steps: int) -> None:
        """Add a row."""
        self._latest = name
        self.rows[name] = Row(steps)
        self._show(name, "start", None)

    def on_progress(self, progress: Any) -> None:
        """Take over what a method reports."""
        name = self._find(progress.name)
        row = self.rows[name]
        if row.first is None:
            row.first, row.first_at = progress.k, time.monotonic()
        row.k, row.steps = progress.k, progress.steps
        row.values = {key: getattr(progress, key) for key in _FIGURES}
        self._show(name, "progress", progress)

    def on_method_end(self, trace: Any) -> None:
        """Take over how a method ended."""
        name = self._find(trace.name, f"{trace.name}, seed {trace.facts.get('seed')}")
        self.rows[name].k, self.rows[name].values = trace.steps, trace.final
        self._show(name, "end", trace)

    def _find(self, *names: str) -> str:
        return next((name for name in names if name in self.rows), self._latest)

    def _show(self, name: str, event: str, about: Any) -> None:
        pass


class JsonLines(Observer):
    """Prints a JSON object per line on standard output: ``start``, ``progress`` and ``end`` of every method."""

    def _show(self, name: str, event: str, about: Any) -> None:
        row = self.rows[name]
        facts = {
            "start": lambda: {"steps": row.steps},
            "progress": lambda: {
                "k": row.k, "steps": row.steps, **row.values, "seconds_left": row.seconds_left()
            },
            "end": lambda: about.summary(),
        }  # fmt: skip
        write_line({"event": event, "method": name, **facts[event]()})


class ProgressBar(Observer):
    """Draws a bar per method on a terminal; elsewhere prints a line when one ends, and now and then before.

    Args:
        watch: Whether to show gradient norm, consensus error and the time left too, and to print lines more often.
    """

    def __init__(self, *, watch: bool = False) -> None:
        super().__init__()
        self._watch = watch
        self._bars = _bars(
            "{task.description}", with_bar=not watch
        )  # for whose figures there is no room beside
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> "ProgressBar":
        """Begin to draw."""
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the finished bars on the screen."""
        self._bars.stop()

    def _show(self, name: str, event: str, about: Any) -> None:
        row, every = self.rows[name], _WATCHED if self._watch else math.inf
        if event == "start":
            note = "starting"
            self._tasks[name] = self._bars.add_task(name, total=row.steps, note=note)
        elif event == "progress":
            note = ", ".join(self._figures(row, about))
            every = min(every, math.inf if about.seconds_left is None else _UNWATCHED)
        else:
            note, every = ", ".join([_verdict(about), *(self._figures(row) if self._watch else ())]), 0.0
        self._bars.update(self._tasks[name], completed=row.k, total=row.steps, note=note)
        if not sys.stderr.isatty() and every < math.inf and row.is_due(every):
            took = f", {about.seconds:.1f} s" if event == "end" else ""
            click.echo(f"{name}: step {row.k} of {row.steps}, {note}{took}", err=True)

    def _figures(self, row: Row, progress: Any = None) -> Iterator[str]:
        """Yield the figures of a row, and the time left: of jobs of a pool of workers that of all of them."""
        titles = ("loss", "|grad|", "consensus") if self._watch else ("loss",)
        for title, key in zip(titles, _FIGURES, strict=False):
            if value := shown(row.values.get(key)):
                yield f"{title} {value}"
        if progress is None:
            return
        if progress.test_accuracy is not None:
            yield f"test {progress.test_accuracy:.1%}"
        if progress.seconds_left is not None:
            yield f"all done in {duration(progress.seconds_left)}"
        elif self._watch and (left := row.seconds_left()):
            yield f"{duration(left)} left"


def _verdict(trace: Any) -> str:
    at = "" if trace.diverged_at is None else f" at k = {trace.diverged_at}"
    return "interrupted" if trace.interrupted else trace.verdict + at


@contextmanager
def row_bar() -> Iterator[Any]:
    """Give a callback for the rows of a sweep: a bar on a terminal, now and then a line elsewhere."""
    bars, tenths = _bars("rows"), [0]
    task = bars.add_task("", total=None, note="compiling")

    def on_progress(progress: Any) -> None:
        left = f"{duration(progress.seconds_left)} left"
        bars.update(task, completed=progress.done, total=progress.total, note=left)
        reached = 10 * progress.done // progress.total
        if reached > tenths[-1] and not sys.stderr.isatty():
            tenths.append(reached)
            done = f"{progress.done} of {progress.total} rows, {duration(progress.seconds)}, {left}"
            click.echo(done, err=True)

    with bars:
        yield on_progress


def write_line(content: dict[str, Any]) -> None:
    """Print one line of strict JSON: null for NaN and infinity."""
    click.echo(json.dumps(strict(content), allow_nan=False))
    sys.stdout.flush()


def _bars(name: str, *, with_bar: bool = True) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Column

    note = TextColumn("{task.fields[note]}", markup=False, table_column=Column(overflow="fold"))
    bar = [BarColumn(bar_width=30)] if with_bar else []
    columns = (TextColumn(name, markup=False), *bar, MofNCompleteColumn(), note, TimeElapsedColumn())
    return Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())
