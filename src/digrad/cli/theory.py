"""Commands about what is proven: certify, smoothness.

Everything heavy is imported inside a command, so that ``--help`` answers at once.
"""

import sys
from pathlib import Path
from typing import Any

import click

from digrad.cli import show
from digrad.cli.options import json_option, method_option, out_option


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
            at = result.diverged_at
            reason = "Not covered" if at is None else f"The run diverged at k = {at}"
            click.echo(f"\n{reason}: no inequality was checked.")
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

    The run uses full gradients; that of a torch network mini-batches. Estimates along a run are lower than the true
    constants: they certify nothing.
    """
    from digrad.experiments import load_spec, smoothness_of_spec

    folder = out or Path("runs") / f"smoothness-{spec.stem}"
    result = smoothness_of_spec(load_spec(spec), folder, method=method)
    found = result.to_dict()
    if as_json:
        show.as_json(found)
        return
    click.echo(f"methods.{result.method}: {len(result.iterations)} points of its run with {result.gradients}")
    rows = [(row["loss"], f"{row['L0']:.4g}", f"{row['L1']:.4g}") for row in result.found.table()]
    show.table(("loss", "L0", "L1"), rows)
    click.echo(f"ell = {found['ell']:.4g}, b = {found['b']:.4g}; all estimates: {found['label']}")
    for path in result.files:
        click.echo(f"  {path}")


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
