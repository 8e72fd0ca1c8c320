"""Commands about machines: launch, bench.

Everything heavy is imported inside a command, so that ``--help`` answers at once.
"""

import sys
from pathlib import Path

import click

from digrad.cli import show
from digrad.cli.options import json_option


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--agents", type=click.IntRange(min=1), help="Processes on this machine.  [required]")
@click.option("--graph", type=click.Path(path_type=Path), help="A graph file, which ProcessNetwork() reads.")
@click.option(
    "--max-restarts", type=click.IntRange(min=0), default=3, show_default=True, help="After failures."
)
@click.option("--nodes", type=click.IntRange(min=1), default=1, show_default=True, help="Machines.")
@click.option("--endpoint", help="host:port of the first machine; required for more than one.")
@click.option("--interface", help="The network interface to use; loopback by default on one machine.")
@click.option(
    "--insecure",
    is_flag=True,
    help="Only trusted machines reach the endpoint; needed with --nodes beyond loopback.",
)
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def launch(
    context: click.Context,
    agents: int | None,
    graph: Path | None,
    max_restarts: int,
    nodes: int,
    endpoint: str | None,
    interface: str | None,
    insecure: bool,
    script: Path,
    arguments: tuple[str, ...],
) -> None:
    """Run the training SCRIPT as one process per agent under torchrun, started again if one fails.

    Options of launch come before SCRIPT; all that follows it is the script's own. Each line of an agent begins with its
    number. Bad settings are not tried again, nor an error that happens twice at the same step. Ctrl-C or SIGTERM ends
    all agents.

    \b
    digrad launch --agents 5 train.py                      five agents on this machine
    digrad launch --agents 5 train.py --epochs 3           --epochs is an option of train.py
    digrad launch --agents 5 --graph links.json train.py   train.py calls ProcessNetwork() without a graph
    digrad graph example5 --save links.json                makes such a file

    Several machines, six agents: run this on each of three machines; 10.8.0.1 is the first one.

    \b
    digrad launch --agents 2 --nodes 3 --endpoint 10.8.0.1:29400 --interface wg0 --insecure \\
        --graph links.json train.py

    There torchrun unpickles what it finds at the endpoint, and asks for no password: whoever reaches that port can run
    programs as you on all machines. --insecure says that only machines you trust do, as inside WireGuard or behind a
    firewall. On one machine nothing listens beyond loopback.
    """
    from digrad.torch.launch import launch as launch_agents

    if agents is None:
        hint = "; options of launch come before the script" if _has_option(arguments, "--agents") else ""
        raise click.UsageError(f"Missing option '--agents'{hint}.", context)
    if arguments[:1] == ("--",):  # as other programs want it between the script and its options
        arguments = arguments[1:]
    code = launch_agents(
        script, arguments, agents=agents, graph=graph, max_restarts=max_restarts, nodes=nodes, endpoint=endpoint,
        interface=interface, insecure=insecure,
    )  # fmt: skip
    sys.exit(code)


def _has_option(words: tuple[str, ...], name: str) -> bool:
    return any(word == name or word.startswith(f"{name}=") for word in words)


@click.command()
@click.argument("part", type=click.Choice(["simulation", "sweeps", "torch"]), default="simulation")
@click.option("--repeats", type=click.IntRange(min=1), default=7, show_default=True, help="Of each timing.")
@json_option
def bench(part: str, repeats: int, as_json: bool) -> None:
    """Measure what digrad promises about speed and memory; PART is simulation (default), sweeps or torch.

    simulation: against a well-written NumPy loop, interleaved in one process on one thread. sweeps: many
    configurations together against one after another, and on two workers against one. torch: the exchange between
    five processes against raw TCP and the all_reduce of DDP, and five replicas against plain PyTorch.
    """
    from digrad.bench import BenchReport, run_bench

    if part == "torch":
        from digrad.bench.torch_exchange import run_torch_bench
        from digrad.bench.torch_replicas import replicas_row

        rows = (*run_torch_bench(repeats=repeats), replicas_row(repeats=repeats))
        report = BenchReport(rows, {"repeats": repeats})
    elif part == "sweeps":
        from digrad.bench.sweeps import run_sweep_bench

        report = run_sweep_bench(repeats=repeats, progress=lambda text: click.echo(text, err=True))
    else:
        report = run_bench(repeats=repeats, progress=lambda text: click.echo(text, err=True))
    if as_json:
        show.as_json(report.to_dict())
    else:
        click.echo(str(report))
