"""Observers of runs under way: bars, a table that fills, lines of JSON, or nothing; and the bar of a sweep."""

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
    verdict: str = "starting"
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

    def shown(self) -> list[str]:
        """Return loss, gradient norm and consensus error as people read them."""
        return [shown(self.values.get(key)) for key in _FIGURES]

    def left(self) -> str:
        """Return how long the rest takes as people read it; nothing before it is known."""
        left = self.seconds_left()
        return duration(left) if left and self.verdict == "running" else ""


class Observer:
    """Follows a run: a row per method, under the name that it began with; its children show the rows."""

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
        row.k, row.steps, row.verdict = progress.k, progress.steps, "running"
        row.values = {key: getattr(progress, key) for key in _FIGURES}
        self._show(name, "progress", progress)

    def on_method_end(self, trace: Any) -> None:
        """Take over how a method ended."""
        name = self._find(trace.name, f"{trace.name}, seed {trace.facts.get('seed')}")
        row = self.rows[name]
        row.k, row.values = trace.steps, trace.final
        at = "" if trace.diverged_at is None else f" at k = {trace.diverged_at}"
        row.verdict = "interrupted" if trace.interrupted else trace.verdict + at
        self._show(name, "end", trace)

    def _find(self, *names: str) -> str:
        return next((name for name in names if name in self.rows), self._latest)

    def _show(self, name: str, event: str, about: Any) -> None:
        raise NotImplementedError


class Quiet(Observer):
    """Shows nothing."""

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
    """Draws a bar per method on a terminal, and prints one line per method elsewhere."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

        super().__init__()
        name, note = ("{task.description:<24}", "{task.fields[note]}")
        self._bars = _bars(
            TextColumn(name, markup=False), BarColumn(bar_width=30), MofNCompleteColumn(),
            TextColumn(note, markup=False), TimeElapsedColumn(),
        )  # fmt: skip
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> "ProgressBar":
        """Begin to draw."""
        self._bars.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the finished bars on the screen."""
        self._bars.stop()

    def _show(self, name: str, event: str, about: Any) -> None:
        row, line = self.rows[name], ""
        if event == "start":
            self._tasks[name] = self._bars.add_task(name, total=row.steps, note="starting")
            return
        if event == "end":
            note, line = about.verdict, f"{about.verdict} after {row.k} steps, {about.seconds:.1f} s"
        else:  # of jobs of a pool of workers also when all will be done
            left, accuracy = about.seconds_left, about.test_accuracy
            note = f"loss {about.loss:.4g}"
            note += "" if accuracy is None else f", test {accuracy:.1%}"
            note += "" if left is None else f", all done in {duration(left)}"
            if left is not None and row.is_due(_UNWATCHED):
                line = f"step {row.k} of {row.steps}, {note}"
        self._bars.update(self._tasks[name], completed=row.k, total=row.steps, note=note)
        if line and not sys.stderr.isatty():
            click.echo(f"{name}: {line}", err=True)


class Watch(Observer):
    """Shows a table on the terminal that fills while methods run; elsewhere a line every few seconds."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__()
        console = Console(stderr=True, markup=False)
        self._live = Live(console=console, refresh_per_second=4) if sys.stderr.isatty() else None

    def __enter__(self) -> "Watch":
        """Begin to draw."""
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the last table on the screen."""
        if self._live:
            self._live.update(self.table(), refresh=True)
            self._live.stop()

    def table(self) -> Any:
        """Return the table as it stands."""
        from rich import box
        from rich.table import Table

        view = Table(box=box.SIMPLE_HEAD, show_edge=False)
        view.add_column("method", overflow="fold")
        for title in ("iteration", "loss", "gradient", "consensus error", "left"):
            view.add_column(title, justify="right")
        view.add_column("verdict")
        for name, row in self.rows.items():
            view.add_row(name, f"{row.k}/{row.steps}", *row.shown(), row.left(), row.verdict)
        return view

    def _show(self, name: str, event: str, about: Any) -> None:
        row = self.rows[name]
        if self._live:
            self._live.update(self.table())
        elif row.is_due(0.0 if event == "end" else _WATCHED):
            titles = ("loss", "|grad|", "consensus")
            figures = [f"{title} {value}" for title, value in zip(titles, row.shown(), strict=True) if value]
            left = [f"{row.left()} left"] if row.left() else []
            line = ", ".join([f"k = {row.k} of {row.steps}", *figures, row.verdict, *left])
            click.echo(f"{name}: {line}", err=True)


@contextmanager
def row_bar() -> Iterator[Any]:
    """Give a callback for the rows of a sweep: a bar on a terminal, now and then a line elsewhere."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

    bars = _bars(
        TextColumn("rows"), BarColumn(bar_width=40), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )  # fmt: skip
    task, tenths = bars.add_task("", total=None, left="compiling"), [0]

    def on_progress(progress: Any) -> None:
        left = f"{progress.seconds_left:.0f} s left"
        bars.update(task, completed=progress.done, total=progress.total, left=left)
        reached = 10 * progress.done // progress.total
        if reached > tenths[-1] and not sys.stderr.isatty():
            tenths.append(reached)
            done = f"{progress.done} of {progress.total} rows, {progress.seconds:.0f} s, {left}"
            click.echo(done, err=True)

    with bars:
        yield on_progress


def write_line(content: dict[str, Any]) -> None:
    """Print one line of strict JSON: null for NaN and infinity."""
    click.echo(json.dumps(strict(content), allow_nan=False))
    sys.stdout.flush()


def _bars(*columns: Any) -> Any:
    from rich.console import Console
    from rich.progress import Progress

    return Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty())
