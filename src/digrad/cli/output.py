"""Output of the command line: tables and JSON."""

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

from digrad._internal.formatting import shown, size
from digrad._internal.json_files import strict


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


def _text(cell: Any) -> str:
    return "" if cell is None else str(cell)


def _is_number(text: str) -> bool:
    return text[:1].isdigit() or text in ("", "inf", "-inf") or (text[:1] in "-+." and text[1:2].isdigit())
