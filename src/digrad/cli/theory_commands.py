"""Commands about what is proven: certify, smoothness.

Everything heavy is imported inside a command, so that ``--help`` answers at once.
"""

import sys
from pathlib import Path
from typing import Any

import click

from digrad.cli import output
from digrad.cli.progress_display import ProgressBar
from digrad.cli.shared_options import COUNT, FILE, json_option, method_option, out_option, spec_argument


@click.command()
@click.argument("spec", type=FILE, required=False)
@out_option
@click.option(
    "--steps", type=COUNT, help="Steps of the run to check.  [default: those of SPEC, at most 1500]"
)
@click.option("--paper", is_flag=True, help="Also check every inequality of the paper's proof along the run.")
@click.option("--verify", type=FILE, metavar="FILE", help="Verify a stored certificate.json instead.")
@method_option
@json_option
def certify(
    spec: Path | None,
    out: Path | None,
    steps: int | None,
    paper: bool,
    verify: Path | None,
    method: str | None,
    as_json: bool,
) -> None:
    """Certify the step size of CGT, SoftCGT or AB in SPEC, and find from which step on its run is proven to converge.

    Prints the largest certified step size, the largest one that is stable near the minimum, the reasons for the gap,
    and how the threshold changes it. Writes certificate.json, which --verify checks again without the search, and a
    figure per inequality. Exits with 1 if an inequality that must hold is violated, or if a claim in FILE does not
    hold. A run that diverges is a result, not an error.
    """
    from digrad.specs import certify_spec, load_spec

    if (spec is None) == (verify is None):
        raise click.UsageError("Give either SPEC or --verify FILE.")
    if verify is not None:
        _verify(verify, as_json)
        return
    assert spec is not None
    folder = out or Path("runs") / f"certify-{spec.stem}"
    loaded = load_spec(spec)
    click.echo("Certifying, then checking the run; this takes some seconds ...", err=True)
    result = certify_spec(loaded, folder, steps=steps, method=method, paper=paper)
    if as_json:
        output.as_json(result.to_dict())
    else:
        click.echo(f"methods.{result.method}: {result.certificate}")
        if result.notice:
            click.echo(result.notice)
        if result.check is None:
            at = result.diverged_at
            reason = "Not followed" if at is None else f"The run diverged at k = {at}"
            click.echo(f"\n{reason}: no inequality was checked.")
        else:
            _print_rows(result.check)
        click.echo(f"  {folder}")
    if result.check is not None and result.check.verdict == "FAIL":
        sys.exit(1)


@click.command()
@spec_argument
@out_option
@method_option
@json_option
def smoothness(spec: Path, out: Path | None, method: str | None, as_json: bool) -> None:
    """Plot the Hessian norm against the gradient norm along a run of SPEC, with a fitted (L0, L1) line.

    The run uses full gradients in the simulator, and mini-batches with engine = "torch". Estimates along a run are
    lower bounds of the true constants, so they certify nothing.
    """
    from digrad.specs import load_spec, smoothness_of_spec

    folder = out or Path("runs") / f"smoothness-{spec.stem}"
    with ProgressBar() as bar:
        result = smoothness_of_spec(load_spec(spec), folder, method=method, progress=bar)
    found = result.to_dict()
    if as_json:
        output.as_json(found)
        return
    click.echo(f"methods.{result.method}: {len(result.iterations)} points of its run with {result.gradients}")
    rows = [(row["loss"], f"{row['L0']:.4g}", f"{row['L1']:.4g}") for row in result.found.table()]
    output.table(("loss", "L0", "L1"), rows)
    click.echo(f"ell = {found['ell']:.4g}, b = {found['b']:.4g}; all estimates: {found['label']}")
    for path in result.files:
        click.echo(f"  {path}")


def _verify(path: Path, as_json: bool) -> None:
    """Print whether each claim of a stored certificate holds."""
    from digrad.specs import verify_certificate

    claims = verify_certificate(path)
    if as_json:
        output.as_json(claims)
    else:
        output.table(
            ("holds", "claim"), [("yes" if holds else "NO", claim) for claim, holds in claims.items()]
        )
        click.echo("verified" if all(claims.values()) else "not verified")
    if not all(claims.values()):
        sys.exit(1)


def _print_rows(check: Any) -> None:
    """Print what is proven of the run, and a line per inequality."""
    click.echo(f"\n{check.promise}")
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
    title = f"\n{check.verdict}: {check.steps} steps checked; INAPPLICABLE: its assumptions do not hold"
    output.table(("status", "chain", "inequality", "lhs/rhs", "needs"), rows, title=title)
