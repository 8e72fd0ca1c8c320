"""Observers of runs under way: a table that fills, lines of JSON, or nothing."""

import json
import math
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import click

from digrad._internal.formatting import duration, shown
from digrad._internal.json_files import strict

_SECONDS_BETWEEN_LINES = 5.0  # about one method, where there is no terminal


@dataclass
class _Row:
    """What is known of one method."""

    steps: int
    k: int = 0
    first: int | None = None  # where the first progress was told, after compiling or from a checkpoint
    first_at: float = 0.0
    values: dict[str, float] = field(default_factory=dict)
    verdict: str = "starting"
    told: float = -math.inf

    def seconds_left(self) -> float | None:
        """Return how long the rest takes at the speed so far; None before it is known."""
        if self.first is None or self.k <= self.first:
            return None
        return (self.steps - self.k) * (time.monotonic() - self.first_at) / (self.k - self.first)


class _Board:
    """A row per method, under the name that it began with."""

    def __init__(self) -> None:
        self.rows: dict[str, _Row] = {}
        self._name = ""

    def start(self, name: str, steps: int) -> None:
        """Add a row."""
        self._name = name
        self.rows[name] = _Row(steps)

    def follow(self, progress: Any) -> str:
        """Take over what a method reports, and return its name."""
        name = progress.name if progress.name in self.rows else self._name
        row = self.rows[name]
        if row.first is None:
            row.first, row.first_at = progress.k, time.monotonic()
        row.k, row.steps, row.verdict = progress.k, progress.steps, "running"
        row.values = {key: getattr(progress, key) for key in ("loss", "grad_norm", "consensus_error")}
        return name

    def end(self, trace: Any) -> str:
        """Take over how a method ended, and return its name."""
        names = (trace.name, f"{trace.name}, seed {trace.facts.get('seed')}")
        name = next((name for name in names if name in self.rows), self._name)
        row = self.rows[name]
        row.k, row.values = trace.steps, trace.final
        at = "" if trace.diverged_at is None else f" at k = {trace.diverged_at}"
        row.verdict = "interrupted" if trace.interrupted else trace.verdict + at
        return name


class Quiet:
    """Says nothing."""

    def __enter__(self) -> "Quiet":
        """Begin."""
        return self

    def __exit__(self, *error: object) -> None:
        """End."""

    def on_method_start(self, name: str, steps: int) -> None:
        """Say nothing."""

    def on_progress(self, progress: Any) -> None:
        """Say nothing."""

    def on_method_end(self, trace: Any) -> None:
        """Say nothing."""


class Watch:
    """A table on the terminal that fills while methods run; elsewhere a line every few seconds."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._board = _Board()
        self._live = (
            Live(console=Console(stderr=True, markup=False), refresh_per_second=4)
            if sys.stderr.isatty()
            else None
        )

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

    def on_method_start(self, name: str, steps: int) -> None:
        """Add a row."""
        self._board.start(name, steps)
        self._show(name)

    def on_progress(self, progress: Any) -> None:
        """Show loss, gradient norm and how long it will take."""
        self._show(self._board.follow(progress))

    def on_method_end(self, trace: Any) -> None:
        """Show the verdict."""
        self._show(self._board.end(trace), now=True)

    def table(self) -> Any:
        """Return the table as it stands."""
        from rich import box
        from rich.table import Table

        view = Table(box=box.SIMPLE_HEAD, show_edge=False)
        view.add_column("method", overflow="fold")
        for title in ("iteration", "loss", "gradient", "consensus error", "left"):
            view.add_column(title, justify="right")
        view.add_column("verdict")
        for name, row in self._board.rows.items():
            view.add_row(name, f"{row.k}/{row.steps}", *_shown(row), _left(row), row.verdict)
        return view

    def _show(self, name: str, *, now: bool = False) -> None:
        if self._live:
            self._live.update(self.table())
            return
        row = self._board.rows[name]
        if now or time.monotonic() - row.told >= _SECONDS_BETWEEN_LINES:
            row.told = time.monotonic()
            titles = ("loss", "|grad|", "consensus")
            shown = [f"{title} {value}" for title, value in zip(titles, _shown(row), strict=True) if value]
            left = [f"{_left(row)} left"] if _left(row) else []
            told = ", ".join([f"k = {row.k} of {row.steps}", *shown, row.verdict, *left])
            click.echo(f"{name}: {told}", err=True)


class JsonLines:
    """One JSON object per line on standard output: ``start``, ``progress`` and ``end`` of every method."""

    def __init__(self) -> None:
        self._board = _Board()

    def __enter__(self) -> "JsonLines":
        """Begin."""
        return self

    def __exit__(self, *error: object) -> None:
        """End."""

    def on_method_start(self, name: str, steps: int) -> None:
        """Tell the name and the steps."""
        self._board.start(name, steps)
        write_line({"event": "start", "method": name, "steps": steps})

    def on_progress(self, progress: Any) -> None:
        """Tell the values, and the seconds that are left."""
        name = self._board.follow(progress)
        row = self._board.rows[name]
        told = {"k": row.k, "steps": row.steps, **row.values, "seconds_left": row.seconds_left()}
        write_line({"event": "progress", "method": name, **told})

    def on_method_end(self, trace: Any) -> None:
        """Tell the verdict and the entry of ``summary.json``."""
        write_line({"event": "end", "method": self._board.end(trace), **trace.summary()})


def write_line(content: dict[str, Any]) -> None:
    """Print one line of strict JSON: null for NaN and infinity."""
    click.echo(json.dumps(strict(content), allow_nan=False))
    sys.stdout.flush()


def _shown(row: _Row) -> list[str]:
    return [shown(row.values.get(key)) for key in ("loss", "grad_norm", "consensus_error")]


def _left(row: _Row) -> str:
    left = row.seconds_left()
    return duration(left) if left and row.verdict == "running" else ""
