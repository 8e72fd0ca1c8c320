"""Section V-A of the paper from end to end: run every setting, draw its figures, judge its claims."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from digrad import checks, plots
from digrad.paper import logistic_claims
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
from digrad.specs.runner import Observer, RunResult, run
from digrad.specs.spec import Spec
from digrad.trace import Trace
from digrad.trace.ensemble import members

STARTS = ("logistic-explosion", "logistic-zero-start", "logistic-small-start")
SAMPLED = ("logistic-sorted", "logistic-iid")
FULL_BATCH = "logistic-fullbatch"
SETTINGS = (*STARTS, *SAMPLED, FULL_BATCH)
CAPTIONS = {
    "gradient_tracking_explodes": "Plain gradient tracking against CGT from one start (the paper's Fig. 2).",
    "cgt_against_clipped_dgd": "CGT against DGD with clipped gradients, DGDClip (the paper's Fig. 3).",
    "bias_without_sampling_noise": "The same with all samples in every step, so without sampling noise.",
}


@dataclass(frozen=True)
class _Size:
    start_steps: int
    steps: int
    seeds: int
    full_batch_steps: int
    record_every: int


@dataclass(frozen=True)
class _InSetting:
    """Observer that adds the setting to the names of the methods that another observer shows."""

    observer: Observer
    setting: str

    def on_method_start(self, name: str, steps: int) -> None:
        self.observer.on_method_start(f"{self.setting}, {name}", steps)

    def on_progress(self, progress: Any) -> None:
        self.observer.on_progress(progress)

    def on_method_end(self, trace: Trace) -> None:
        self.observer.on_method_end(trace)


# The claim about the bias needs 5000 iterations with all samples: smoke shows that everything runs, no more.
SIZES: dict[str, _Size] = {
    "smoke": _Size(start_steps=20, steps=620, seeds=1, full_batch_steps=40, record_every=20),
    "small": _Size(start_steps=200, steps=2000, seeds=1, full_batch_steps=5000, record_every=20),
    "medium": _Size(start_steps=300, steps=5000, seeds=3, full_batch_steps=5000, record_every=10),
    "full": _Size(start_steps=300, steps=10000, seeds=5, full_batch_steps=10000, record_every=10),
}


def reproduce_logistic(
    out: str | os.PathLike[str],
    *,
    preset: Scale = "full",
    seed: int = 0,
    progress: Observer | None = None,
    resume: bool = False,
    overwrite: bool = False,
    report: Report | None = None,
) -> Reproduction:
    """Reproduce Section V-A of the paper: logistic regression on a9a.

    Below ``out`` there is then one run directory per setting, the two figures in ``figures/``, and the claims in
    ``claims.json`` and ``claims.md``.

    Args:
        out: The folder: new, empty, or of an earlier reproduction.
        preset: How many iterations and seeds: ``smoke``, ``small``, ``medium`` or ``full``.
        seed: The first seed.
        progress: Observer of the runs.
        resume: Keep what is done; without it, or the next, an earlier reproduction is refused.
        overwrite: Delete an earlier reproduction, also of another size or seed.
        report: Called with each run directory, and at last with ``out``, e.g. :func:`digrad.report.write_report`.

    Raises:
        ArgumentError: ``out`` cannot be used, or there is no such preset.
        DataError: a9a is not on this machine and cannot be fetched.
    """
    checks.choice(preset, "preset", "reproduce_logistic", SIZES)
    folder = Path(out)
    identity = {"experiment": "logistic", "preset": preset, "seed": seed}
    done: dict[str, RunResult] = {}
    with open_reproduction(folder, identity, SETTINGS, resume=resume, overwrite=overwrite):
        for number, name in enumerate(SETTINGS, start=1):
            spec = _sized(load_preset(name), name, SIZES[preset], seed)
            done[name] = run(
                spec,
                folder / name,
                resume=resume,
                overwrite=overwrite,
                progress=progress and _InSetting(progress, f"{name} ({number} of {len(SETTINGS)})"),
                report=report,
                built=_reuse(spec, done),
                formats=("png",),  # a PDF takes a second; the figures of the paper below have one
            )
            if done[name].interrupted:
                return Reproduction(folder, None, (), directories(done), interrupted=True)
        figures = _paper_figures(folder / "figures", done)
        table = write_claims(folder, _judge(done, preset, SIZES[preset], seed), report)
    return Reproduction(folder, table, tuple(figures), directories(done), interrupted=False)


def _sized(spec: Spec, name: str, size: _Size, seed: int) -> Spec:
    changes: dict[str, Any] = {"seed": seed}
    if name in STARTS:
        changes |= {"steps": size.start_steps}
    elif name in SAMPLED:
        changes |= {"steps": size.steps, "seeds": size.seeds, "record_every": size.record_every}
    else:
        changes |= {"steps": size.full_batch_steps, "record_every": size.record_every}
    return spec.model_copy(update=changes)


def _reuse(spec: Spec, done: Mapping[str, RunResult]) -> Any:
    """Build on the problem of an earlier setting where it is the same: less memory, and nothing compiles again."""
    for earlier in done.values():
        if earlier.spec.problem == spec.problem and earlier.spec.graph == spec.graph:
            return spec.build_on(earlier.problem, earlier.network)
    return None


def _paper_figures(folder: Path, done: Mapping[str, RunResult]) -> list[Path]:
    start, sampled = done["logistic-explosion"].results, done["logistic-sorted"].results
    figures = (
        plots.twin_explosion(members(start["AB"])[0], members(start["CGT"])[0]),
        plots.side_by_side(sampled["CGT"], sampled["DGDClip (R)"]),
        plots.curves(done[FULL_BATCH].results),
    )
    drawn = zip(CAPTIONS, figures, strict=True)
    return [path for name, figure in drawn for path in plots.save_figure(figure, folder / name)]


def _judge(done: Mapping[str, RunResult], preset: str, size: _Size, seed: int) -> ClaimTable:
    variants = logistic_claims.VARIANTS
    claims = [
        *(logistic_claims.explosion_claim(done[name]) for name in STARTS),
        *(
            logistic_claims.bias_claim(done[name], label)
            for name in (*SAMPLED, FULL_BATCH)
            for label in variants
        ),
        *(logistic_claims.oscillation_claim(done[name], label) for name in SAMPLED for label in variants),
    ]
    seeds = f"seed {seed}" if size.seeds == 1 else f"medians of the seeds {seed} to {seed + size.seeds - 1}"
    iterations = (
        f"{size.start_steps} for claim 1, {size.steps} with mini-batches ({seeds}), {size.full_batch_steps} "
        f"with all samples (preset `{preset}`); the paper does not say"
    )
    return ClaimTable(
        title="Section V-A on a9a: which claims hold",
        claims=claims,
        verdicts=verdicts(claims),
        choices={**logistic_claims.CHOICES, "iterations": iterations},
        figures=CAPTIONS,
    )
