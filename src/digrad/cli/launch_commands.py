"""Commands about machines: launch and keygen.

Everything heavy is imported inside a command, so that ``--help`` answers at once.
"""

import json
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from digrad.cli import output
from digrad.cli.shared_options import COUNT, FILE, INDEX, json_option


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--agents", type=COUNT, help="Number of agents (processes) to start on this machine.  [required]"
)
@click.option(
    "--graph", type=FILE, help="Graph file for a script that calls ProcessNetwork() without a graph."
)
@click.option(
    "--max-restarts",
    type=INDEX,
    default=3,
    help="How often to restart all agents after a failure.",
)
@click.option("--nodes", type=COUNT, default=1, help="Number of machines in the run.")
@click.option(
    "--endpoint",
    metavar="HOST:PORT",
    help="Address of one of the machines, where all meet; required for several.",
)
@click.option("--interface", help="Network interface to use.  [default: loopback on one machine]")
@click.option(
    "--node-rank", type=INDEX, help="Number of this machine, from 0.  [default: in order of arrival]"
)
@click.option(
    "--rejoin-timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    help="Seconds to wait for machines that are missing or were lost.",
)
@click.option("--key-file", type=FILE, help="Secret key, made by `digrad keygen`, that all machines share.")
@click.option(
    "--insecure",
    is_flag=True,
    help="Allow several machines without a key: anyone who can connect may read, disturb or join.",
)
@click.option(
    "--check",
    is_flag=True,
    help="Test every edge instead of running a script: latency, bandwidth, versions, clocks.",
)
@click.option(
    "--metrics",
    type=FILE,
    help="Folder for metrics of every agent and step, as JSON lines and for TensorBoard.",
)
@json_option
@click.argument("script", type=FILE, required=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def launch(
    context: click.Context,
    agents: int | None,
    check: bool,
    as_json: bool,
    script: Path | None,
    arguments: tuple[str, ...],
    **options: Any,
) -> None:
    """Run the training SCRIPT with one process per agent, and restart all agents if one fails.

    Options of launch come before SCRIPT, options of the script after it. Every line that an agent prints begins with
    its number. There is no restart after bad settings, or after an error that repeats at the same step. Ctrl-C or
    SIGTERM ends all agents.

    \b
    digrad launch --agents 5 train.py                      five agents on this machine
    digrad launch --agents 5 train.py --epochs 3           --epochs is an option of train.py
    digrad launch --agents 5 --graph links.json train.py   train.py calls ProcessNetwork() without a graph
    digrad graph example5 --save links.json                makes such a file

    Six agents on three machines: make a key, copy it to all machines, and run the same command on each. The endpoint
    is an address of one of them.

    \b
    digrad keygen run.key
    digrad launch --agents 2 --nodes 3 --endpoint 10.8.0.1:29400 --key-file run.key --graph links.json train.py

    Messages between machines are encrypted, and nobody can join without the key. Use --insecure instead of a key only
    where no other machine can connect, as inside WireGuard. --node-rank decides which agents run on which machine. On
    one machine nothing listens beyond loopback.
    """
    from digrad.torch.launch import CHECK
    from digrad.torch.launch import launch as launch_agents

    if agents is None:
        hint = "; options of launch come before the script" if _has_option(arguments, "--agents") else ""
        raise click.UsageError(f"Missing option '--agents'{hint}.", context)
    if (script is None) != check:
        raise click.UsageError("Give either SCRIPT or --check.", context)
    if as_json and not check:
        raise click.UsageError("--json prints the results of --check; give both, or neither.", context)
    if check:
        options["max_restarts"] = 0
    if arguments[:1] == ("--",):  # as other programs want it between the script and its options
        arguments = arguments[1:]
    with tempfile.TemporaryDirectory() if as_json else nullcontext() as folder:
        found = None if folder is None else Path(folder) / "check.json"
        code = launch_agents(
            script or CHECK, arguments if found is None else (str(found),), agents=agents, **options
        )
        if found is not None and found.exists():  # where agent 0 runs
            output.as_json(json.loads(found.read_text()))
    sys.exit(code)


@click.command()
@click.argument("file", type=FILE)
def keygen(file: Path) -> None:
    """Write a new secret key to FILE for `digrad launch --key-file`.

    Copy FILE to all machines of a run.
    """
    from digrad.torch.transport.curve_keys import make_key

    make_key(file)
    click.echo(f"{file}: copy it to all machines of the run, and to nobody else")


def _has_option(words: tuple[str, ...], name: str) -> bool:
    return any(word == name or word.startswith(f"{name}=") for word in words)
