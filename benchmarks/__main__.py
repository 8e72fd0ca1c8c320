"""Measure what digrad promises about speed and memory, from a checkout: ``python -m benchmarks [PART]``."""

import dataclasses
import json
from pathlib import Path

import click

from digrad.errors import ArgumentError


@click.command()
@click.argument("part", type=click.Choice(["simulation", "sweeps", "torch"]), default="simulation")
@click.option("--repeats", type=click.IntRange(min=1), default=7, show_default=True, help="Of each timing.")
@click.option(
    "--history",
    type=click.Path(path_type=Path),
    help="A file that keeps the figures; the last are compared with.",
)
@click.option(
    "--figure", type=click.Path(path_type=Path), help="Draw time against agents to this .png, .pdf or .svg."
)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def bench(part: str, repeats: int, history: Path | None, figure: Path | None, as_json: bool) -> None:
    """Measure what digrad promises about speed and memory; PART is simulation (default), sweeps or torch.

    simulation: against a well-written NumPy loop and scipy's sparse products, interleaved in one process on one thread,
    up to a million agents, and the rows of sweeps; a quarter of an hour and 3 GB. sweeps: many configurations together
    against one after another, and on two workers against one. torch: the exchange between five processes against raw
    TCP and the all_reduce of DDP, five replicas against plain PyTorch, a deadline against none, and forty agents on
    this machine.
    """
    from benchmarks import BenchReport, run_bench
    from benchmarks.history import remember

    if figure and part != "simulation":
        raise ArgumentError(
            f"`--figure` draws time against agents, which {part} does not measure; leave it out."
        )
    if part == "torch":
        from benchmarks.torch_deadline import deadline_row
        from benchmarks.torch_exchange import run_torch_bench
        from benchmarks.torch_many import many_rows
        from benchmarks.torch_replicas import replicas_rows

        rows = (
            *run_torch_bench(repeats=repeats),
            *replicas_rows(repeats=repeats),
            deadline_row(),
            *many_rows(),
        )
        report = BenchReport(rows, {"repeats": repeats})
    elif part == "sweeps":
        from benchmarks.sweeps import run_sweep_bench

        report = run_sweep_bench(repeats=repeats, progress=lambda text: click.echo(text, err=True))
    else:
        report = run_bench(repeats=repeats, progress=lambda text: click.echo(text, err=True), history=history)
        if figure:
            from benchmarks.figure import growth_figure
            from digrad.plots import save_figure, split_suffix

            stem, formats = split_suffix(figure, "--figure", "python -m benchmarks")
            save_figure(growth_figure(report), stem, formats=formats)
    if history and part != "simulation":
        report = dataclasses.replace(report, before=remember(history, report.rows, report.facts))
    if as_json:
        click.echo(json.dumps(report.to_dict(), indent=2))
    else:
        click.echo(str(report))


if __name__ == "__main__":
    bench()
