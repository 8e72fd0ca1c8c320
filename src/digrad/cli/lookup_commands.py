"""Commands that look something up: graph, methods, data.

Everything heavy is imported inside a command, so that ``--help`` answers at once.
"""

from pathlib import Path
from typing import Any

import click

from digrad.cli import output
from digrad.cli.shared_options import FILE, INDEX, json_option

_MANY_EDGES = 2_000_000  # from here on a description takes long enough for a word


@click.command(context_settings={"ignore_unknown_options": True})  # or -3 would be an option
@click.argument("graph")
@click.argument("arguments", nargs=-1)
@click.option("--seed", type=INDEX, default=0, help="Random seed for random graphs.")
@click.option("--draw", type=FILE, help="Draw the digraph to this PNG, PDF or SVG file.")
@click.option("--save", type=FILE, help="Write the digraph to this .json or edge-list file.")
@json_option
def graph(
    graph: str, arguments: tuple[str, ...], seed: int, draw: Path | None, save: Path | None, as_json: bool
) -> None:
    """Describe, check and draw a digraph: GRAPH is a file, or a generator with its ARGUMENTS.

    \b
    digrad graph example5                  the five-agent graph of the demo
    digrad graph ring 8                    a directed ring of 8 agents
    digrad graph random_digraph 20 0.1     a random strongly connected digraph
    digrad graph one_peer_exponential 8    a graph that changes with time: the union of its edges
    digrad graph links.txt --draw a.png    your own graph: one `sender receiver` pair per line, or JSON

    At least one agent must reach all others, so that row-stochastic weights R exist. Column-stochastic weights C
    are described too if at least one agent is reached by all others.
    """
    from digrad import graphs, plots
    from digrad.network import Network

    picture = plots.split_suffix(draw, "--draw", "digrad graph", default=("png",)) if draw else None
    digraph = _read_graph(graph, arguments, seed)
    edges = Network(digraph, partial=True).union.n_edges
    if edges > _MANY_EDGES:
        click.echo(f"describing {edges} edges, about a second per million ...", err=True)
    if save:
        graphs.write(digraph, save)
    network = Network(digraph)
    summary = network.describe()
    if picture:
        stem, formats = picture
        u, v = (None, None) if summary.changes else (summary.u, summary.v)
        plots.save_figure(plots.draw_graph(network.union, u=u, v=v), stem, formats=formats)
    if as_json:
        output.as_json(summary.to_dict())
    else:
        click.echo(str(summary))


@click.command()
@json_option
@click.option("--bibtex", is_flag=True, help="Print citations instead.")
@click.option(
    "--measure", is_flag=True, help="Run every method on the five-agent example and print where it ends."
)
@click.argument("names", nargs=-1)
def methods(names: tuple[str, ...], as_json: bool, bibtex: bool, measure: bool) -> None:
    """List methods: the matrices they need, what they send, where they converge, and their source.

    NAMES selects some of them.
    """
    from digrad.core.method_facts import bibtex_of, method_facts

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
        output.as_json(facts)
        return
    counts = ("vectors/edge", "scalars/edge", "all-reduce", "rounds")
    headers = ("method", "needs", *counts, "converges", "decentralized", "reference")
    output.table(headers, [row.cells() for row in facts])


def _measure_methods(names: tuple[str, ...], as_json: bool) -> None:
    from digrad.core.method_facts import method_facts
    from digrad.testing import convergence

    chosen = {row.name for row in method_facts(names)}
    rows = [convergence.measure(*row) for row in convergence.settings() if type(row[0]).__name__ in chosen]
    if as_json:
        output.as_json(rows)
        return
    errors = ("mean error", "largest error", "a tenth of the step")
    headers = ("method", "matrices and hyper-parameters", "steps", *errors, "outcome", "decentralized")
    output.table(headers, [row.cells() for row in rows])


@click.group()
def data() -> None:
    """List, download and verify data sets."""


@data.command("list")
@json_option
def data_list(as_json: bool) -> None:
    """List the data sets that problems may name, and where they are on this machine."""
    from digrad.data import list_datasets

    found = list_datasets()
    if as_json:
        output.as_json(found)
        return
    places = [row.problem or row.location or "not here: digrad data get" for row in found]
    rows = [
        (row.name, row.n_samples, row.dim, place, row.description)
        for row, place in zip(found, places, strict=True)
    ]
    output.table(("name", "samples", "features", "where", "description"), rows)


@data.command("get")
@click.argument("name")
@json_option
def data_get(name: str, as_json: bool) -> None:
    """Find the data set NAME, and download it to the cache if it is not on this machine."""
    from digrad.data import fetch
    from digrad.data.download import progress_bar

    with progress_bar(name) as progress:
        found = fetch(name, progress=progress)
    if as_json:
        output.as_json(found)
    elif found.source == "bundled":
        click.echo(f"{name} is bundled with {found.location}: nothing to fetch.")
    else:
        click.echo(found.location)


@data.command("verify")
@click.argument("name")
@json_option
def data_verify(name: str, as_json: bool) -> None:
    """Check that the data set NAME on this machine is the published one, by its SHA-256."""
    from digrad.data import verify

    found = verify(name)
    if as_json:
        output.as_json(found)
        return
    click.echo(
        f"{found.name}: {found.n_samples} samples, {found.dim} features, sha256 {found.sha256}, {found.location}"
    )


def _read_graph(name: str, arguments: tuple[str, ...], seed: int) -> Any:
    from digrad.checks import did_you_mean
    from digrad.graphs import read
    from digrad.graphs.parse import NAMED, from_words

    for word in arguments:
        if word.startswith("-") and not word[1:2].isdigit():
            raise click.NoSuchOption(word)
    if name in NAMED:
        return from_words(name, arguments, seed=seed)
    if not Path(name).exists():
        listed = ", ".join(NAMED)
        raise click.UsageError(
            f"`{name}` is neither a file nor a generator ({listed}).{did_you_mean(name, NAMED)}"
        )
    if arguments:
        raise click.UsageError(f"A graph file takes no further arguments, but got {' '.join(arguments)}.")
    return read(name)
