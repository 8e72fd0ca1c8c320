"""Commands that run experiments: demo, run, reproduce, report.

Everything heavy is imported inside a command, so that ``--help`` answers at once.
"""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, get_args

import click

from digrad.cli import show
from digrad.cli.options import json_option, out_option, overwrite_option, resume_option

Preset = Literal["smoke", "small", "medium", "full"]


@click.command()
@out_option
@json_option
@overwrite_option
def demo(out: Path | None, as_json: bool, overwrite: bool) -> None:
    """See CGT converge where plain gradient tracking explodes.

    Five agents with one-way links learn to tell handwritten digits below five from the others (real data that
    ships with scikit-learn), each seeing only some of the digits. Needs no network and less than a minute.
    """
    from digrad.experiments import preset

    _run(
        preset("demo"),
        out or Path("runs/demo"),
        resume=False,
        overwrite=True if out is None else overwrite,
        as_json=as_json,
    )


@click.command()
@click.argument("spec", type=click.Path(path_type=Path), required=False)
@out_option
@resume_option
@overwrite_option
@json_option
@click.option("--example", is_flag=True, help="Print a specification to start from, and end.")
def run(
    spec: Path | None, out: Path | None, resume: bool, overwrite: bool, as_json: bool, example: bool
) -> None:
    """Run the experiment that SPEC, a TOML file, describes.

    The results go to --out (default: runs/<name of the file>): the specification, a summary, a trace per method,
    figures and a report. Ctrl-C keeps what was computed; --resume goes on from there, with the same numbers to the
    last bit.
    """
    from digrad.experiments import load_spec, preset

    if example:
        click.echo(preset("demo").to_toml(), nl=False)
        return
    if spec is None:
        raise click.UsageError(
            "Missing argument 'SPEC', a TOML file; `digrad run --example` prints one to start from."
        )
    _run(
        load_spec(spec), out or Path("runs") / spec.stem, resume=resume, overwrite=overwrite, as_json=as_json
    )


@click.command()
@click.argument("experiment", type=click.Choice(["logistic", "links"]))
@click.option(
    "--preset",
    type=click.Choice(get_args(Preset)),
    default="full",
    show_default=True,
    help="How much to compute: on two busy cores smoke takes 1 minute, small 4, full 9, medium less than full.",
)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of starts and samples."
)
@out_option
@resume_option
@overwrite_option
@json_option
def reproduce(
    experiment: str, preset: Preset, seed: int, out: Path | None, resume: bool, overwrite: bool, as_json: bool
) -> None:
    """Reproduce an EXPERIMENT of the CGT paper and report which of its claims hold, or show what lost packets do.

    links: CGT with 30 % of all packets lost, exactly and in four naive ways, on the five-agent example and on digits;
    two figures and a table, in a minute.

    logistic: Section V-A, regularised logistic regression on a9a with five agents. Writes the two figures in the
    paper's layout, and a table of claims with what was measured.
    """
    from digrad.experiments import reproduce_links, reproduce_logistic

    if experiment == "links":
        folder = out or Path("runs/reproduce-links")
        _show_links(reproduce_links(folder, seed=seed, overwrite=overwrite or out is None), as_json)
        return
    folder = out or Path("runs") / f"reproduce-{experiment}-{preset}"
    with show.ProgressBar() as bar:
        result = reproduce_logistic(
            folder,
            preset=preset,
            seed=seed,
            progress=bar,
            resume=resume,
            overwrite=overwrite,
            report=_write_report,
        )
    if result.interrupted:
        click.echo(f"Interrupted; what was computed is in {folder}. Go on with --resume.", err=True)
        sys.exit(130)
    assert result.table is not None
    if as_json:
        show.as_json(result.table.to_dict())
        return
    rows = [
        (f"({row.number}) {row.claim}", row.setting, row.measured, row.holds) for row in result.table.claims
    ]
    show.table(("claim", "setting", "measured", "holds?"), rows)
    show.table(
        ("claim", "holds?"), [(f"({row.number}) {row.claim}", row.holds) for row in result.table.verdicts]
    )
    for path in (*result.figures, folder / "claims.md", folder / "report.html"):
        click.echo(f"  {path}")


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
def report(directory: Path) -> None:
    """Write the report of a finished run in DIRECTORY anew: one HTML file without external parts."""
    click.echo(_write_report(directory))


def _show_links(found: Any, as_json: bool) -> None:
    if as_json:
        show.as_json([asdict(row) for row in found.rows])
        return
    rows = [
        (row.problem, row.policy, "not finite" if row.error is None else f"{row.error:.2g}", row.verdict)
        for row in found.rows
    ]
    show.table(("problem", "lost packets", "error of the worst agent", "verdict"), rows)
    for path in (*found.figures, found.directory / "links.md"):
        click.echo(f"  {path}")


def _run(spec: Any, out: Path, *, resume: bool, overwrite: bool, as_json: bool) -> None:
    from digrad.experiments import run as run_experiment

    with show.ProgressBar() as bar:
        result = run_experiment(
            spec, out, resume=resume, overwrite=overwrite, progress=bar, report=_write_report
        )
    summary = {name: trace.summary() for name, trace in result.results.items()}
    if as_json:
        show.as_json(summary)
    else:
        show.verdict_table({spec.label_of(name): entry for name, entry in summary.items()})
        for path in result.figures:
            if path.suffix == ".png":
                click.echo(f"  {path}")
        click.echo(f"  {out / 'report.html'}")
    if result.interrupted:
        click.echo(f"Interrupted; what was computed is in {out}. Go on with --resume.", err=True)
        sys.exit(130)


def _write_report(directory: Path) -> Path:
    from digrad.report import write_report

    return write_report(directory)
