"""The commands. Everything heavy is imported inside a command, so that ``--help`` answers at once."""

import sys
from pathlib import Path
from typing import Any, Literal, get_args

import click

from digrad.cli import show

Preset = Literal["smoke", "small", "medium", "full"]

out_option = click.option("--out", type=click.Path(path_type=Path), help="Directory of the results.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
resume_option = click.option(
    "--resume", is_flag=True, help="Go on where an earlier call with the same --out ended."
)
method_option = click.option(
    "--method", metavar="LABEL", help="Which CGT of SPEC, if it has several; the first by default."
)
overwrite_option = click.option(
    "--overwrite", is_flag=True, help="Replace the results of another experiment in --out."
)


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
@click.argument("experiment", type=click.Choice(["logistic"]))
@click.option(
    "--preset",
    type=click.Choice(get_args(Preset)),
    default="full",
    show_default=True,
    help="How much to compute.",
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
    """Reproduce an EXPERIMENT of the CGT paper and report which of its claims hold.

    logistic: Section V-A, regularised logistic regression on a9a with five agents. Writes the two figures in the
    paper's layout, and a table of claims with what was measured.
    """
    from digrad.experiments import reproduce_logistic

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
@click.argument("graph")
@click.argument("arguments", nargs=-1)
@click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of random generators."
)
@click.option(
    "--draw", type=click.Path(path_type=Path), help="Draw the digraph to this PNG, PDF or SVG file."
)
@click.option(
    "--save", type=click.Path(path_type=Path), help="Write the digraph to this .json or edge-list file."
)
@json_option
def graph(
    graph: str, arguments: tuple[str, ...], seed: int, draw: Path | None, save: Path | None, as_json: bool
) -> None:
    """Describe, check and draw the digraph GRAPH: a file, or a generator with its ARGUMENTS.

    \b
    digrad graph example5                  the five-agent graph of the demo
    digrad graph ring 8                    a directed ring of 8 agents
    digrad graph random_digraph 20 0.1     a random strongly connected digraph
    digrad graph links.txt --draw a.png    your own: one `sender receiver` pair per line, or JSON

    Some agent must reach all others. If not all of them do, the graph has row-stochastic weights R, but no
    column-stochastic weights C, and only R is described.
    """
    from digrad import graphs, plots
    from digrad.mixing import describe

    picture = plots.split_suffix(draw, "--draw", "digrad graph", default=("png",)) if draw else None
    digraph = _read_graph(graph, arguments, seed)
    if save:
        graphs.write(digraph, save)
    summary = describe(digraph)
    if picture:
        stem, formats = picture
        plots.save_figure(plots.draw_graph(digraph, u=summary.u, v=summary.v), stem, formats=formats)
    if as_json:
        show.as_json(summary.to_dict())
    else:
        click.echo(str(summary))


@click.command()
@json_option
@click.option("--bibtex", is_flag=True, help="Print the citations instead.")
@click.option(
    "--measure", is_flag=True, help="Run every method on the five-agent example and print where it ends."
)
@click.argument("names", nargs=-1)
def methods(names: tuple[str, ...], as_json: bool, bibtex: bool, measure: bool) -> None:
    """List all methods, or those NAMEd: what they need, send and converge to, and where they come from."""
    from digrad.algorithms.catalog import bibtex_of, method_facts

    if bibtex and (measure or as_json):
        other = "--measure" if measure else "--json"
        raise click.UsageError(f"--bibtex prints citations only and excludes {other}: give one of the two.")
    if measure:
        _measure_methods(names, as_json)
        return
    if bibtex:
        click.echo(bibtex_of(names))
        return
    facts = method_facts(names)
    if as_json:
        show.as_json([row.to_dict() for row in facts])
        return
    rows = [
        (
            row.name,
            " + ".join(row.needs),
            row.vectors,
            row.scalars,
            row.all_reduces,
            row.rounds,
            row.converges,
            "yes" if row.decentralized else "no",
            row.source,
        )
        for row in facts
    ]
    headers = (
        "method",
        "needs",
        "vectors/arc",
        "scalars/arc",
        "all-reduce",
        "rounds",
        "converges",
        "decentralized",
        "reference",
    )
    show.table(headers, rows)


def _measure_methods(names: tuple[str, ...], as_json: bool) -> None:
    from digrad.algorithms.catalog import method_facts
    from digrad.experiments import convergence

    chosen = {row.name for row in method_facts(names)}
    rows = [convergence.measure(*row) for row in convergence.settings() if type(row[0]).__name__ in chosen]
    if as_json:
        show.as_json([row.to_dict() for row in rows])
        return
    headers = (
        "method",
        "matrices and hyper-parameters",
        "steps",
        "mean error",
        "largest error",
        "a tenth of the step",
        "outcome",
        "decentralized",
    )
    lines = [(r.method, r.setting, r.steps, *r.errors_shown(), r.outcome) for r in rows]
    marks = ["yes" if row.decentralized else "no" for row in rows]
    show.table(headers, [(*line, mark) for line, mark in zip(lines, marks, strict=True)])


@click.group()
def data() -> None:
    """List, fetch and verify data sets."""


@data.command("list")
@json_option
def data_list(as_json: bool) -> None:
    """List the data sets that problems may name, and where they are on this machine."""
    import dataclasses

    from digrad.data import list_datasets

    rows = list_datasets()
    if as_json:
        show.as_json([dataclasses.asdict(row) for row in rows])
        return
    show.table(
        ("name", "samples", "features", "where", "description"),
        [
            (
                r.name,
                r.n_samples,
                r.dim,
                r.problem or r.location or "not here: digrad data get",
                r.description,
            )
            for r in rows
        ],
    )


@data.command("get")
@click.argument("name")
@json_option
def data_get(name: str, as_json: bool) -> None:
    """Find the data set NAME, downloading it to the cache if it is not on this machine."""
    import dataclasses

    from digrad.data import fetch
    from digrad.data.download import progress_bar

    with progress_bar(name) as progress:
        found = fetch(name, progress=progress)
    if as_json:
        show.as_json(dataclasses.asdict(found))
    elif found.source == "bundled":
        click.echo(f"{name} is bundled with {found.location}: nothing to fetch.")
    else:
        click.echo(found.location)


@data.command("verify")
@click.argument("name")
@json_option
def data_verify(name: str, as_json: bool) -> None:
    """Check that the data set NAME on this machine is the published one, by its SHA-256."""
    import dataclasses

    from digrad.data import verify

    found = verify(name)
    if as_json:
        show.as_json(dataclasses.asdict(found))
        return
    click.echo(
        f"{found.name}: {found.n_samples} samples, {found.dim} features, sha256 {found.sha256}, {found.location}"
    )


@click.command()
@click.argument("spec", type=click.Path(path_type=Path))
@out_option
@click.option("--steps", type=click.IntRange(min=1), help="Of the checked run; by default at most 1500.")
@method_option
@json_option
def certify(spec: Path, out: Path | None, steps: int | None, method: str | None, as_json: bool) -> None:
    """Certify the step size of the CGT in SPEC, and check every inequality of the theory along its run.

    Three chains of constants: paper (as printed; several are not valid), repaired, and sharp. Certified step sizes are
    far below practical ones; the last row bounds what a finished run did, at any step size. Writes certificate.json and
    a figure per inequality. Exits with 1 if an inequality that must hold is violated; a run that diverges is a result.
    """
    from digrad.experiments import certify_spec, load_spec

    folder = out or Path("runs") / f"certify-{spec.stem}"
    loaded = load_spec(spec)
    click.echo("Certifying, then checking and drawing every inequality; about half a minute ...", err=True)
    result = certify_spec(loaded, folder, steps=steps, method=method)
    if as_json:
        show.as_json(result.to_dict())
    else:
        click.echo(f"methods.{result.method}: {result.certificate.headline}")
        if result.notice:
            click.echo(result.notice)
        _print_chains(result.certificate)
        if result.check is None:
            click.echo(f"\nThe run diverged at k = {result.diverged_at}: no inequality was checked.")
        else:
            _print_rows(result.check)
        click.echo(f"  {folder}")
    if result.check is not None and result.check.verdict == "FAIL":
        sys.exit(1)


@click.command()
@click.argument("spec", type=click.Path(path_type=Path))
@out_option
@method_option
@json_option
def smoothness(spec: Path, out: Path | None, method: str | None, as_json: bool) -> None:
    """Plot Hessian norm against gradient norm along the run of the CGT in SPEC, with the fitted (L0, L1) line.

    The run uses full gradients. Estimates along a run are lower than the true constants: they certify nothing.
    """
    from digrad.experiments import load_spec, smoothness_of_spec

    folder = out or Path("runs") / f"smoothness-{spec.stem}"
    result = smoothness_of_spec(load_spec(spec), folder, method=method)
    found = result.to_dict()
    if as_json:
        show.as_json(found)
        return
    click.echo(f"methods.{result.method}: {len(result.iterations)} points of its run with full gradients")
    rows = [(row["loss"], f"{row['L0']:.4g}", f"{row['L1']:.4g}") for row in result.found.table()]
    show.table(("loss", "L0", "L1"), rows)
    click.echo(f"ell = {found['ell']:.4g}, b = {found['b']:.4g}; all estimates: {found['label']}")
    for path in result.files:
        click.echo(f"  {path}")


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--agents", type=click.IntRange(min=1), required=True, help="Processes on this machine.")
@click.option("--graph", type=click.Path(path_type=Path), help="A graph file, which ProcessNetwork() reads.")
@click.option(
    "--max-restarts", type=click.IntRange(min=0), default=3, show_default=True, help="After failures."
)
@click.option("--nodes", type=click.IntRange(min=1), default=1, show_default=True, help="Machines.")
@click.option("--endpoint", help="host:port of the first machine; required for more than one.")
@click.option("--interface", help="The network interface to use; loopback by default on one machine.")
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def launch(
    agents: int,
    graph: Path | None,
    max_restarts: int,
    nodes: int,
    endpoint: str | None,
    interface: str | None,
    script: Path,
    arguments: tuple[str, ...],
) -> None:
    """Run the training SCRIPT as one process per agent under torchrun, started again if one fails.

    Options of launch come before SCRIPT; all that follows it is the script's own. Bad settings are not tried again.
    Ctrl-C or SIGTERM ends all agents.

    \b
    digrad launch --agents 5 train.py                      five agents on this machine
    digrad launch --agents 5 train.py --epochs 3           --epochs is an option of train.py
    digrad launch --agents 5 --graph links.json train.py   train.py calls ProcessNetwork() without a graph
    digrad graph example5 --save links.json                makes such a file

    Several machines, six agents: run this on each of three machines; 10.8.0.1 is the first one.

    \b
    digrad launch --agents 2 --nodes 3 --endpoint 10.8.0.1:29400 --interface wg0 --graph links.json train.py
    """
    from digrad.torch.launch import launch as launch_agents

    if arguments[:1] == ("--",):  # as other programs want it between the script and its options
        arguments = arguments[1:]
    code = launch_agents(
        script, arguments, agents=agents, graph=graph, max_restarts=max_restarts, nodes=nodes, endpoint=endpoint,
        interface=interface,
    )  # fmt: skip
    sys.exit(code)


@click.command()
@click.argument("part", type=click.Choice(["simulation", "torch"]), default="simulation")
@click.option("--repeats", type=click.IntRange(min=1), default=7, show_default=True, help="Of each timing.")
@json_option
def bench(part: str, repeats: int, as_json: bool) -> None:
    """Measure what digrad promises about speed and memory; PART is simulation (default) or torch.

    simulation: against a well-written NumPy loop, interleaved in one process on one thread. torch: the exchange between
    five processes against raw TCP and the all_reduce of DDP.
    """
    from digrad.bench import BenchReport, run_bench

    if part == "torch":
        from digrad.bench.torch_exchange import run_torch_bench

        report = BenchReport(tuple(run_torch_bench(repeats=repeats)), {"repeats": repeats})
    else:
        report = run_bench(repeats=repeats, progress=lambda text: click.echo(text, err=True))
    if as_json:
        show.as_json(report.to_dict())
    else:
        click.echo(str(report))


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
def report(directory: Path) -> None:
    """Write the report of a finished run in DIRECTORY anew: one HTML file without external parts."""
    click.echo(_write_report(directory))


def _print_chains(certificate: Any) -> None:
    """Print a line per chain: its largest certified step, what it promises there, why the step of SPEC is refused."""
    if not certificate.chains:
        for reason in certificate.reasons:
            click.echo(f"  {reason}")
        return
    counts = ("G", "K(0.1)", "K(0.01)", "K(0.001)")
    rows = [
        (
            row["chain"],
            "none" if row["alpha_max"] is None else f"{row['alpha_max']:.3g}",
            *("" if row[name] is None else f"{row[name]:.3g}" for name in counts),
            certificate.chains[row["chain"]].why_not_briefly,
        )
        for row in certificate.table()
    ]
    title = "\nThe largest certified step of each chain; G and K(eps) are those there"
    show.table(("chain", "alpha_max", *counts, "why not this alpha"), rows, title=title)


def _print_rows(check: Any) -> None:
    """Print a line per inequality, and what is proven of the finished run."""
    rows = [
        (
            row["status"] if row["status"] != "FAIL" else f"FAIL ({row['violations']})",
            row["chain"],
            row["row"],
            "" if row["status"] == "INAPPLICABLE" else f"{row['max_ratio']:.3g}",
            row["needs"],
        )
        for row in check.table()
    ]
    title = f"\n{check.verdict}: {check.steps} steps checked; INAPPLICABLE: what it needs is not given"
    show.table(("status", "chain", "inequality", "lhs/rhs", "needs"), rows, title=title)
    click.echo(_a_posteriori_line(check.posterior))


def _a_posteriori_line(row: Any) -> str:
    if row.status == "INAPPLICABLE":
        return f"A posteriori nothing is proven of this run: it needs {row.terms.needs}."
    measured, bound = float(row.lhs[-1]), float(row.rhs[-1])
    times = f", {bound / measured:.2f} times as much" if measured > 0 else ""
    return f"A posteriori: the sum of abar_k ||grad F||^2 is {measured:.4g}, its proven bound {bound:.4g}{times}."


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


def _read_graph(name: str, arguments: tuple[str, ...], seed: int) -> Any:
    from digrad.checks import did_you_mean
    from digrad.graphs import GENERATORS, read
    from digrad.graphs.words import from_words

    if name in GENERATORS:
        return from_words(name, arguments, seed=seed)
    if not Path(name).exists():
        listed = ", ".join(GENERATORS)
        raise click.UsageError(
            f"`{name}` is neither a file nor a generator ({listed}).{did_you_mean(name, GENERATORS)}"
        )
    if arguments:
        raise click.UsageError(f"A graph file takes no further arguments, but got {' '.join(arguments)}.")
    return read(name)


COMMANDS = (demo, run, reproduce, certify, smoothness, launch, graph, methods, data, bench, report)
