"""Measurements: a row per comparison, kept as lines of JSON in the folder of the page that shows them."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent  # the checkout, in which `python -m benchmarks` works
FOLDER = ROOT / "docs" / "results" / "bench"


@dataclass(frozen=True)
class BenchRow:
    """One comparison and what was measured.

    Args:
        name: What was measured.
        ours: digrad's figure, in ``unit``; of times the median process CPU time.
        unit: Of ``ours`` and ``reference``.
        target: The limit of :attr:`measured`; None for a figure without a promise.
        reference: The figure of what digrad is compared with; None when the limit applies to ``ours`` itself.
        at_least: The promise is to be at least ``target`` times cheaper than the reference; otherwise it is not
            to exceed ``target`` (times the reference, if there is one).
        ours_wall: The median wall-clock time that belongs to ``ours``.
        reference_wall: The median wall-clock time that belongs to ``reference``.
        note: How it was measured.

    Example:
        >>> row = BenchRow(name="step", ours=10.0, unit="us", target=3.0, reference=40.0, at_least=True)
        >>> row.ratio, row.ok, row.promise
        (4.0, True, '>= 3x')
    """

    name: str
    ours: float
    unit: str
    target: float | None = None
    reference: float | None = None
    at_least: bool = False
    ours_wall: float | None = None
    reference_wall: float | None = None
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Factor by which it is cheaper (``at_least``) or dearer than the reference; None without one."""
        if self.reference is None:
            return None
        return self.reference / self.ours if self.at_least else self.ours / self.reference

    @property
    def measured(self) -> float:
        """The number that ``target`` limits: the ratio if there is a reference, else ``ours``."""
        return self.ours if self.ratio is None else self.ratio

    @property
    def ok(self) -> bool:
        """Return whether the promise is kept, if there is one."""
        if self.target is None:
            return True
        return self.measured >= self.target if self.at_least else self.measured <= self.target

    @property
    def promise(self) -> str:
        """The limit in words."""
        if self.target is None:
            return ""
        unit = f" {self.unit}" if self.reference is None else "x"
        return f"{'>=' if self.at_least else '<='} {self.target:g}{unit}"


def load_rows(file: str) -> list[dict[str, Any]]:
    """Return the rows of a file of the page, none if there is no such file yet."""
    path = FOLDER / file
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def save_rows(file: str, rows: Iterable[BenchRow]) -> None:
    """Write rows to a file of the page, instead of those that it has."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / file).write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))


def promises(rows: Iterable[BenchRow]) -> str:
    """Return rows as a Markdown table."""
    rows = list(rows)
    if not rows:
        return "(not measured yet)"
    lines = ["| what | digrad | reference | ratio | promise | kept |", "|---|---|---|---|---|---|"]
    for row in rows:
        reference = "" if row.reference is None else f"{row.reference:.4g} {row.unit}"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        kept = "" if row.target is None else "yes" if row.ok else "**no**"
        cells = (row.name, f"{row.ours:.4g} {row.unit}", reference, ratio, row.promise, kept)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
