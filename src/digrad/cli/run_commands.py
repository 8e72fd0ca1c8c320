"""Commands that run experiments: demo, run, reproduce, report.

Everything heavy is imported inside a command, so that ``--help`` answers at once.
"""

import sys
from pathlib import Path
from typing import Any, Literal, get_args

import click

from digrad._internal.formatting import shown
from digrad.cli import output, progress_display
from digrad.cli.shared_options import (
    COUNT,
    FILE,
    INDEX,
    json_option,
    out_option,
    overwrite_option,
    resume_option,
)

Preset = Literal["smoke", "small", "medium", "full"]


@click.command()
@out_option
@json_option
@overwrite_option
def demo(out: Path | None, as_json: bool, overwrite: bool) -> None:
    """Show that CGT converges where plain gradient tracking explodes.

    Five agents with one-way links learn to tell handwritten digits below five from the others (real data that
    ships with scikit-learn), each seeing only some of the digits. This needs no internet and takes a minute or so.
    """
    from digrad.specs import preset
    from digrad.specs.run_directory import is_run_of

    spec, folder = preset("demo"), out or Path("runs/demo")
    is_again = out is None and is_run_of(folder, spec)  # gives the same numbers
    _run(spec, folder, resume=False, overwrite=overwrite or is_again, style=_style(json=as_json))


@click.command()
@click.argument("spec", type=FILE, required=False)
@out_option
@resume_option
@overwrite_option
@json_option
@click.option("--watch", is_flag=True, help="Show loss, gradient norm, verdicts and time left while it runs.")
@click.option("--quiet", is_flag=True, help="Print nothing but errors.")
@click.option("--jsonl", is_flag=True, help="Print one line of JSON per event, as it happens.")
@click.option("--example", is_flag=True, help="Print a specification to start from, and exit.")
def run(
    spec: Path | None,
    out: Path | None,
    resume: bool,
    overwrite: bool,
    as_json: bool,
    watch: bool,
    quiet: bool,
    jsonl: bool,
    example: bool,
) -> None:
    """Run the experiment described by SPEC, a TOML file.

    The results go to --out (default: runs/<name of the file>): the specification, a summary, a trace per method,
    figures and a report. After Ctrl-C, --resume continues the run with the same numbers to the last bit.
    """
    from digrad.specs import load_spec, preset

    if example:
        click.echo(preset("demo").to_toml(), nl=False)
        return
    if spec is None:
        raise click.UsageError(
            "Missing argument 'SPEC', a TOML file; `digrad run --example` prints one to start from."
        )
    style = _style(json=as_json, watch=watch, quiet=quiet, jsonl=jsonl)
    _run(load_spec(spec), out or Path("runs") / spec.stem, resume=resume, overwrite=overwrite, style=style)


@click.command()
@click.argument("experiment", type=click.Choice(["logistic", "cifar", "links"]))
@click.option(
    "--preset",
    type=click.Choice(get_args(Preset)),
    help="Size of the experiment; see above.  [default: full for logistic, small for cifar]",
)
@click.option("--seed", type=INDEX, default=0, help="Random seed for starts and samples.")
@click.option(
    "--jobs", "workers", type=COUNT, help="cifar: number of parallel processes.  [default: one per core]"
)
@click.option("--seeds", type=COUNT, help="cifar: run only the first N seeds; --resume adds the others.")
@click.option(
    "--steps", type=COUNT, help="cifar: run only N steps, without a search, to see how long a full run takes."
)
@click.option(
    "--setting",
    "settings",
    multiple=True,
    help="cifar: run only this setting, e.g. iid (repeatable); --resume adds the others.",
)
@out_option
@resume_option
@overwrite_option
@json_option
def reproduce(
    experiment: str,
    preset: Preset | None,
    seed: int,
    out: Path | None,
    resume: bool,
    overwrite: bool,
    as_json: bool,
    **only_cifar: Any,
) -> None:
    """Reproduce an EXPERIMENT of the CGT paper and report which of its claims hold.

    The figures have the paper's layout, and a table lists each claim with what was measured.

    \b
    logistic  Section V-A: logistic regression on a9a with five agents (`digrad data get a9a`)
      smoke   a minute: shows that everything works
      full    the paper's experiment, about ten minutes; small and medium take fewer steps
    cifar     Section V-B: CGT against six methods on CIFAR-10 (`digrad data get cifar10`)
      smoke   2000 images, a minute or two: shows that everything works
      small   a small CNN on all images, 4 hours per seed; settings: explosion, thresholds, iid, dirichlet,
              sorted, row (baselines that mix with R)
      medium  ResNet-20, hours
      full    the paper's ResNet-18, for a machine with a GPU
    links     not in the paper: CGT with 30 % of all packets lost, under exact and naive policies; a minute
    """
    from digrad.paper import reproduce_cifar, reproduce_links, reproduce_logistic
    from digrad.paper.link_bias import is_reproduction_of

    given = {name: value for name, value in only_cifar.items() if value}
    if experiment != "cifar" and given:
        flag = {"workers": "jobs", "settings": "setting"}.get(name := next(iter(given)), name)
        raise click.UsageError(f"--{flag} is for cifar, but the experiment is {experiment}; leave it out.")
    if experiment == "links":
        if preset or resume:
            flag = "preset" if preset else "resume"
            raise click.UsageError(f"--{flag} is for logistic and cifar: links takes a minute; leave it out.")
        folder = out or Path("runs/reproduce-links")
        is_again = out is None and is_reproduction_of(folder, seed)  # gives the same numbers
        _show_links(reproduce_links(folder, seed=seed, overwrite=overwrite or is_again), as_json)
        return
    chosen: Preset = preset or ("full" if experiment == "logistic" else "small")
    folder = out or Path("runs") / f"reproduce-{experiment}-{chosen}"
    with progress_display.ProgressBar() as bar:
        common: dict[str, Any] = {
            "preset": chosen, "seed": seed, "progress": bar, "resume": resume, "overwrite": overwrite,
            "report": _write_report,
        }  # fmt: skip
        if experiment == "logistic":
            result = reproduce_logistic(folder, **common)
        else:
            result = reproduce_cifar(folder, **common, **given)
    if result.interrupted:
        click.echo(f"Interrupted; the results so far are in {folder}. Continue with --resume.", err=True)
        sys.exit(130)
    assert result.table is not None
    if as_json:
        output.as_json(result.table)
    else:
        _show_claims(result, experiment)
    if result.failures:
        sys.exit(1)


def _show_claims(result: Any, experiment: str) -> None:
    from digrad.paper.claims import UNDECIDED

    rows = [tuple(row.values()) for row in result.table.table()]
    output.table(("claim", "setting", "measured", "holds?"), rows)
    output.table(
        ("claim", "holds?"), [(f"({row.number}) {row.claim}", row.holds) for row in result.table.verdicts]
    )
    for setting, failures in result.failures.items():
        for name, reason in failures.items():
            click.echo(f"{setting}, {name} failed: {reason}", err=True)
    written = [result.directory / name for name in ("table.md", "claims.md", "report.html")]
    for path in (*result.figures, *(path for path in written if path.is_file())):
        click.echo(f"  {path}")
    if any(row.holds == UNDECIDED for row in result.table.claims):
        click.echo(
            f"Some claims are undecided, because the runs are short; run `digrad reproduce {experiment}` without "
            f"--preset, or read the stored verdicts in docs/results/{experiment}."
        )


@click.command()
@click.argument("directories", metavar="DIR...", nargs=-1, required=True, type=FILE)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write.  [default: report.html in DIR, or here for several]",
)
def report(directories: tuple[Path, ...], out: Path | None) -> None:
    """Write an interactive report of finished runs as one self-contained HTML file.

    DIR is a folder that run, demo, sweep, reproduce or certify wrote, or a folder of such folders. Several are compared
    on one page.
    """
    from digrad.report import write_report

    click.echo(write_report(*directories, out=out))


def _show_links(found: Any, as_json: bool) -> None:
    if as_json:
        output.as_json(found.rows)
        return
    rows = [(row.problem, row.policy, shown(row.error, 2, absent="inf"), row.verdict) for row in found.rows]
    output.table(("problem", "lost packets", "error of the worst agent", "verdict"), rows)
    for path in (*found.figures, found.directory / "links.md"):
        click.echo(f"  {path}")


def _style(**chosen: bool) -> str:
    """Return how a run shows itself: at most one way can be chosen."""
    given = [name for name, is_chosen in chosen.items() if is_chosen]
    if len(given) > 1:
        raise click.UsageError(f"--{given[0]} and --{given[1]} exclude each other; give one of the two.")
    return given[0] if given else "bar"


def _run(spec: Any, out: Path, *, resume: bool, overwrite: bool, style: str) -> None:
    from digrad.core.method_facts import marked
    from digrad.plots import measured_at
    from digrad.specs import run as run_experiment

    ways = {"quiet": progress_display.Observer, "jsonl": progress_display.JsonLines}
    with ways[style]() if style in ways else progress_display.ProgressBar(watch=style == "watch") as progress:
        result = run_experiment(
            spec, out, resume=resume, overwrite=overwrite, progress=progress, report=_write_report
        )
    summary = {name: trace.summary() for name, trace in result.results.items()}
    if style == "json":
        output.as_json(summary)
    elif style == "jsonl":
        progress_display.write_line(
            {"event": "done", "directory": str(out), "interrupted": result.interrupted}
        )
    elif style != "quiet":
        average = measured_at(result.results.values())
        labels = {name: marked(name, spec.methods[name].build()) for name in summary}
        output.verdict_table({labels[name]: entry for name, entry in summary.items()}, average)
        for path in result.figures:
            if path.suffix == ".png":
                click.echo(f"  {path}")
        click.echo(f"  {out / 'report.html'}")
    for name, reason in result.failures.items():
        click.echo(f"{name} failed: {reason}", err=True)
    if result.interrupted:
        click.echo(f"Interrupted; the results so far are in {out}. Continue with --resume.", err=True)
        sys.exit(130)
    if result.failures:
        sys.exit(1)


def _write_report(directory: Path) -> Path:
    from digrad.report import write_report

    return write_report(directory)
