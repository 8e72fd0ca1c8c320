"""Bias of a method by lost packets: the naive ways to go on without them, against the two rules that keep it exact."""

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel

from digrad import plots
from digrad._internal.files import is_left_over, locked, write_atomically
from digrad._internal.folders import check_folder, is_empty
from digrad._internal.formatting import markdown_table, shown
from digrad._internal.json_files import has_record, strict, write_json
from digrad.errors import ArgumentError
from digrad.graphs import example5
from digrad.links import Links
from digrad.methods import CGT
from digrad.network import Network
from digrad.problems import Problem, example_quadratic, logistic
from digrad.simulation import compare
from digrad.trace import Trace

TABLE = "links.json"
_OURS = (TABLE, "links.md", "links-example.png", "links-digits.png", "report.html")
LOSS = 0.3
POLICIES = {  # label: (push, pull)
    "kept, own value": ("sum", "self"),
    "read as zero": ("drop", "drop"),
    "push dropped, own value": ("drop", "self"),
    "renormalised": ("renormalise", "renormalise"),
    "last value": ("last", "last"),
}


class Stored(BaseModel):
    """Parts of ``links.json`` that a page needs."""

    rows: list[dict[str, Any]]


@dataclass(frozen=True)
class Bias:
    """End of a run with one way to treat lost packets.

    Args:
        problem: Its name.
        policy: The way.
        error: How far the worst agent is from the minimum; None if the run diverged.
        mass_error: Norm of the part of the sum of the gradients that is missing.
        verdict: Verdict of the run.
    """

    problem: str
    policy: str
    error: float | None
    mass_error: float | None
    verdict: str


@dataclass(frozen=True)
class LinkBias:
    """Result of :func:`reproduce_links`.

    Args:
        directory: The folder of everything.
        rows: One for each problem and policy.
        figures: One for each problem.
    """

    directory: Path
    rows: tuple[Bias, ...]
    figures: tuple[Path, ...]

    def to_markdown(self) -> str:
        """Return the table."""
        rows = [
            (
                row.problem,
                row.policy,
                *(shown(value, 2, absent="inf") for value in (row.error, row.mass_error)),
                row.verdict,
            )
            for row in self.rows
        ]
        head = ("problem", "lost packets", "error of the worst agent", "missing mass", "verdict")
        return (
            "\n".join([f"# CGT with {LOSS:.0%} of all packets lost", "", *markdown_table(head, rows)]) + "\n"
        )


def reproduce_links(out: str | os.PathLike[str], *, seed: int = 0, overwrite: bool = False) -> LinkBias:
    """Run CGT with 30 % loss, exactly and naively, on the five-agent example and on digits.

    Below ``out`` there is then a figure for each problem, and the table as ``links.md`` and ``links.json``.

    Args:
        out: The folder: new, empty, or of an earlier call with ``overwrite``.
        seed: Random seed of the delivery schedule.
        overwrite: Replace what an earlier call wrote.

    Raises:
        ArgumentError: ``out`` cannot be used.
    """
    folder = Path(out)
    check_folder(folder, "this reproduction", _is_ours)
    if not (is_empty(folder) or overwrite):
        raise ArgumentError(f"`out` {folder} holds an earlier result; give another --out, or --overwrite.")
    with locked(folder):
        (folder / TABLE).unlink(missing_ok=True)  # a kill must not leave it beside figures of another seed
        rows: list[Bias] = []
        figures: list[Path] = []
        for name, (problem, method, options) in _settings().items():
            traces = {
                label: _run(method, problem, policy, seed, label, options)
                for label, policy in POLICIES.items()
            }
            minimum = problem.solve().x
            rows += [_row(name, label, trace, minimum) for label, trace in traces.items()]
            figure = plots.curves(traces, ("grad_norm", "mass_error"))
            figures += plots.save_figure(figure, folder / f"links-{name}", formats=("png",))
        found = LinkBias(folder, tuple(rows), tuple(figures))
        write_atomically(folder / "links.md", found.to_markdown())
        write_json(folder / TABLE, {"seed": seed, "rows": rows})
    return found


def is_reproduction_of(folder: Path, seed: int) -> bool:
    """Return whether a folder holds what :func:`reproduce_links` gives for this seed."""
    return has_record(folder / TABLE, "seed", seed)


def _is_ours(folder: Path) -> bool:
    return all(file.name in _OURS or is_left_over(file) for file in folder.iterdir())


def _settings() -> dict[str, tuple[Problem, CGT, dict[str, Any]]]:
    digits = logistic(data="digits", agents=5, partition="sorted", reg_weight=0.01, reg_power=3)
    return {
        "example": (
            example_quadratic(),
            CGT(step_size=0.05, threshold=2.0),
            {"steps": 3000, "x0": [10.0, -10.0], "record_every": 10},
        ),
        "digits": (
            digits,
            CGT(step_size=0.3, threshold=1.0),
            {"steps": 3000, "x0": np.full(digits.dim, 2.0), "record_every": 10},
        ),
    }


def _run(
    method: CGT, problem: Problem, policy: tuple[Any, Any], seed: int, label: str, options: dict[str, Any]
) -> Trace:
    push, pull = policy
    network = Network(example5(), links=Links(loss=LOSS, push=push, pull=pull, seed=seed))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*forget what is lost")  # which is what this shows
        return compare({label: method}, problem, network, **options)[label]


def _row(problem: str, label: str, trace: Trace, minimum: Any) -> Bias:
    error = float(np.linalg.norm(trace.final_x - minimum, axis=1).max())
    mass = float(trace.columns["mass_error"][-1])
    return Bias(
        problem=problem,
        policy=label,
        error=None if trace.verdict == "diverged" else strict(error),
        mass_error=strict(mass),
        verdict=trace.verdict,
    )
