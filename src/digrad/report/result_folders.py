"""Sources of a report: the runs, reproductions, sweeps and certificates in the folders it was given."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from digrad._internal.json_files import read_json
from digrad.errors import DataError
from digrad.paper import link_bias
from digrad.paper.claims import ClaimTable
from digrad.paper.reproduction import MARKER
from digrad.plots.style import AVERAGES
from digrad.report.runs import Run, stored_run
from digrad.specs.certification import CERTIFICATE, StoredCertificate
from digrad.specs.run_directory import find_run, is_run
from digrad.sweeps.sweep_folder import FACTS, TABLE


@dataclass(frozen=True)
class Source:
    """One folder of results.

    Args:
        folder: Path of the folder.
        runs: Its runs, in the order in which they are shown.
        claims: The content of ``claims.json`` of a reproduction.
        identity: Experiment, preset and seed of a reproduction.
        certificates: The content of each ``certificate.json``.
        swept: The rows of a table: of a sweep, or of a reproduction without runs.
        title: Title of that table.
        name: What a page calls the folder.
    """

    folder: Path
    runs: tuple[Run, ...]
    claims: Mapping[str, Any] | None = None
    identity: Mapping[str, Any] = field(default_factory=dict)
    certificates: tuple[Mapping[str, Any], ...] = ()
    swept: tuple[Mapping[str, Any], ...] = ()
    title: str = "The sweep"
    name: str = ""


def read_sources(folders: Sequence[str | os.PathLike[str]]) -> list[Source]:
    """Return what the folders hold: a run, a reproduction, a sweep, a certificate, or a folder of runs.

    Raises:
        DataError: A folder holds none of them, or nothing but certificates is there.
    """
    sources = [_read(Path(folder)) for folder in folders]
    if not any(source.runs or source.swept for source in sources):
        raise DataError(
            f"{sources[0].folder} holds a certificate and no run; give the folder of its run too."
        )
    return sources


def with_names(sources: Sequence[Source]) -> list[Source]:
    """Return the sources and their runs with names by which a page tells their folders apart."""
    names = folder_names([source.folder for source in sources])
    of_runs = iter(folder_names([run.path for source in sources for run in source.runs]))
    return [
        replace(source, name=name, runs=tuple(replace(run, folder=next(of_runs)) for run in source.runs))
        for source, name in zip(sources, names, strict=True)
    ]


def folder_names(folders: Sequence[Path]) -> list[str]:
    """Return what a page calls each folder: its name, with as many folders above it as tell it from the others.

    Example:
        >>> folder_names([Path("/a/old/run"), Path("/a/new/run"), Path("/a/new/sweep")])
        ['old/run', 'new/run', 'sweep']
    """
    paths = [folder.resolve().parts for folder in folders]
    return ["/".join(_distinct_end(path, set(paths) - {path})) for path in paths]


def _distinct_end(path: tuple[str, ...], others: set[tuple[str, ...]]) -> tuple[str, ...]:
    lengths = range(1, len(path))
    return next((path[-n:] for n in lengths if all(other[-n:] != path[-n:] for other in others)), path[-1:])


def _read(folder: Path) -> Source:
    if (folder / MARKER).is_file():
        return _reproduction(folder)
    if is_run(folder):
        return Source(
            folder, (stored_run(find_run(folder)),), certificates=tuple(_certificates(folder / "certificate"))
        )
    if (folder / FACTS).is_file():
        if not (folder / TABLE).is_file():
            raise DataError(
                f"{folder} holds a sweep that has not ended; finish it with `digrad sweep --resume`."
            )
        return Source(folder, (), swept=_rows(folder / TABLE), title=_title_of_sweep(folder))
    if (folder / link_bias.TABLE).is_file():
        lost = f"CGT with {link_bias.LOSS:.0%} of all packets lost"
        return Source(
            folder, (), swept=tuple(read_json(folder / link_bias.TABLE, link_bias.Stored)["rows"]), title=lost
        )
    below = [path for path in sorted(folder.glob("*")) if is_run(path)]
    if below:
        runs = tuple(stored_run(find_run(path)) for path in below)
        found = [one for path in below for one in _certificates(path / "certificate")]
        return Source(folder, runs, certificates=tuple(found))
    certificates = tuple(_certificates(folder))
    if not certificates:
        find_run(folder)  # says what is missing
    return Source(folder, (), certificates=certificates)


def _title_of_sweep(folder: Path) -> str:
    found: Any = read_json(folder / FACTS)
    for key in ("options", "record", "average"):
        found = found.get(key) if isinstance(found, dict) else None
    average = AVERAGES.get(str(found))
    return "The sweep" + (f", measured at the {average} of the agents," if average else "")


def _rows(path: Path) -> tuple[Mapping[str, Any], ...]:
    import pyarrow
    import pyarrow.parquet

    try:
        return tuple(pyarrow.parquet.read_table(path).to_pylist())
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise DataError(f"{path} cannot be read ({error}); run the sweep again.") from error


def _reproduction(folder: Path) -> Source:
    if not (folder / "claims.json").is_file():
        raise DataError(f"{folder} holds a reproduction without claims yet; finish it with --resume.")
    claims = read_json(folder / "claims.json", ClaimTable)
    judged = [entry["run"] for entry in claims["claims"]]
    others = [path.parent.name for path in sorted(folder.glob("*/summary.json")) if is_run(path.parent)]
    names = dict.fromkeys([*judged, *others])  # some settings of a reproduction decide no claim
    runs = tuple(stored_run(find_run(folder / name)) for name in names)
    return Source(folder, runs, claims=claims, identity=read_json(folder / MARKER))


def _certificates(folder: Path) -> Iterator[Mapping[str, Any]]:
    if (folder / CERTIFICATE).is_file():
        yield read_json(folder / CERTIFICATE, StoredCertificate)
