"""Section V-B of the paper from end to end: search step sizes, train all settings, draw figures, judge claims."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from digrad import checks, plots
from digrad._internal.available_cores import available_cores
from digrad._internal.files import write_atomically
from digrad._internal.json_files import write_json
from digrad._internal.tables import Table
from digrad.data import cifar10
from digrad.paper import cifar_claims
from digrad.paper.accuracy_table import accuracy_table, failures_markdown, table_markdown
from digrad.paper.cifar_search import FEW_IMAGES, SEARCHED, SearchPlan, with_step_sizes
from digrad.paper.claims import ClaimTable, verdicts
from digrad.paper.presets import preset as load_preset
from digrad.paper.reproduction import (
    Report,
    Reproduction,
    Scale,
    directories,
    open_reproduction,
    write_claims,
)
from digrad.specs.run_directory import is_finished
from digrad.specs.runner import Observer, RunResult, run
from digrad.specs.spec import Spec

COMPARISONS = ("cifar-iid", "cifar-dirichlet", "cifar-sorted", "cifar-row")  # whose step sizes are searched
THRESHOLDS, EXPLOSION = "cifar-thresholds", "cifar-explosion"
PREFIX = "cifar-"  # of the names of settings, which users leave out
CAPTIONS = {  # by the beginning of a figure's name
    "cifar-explosion": "Where clipping matters: CGT and AB from a start of larger weights.",
    "cifar-thresholds-clipping": "The largest tracker since the row before, and how often agents clipped.",
    "cifar-thresholds": "CGT with other thresholds.",
    "cifar-iid": "Accuracy of the average model, images partitioned at random (two figures of Section V-B).",
    "cifar-dirichlet": "The same, each class partitioned by Dirichlet(0.1).",
    "cifar-sorted": "The same, each agent with the images of two classes.",
    "cifar-row": "Dirichlet(0.1), methods of one matrix mixing with R.",
}
TUNED = "CGT-tuned"  # CGT with a step size that is searched like those of the others


@dataclass(frozen=True)
class _Size:
    model: str
    norm: str
    steps: Mapping[str, int]  # by setting, in the order in which they are run
    record_every: int
    evaluate: int
    seeds: int
    search: SearchPlan
    evaluate_last: int = 10_000
    samples: int | None = None
    batch_size: int = 32


# 1563 steps of five agents with batches of 32 are five epochs.
SIZES: dict[str, _Size] = {
    "smoke": _Size(
        "small_cnn", "group", {EXPLOSION: 10, "cifar-iid": 2}, 5, 20, 1,
        SearchPlan(steps=1, held_out=20, most=2), evaluate_last=20, samples=2000, batch_size=8,
    ),
    "small": _Size(
        "small_cnn", "group",
        {
            EXPLOSION: 312, THRESHOLDS: 1250, "cifar-iid": 3125, "cifar-dirichlet": 3125, "cifar-sorted": 1250,
            "cifar-row": 3125,
        },
        125, 2000, 3, SearchPlan(150),
    ),
    "medium": _Size("resnet20", "batch", {"cifar-iid": 1563}, 78, 1000, 1, SearchPlan(80)),
    "full": _Size("resnet18", "batch", {"cifar-iid": 31250}, 625, 5000, 1, SearchPlan(313)),
}  # fmt: skip


def reproduce_cifar(
    out: str | os.PathLike[str],
    *,
    preset: Scale = "small",
    seed: int = 0,
    progress: Observer | None = None,
    resume: bool = False,
    overwrite: bool = False,
    report: Report | None = None,
    workers: int | None = None,
    seeds: int | None = None,
    steps: int | None = None,
    settings: Collection[str] | None = None,
) -> Reproduction:
    """Reproduce Section V-B of the paper: a network on CIFAR-10, CGT against six methods.

    Below ``out`` there is then one run directory per setting, a folder ``<setting>-search`` with the step sizes tried,
    the figures in ``figures/``, the accuracies in ``table.md`` and ``table.json``, and the claims in ``claims.json``
    and ``claims.md``. A method that fails does not end the others.

    Args:
        out: The folder: new, empty, or of an earlier reproduction.
        preset: ``smoke`` (2000 images), ``small`` (a small network), ``medium`` (ResNet-20) or ``full`` (the paper's
            ResNet-18: for a machine with a GPU).
        seed: The first seed.
        progress: Observer of the runs.
        resume: Keep what is done.
        overwrite: Also replace a reproduction of another size or seed.
        report: Called with each run directory, and at last with ``out``.
        workers: Processes at a time; by default one per core.
        seeds: Compute only the first so many seeds now; ``resume`` adds the others.
        steps: Take only so many steps and search no step sizes: shows that everything works, and how long the whole
            would take.
        settings: Compute only these settings now, e.g. ``["iid"]``; ``resume`` adds the others.

    Raises:
        ArgumentError: ``out`` cannot be used, or there is no such preset or setting.
        DataError: CIFAR-10 is not on this machine.
    """
    checks.choice(preset, "preset", "reproduce_cifar", SIZES)
    folder, size, workers = Path(out), SIZES[preset], workers or available_cores()
    wanted = _wanted(settings, size)
    identity = {"experiment": "cifar", "preset": preset, "seed": seed, **({"steps": steps} if steps else {})}
    cifar10()  # says how to get it before anything is written
    folders = [*size.steps, *(f"{name}{SEARCHED}" for name in size.steps)]
    with open_reproduction(folder, identity, folders, resume=resume, overwrite=overwrite):
        options = {"resume": resume, "overwrite": overwrite, "progress": progress, "report": report}
        chosen = [name for name in size.steps if name in wanted or (resume and is_finished(folder / name))]
        specs = {name: _sized(load_preset(name), name, size, seed, steps) for name in chosen}
        seeds_now = {name: seeds if name in wanted else 1 for name in chosen}  # of the others none is added
        done: dict[str, RunResult] = {}
        figures: list[Path] = []
        reproduction = Reproduction(folder, None, (), {}, interrupted=True)
        for name, result in _run_settings(folder, specs, size, workers, seeds_now, steps is None, options):
            done[name] = result
            if not result.interrupted:  # something to read while the next setting takes its hours
                figures += _paper_figures(folder / "figures", name, result)
                reproduction = _conclude(folder, done, figures, preset, size, seed, report)
        is_complete = len(done) == len(specs) and not any(result.interrupted for result in done.values())
        return reproduction if is_complete else replace(reproduction, table=None, interrupted=True)


def _run_settings(
    folder: Path,
    specs: Mapping[str, Spec],
    size: _Size,
    workers: int,
    seeds: Mapping[str, int | None],
    search: bool,
    options: dict[str, Any],
) -> Iterator[tuple[str, RunResult]]:
    """Run one setting after the other, until all are done or Ctrl-C comes."""
    for name, spec in specs.items():
        lost: dict[str, str] = {}
        if name in COMPARISONS and search:
            progress, overwrite = options["progress"], options["overwrite"]
            place = folder / f"{name}{SEARCHED}"
            try:
                spec, lost = with_step_sizes(spec, place, size.search, workers, progress, overwrite=overwrite)
            except KeyboardInterrupt:
                return
        result = run(spec, folder / name, formats=("png",), workers=workers, seeds=seeds[name], **options)
        yield name, replace(result, failures={**lost, **result.failures})
        if result.interrupted:
            return


def _wanted(settings: Collection[str] | None, size: _Size) -> set[str]:
    offered = [name.removeprefix(PREFIX) for name in size.steps]
    for name in settings or ():
        checks.choice(name, "settings", "reproduce_cifar", offered)
    return {f"{PREFIX}{name}" for name in (settings or offered)}


def _conclude(
    folder: Path,
    done: Mapping[str, RunResult],
    figures: Sequence[Path],
    preset: str,
    size: _Size,
    seed: int,
    report: Report | None,
) -> Reproduction:
    captions = {path.stem: _caption(path.stem) for path in sorted(figures)}
    table = replace(_judge(done, preset, size, seed), figures=captions)
    rows = {name: accuracy_table(result) for name, result in done.items()}
    failures = {name: result.failures for name, result in done.items() if result.failures}
    write_json(folder / "table.json", rows)
    tables = [table_markdown(done[name].spec.name, found) for name, found in rows.items()]
    projected = _projection(done, preset, size)
    text = "\n".join(["# Accuracies", "", *tables, projected, failures_markdown(failures)])
    write_atomically(folder / "table.md", text)
    write_claims(folder, table, report)
    accuracies = {name: Table.of(found) for name, found in rows.items()}
    return Reproduction(folder, table, tuple(figures), directories(done), False, failures, accuracies)


def _sized(spec: Spec, name: str, size: _Size, seed: int, steps: int | None) -> Spec:
    problem: dict[str, Any] = {
        "model": size.model,
        **({} if name == EXPLOSION else {"norm": size.norm}),
        "samples": size.samples,
        "evaluate": FEW_IMAGES if steps else min(size.evaluate, 500) if name == EXPLOSION else size.evaluate,
        "evaluate_last": FEW_IMAGES if steps else size.evaluate_last,
    }
    length = steps or size.steps[name]
    # Without a search CGT-tuned is CGT, and would only take its time twice.
    methods = {label: spec.methods[label] for label in spec.methods if steps is None or label != TUNED}
    every = min(size.record_every, length)
    changes = {
        "steps": length,
        "batch_size": size.batch_size,
        "seed": seed,
        "seeds": size.seeds if name in COMPARISONS and steps is None else 1,
        "record_every": max(1, length // 100) if name == EXPLOSION else every,  # the end of AB comes soon
        "checkpoint_every": min(every, 20) if size.model == "resnet18" else every,
        "problem": spec.problem.model_copy(update=problem),
        "methods": methods,
    }
    return spec.model_copy(update=changes)


def _paper_figures(folder: Path, name: str, done: RunResult) -> list[Path]:
    accuracies = ("train_accuracy", "test_accuracy")
    figures: dict[str, Any] = {}
    if name in COMPARISONS:
        for axis, column in (("iteration", "k"), ("epoch", "epoch"), ("bytes", "bytes_sent")):
            figures[f"{name}-by-{axis}"] = plots.curves(done.results, accuracies, x=column)
    elif name == THRESHOLDS:
        figures[f"{name}-by-iteration"] = plots.curves(done.results, accuracies)
        figures[f"{name}-clipping"] = plots.curves(done.results, ("tracker_norm", "fraction_clipped"))
    elif name == EXPLOSION:
        figures[name] = plots.curves(done.results, ("batch_loss", "test_accuracy"))
    return [path for label, drawn in figures.items() for path in plots.save_figure(drawn, folder / label)]


def _caption(name: str) -> str:
    setting, _, axis = name.partition("-by-")
    return CAPTIONS[setting] + (f" Drawn over: {axis}." if axis else "")


def _judge(done: Mapping[str, RunResult], preset: str, size: _Size, seed: int) -> ClaimTable:
    compared = [result for name, result in done.items() if name in COMPARISONS]
    claims = [
        judge(result, proposed)
        for judge in (cifar_claims.claim_on_training, cifar_claims.claim_on_test_images)
        for result in compared
        for proposed in cifar_claims.PROPOSED
        if proposed in result.results
    ]
    lengths = ", ".join(f"{name.removeprefix(PREFIX)} {result.spec.steps}" for name, result in done.items())
    seeds = f"seed {seed}" if size.seeds == 1 else f"medians over the seeds from {seed} on that are done"
    choices = {
        **cifar_claims.CHOICES,
        "steps": f"{lengths}; {seeds} (preset `{preset}`); the paper does not say",
    }
    if _cut(done, size):
        choices["step sizes"] = cifar_claims.NOT_SEARCHED
    return ClaimTable(
        title=f"Section V-B on CIFAR-10 ({size.model}): which claims hold",
        claims=claims,
        verdicts=verdicts(claims),
        choices=choices,
    )


def _cut(done: Mapping[str, RunResult], size: _Size) -> list[str]:
    """Return the comparisons of which only a part was run, without a search."""
    return [name for name in COMPARISONS if name in done and done[name].spec.steps < size.steps[name]]


def _projection(done: Mapping[str, RunResult], preset: str, size: _Size) -> str:
    """Return how long the whole preset would take at the speed measured, where only a part of it was run."""
    cut = _cut(done, size)
    if not cut:
        return ""
    name, result = cut[0], done[cut[0]]
    rows = accuracy_table(result)
    hours = sum(row.cpu_seconds_per_step for row in rows) * size.steps[name] / 3600
    slowest = max(rows, key=lambda row: row.cpu_seconds_per_step)
    return (
        f"Of the {size.steps[name]} steps of preset `{preset}`, {result.spec.steps} were taken. All of them would take "
        f"{hours:.0f} hours of one core for the {len(rows)} methods (at most {slowest.cpu_seconds_per_step:.3g} s per "
        f"step, {slowest.method}), without evaluation and search.\n"
    )
