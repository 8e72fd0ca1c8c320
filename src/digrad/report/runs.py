"""Runs as a page shows them, whether they are stored in a folder or in memory."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from digrad._internal.json_files import strict
from digrad.core.method_facts import marked
from digrad.errors import ArgumentError
from digrad.methods.registry import ALL_METHODS
from digrad.network import Network
from digrad.problems import Problem
from digrad.specs.run_directory import Result, RunDirectory, environment
from digrad.specs.setting_file import setting_of
from digrad.trace import Ensemble, Trace
from digrad.trace.ensemble import members


@dataclass(frozen=True)
class Run:
    """One run of several methods.

    Args:
        name: Title of a page about it.
        path: Its folder.
        results: By label.
        setting: The problem and the network; empty where they are not known.
        environment: Machine, versions and times.
        methods: Class and hyper-parameters by label.
        about: Steps, samples and seeds, in one line.
        batch_size: Samples per agent and step; None for all.
        sleeps: Whether agents may miss steps.
        toml: The specification, if the run is that of one.
        folder: What a page calls its folder; the name of the folder by default.
    """

    name: str
    path: Path
    results: Mapping[str, Result]
    setting: Mapping[str, Any]
    environment: Mapping[str, Any]
    methods: Mapping[str, tuple[str, Mapping[str, Any]]]
    about: str
    batch_size: int | None
    sleeps: bool
    toml: str | None = None
    folder: str = ""

    def __post_init__(self) -> None:
        """Name the folder."""
        object.__setattr__(self, "folder", self.folder or self.path.resolve().name)

    @property
    def problem(self) -> Mapping[str, Any]:
        """The problem; empty where it is not known."""
        return self.setting.get("problem") or {}

    @property
    def minimum(self) -> Mapping[str, Any]:
        """The minimum of the problem; empty where it is not known."""
        return self.problem.get("minimum") or {}

    def shown(self, label: str) -> str:
        """Return a label as tables show it."""
        return marked(label, ALL_METHODS.get(self.methods[label][0]))


def stored_run(directory: RunDirectory) -> Run:
    """Return a run as its folder holds it.

    Raises:
        DataError: A file of it is missing or damaged.
    """
    spec = directory.spec
    return Run(
        name=spec.name,
        path=directory.path,
        results=directory.results(),
        setting=directory.setting,
        environment=directory.environment,
        methods={label: (entry.method, entry.fields) for label, entry in spec.methods.items()},
        about=_about(spec.steps, spec.batch_size, spec.seed, spec.seeds, spec.dtype),
        batch_size=spec.batch_size,
        sleeps=getattr(spec.links.build(), "sleeps", False),
        toml=spec.to_toml(),
    )


def run_in_memory(
    traces: Trace | Ensemble | Mapping[str, Result], problem: Problem | None, network: Network | None
) -> Run:
    """Return a run as :func:`digrad.compare` or :func:`digrad.simulate` returned it.

    Raises:
        ArgumentError: There is no trace, or something that is none.
    """
    results = {traces.name: traces} if isinstance(traces, Trace | Ensemble) else dict(traces)
    if not results or not all(isinstance(result, Trace | Ensemble) for result in results.values()):
        raise ArgumentError(
            "`traces` of write_report must be what simulate or compare returned, one or more runs by label, but got "
            f"{traces!r:.200}."
        )
    facts = {label: members(result)[0].facts for label, result in results.items()}
    methods = {
        label: (one.get("method", label), one.get("hyper_parameters") or {}) for label, one in facts.items()
    }
    first, runs = next(iter(facts.values())), next(iter(results.values()))
    steps = max(trace.steps for result in results.values() for trace in members(result))
    batch_size = first.get("batch_size")
    return Run(
        name=problem.name if problem else first.get("problem", "Runs"),
        path=Path("traces"),
        results=results,
        setting=strict(setting_of(problem, network, results, with_minimum=True)),
        environment=environment(),
        methods=methods,
        about=_about(
            steps, batch_size, first.get("seed", 0), len(members(runs)), first.get("dtype", "float64")
        ),
        batch_size=batch_size,
        sleeps=getattr(getattr(network, "links", None), "sleeps", False),
    )


def _about(steps: int, batch_size: int | None, seed: int, seeds: int, dtype: str) -> str:
    batch = "all samples" if batch_size is None else f"batches of {batch_size}"
    which = f"seed {seed}" if seeds == 1 else f"medians over {seeds} seeds from {seed} on"
    return f"{steps} step{'s' * (steps != 1)}, {batch}, {which}, {dtype}"
