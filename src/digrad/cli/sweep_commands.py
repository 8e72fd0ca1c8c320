"""Commands that try many values: sweep, tune.

Everything heavy is imported inside a command, so that ``--help`` answers at once.
"""

import re
import sys
from pathlib import Path
from typing import Any

import click

from digrad._internal.formatting import shown
from digrad.cli import output
from digrad.cli.progress_display import row_bar
from digrad.cli.shared_options import COUNT, json_option, out_option, overwrite_option, spec_argument

_SHOWN = 10  # rows of a sweep that the terminal shows


@click.command()
@spec_argument
@out_option
@click.option("--resume", is_flag=True, help="Keep the finished rows of an earlier sweep in --out.")
@overwrite_option
@click.option("--workers", type=COUNT, default=1, help="Number of worker processes.")
@click.option(
    "--backend", metavar="NAME", help="Joblib backend to use instead of local processes, e.g. dask."
)
@click.option("--scheduler", metavar="ADDRESS", help="Address of a Dask scheduler; implies --backend dask.")
@click.option(
    "--part",
    metavar="I/N",
    callback=lambda context, option, value: value and _part(value),
    help="Run only part I of N, as in a SLURM array; --resume without --part merges the parts.",
)
@json_option
def sweep(
    spec: Path, out: Path | None, resume: bool, overwrite: bool, workers: int, backend: str | None,
    scheduler: str | None, part: tuple[int, int] | None, as_json: bool,
) -> None:  # fmt: skip
    """Run every configuration of the [sweep] table in SPEC, with one result row each.

    The results go to --out (default: runs/sweep-<name of the file>): table.parquet, figures, and rows.jsonl. Finished
    rows are saved at once, so --resume can continue after any interruption. A diverged run is a row like any other.
    With --part the results go to a folder of that part below --out.
    """
    from digrad._internal.tables import Table
    from digrad.specs import load_spec, sweep_spec
    from digrad.sweeps import Workers

    folder = out or Path("runs") / f"sweep-{spec.stem}"
    with row_bar() as progress:
        result = sweep_spec(
            load_spec(spec), folder, resume=resume, overwrite=overwrite, progress=progress,
            workers=Workers(
                workers, backend or ("dask" if scheduler else None), {"scheduler_host": scheduler} if scheduler else {},
                part,
            ),
        )  # fmt: skip
    found, folder = result.found, result.folder
    if as_json:
        output.as_json(list(Table.of(found.table)))
    elif len(found.table):
        _print_rows(found)
        for path in (folder / "table.parquet", *(path for path in result.figures if path.suffix == ".png")):
            click.echo(f"  {path}")
    if found.interrupted:
        click.echo(
            f"Interrupted; the {len(found.table)} finished rows are in {folder}. Continue with --resume.",
            err=True,
        )
        sys.exit(130)
    if part:
        click.echo(
            f"Part {part[0]} of {part[1]}; when all have ended, --resume without --part merges them.",
            err=True,
        )


def _part(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)/(\d+)", text)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise click.BadParameter(f"must be I/N with 1 <= I <= N, as 3/10, but got {text!r}.")
    return int(found[1]), int(found[2])


@click.command()
@spec_argument
@out_option
@click.option("--method", metavar="LABEL", help="Which method of SPEC to tune.  [default: the first]")
@click.option(
    "--goal",
    type=click.Choice(["largest stable step", "best final value"]),
    default="largest stable step",
    help="What to search for.",
)
@click.option("--field", default="step_size", help="The hyper-parameter to search.")
@click.option("--budget", type=COUNT, default=12, help="Largest number of values to try, 3 or more.")
@click.option("--steps", type=COUNT, help="Steps of each run.  [default: those of SPEC]")
@json_option
def tune(
    spec: Path, out: Path | None, method: str | None, goal: Any, field: str, budget: int, steps: int | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Search for the step size of a method in SPEC: the largest stable one, or the one with the lowest final loss.

    The search starts at the value in SPEC. Writes tuning.json, a table with a row per value and seed, and a figure to
    --out (default: runs/tune-<name of the file>). For methods that clip it also recommends a threshold; for CGT,
    SoftCGT and AB it also prints the largest step size that is proven to converge. Exits with 1 if no value
    tried is stable.
    """
    from digrad.specs import load_spec, tune_spec

    folder = out or Path("runs") / f"tune-{spec.stem}"
    result = tune_spec(
        load_spec(spec), folder, method=method, goal=goal, field=field, budget=budget, steps=steps,
        tell=lambda told: click.echo(
            f"{told['done']} of at most {told['budget']}, {told['steps']} steps: {field} = {told['value']:.4g}, "
            f"score {told['score']:.6g}",
            err=True,
        ),
    )  # fmt: skip
    if as_json:
        output.as_json(result.to_dict())
    else:
        _print_tuning(result)
        for path in result.files:
            click.echo(f"  {path}")
    if result.tuning.value is None:
        click.echo(
            f"digrad: no {field} tried is stable; start lower, or give more --steps or a larger --budget.",
            err=True,
        )
        sys.exit(1)


def _print_rows(found: Any) -> None:
    from digrad._internal.tables import Table
    from digrad.plots.style import AVERAGES

    metric = "held_out_loss" if "held_out_loss" in found.table else "final_loss"
    medians = found.medians(metric)
    about = [name for name in ("network", "start") if name in medians and medians[name].nunique() > 1]
    spread = [f"{metric}_low", f"{metric}_high"] if medians["seeds"].max() > 1 else []
    columns = [
        "method",
        *found.fields,
        *about,
        "verdict",
        metric,
        *spread,
        "final_grad_norm",
        "iterations_to_target",
    ]
    rows = [[shown(value) for value in row.values()] for row in Table.of(medians[columns].head(_SHOWN))]
    counts = ", ".join(
        f"{count} {verdict}" for verdict, count in found.table["verdict"].value_counts().items()
    )
    shared = "; common random numbers" if found.facts.get("common_random_numbers") else ""
    seeds = f", medians of {medians['seeds'].max()} seeds" if spread else ""
    where = f"measured at the {AVERAGES[found.average]} of the agents"
    where += ", held-out losses at the plain mean" if metric == "held_out_loss" != found.average else ""
    title = f"The best {len(rows)} of {len(medians)} configurations{seeds} ({counts}{shared}), {where}"
    output.table(columns, rows, title=title)


def _print_tuning(result: Any) -> None:
    tuning = result.tuning
    rows = [
        (
            shown(trial[tuning.field]),
            trial["steps"],
            shown(trial["score"], absent="diverged"),
            "yes" if trial["is_stable"] else "no",
        )
        for trial in tuning.to_dict()["trials"]
    ]
    title = "The larger of the losses at the plain mean of the agents and at the agent farthest from it"
    output.table((tuning.field, "steps", tuning.metric, "stable"), rows, title=title)
    if tuning.value is not None:
        edge = "" if tuning.is_bounded else " (the budget ended before a bound was met)"
        click.echo(f"methods.{result.label}: {tuning.goal}: {tuning.field} = {tuning.value:.4g}{edge}")
    if result.certified is not None:
        click.echo(
            f"proven to converge with full gradients from this start: every step_size up to {result.certified:.4g}"
        )
    if result.advice is not None:
        click.echo(f"threshold: {result.advice.reason}")
