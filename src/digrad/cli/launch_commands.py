"""Commands about machines: launch and keygen.

Everything heavy is imported inside a command, so that ``--help`` answers at once.
"""

import json
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import click

from digrad.cli import output
from digrad.cli.shared_options import json_option


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
    "--node-rank", type=click.IntRange(min=0), help="Number of this machine; a free one by default."
)
@click.option(
    "--rejoin-timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    help="Seconds to wait for machines that have not come, or have gone.",
)
@click.option(
    "--key-file", type=click.Path(path_type=Path), help="A secret of `digrad keygen` that all machines have."
)
@click.option(
    "--insecure", is_flag=True, help="Several machines without a key: strangers may read, disturb or join."
)
@click.option(
    "--check", is_flag=True, help="Instead of a script, try every edge: latency, bandwidth, versions, clocks."
)
@click.option(
    "--metrics",
    type=click.Path(path_type=Path),
    help="A folder for a JSON line of every agent and step, and for TensorBoard's files.",
)
@json_option
@click.argument("script", type=click.Path(path_type=Path), required=False)
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
    node_rank: int | None,
    rejoin_timeout: float,
    key_file: Path | None,
    insecure: bool,
    check: bool,
    metrics: Path | None,
    as_json: bool,
    script: Path | None,
    arguments: tuple[str, ...],
) -> None:
    """Run the training SCRIPT as one process per agent, all started again if one fails.

    Options of launch come before SCRIPT; all that follows it is the script's own. Each line of an agent begins with its
    number. Bad settings are not tried again, nor an error that happens twice at the same step. Ctrl-C or SIGTERM ends
    all agents.

    \b
    digrad launch --agents 5 train.py                      five agents on this machine
    digrad launch --agents 5 train.py --epochs 3           --epochs is an option of train.py
    digrad launch --agents 5 --graph links.json train.py   train.py calls ProcessNetwork() without a graph
    digrad graph example5 --save links.json                makes such a file

    Several machines, six agents: make a key, copy it to all of them, and run this on each; 10.8.0.1 is one of them.

    \b
    digrad keygen run.key
    digrad launch --agents 2 --nodes 3 --endpoint 10.8.0.1:29400 --key-file run.key --graph links.json train.py

    Who does not have the key can neither take part nor read, change or repeat what travels. --insecure instead of a key
    says that only machines you trust reach these addresses, as inside WireGuard. With --node-rank 0, 1, 2 you choose
    which machine has which agents. On one machine nothing listens beyond loopback.
    """
    from digrad.torch.launch import CHECK
    from digrad.torch.launch import launch as launch_agents

    if agents is None:
        hint = "; options of launch come before the script" if _has_option(arguments, "--agents") else ""
        raise click.UsageError(f"Missing option '--agents'{hint}.", context)
    if (script is None) != check:
        raise click.UsageError("Give either SCRIPT or --check.", context)
    if as_json and not check:
        raise click.UsageError("--json shows what --check has found; give both.", context)
    if arguments[:1] == ("--",):  # as other programs want it between the script and its options
        arguments = arguments[1:]
    with tempfile.TemporaryDirectory() if as_json else nullcontext() as folder:
        found = None if folder is None else Path(folder) / "check.json"
        code = launch_agents(
            script or CHECK, arguments if found is None else (str(found),), agents=agents, graph=graph,
            max_restarts=0 if check else max_restarts, nodes=nodes, endpoint=endpoint, interface=interface,
            node_rank=node_rank, rejoin_timeout=rejoin_timeout, key_file=key_file, insecure=insecure, metrics=metrics,
        )  # fmt: skip
        if found is not None and found.exists():  # where agent 0 runs
            output.as_json(json.loads(found.read_text()))
    sys.exit(code)


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
def keygen(file: Path) -> None:
    """Write a new secret key to FILE, for `digrad launch --key-file`; copy it to all machines of a run."""
    from digrad.torch.transport.curve import make_key

    make_key(file)
    click.echo(f"{file}: copy it to all machines of the run, and to nobody else")


def _has_option(words: tuple[str, ...], name: str) -> bool:
    return any(word == name or word.startswith(f"{name}=") for word in words)
