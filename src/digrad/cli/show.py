"""What the command line prints: tables, progress bars, JSON."""

import json
import math
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

import click

from digrad._internal.formatting import duration, shown, size
from digrad._internal.json_files import strict

_SECONDS_BETWEEN_LINES = 60.0  # about one job, where there is no terminal


def as_json(value: Any) -> None:
    """Print a value as strict JSON: None for NaN and infinity."""
    click.echo(json.dumps(strict(value), indent=2, allow_nan=False))


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]], *, title: str | None = None) -> None:
    """Print an aligned table; a cell is right-aligned if it looks like a number."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    lines = [[_text(cell) for cell in row] for row in rows]
    view = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False)
    for place, header in enumerate(headers):
        numeric = all(_is_number(line[place]) for line in lines)
        view.add_column(header, justify="right" if numeric else "left", overflow="fold")
    for line in lines:
        view.add_row(*line)
    # Not on a terminal, a table must not be cut to 80 columns; and what is in brackets is text, no markup.
    Console(width=None if sys.stdout.isatty() else 200, highlight=False, markup=False).print(view)


def verdict_table(results: dict[str, dict[str, Any]], average: str) -> None:
    """Print one line per method: verdict, final figures at an ``average`` of the agents, bytes and seconds."""
    rows = []
    for name, entry in results.items():
        at = entry["diverged_at"]
        verdict = entry["verdict"] if at is None else f"diverged at k = {at}"
        final = entry["final"]
        rows.append(
            (
                name,
                verdict,
                entry["steps"],
                *(shown(final[name], absent="inf") for name in ("loss", "grad_norm", "consensus_error")),
                size(entry["bytes_sent"]),
                f"{entry['seconds']:.2f}",
            )
        )
    headers = ("method", "verdict", "steps", "loss", "gradient", "consensus error", "sent", "seconds")
    table(headers, rows, title=f"Measured at the {average} of the agents")


class ProgressBar:
    """An observer of runs that draws a bar per method on a terminal, and one line per method elsewhere."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._bar = Progress(
            TextColumn("{task.description:<24}", markup=False),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
        )
        self._tasks: dict[str, Any] = {}
        self._name = ""
        self._told: dict[str, float] = {}

    def __enter__(self) -> "ProgressBar":
        """Begin to draw."""
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the finished bars on the screen."""
        self._bar.stop()

    def on_method_start(self, name: str, steps: int) -> None:
        """Add a bar."""
        self._name = name
        self._tasks[name] = self._bar.add_task(name, total=steps, note="starting")

    def on_progress(self, progress: Any) -> None:
        """Move the bar and show the loss; of jobs side by side also when all will be done."""
        name = progress.name if progress.name in self._tasks else self._name
        left = getattr(progress, "seconds_left", None)
        note = f"loss {progress.loss:.4g}"
        if getattr(progress, "test_accuracy", None) is not None:
            note += f", test {progress.test_accuracy:.1%}"
        if left is not None:
            note += f", all done in {duration(left)}"
        self._bar.update(self._tasks[name], completed=progress.k, total=progress.steps, note=note)
        if left is not None and not sys.stderr.isatty() and self._is_time(name):
            click.echo(f"{name}: step {progress.k} of {progress.steps}, {note}", err=True)

    def on_method_end(self, trace: Any) -> None:
        """Show the verdict."""
        seed = trace.facts.get("seed")
        names = (trace.name, f"{trace.name}, seed {seed}")
        name = next((name for name in names if name in self._tasks), self._name)
        self._bar.update(self._tasks[name], completed=trace.steps, note=trace.verdict)
        if not sys.stderr.isatty():
            click.echo(f"{name}: {trace.verdict} after {trace.steps} steps, {trace.seconds:.1f} s", err=True)

    def _is_time(self, name: str) -> bool:
        now = time.monotonic()
        if now - self._told.get(name, -math.inf) < _SECONDS_BETWEEN_LINES:
            return False
        self._told[name] = now
        return True


class RowBar:
    """Draws a bar with the time left on a terminal, and now and then a line elsewhere, for the rows of a sweep."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._bar = Progress(
            TextColumn("rows"),
            BarColumn(bar_width=40),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
        )
        self._task = self._bar.add_task("", total=None, left="compiling")
        self._told = 0

    def __enter__(self) -> "RowBar":
        """Begin to draw."""
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        """Leave the bar on the screen."""
        self._bar.stop()

    def on_progress(self, progress: Any) -> None:
        """Move the bar and show how long it will take."""
        left = f"{progress.seconds_left:.0f} s left"
        self._bar.update(self._task, completed=progress.done, total=progress.total, left=left)
        tenths = 10 * progress.done // progress.total
        if tenths > self._told and not sys.stderr.isatty():
            self._told = tenths
            click.echo(
                f"{progress.done} of {progress.total} rows, {progress.seconds:.0f} s, {left}", err=True
            )


def _text(cell: Any) -> str:
    return "" if cell is None else str(cell)


def _is_number(text: str) -> bool:
    return text[:1].isdigit() or text in ("", "inf", "-inf") or (text[:1] in "-+." and text[1:2].isdigit())
