"""Sweeps and searches of a specification, with their tables and figures in a folder."""

import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from digrad import plots
from digrad._internal.files import locked, make_folder, write_atomically
from digrad._internal.folders import check_folder
from digrad._internal.json_files import has_record, write_json
from digrad.errors import ArgumentError
from digrad.network import Network
from digrad.problems import Problem
from digrad.specs.certification import certified_step
from digrad.specs.spec import Built, Spec
from digrad.specs.sweep_table import GRAPH
from digrad.sweeps import (
    Sweep,
    SweepProgress,
    ThresholdAdvice,
    Tuning,
    Workers,
    recommend_threshold,
    sweep,
    tune,
)
from digrad.sweeps.sweep_results import write_table

TUNING = "tuning.json"


@dataclass(frozen=True)
class SweptSpec:
    """Result of :func:`sweep_spec`.

    Args:
        found: The table.
        folder: Where it is stored; of a part, a folder below the one that was given.
        figures: The files drawn.
    """

    found: Sweep
    folder: Path
    figures: tuple[Path, ...]


@dataclass(frozen=True)
class TunedSpec:
    """Result of :func:`tune_spec`.

    Args:
        label: Label of the method.
        tuning: The value found, with its evidence.
        advice: A first guess of the threshold, for methods that have one.
        certified: The largest step that is proven to converge with full gradients, where the theory has an answer.
        files: Paths of the files written.
    """

    label: str
    tuning: Tuning
    advice: ThresholdAdvice | None
    certified: float | None
    files: tuple[Path, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``tuning.json``."""
        advice = self.advice and {"threshold": self.advice.threshold, "reason": self.advice.reason}
        found = {"certified_step": self.certified, "recommended_threshold": advice}
        return {"label": self.label, **self.tuning.to_dict(), **found}


def sweep_spec(
    spec: Spec,
    out: str | os.PathLike[str],
    *,
    workers: int | Workers = 1,
    resume: bool = False,
    overwrite: bool = False,
    progress: Callable[[SweepProgress], None] | None = None,
) -> SweptSpec:
    """Run the table ``[sweep]`` of a specification, and store table and figures in the folder ``out``.

    Args:
        spec: With a table ``[sweep]``.
        out: The folder.
        workers: As in :func:`digrad.sweep`, and so are the other arguments.
        resume: Take over the rows that are there.
        overwrite: Delete them.
        progress: Called after every batch.

    Raises:
        SpecError: There is no ``[sweep]``, or something in it is refused.
    """
    _check_engine(spec)
    if spec.sweep is None:
        raise spec.refusal(
            "sweep", "is required here, but it is missing; write [sweep.grid] with step_size = [...]."
        )
    built, table = spec.build(), spec.sweep
    starts = {name: spec.start_of(name) for name in table.starts}
    options: Any = {**built.options, "x0": starts or built.options["x0"]}
    found: Sweep = spec.at(
        "sweep",
        lambda: sweep(
            built.methods, built.problem, _networks(spec, built), **table.space(), **options,
            seeds=spec.seeds, common_random_numbers=table.common_random_numbers, target=table.target,
            held_out=_held_out(spec), workers=workers, out=out, resume=resume, overwrite=overwrite, progress=progress,
        ),
    )  # fmt: skip
    folder = workers.folder(Path(out)) if isinstance(workers, Workers) else Path(out)
    write_atomically(folder / "spec.toml", spec.to_toml())
    return SweptSpec(found, folder, tuple(_draw(found, folder / "figures")))


def tune_spec(
    spec: Spec,
    out: str | os.PathLike[str],
    *,
    method: str | None = None,
    goal: Literal["largest stable step", "best final value"] = "largest stable step",
    field: str = "step_size",
    budget: int = 12,
    steps: int | None = None,
    tell: Callable[[Mapping[str, Any]], None] | None = None,
) -> TunedSpec:
    """Search the step size of a method of a specification, and store the evidence in the folder ``out``.

    Args:
        spec: Whose method is where the search begins.
        out: The folder, new or of an earlier search, which is replaced.
        method: The label; the first by default.
        goal: As in :func:`digrad.tune`, and so are the other arguments.
        field: The hyper-parameter.
        budget: Values tried at most.
        steps: Steps of each run; those of the specification by default.
        tell: Called after each value.

    Raises:
        SpecError: There is no such method, or something is refused.
    """
    _check_engine(spec)
    label = next(iter(spec.methods)) if method is None else method
    if label not in spec.methods:
        raise ArgumentError(f"`--method` must be one of {', '.join(spec.methods)}, but got {label!r}.")
    folder = Path(out)
    check_folder(folder, "an earlier search", lambda path: has_record(path / TUNING, "trials"))
    built = spec.build()
    chosen: Any = built.methods[label]
    of_search = ("tolerance", "stop_at_tolerance", "record_every", "record")
    options: Any = {name: value for name, value in built.options.items() if name not in of_search}
    options["steps"] = steps or options["steps"]
    with locked(folder):  # before the search: what cannot be written to shows here
        tuning: Tuning = spec.at(
            f"methods.{label}",
            lambda: tune(
                chosen, built.problem, built.network, goal=goal, field=field, budget=budget, seeds=spec.seeds,
                held_out=_held_out(spec), tell=tell, **options,
            ),
        )  # fmt: skip
        advice = None
        if hasattr(chosen, "threshold"):
            advice = recommend_threshold(built.problem, x0=built.x0, seed=spec.seed)
        certified = certified_step(spec, built, label) if field == "step_size" else None
        return _store(TunedSpec(label, tuning, advice, certified, ()), folder)


def _store(result: TunedSpec, folder: Path) -> TunedSpec:
    make_folder(folder)
    table = write_table(folder / "evidence.parquet", result.tuning.table)
    figures = plots.save_figure(result.tuning.plot(), folder / "figures" / "tuning")
    files = (write_json(folder / TUNING, result.to_dict()), table, *figures)
    return replace(result, files=files)


def _networks(spec: Spec, built: Built) -> Any:
    assert spec.sweep is not None
    if not spec.sweep.graphs:
        return built.network
    more = {
        label: spec.at(
            f"sweep.graphs.{label}", lambda table=table: Network(table.build(), links=spec.links.build())
        )
        for label, table in spec.sweep.graphs.items()
    }
    return {GRAPH: built.network, **more}


def _check_engine(spec: Spec) -> None:
    if spec.engine != "simulation":
        raise spec.refusal(
            "engine",
            "must be 'simulation' here; `digrad reproduce cifar` searches the step sizes of its trainings.",
        )


def _held_out(spec: Spec) -> Problem | None:
    problem: Any = spec.problem
    return spec.at("problem", problem.build_held_out)


def _draw(found: Sweep, folder: Path) -> list[Path]:
    """Draw the values against a field, and over two, where there are few enough curves or panels; return the files."""
    table: Any = found.table
    metric = "held_out_loss" if "held_out_loss" in table else "final_loss"
    written: list[Path] = []
    fields = [name for name in found.fields if table[name].nunique() > 1 and table[name].dtype.kind in "if"]
    if fields and _is_drawable(found, fields[0]):
        figure = found.plot(metric, fields[0])
        written += plots.save_figure(figure, folder / f"{metric}_against_{fields[0]}")
    pair = next((both for both in itertools.combinations(fields, 2) if _is_drawable(found, *both)), None)
    if pair:
        figure = found.heat_map(metric, *pair)
        written += plots.save_figure(figure, folder / f"{metric}_over_{pair[0]}_and_{pair[1]}")
    return written


def _is_drawable(found: Sweep, *axes: str) -> bool:
    """Return whether some rows have these fields, and differ in few enough other ways."""
    table: Any = found.table.dropna(subset=list(axes))
    others = [
        name for name in ("method", *found.fields, "network", "start") if name in table and name not in axes
    ]
    return 0 < len(table.drop_duplicates(others)) <= plots.MOST_CURVES
