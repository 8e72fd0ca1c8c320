"""The folder of a reproduction: opened under a lock, with a marker and the claims in it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from digrad._internal.files import locked, write_atomically
from digrad._internal.folders import check_folder
from digrad._internal.json_files import read_json, write_json
from digrad._internal.tables import Table
from digrad.errors import ArgumentError
from digrad.paper.claims import ClaimTable
from digrad.specs.run_directory import has_results
from digrad.specs.runner import RunResult

Scale: TypeAlias = Literal["smoke", "small", "medium", "full"]
Report: TypeAlias = Callable[[Path], object]

MARKER = "reproduction.json"


@dataclass(frozen=True)
class Reproduction:
    """Result of :func:`digrad.paper.reproduce_logistic` or :func:`digrad.paper.reproduce_cifar`.

    Args:
        directory: The folder of everything.
        table: The claims and whether they hold; None if the run was interrupted.
        figures: The figures of the paper, as PNG and PDF.
        runs: The run directory of each setting.
        interrupted: Whether Ctrl-C ended it; ``resume=True`` goes on.
        failures: Why methods failed, by setting and method; the others are complete.
        accuracies: Accuracies of cifar by setting: a row per method.
    """

    directory: Path
    table: ClaimTable | None
    figures: tuple[Path, ...]
    runs: Mapping[str, Path]
    interrupted: bool
    failures: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    accuracies: Mapping[str, Table] = field(default_factory=dict)


def directories(done: Mapping[str, RunResult]) -> dict[str, Path]:
    """Return the run directory of each setting."""
    return {name: result.directory for name, result in done.items()}


def write_claims(folder: Path, table: ClaimTable, report: Report | None) -> ClaimTable:
    """Write the claims of a reproduction, and its report, and return the claims."""
    write_json(folder / "claims.json", table)
    write_atomically(folder / "claims.md", table.to_markdown())
    if report:
        report(folder)
    return table


@contextmanager
def open_reproduction(
    folder: Path, identity: dict[str, Any], settings: Iterable[str], *, resume: bool, overwrite: bool
) -> Iterator[None]:
    """Make or reuse the folder of a reproduction, and lock it.

    Raises:
        ArgumentError: It holds something else, or results that neither ``resume`` nor ``overwrite`` allows for.
    """
    check_folder(
        folder,
        "a reproduction of digrad",
        lambda path: (path / MARKER).is_file(),
        resume=resume,
        overwrite=overwrite,
    )
    with locked(folder):
        stored = read_json(folder / MARKER) if (folder / MARKER).is_file() else identity
        if stored != identity and not overwrite:
            raise ArgumentError(
                f"`out` {folder} holds the reproduction of {stored}, not of {identity}; give another --out, "
                "or --overwrite."
            )
        if not (resume or overwrite) and any(has_results(folder / name) for name in settings):
            raise ArgumentError(
                f"`out` {folder} holds this reproduction already; continue with --resume, start over with --overwrite, "
                "or give another --out."
            )
        if not resume:  # what these say is about to be deleted
            for name in ("claims.json", "claims.md", "table.json", "table.md", "report.html"):
                (folder / name).unlink(missing_ok=True)
        write_json(folder / MARKER, identity)
        yield
