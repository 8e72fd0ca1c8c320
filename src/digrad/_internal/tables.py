"""Tables for papers: rows of plain values as text, CSV, LaTeX and HTML."""

import csv
import html
import io
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from digrad._internal.files import write_atomically
from digrad._internal.formatting import shown

_TEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
_TEX |= {
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}  # other signs in LaTeX's default fonts
_TEX |= {character: f"\\{character}" for character in "&%$#_{}"}


class Interval(NamedTuple):
    """A value of a table with its uncertainty.

    Args:
        mean: The value.
        half_width: Half the width of its confidence interval.

    Example:
        >>> print(Interval(0.125, 0.0312))
        0.125 ± 0.031
    """

    mean: float
    half_width: float

    def __str__(self) -> str:
        """Return both, with few digits."""
        return f"{self.mean:.4g} ± {self.half_width:.2g}"


@dataclass(frozen=True, eq=False)
class Table:
    """Rows with the same columns; a sequence of dictionaries that can also write itself.

    Args:
        rows: One mapping per row, from column to value; the columns are those of all rows, in order.

    Example:
        >>> table = Table(({"method": "CGT", "loss": 1.5e-7}, {"method": "AB", "loss": None}))
        >>> print(table.to_csv(), end="")
        method,loss
        CGT,1.5e-07
        AB,
        >>> print(table)
        method     loss
        CGT     1.5e-07
        AB
        >>> len(table), table[0]["method"]
        (2, 'CGT')
    """

    rows: tuple[Mapping[str, Any], ...]

    def __post_init__(self) -> None:
        """Keep the rows as they are now."""
        object.__setattr__(self, "rows", tuple(dict(row) for row in self.rows))

    @classmethod
    def of(cls, items: Iterable[Any]) -> "Table":
        """Return a table of a pandas data frame, or of mappings, data classes or things that have ``to_dict``.

        So every table can be written: that of a sweep, what ``digrad methods`` lists.

        Example:
            >>> import pandas as pd
            >>> print(Table.of(pd.DataFrame({"method": ["CGT", "AB"], "diverged_at": pd.array([None, 4])})).to_csv())
            method,diverged_at
            CGT,
            AB,4
        """
        frame: Any = items
        if hasattr(frame, "notna"):
            return cls(tuple(frame.astype(object).where(frame.notna(), None).to_dict("records")))
        return cls(tuple(_row(item) for item in items))

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        """Return the rows in turn."""
        return iter(self.rows)

    def __getitem__(self, place: int) -> Mapping[str, Any]:
        """Return one row."""
        return self.rows[place]

    def __str__(self) -> str:
        """Return the table as text, a line per row."""
        lines = [self.columns, *([shown(row.get(name)) for name in self.columns] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        sides = [">" if self._is_numeric(name) else "<" for name in self.columns]
        return "\n".join(
            "  ".join(
                f"{cell:{side}{width}}" for cell, side, width in zip(line, sides, widths, strict=True)
            ).rstrip()
            for line in lines
        )

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return the table as comma-separated values, every digit kept, and write it to ``path`` if given."""
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(self.columns)
        for row in self.rows:
            writer.writerow([_csv_cell(row.get(name)) for name in self.columns])
        return _written(buffer.getvalue(), path)

    def to_latex(self, path: str | os.PathLike[str] | None = None, *, digits: int = 3) -> str:
        r"""Return the table as a ``tabular`` with the rules of booktabs, and write it to ``path`` if given.

        Args:
            path: The file.
            digits: Significant ones of a number.

        Example:
            >>> print(Table(({"method": "AB_1", "loss": 1.5e-7},)).to_latex())
            \begin{tabular}{lr}
            \toprule
            method & loss \\
            \midrule
            AB\_1 & $1.5 \times 10^{-7}$ \\
            \bottomrule
            \end{tabular}
        """
        sides = "".join("r" if self._is_numeric(name) else "l" for name in self.columns)
        head = " & ".join(_tex(name.replace("_", " ")) for name in self.columns)
        lines = [" & ".join(_tex_cell(row.get(name), digits) for name in self.columns) for row in self.rows]
        body = [f"\\begin{{tabular}}{{{sides}}}", "\\toprule", f"{head} \\\\", "\\midrule"]
        body += [f"{line} \\\\" for line in lines] + ["\\bottomrule", "\\end{tabular}"]
        return _written("\n".join(body) + "\n", path)[:-1]

    def _repr_html_(self) -> str:
        """Return the table as a notebook shows it."""
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        rows = [
            "".join(f"<td>{html.escape(shown(row.get(name)))}</td>" for name in self.columns)
            for row in self.rows
        ]
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _is_numeric(self, name: str) -> bool:
        values = [row.get(name) for row in self.rows]
        return all(
            value is None or (isinstance(value, int | float | Interval) and not isinstance(value, bool))
            for value in values
        )


def facts_html(title: str, facts: Mapping[str, Any]) -> str:
    """Return a titled two-column table for a notebook; ``title`` and values are text."""
    rows = "".join(
        f'<tr><th style="text-align:left">{html.escape(name)}</th>'
        f'<td style="text-align:left;white-space:pre-line">{html.escape(shown(value))}</td></tr>'
        for name, value in facts.items()
    )
    return f"<div><strong>{html.escape(title)}</strong><table>{rows}</table></div>"


def _row(item: Any) -> Mapping[str, Any]:
    if isinstance(item, Mapping):
        return item
    return item.to_dict() if hasattr(item, "to_dict") else asdict(item)


def _written(content: str, path: str | os.PathLike[str] | None) -> str:
    if path is not None:
        write_atomically(path, content)
    return content


def _csv_cell(value: Any) -> Any:
    if isinstance(value, Interval):
        return f"{value.mean!r} ± {value.half_width!r}"
    return "" if value is None else value


def _tex(content: str) -> str:
    return "".join(_TEX.get(character, character) for character in content)


def _tex_cell(value: Any, digits: int) -> str:
    if value is None:
        return "--"
    if isinstance(value, Interval):
        mean, half = _tex_cell(value.mean, digits), _tex_cell(value.half_width, 2)
        return f"{mean[:-1]} \\pm {half[1:]}" if math.isfinite(value.half_width) else mean
    if not isinstance(value, float):
        return _tex(str(value))
    if not math.isfinite(value):
        return {math.inf: r"$\infty$", -math.inf: r"$-\infty$"}.get(value, "--")
    mantissa, _, power = f"{value:.{digits}g}".partition("e")
    return f"${mantissa} \\times 10^{{{int(power)}}}$" if power else f"${mantissa}$"
