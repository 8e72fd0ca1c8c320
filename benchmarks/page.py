"""The tables and the figure of docs/results/bench, from the rows that were measured; the text around them stays."""

import re
from collections.abc import Sequence
from typing import Any

from benchmarks.methods import DIMS, FILE, METHODS, PROBLEMS
from benchmarks.report import FOLDER, BenchRow, load_rows, promises

Cells = dict[tuple[str, int, int, str], dict[str, Any]]  # by problem, agents, dimension and method


def write() -> None:
    """Replace what stands between ``<!-- NAME -->`` and ``<!-- end -->`` by the table of that name."""
    path = FOLDER / "README.md"
    text = path.read_text()
    cells = {(row["problem"], row["n"], row["d"], row["method"]): row for row in load_rows(FILE)}
    tables = {
        part: promises(BenchRow(**row) for row in load_rows(f"{part}.jsonl"))
        for part in ("small", "sweeps", "start")
    }
    tables |= {
        "aim": aim(cells),
        "methods": all_sizes(cells),
        "compare": compared(load_rows("compare.jsonl")),
    }
    for name, table in tables.items():
        marked = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        text = re.sub(
            marked, lambda found, table=table: f"{found[1]}{table}\n{found[2]}", text, flags=re.DOTALL
        )
    path.write_text(text)
    if cells:
        figure(cells).savefig(FOLDER / "growth.png", dpi=120)


def aim(cells: Cells, n: int = 100_000, d: int = 100) -> str:
    """Return the steps of the largest network with all problems, and how they compare."""
    if not any(key[1:3] == (n, d) for key in cells):
        return "(not measured yet)"
    lines = [
        "| method | problem | one thread | two | scipy's products | NumPy loop | / products | loop / one | one / two |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for method in METHODS:
        for problem in PROBLEMS:
            if row := cells.get((problem, n, d, method)):
                one, two, products, loop = (row[key] for key in ("one", "two", "products", "loop"))
                times = " | ".join(f"{value:.4g} ms" for value in (one, two, products, loop))
                ratios = f"{one / products:.2f} | {loop / one:.2f} | {one / two:.2f}"
                lines.append(f"| {method} | {problem} | {times} | {ratios} |")
    return "\n".join(lines)


def all_sizes(cells: Cells) -> str:
    """Return a table per problem: a row per method, a column per size."""
    tables = [_of_problem(cells, problem) for problem in PROBLEMS]
    picture = "![Time of a step against the number of agents](growth.png)"
    return "\n\n".join([*tables, picture] if cells else ["(not measured yet)"])


def _of_problem(cells: Cells, problem: str) -> str:
    sizes = sorted({(d, n) for name, n, d, _ in cells if name == problem})
    lines = [
        f"| {problem} | {' | '.join(f'{n:,} x {d}'.replace(',', ' ') for d, n in sizes)} |",
        "|---" * (1 + len(sizes)) + "|",
    ]
    for method in METHODS:
        found = (cells.get((problem, n, d, method)) for d, n in sizes)
        lines.append(f"| {method} | {' | '.join(map(_cell, found))} |")
    return "\n".join(lines)


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    one, two, products, loop = (row[key] for key in ("one", "two", "products", "loop"))
    return f"{one:.3g} / {two:.3g} ms ({one / products:.2f}, {loop / one:.1f})"


def compared(rows: Sequence[dict[str, Any]]) -> str:
    """Return the small problems of two checkouts."""
    if not rows:
        return "(not measured yet)"
    lines = ["| case | before | now | ratio |", "|---|---|---|---|"]
    for row in rows:
        lines.append(f"| {row['name']} | {row['before']:.4g} s | {row['after']:.4g} s | {row['ratio']:.3f} |")
    return "\n".join(lines)


def figure(cells: Cells) -> Any:
    """Return the time of a step against the number of agents, a panel per problem, on logarithmic axes."""
    from matplotlib.figure import Figure

    from digrad.plots.style import FONT, PANEL

    drawn = Figure(figsize=(PANEL[0] * len(PROBLEMS), PANEL[1]), layout="constrained")
    panels = drawn.subplots(1, len(PROBLEMS), sharey=True, squeeze=False)[0]
    for axes, problem in zip(panels, PROBLEMS, strict=True):
        for method in METHODS:
            rows = [
                row
                for key, row in sorted(cells.items())
                if (key[0], key[2], key[3]) == (problem, DIMS[0], method)
            ]
            (line,) = axes.loglog(
                [row["n"] for row in rows], [row["one"] for row in rows], "o-", label=method, markersize=4
            )
            axes.loglog(
                [row["n"] for row in rows], [row["loop"] for row in rows], ":", color=line.get_color()
            )
        axes.set_title(f"{problem}, d = {DIMS[0]} (dotted: NumPy)", fontsize=FONT["title"])
        axes.set_xlabel("agents", fontsize=FONT["label"])
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("ms per step, one thread", fontsize=FONT["label"])
    panels[-1].legend(fontsize=FONT["legend"], frameon=False, loc="upper left", ncols=2)
    return drawn
