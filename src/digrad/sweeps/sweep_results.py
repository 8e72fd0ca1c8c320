"""Results of a sweep: its table, the best configurations, and figures."""

import io
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from digrad import checks, plots
from digrad._internal.files import write_atomically
from digrad.errors import ArgumentError, DataError
from digrad.plots.saving import saved
from digrad.sweeps.sweep_folder import TABLE, read_facts, read_rows, write_facts
from digrad.trace.trace import VERDICTS
from digrad.types import Average

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_ABOUT = ("method", "network", "start", "seed", "sample_seed")
_MEASURED = ("verdict", "diverged_at", "steps")  # from here on a column is a result
_COUNTS = ("diverged_at", "iterations_to_target", "bytes_to_target")


@dataclass(frozen=True, eq=False)
class Sweep:
    """Result of :func:`sweep`.

    Args:
        table: One row per configuration, in the order of the grid.
        facts: Facts that hold for all rows, with ``common_random_numbers``.
        interrupted: Whether Ctrl-C or a kill ended the sweep; the table holds what was finished.
    """

    table: "pd.DataFrame"
    facts: Mapping[str, Any]
    interrupted: bool = False

    @property
    def fields(self) -> list[str]:
        """The hyper-parameters that were swept."""
        columns = list(self.table.columns)
        cut = columns.index(_MEASURED[0]) if columns else 0  # none before the first row
        return [name for name in columns[:cut] if name not in _ABOUT]

    @property
    def average(self) -> Average | None:
        """The average of the agents where runs were measured; held-out losses are always those of the plain mean."""
        return self.facts.get("options", {}).get("record", {}).get("average")

    def to_pandas(self) -> "pd.DataFrame":
        """Return the table as a data frame of one's own."""
        return self.table.copy()

    def medians(self, metric: str = "final_loss") -> "pd.DataFrame":
        """Return one row per configuration, the smallest median of ``metric`` over the seeds first.

        All results are medians over the seeds; ``seeds`` says of how many, ``<metric>_low`` and ``<metric>_high`` how
        far they spread, and ``verdict`` is the worst. A run that diverged counts as infinite.

        Args:
            metric: A column, e.g. ``iterations_to_target``.
        """
        checks.choice(metric, "metric", "Sweep", self.table.columns)
        return _medians(self, metric)

    def best(self, metric: str = "final_loss") -> "pd.DataFrame":
        """Return the row of :meth:`medians` of each method with the smallest median; diverged ones come last.

        Args:
            metric: A column, e.g. ``iterations_to_target``.
        """
        return self.medians(metric).drop_duplicates("method").reset_index(drop=True)

    def plot(
        self,
        metric: str = "final_loss",
        x: str | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> "Figure":
        """Draw ``metric`` against the field ``x``: a curve per method and values of the other fields.

        Diverged runs are crosses at the upper edge; several seeds are their median and a band.

        Args:
            metric: A column of the table.
            x: A swept field; by default the step size, or the first one that takes several values.
            path: File for the figure; see :meth:`digrad.Trace.plot`.
        """
        (x,) = self._axes(x)
        self._check(metric, x)
        figure = plots.values_against(_curves(self, metric, x), x, metric, average=self.average)
        return saved(figure, path)

    def heat_map(
        self,
        metric: str = "final_loss",
        x: str | None = None,
        y: str | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> "Figure":
        """Draw ``metric`` over two fields, a panel per method that has both and values of the other fields.

        A cell is the median of the seeds; a cross marks where one of them diverged.

        Args:
            metric: A column of the table.
            x: A swept field; by default the step size, or the first one that takes several values.
            y: Another; by default the next one.
            path: File for the figure; see :meth:`digrad.Trace.plot`.
        """
        x, y = self._axes(x, y)
        self._check(metric, x, y)
        panels = {}
        for label, part in _parts(self, metric, x, y):
            cells = part.pivot_table(index=y, columns=x, values="_value", aggfunc=_median)
            panels[label] = (cells.columns.tolist(), cells.index.tolist(), cells.to_numpy())
        return saved(plots.heat_maps(panels, x, y, metric, average=self.average), path)

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Write ``table.parquet`` and ``sweep.json``; return the table's path."""
        (Path(directory) / TABLE).unlink(missing_ok=True)
        write_facts(Path(directory), self.facts, ())
        return write_table(Path(directory) / TABLE, self.table)

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> "Sweep":
        """Read what :meth:`save`, or ``out`` of :func:`sweep`, wrote; of a sweep that was killed, the finished rows.

        Raises:
            DataError: The folder is not that of a sweep.
        """
        import pandas as pd

        folder = Path(directory)
        facts = read_facts(folder)
        names = facts.pop("rows")
        has_table = (folder / TABLE).exists()
        try:
            table = pd.read_parquet(folder / TABLE) if has_table else table_of(read_rows(folder, names))
        except (OSError, ValueError) as error:
            raise DataError(f"{folder / TABLE} cannot be read ({error}); run the sweep again.") from error
        return cls(table, facts, interrupted=len(table) < len(names))

    def _axes(self, *given: str | None) -> list[str]:
        """Return the fields given, the missing ones chosen from those that take several values."""
        table: Any = self.table
        several = [name for name in self.fields if table[name].nunique() > 1]
        free = [name for name in sorted(several, key=lambda name: name != "step_size") if name not in given]
        if len(free) < given.count(None):
            raise ArgumentError(
                f"a figure over {len(given)} swept fields needs as many that take several values, but those of the "
                f"sweep are {', '.join(several) or 'none'}; draw fewer, or name the fields."
            )
        return [free.pop(0) if name is None else name for name in given]

    def _check(self, metric: str, *fields: str) -> None:
        checks.choice(metric, "metric", "Sweep", self.table.columns)
        for field in fields:
            checks.choice(field, "x" if field == fields[0] else "y", "Sweep", self.fields)


def table_of(rows: Sequence[Mapping[str, Any]]) -> "pd.DataFrame":
    """Return the rows as a table, each column of one kind."""
    import pandas as pd

    order = _column_order(rows)
    table: Any = pd.DataFrame({name: [row.get(name) for row in rows] for name in order})
    for name in order:
        if name in _COUNTS:
            table[name] = table[name].astype("Int64")
        elif table[name].dtype == object or str(table[name].dtype) in ("str", "string"):
            table[name] = _one_kind(table[name])
    return table


def _column_order(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns: what a run was, with the fields of all methods, then what it did."""
    about: dict[str, None] = {}
    measured: dict[str, None] = {}
    for row in rows:
        names = list(row)
        cut = names.index(_MEASURED[0])
        about |= dict.fromkeys(names[:cut])
        measured |= dict.fromkeys(names[cut:])
    last = [name for name in _ABOUT[1:] if name in about]
    return [*(name for name in about if name not in last), *last, *measured]


def _one_kind(column: Any) -> Any:
    """Return numbers as numbers; a column that also holds words or schedules as words."""
    import pandas as pd

    present = column.dropna()
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in present):
        return pd.to_numeric(column)
    return column.map(lambda value: None if value is None or value != value else str(value)).astype("string")


def write_table(path: Path, table: "pd.DataFrame") -> Path:
    """Write a table as a Parquet file and return its path."""
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False)
    return write_atomically(path, buffer.getvalue())


def _finite(table: Any, metric: str) -> Any:
    """Return a metric as floats, infinite where the run diverged or never got there."""
    values = table[metric].astype("Float64").to_numpy(dtype=np.float64, na_value=np.inf)
    return np.where((table["verdict"] == "diverged") | np.isnan(values), np.inf, values)


def _medians(found: Sweep, metric: str) -> Any:
    import pandas as pd

    columns = list(found.table.columns)
    results = columns[columns.index(_MEASURED[0]) + 1 :]
    keys = ["method", *found.fields, *(name for name in ("network", "start") if name in columns)]
    table: Any = found.table.assign(_key=_finite(found.table, metric))
    for name in ("iterations_to_target", "bytes_to_target"):  # never is later than any number
        table[name] = table[name].astype("Float64").fillna(math.inf)
    groups = table.groupby(keys, dropna=False, sort=False)
    verdicts = groups["verdict"].agg(lambda each: max(each, key=VERDICTS.index))
    parts = {
        "seeds": groups.size(),
        "verdict": verdicts,
        **{name: groups[name].median() for name in results},
        metric: groups["_key"].median(),
        f"{metric}_low": groups["_key"].min(),
        f"{metric}_high": groups["_key"].max(),
    }
    medians = pd.DataFrame(parts).reset_index().sort_values(metric, kind="stable", ignore_index=True)
    for name in ("iterations_to_target", "bytes_to_target"):
        medians[name] = medians[name].astype("Float64").mask(lambda values: values == math.inf)
    return medians


def _curves(found: Sweep, metric: str, x: str) -> dict[str, tuple[list[Any], list[Any]]]:
    """Return xs, and for each x the values of all seeds, by the label of the curve."""
    per_x = {
        label: part.groupby(x, sort=True)["_value"].apply(list) for label, part in _parts(found, metric, x)
    }
    return {label: (values.index.tolist(), values.tolist()) for label, values in per_x.items()}


def _parts(found: Sweep, metric: str, *axes: str) -> "Iterator[tuple[str, pd.DataFrame]]":
    """Yield the rows that differ in ``axes`` and seed only, with the metric as ``_value``, and what they are called."""
    import pandas as pd

    table: Any = found.table.assign(_value=_finite(found.table, metric))
    table = table[table[list(axes)].notna().all(axis=1)]
    others = [name for name in (*found.fields, "network", "start") if name in table and name not in axes]
    varying = [name for name in others if table[name].nunique(dropna=False) > 1]
    for keys, part in table.groupby(["method", *varying], dropna=False, sort=False):
        given = [(name, value) for name, value in zip(varying, keys[1:], strict=True) if not pd.isna(value)]
        named = [
            f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in given
        ]
        yield ", ".join([str(keys[0]), *named]), part


def _median(values: "pd.Series") -> float:
    """Return the median of the seeds, infinite when one of them is."""
    return math.inf if math.inf in values.to_numpy() else float(values.median())
