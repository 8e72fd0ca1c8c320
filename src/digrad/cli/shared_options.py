"""Arguments and options that several commands share, and the types of the others."""

from pathlib import Path

import click

FILE = click.Path(path_type=Path)
COUNT = click.IntRange(min=1)
INDEX = click.IntRange(min=0)

spec_argument = click.argument("spec", type=FILE)
out_option = click.option("--out", type=FILE, help="Directory for the results.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
resume_option = click.option(
    "--resume", is_flag=True, help="Continue an earlier run in --out; more steps extend it."
)
method_option = click.option(
    "--method", metavar="LABEL", help="Which CGT, SoftCGT or AB of SPEC to use.  [default: the first]"
)
overwrite_option = click.option("--overwrite", is_flag=True, help="Delete earlier results in --out.")
