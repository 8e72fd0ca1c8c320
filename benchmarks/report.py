"""What a benchmark found: one row per promise, with the figure that the promise is about."""

import io
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent  # the checkout, in which `python -m benchmarks` works


@dataclass(frozen=True)
class BenchRow:
    """One promise and what was measured.

    Args:
        name: What was measured.
        ours: digrad's figure, in ``unit``; of times the median process CPU time.
        unit: Of ``ours`` and ``reference``.
        target: The limit that :attr:`measured` must keep; None for a figure without a promise.
        reference: The figure of what digrad is compared with; None when the limit applies to ``ours`` itself.
        at_least: The promise is to be at least ``target`` times cheaper than the reference; otherwise it is not
            to exceed ``target`` (times the reference, if there is one).
        ours_wall: The median wall-clock time that belongs to ``ours``.
        reference_wall: The median wall-clock time that belongs to ``reference``.
        note: How it was measured.
        floor: What the bytes that must move take, or the products alone by BLAS, in ``unit``, if that is known.
        n: The number of agents, of a point of the figure.

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
    floor: float | None = None
    n: int | None = None

    @property
    def ratio(self) -> float | None:
        """How many times cheaper (``at_least``) or dearer than the reference; None without one."""
        if self.reference is None:
            return None
        return self.reference / self.ours if self.at_least else self.ours / self.reference

    @property
    def measured(self) -> float:
        """The number that ``target`` limits: the ratio if there is a reference, else ``ours``."""
        return self.ours if self.ratio is None else self.ratio

    @property
    def ok(self) -> bool:
        """Whether the promise is kept, if there is one."""
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

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and what follows from them, as plain values for JSON."""
        return {**asdict(self), "ratio": self.ratio, "promise": self.promise, "ok": self.ok}


@dataclass(frozen=True)
class BenchReport:
    """All rows of one benchmark, and on what it ran."""

    rows: tuple[BenchRow, ...]
    facts: dict[str, Any]
    before: dict[str, float] = field(default_factory=dict)  # digrad's figures in the run before, by name

    @property
    def ok(self) -> bool:
        """Whether every promise is kept."""
        return all(row.ok for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values for JSON."""
        rows = [{**row.to_dict(), "before": self.before.get(row.name)} for row in self.rows]
        return {"ok": self.ok, "rows": rows, "facts": self.facts}

    def __str__(self) -> str:
        """Return a table for the terminal."""
        from rich.console import Console
        from rich.table import Table

        columns = ("", "digrad", "before", "floor", "reference", "ratio", "promise", "")
        table = Table(*columns, box=None, pad_edge=False)
        for row in self.rows:
            reference = "" if row.reference is None else f"{row.reference:.4g} {row.unit}"
            ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
            verdict = "" if row.target is None else "kept" if row.ok else "BROKEN"
            earlier = f"{self.before[row.name]:.4g}" if row.name in self.before else ""
            ours, floor = f"{row.ours:.4g} {row.unit}", "" if row.floor is None else f"{row.floor:.4g}"
            table.add_row(row.name, ours, earlier, floor, reference, ratio, row.promise, verdict)
        text = io.StringIO()
        Console(file=text, width=150, color_system=None).print(table)
        facts = ", ".join(f"{key} {value}" for key, value in self.facts.items())
        return f"{text.getvalue()}{facts}"
