"""Running a specification: each method in turn, stored as soon as it is done, resumable at any moment."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from digrad import plots
from digrad._internal.available_cores import available_cores
from digrad._internal.files import locked
from digrad._internal.folders import check_folder
from digrad._internal.json_files import write_json
from digrad.errors import CheckpointError, DigradError, MixingError
from digrad.graphs import Digraph
from digrad.network import Network
from digrad.simulation import Checkpoint, Progress
from digrad.simulation.checkpoint import difference
from digrad.simulation.compare import run_each
from digrad.simulation.run_options import make_start
from digrad.simulation.simulate import drive, facts_of, rule_of, run_name
from digrad.simulation.simulator import Simulator
from digrad.specs.images.training_jobs import train_all
from digrad.specs.run_directory import Result, RunDirectory, is_run, open_run
from digrad.specs.setting_file import has_paths, setting_of
from digrad.specs.spec import Built, Spec
from digrad.trace import Ensemble, Trace
from digrad.trace.ensemble import members

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Observer(Protocol):
    """Observer of a run, e.g. to draw a progress bar; the library itself prints nothing."""

    def on_method_start(self, name: str, steps: int) -> None:
        """``name`` (with its seed if there are several) begins; it takes up to ``steps`` steps."""
        ...

    def on_progress(self, progress: Progress) -> None:
        """Some steps are done."""
        ...

    def on_method_end(self, trace: Trace) -> None:
        """The method has ended, or its stored result was found."""
        ...


@dataclass(frozen=True)
class RunResult:
    """Result of :func:`run`.

    Args:
        directory: The run directory.
        spec: The specification.
        results: A trace per label, or an ensemble when there are several seeds.
        interrupted: Whether Ctrl-C ended the run; ``resume=True`` goes on.
        problem: The problem, e.g. for ``problem.solve()``.
        network: The network.
        figures: The files drawn.
        failures: Why runs failed, by label and seed; the others are complete. Only with engine ``torch``.
    """

    directory: Path
    spec: Spec
    results: Mapping[str, Result]
    interrupted: bool
    problem: Any
    network: Network
    figures: tuple[Path, ...]
    failures: Mapping[str, str] = field(default_factory=dict)


def run(
    spec: Spec,
    out: str | os.PathLike[str],
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: Observer | None = None,
    report: Callable[[Path], object] | None = None,
    built: Built | None = None,
    formats: Sequence[str] = ("png", "pdf"),
    workers: int | None = None,
    seeds: int | None = None,
) -> RunResult:
    """Run every method of ``spec`` and store everything in the directory ``out``.

    Args:
        spec: The specification.
        out: The run directory: new or empty, or of an earlier run, which is then refused unless one of the next two
            says what should become of it.
        resume: Keep the methods that are done and go on with the one that was under way; with more steps in ``spec``
            than before, extend all of them. The numbers are those of an uninterrupted run, bit for bit.
        overwrite: Delete the earlier run.
        progress: Observer of the run.
        report: Called with the directory at the end, e.g. :func:`digrad.report.write_report`.
        built: The result of ``spec.build()``, when the caller has it already.
        formats: Formats of the figures; none are drawn if it is empty.
        workers: Processes at a time with engine ``torch``; by default one per core.
        seeds: With engine ``torch``: compute only the first so many seeds now; ``resume`` adds the others.

    Returns:
        The results. After Ctrl-C they hold what was computed, which is stored too.

    Raises:
        SpecError: The specification cannot be built; nothing is written then.
        ArgumentError: ``out`` cannot be used, or another process is writing to it.
        CheckpointError: Data or graph have changed since the results that ``resume`` found.
        StorageError: A file cannot be written, e.g. because the disk is full.
    """
    built = built or spec.build()
    check_folder(Path(out), "a run of digrad", is_run, resume=resume, overwrite=overwrite)
    with locked(out):
        check = partial(_check_stored, built=built)
        store = open_run(out, spec, resume=resume, overwrite=overwrite, check=check)
        if spec.engine == "torch":
            workers = workers or available_cores()
            failures, interrupted = train_all(store, built, progress=progress, workers=workers, seeds=seeds)
            results = _stored_results(store, failures)
        else:
            results, failures = _run_methods(store, built, progress), {}
            interrupted = any(trace.interrupted for result in results.values() for trace in members(result))
        figures = (
            _conclude(store, built, results, not interrupted and not failures, report, formats)
            if results
            else ()
        )
        return RunResult(
            store.path, spec, results, interrupted, built.problem, built.network, tuple(figures), failures
        )


def _conclude(
    store: RunDirectory,
    built: Built,
    results: Mapping[str, Result],
    is_complete: bool,
    report: Callable[[Path], object] | None,
    formats: Sequence[str],
) -> list[Path]:
    setting = setting_of(built.problem, built.network, results, with_minimum=report is not None)
    write_json(store.path / "setting.json", setting)
    store.write_summary(results)
    figures = draw_figures(store.figures, results, built.network, formats)
    if is_complete:
        store.mark_finished()
    if report:
        report(store.path)
    return figures


def draw_figures(
    folder: Path, results: Mapping[str, Result], network: Network, formats: Sequence[str]
) -> list[Path]:
    """Draw the curves, the graph and, if there was one, the explosion; return the files."""
    if not formats:
        return []
    figures = {
        **_explosion(results),
        **_accuracy(results),
        "loss_and_gradient": plots.curves(results, ("loss", "grad_norm")),
        "consensus": plots.curves(results, _consensus_metrics(results)),
        "graph": _drawing(network),
    }
    written = [plots.save_figure(figure, folder / name, formats=formats) for name, figure in figures.items()]
    return [path for paths in written for path in paths]


def _explosion(results: Mapping[str, Result]) -> dict[str, "Figure"]:
    traces = [result for result in results.values() if isinstance(result, Trace)]
    exploded = next((trace for trace in traces if trace.verdict == "diverged"), None)
    calm = next((trace for trace in traces if trace.verdict != "diverged"), None)
    return {"explosion": plots.twin_explosion(exploded, calm)} if exploded and calm else {}


def _drawing(network: Network) -> "Figure":
    if not isinstance(network.graph, Digraph):  # there is no one R or C, hence no u or v
        return plots.draw_graph(network.union)
    try:
        v = network.v
    except MixingError:
        v = None
    return plots.draw_graph(network.graph, u=network.u, v=v)


def _accuracy(results: Mapping[str, Result]) -> dict[str, "Figure"]:
    has_accuracy = all(
        "test_accuracy" in trace.columns for result in results.values() for trace in members(result)
    )
    return (
        {"accuracy": plots.curves(results, ("train_accuracy", "test_accuracy"), x="epoch")}
        if has_accuracy
        else {}
    )


def _consensus_metrics(results: Mapping[str, Result]) -> tuple[str, ...]:
    clipped = [trace.fraction_clipped for result in results.values() for trace in members(result)]
    some_clip = any(np.isfinite(column).any() for column in clipped)
    return ("consensus_error", "fraction_clipped") if some_clip else ("consensus_error",)


def _stored_results(store: RunDirectory, failures: Mapping[str, str]) -> dict[str, Result]:
    """Return what is complete: of a method with several seeds, those that are."""
    spec = store.spec
    results: dict[str, Result] = {}
    for label in spec.methods:
        found = [store.load_member(label, seed) for seed in range(spec.seed, spec.seed + spec.seeds)]
        traces = tuple(trace for trace in found if trace is not None)
        if traces:
            results[label] = traces[0] if spec.seeds == 1 else Ensemble(traces)
            if spec.seeds > 1:
                results[label].save(store.path)
    if failures and not results:
        name, reason = next(iter(failures.items()))
        raise DigradError(f"No method of {store.path} could be run: {name}: {reason}")
    return results


def _run_methods(store: RunDirectory, built: Built, progress: Observer | None) -> dict[str, Result]:
    spec = store.spec

    def run_or_load(label: str, seed: int) -> Trace:
        if progress:
            progress.on_method_start(run_name(label, seed, spec.seeds), spec.steps)
        trace = store.load_member(label, seed) or _run_one(store, built, label, seed, progress)
        if progress:
            progress.on_method_end(trace)
        return trace

    results = run_each(built.methods, range(spec.seed, spec.seed + spec.seeds), run_or_load)
    for result in results.values():
        if isinstance(result, Ensemble):
            result.save(store.path)
    return results


def _run_one(store: RunDirectory, built: Built, label: str, seed: int, progress: Observer | None) -> Trace:
    # A directory that is not resumed has been emptied, so what is there belongs to this run.
    checkpoint = Checkpoint(store.checkpoint(label, seed), every=store.spec.checkpoint_every, resume=True)
    options = _options(built, seed)
    simulator = Simulator.of(built.methods[label], built.problem, built.network, options, label)
    callback = progress.on_progress if progress else None
    name = run_name(label, seed, store.spec.seeds)
    trace = drive(simulator, options, callback=callback, checkpoint=checkpoint, name=name)
    store.save_member(trace, seed)
    return trace


def _options(built: Built, seed: int) -> dict[str, Any]:
    record = replace(built.options["record"], paths=has_paths(built.problem), invariant=True)
    return {**built.options, "seed": seed, "record": record}


def _check_stored(store: RunDirectory, built: Built) -> None:
    """Raise unless the complete traces that are there are those of the specification.

    Raises:
        CheckpointError: One of them was made with other numbers, data or weights, whatever ``spec.toml`` says.
    """
    spec = store.spec
    for label in built.methods:
        for seed in range(spec.seed, spec.seed + spec.seeds):
            trace = store.load_member(label, seed)
            if trace is None:
                continue
            wanted = {**_facts(store, built, label, seed), "steps": min(spec.steps, trace.steps)}
            known = {**trace.facts, "steps": trace.steps}
            differing = difference({key: known[key] for key in wanted if key in known}, wanted)
            if differing:
                raise CheckpointError(
                    f"{label} in {store.path} belongs to another run ({differing}); start over with --overwrite, or "
                    "give another --out."
                )


def _facts(store: RunDirectory, built: Built, label: str, seed: int) -> dict[str, Any]:
    method, network, spec = built.methods[label], built.network.with_seed(seed), store.spec
    if spec.engine == "torch":
        from digrad.specs.images.training import TrainingPlan, facts_of_training

        return facts_of_training(method, built.problem, network, TrainingPlan.of(spec, seed))
    options = _options(built, seed)
    x0 = make_start(options["x0"], built.problem, seed).astype(options["dtype"])
    return {**facts_of(method, built.problem, network, options, x0), **rule_of(options)}
