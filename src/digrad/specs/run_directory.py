"""The run directory: what a run leaves on disk, recognised and protected.

A run directory holds ``spec.toml``, ``environment.json``, ``summary.json``, ``setting.json``, a trace per method,
``figures/``, ``report.html``, and ``checkpoints/``, from which a run goes on after an interruption, or when more steps
are asked for. Every file is replaced atomically. ``summary.json`` says that the results are those of ``spec.toml``: it
is deleted before anything else changes, and written when all traces are there, so that a kill in between leaves a run
without results yet, never one with results of two runs.
"""

import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

from pydantic import BaseModel

from digrad._internal.files import file_stem, make_folder, write_atomically
from digrad._internal.json_files import has_record, read_json, write_json
from digrad._internal.user_warnings import warn_user
from digrad.errors import ArgumentError, DataError, SpecError
from digrad.simulation.checkpoint import difference
from digrad.specs.setting_file import Setting
from digrad.specs.spec import Spec, load_spec
from digrad.trace import Ensemble, Trace

Result: TypeAlias = Trace | Ensemble

FORMAT = "digrad run 1"
TIMES = ("started", "finished")  # the only entries of environment.json that differ between equal runs
_PACKAGES = ("digrad", "jax", "numpy", "scipy", "torch")
_OURS = (
    "summary.json",
    "setting.json",
    "trace-*",
    "final-*",
    "arrays-*",
    "ensemble-*",
    "checkpoints/*",
    "figures/*",
    "certificate/certificate.json",
    "report.html",
)


class _Environment(BaseModel):
    format: str
    started: str | None = None
    finished: str | None = None
    versions: dict[str, str] = {}


class _Figures(BaseModel):
    loss: float | None
    grad_norm: float | None
    consensus_error: float | None


class _Ended(BaseModel):
    verdict: str
    diverged_at: int | None
    steps: int
    final: _Figures
    best: _Figures
    bytes_sent: int
    seconds: float


@dataclass(frozen=True)
class RunDirectory:
    """One run directory and the specification it holds, made by ``open_run`` or :func:`find_run`."""

    path: Path
    spec: Spec

    @property
    def environment(self) -> dict[str, Any]:
        """Machine, versions and times of the run."""
        return read_json(self.path / "environment.json", _Environment)

    @property
    def summary(self) -> dict[str, Any]:
        """Final figures of each method, by label."""
        return read_json(self.path / "summary.json", dict[str, _Ended])

    @property
    def setting(self) -> dict[str, Any]:
        """The problem and the network as pages show them; empty for a run that was stored without."""
        path = self.path / "setting.json"
        return read_json(path, Setting) if path.is_file() else {}

    @property
    def figures(self) -> Path:
        """The folder of the figures."""
        return self.path / "figures"

    def results(self) -> dict[str, Result]:
        """Load what each method of the summary recorded."""
        load = Trace.load if self.spec.seeds == 1 else Ensemble.load
        return {label: load(self.path, label) for label in self.summary}

    def write_summary(self, results: Mapping[str, Result]) -> Path:
        """Write ``summary.json``."""
        return write_json(
            self.path / "summary.json", {label: result.summary() for label, result in results.items()}
        )

    def checkpoint(self, label: str, seed: int) -> Path:
        """Return where a method under way is stored, in a folder that exists."""
        folder = self.path / "checkpoints"
        folder.mkdir(exist_ok=True)
        suffix = "safetensors" if self.spec.engine == "torch" else "npz"
        return folder / f"{file_stem(f'{label}-seed{seed}')}.{suffix}"

    def member(self, label: str, seed: int) -> str:
        """Return the name under which the run of one seed is stored."""
        return label if self.spec.seeds == 1 else f"{label}-seed{seed}"

    def save_member(self, trace: Trace, seed: int) -> None:
        """Store the run of one seed, and drop its checkpoint if more steps would change nothing."""
        replace(trace, name=self.member(trace.name, seed)).save(self.path)
        if _has_ended(trace):
            self.checkpoint(trace.name, seed).unlink(missing_ok=True)

    def load_member(self, label: str, seed: int) -> Trace | None:
        """Return the complete run of one seed, or None if there is none, or more steps are wanted.

        A trace that cannot be read, e.g. because a kill came between its files, is not complete.
        """
        name = self.member(label, seed)
        if not (self.path / f"trace-{file_stem(name)}.json").is_file():
            return None
        try:
            trace = Trace.load(self.path, name)
        except DataError as error:
            warn_user(f"{label} is computed again: {error}")
            return None
        is_complete = not trace.interrupted and (trace.steps >= self.spec.steps or _has_ended(trace))
        return replace(trace, name=label) if is_complete else None

    def mark_finished(self) -> None:
        """Note in ``environment.json`` when the run ended."""
        write_json(self.path / "environment.json", {**self.environment, "finished": _now()})


def open_run(
    out: str | os.PathLike[str],
    spec: Spec,
    *,
    resume: bool = False,
    overwrite: bool = False,
    check: Callable[[RunDirectory], None] | None = None,
) -> RunDirectory:
    """Make or reuse the directory ``out`` for a run of ``spec``.

    A directory with results is kept with ``resume``, if its specification has nothing but fewer steps or methods, and
    emptied of them with ``overwrite``. The directory of a run that left neither a trace nor a checkpoint is reused,
    whatever its specification.

    Args:
        out: The directory.
        spec: The specification.
        resume: Keep the results that are there.
        overwrite: Delete them.
        check: Called with the directory before anything is changed; raises if results that would be kept are not those
            of ``spec``.

    Raises:
        ArgumentError: ``out`` holds results, and neither ``resume`` nor ``overwrite`` allows for them.
    """
    path = Path(out)
    if has_results(path) and not overwrite:
        _check_resumable(path, spec, resume)
    store = RunDirectory(path, spec)
    if resume and check:
        check(store)
    make_folder(path)
    if not resume:
        _clear(path)
    elif not (is_finished(path) and is_run_of(path, spec)):
        (path / "summary.json").unlink(missing_ok=True)
    # The environment comes first: it marks the directory as ours from the first file on.
    write_json(path / "environment.json", environment())
    write_atomically(path / "spec.toml", spec.to_toml())
    return store


def find_run(path: str | os.PathLike[str]) -> RunDirectory:
    """Return the run directory at ``path``.

    Raises:
        DataError: There is none, or it has no results yet.
        SpecError: Its specification is damaged.
    """
    path = Path(path)
    if not path.is_dir() or not is_run(path):
        raise DataError(f"{path} is not a digrad run directory; give one that `digrad run --out` made.")
    if not (path / "summary.json").is_file() or not read_json(path / "summary.json"):
        raise DataError(f"{path} holds a run without results yet; finish it with `digrad run --resume`.")
    return RunDirectory(path, load_spec(path / "spec.toml"))


def environment() -> dict[str, Any]:
    """Return what the numbers may depend on besides the specification, and the time."""
    return {
        "format": FORMAT,
        "python": platform.python_version(),
        "implementation": sys.implementation.name,
        "platform": platform.platform(),
        "cpu_count": os.cpu_count(),
        "processor": _processor(),
        "versions": {package: version for package in _PACKAGES if (version := _version(package))},
        "started": _now(),
        "finished": None,
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # of an extra
        return None


def _processor() -> str:
    """Return what the machine calls its processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def is_run(path: Path) -> bool:
    """Return whether a folder was made by :func:`open_run`."""
    return has_record(path / "environment.json", "format", FORMAT)


def is_run_of(path: Path, spec: Spec) -> bool:
    """Return whether a folder holds a run of exactly this specification."""
    try:
        return is_run(path) and load_spec(path / "spec.toml") == spec
    except SpecError:
        return False


def has_results(path: Path) -> bool:
    """Return whether a folder holds what would be lost if it were emptied."""
    return any(any(path.glob(pattern)) for pattern in ("trace-*", "checkpoints/*", "search-*"))


def is_finished(path: Path) -> bool:
    """Return whether a folder holds a run that has come to its end."""
    return is_run(path) and read_json(path / "environment.json").get("finished") is not None


def _has_ended(trace: Trace) -> bool:
    return trace.verdict == "diverged" or trace.stopped_early


def _check_resumable(path: Path, spec: Spec, resume: bool) -> None:
    differing = _difference(path, spec)
    if differing:
        raise ArgumentError(
            f"`out` {path} holds the run of another specification ({differing}); give another --out, or --overwrite."
        )
    if not resume:
        finished = read_json(path / "environment.json").get("finished")
        state = "a finished run" if finished else "a run that has not ended"
        raise ArgumentError(
            f"`out` {path} holds {state} of this specification; continue with --resume, start over with --overwrite, "
            "or give another --out."
        )


def _difference(path: Path, spec: Spec) -> str:
    """Return how the stored specification differs; empty if it does not, save that it has fewer steps or methods."""
    if not (path / "spec.toml").exists():
        return ""
    try:
        before = load_spec(path / "spec.toml")
    except SpecError as error:
        return f"its spec.toml is not valid: {error}"
    known = {label: table for label, table in spec.methods.items() if label in before.methods}
    ignored = {"sweep"}  # a run does not look at it
    stored = dict(_flat(before.model_dump(exclude_none=True, exclude=ignored)))
    limited = spec.model_copy(update={"methods": known})
    wanted = dict(_flat(limited.model_dump(exclude_none=True, exclude=ignored)))
    if stored["steps"] < wanted["steps"]:
        stored["steps"] = wanted["steps"]
    return difference(stored, wanted)


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _clear(path: Path) -> None:
    for pattern in _OURS:
        for file in path.glob(pattern):
            if file.is_file():
                file.unlink()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
