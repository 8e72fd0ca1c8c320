"""Options that several commands share."""

from pathlib import Path

import click

out_option = click.option("--out", type=click.Path(path_type=Path), help="Directory of the results.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
resume_option = click.option(
    "--resume",
    is_flag=True,
    help="Continue an earlier call with the same --out; more steps extend it.",
)
method_option = click.option(
    "--method", metavar="LABEL", help="Which CGT of SPEC, if it has several; the first by default."
)
overwrite_option = click.option(
    "--overwrite", is_flag=True, help="Delete the results of an earlier call in --out."
)
