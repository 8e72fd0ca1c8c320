"""The entry point, and how a command ends: 0 done, 1 a check failed, 2 bad input (one line), 130 interrupted."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from digrad._internal.compilation import keep_compiled
from digrad.cli.doctor import doctor
from digrad.cli.launch_commands import keygen, launch
from digrad.cli.lookup_commands import data, graph, methods
from digrad.cli.run_commands import demo, report, reproduce, run
from digrad.cli.sweep_commands import sweep, tune
from digrad.cli.theory_commands import certify, smoothness
from digrad.errors import DigradError

HELP = """Decentralized optimization over directed graphs that does not blow up.

Agents with private losses and one-way links minimise their average loss together. CGT clips the tracker of the
average gradient, so that fast-growing gradients do not make it diverge.

\b
Start here:
  digrad demo                          compare three methods on real data, in a minute or so
  digrad graph example5                describe a digraph and its weights
  digrad run experiment.toml           run your own experiment (digrad run --example prints one to start from)
  digrad reproduce logistic            run the paper's first experiment and check its claims
"""


@click.group(
    help=HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True},
)
@click.version_option(package_name="digrad")
def digrad() -> None:
    """Hold the commands."""


for command in (
    demo, run, sweep, tune, reproduce, certify, smoothness, launch, keygen, graph, methods, data, report, doctor,
):  # fmt: skip
    digrad.add_command(command)


def main() -> NoReturn:
    """Run the command line; bad input becomes one line on standard error and exit code 2."""
    keep_compiled()
    try:
        with _warnings_as_lines():
            code = digrad.main(prog_name="digrad", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else HELP)
        code = 0
    except click.UsageError as error:
        hint = f" See `{error.ctx.command_path} --help`." if error.ctx else ""
        code = _refuse(f"{error.format_message()}{hint}")
    except (click.ClickException, DigradError) as error:
        code = _refuse(error.format_message() if isinstance(error, click.ClickException) else str(error))
    except OSError as error:
        code = _refuse(f"{error.filename or 'file'}: {error.strerror or error}.")
    except MemoryError as error:
        code = _refuse(f"not enough memory for this size ({error or 'no details'}); use a smaller one.")
    except (KeyboardInterrupt, click.Abort):
        click.echo("digrad: interrupted", err=True)
        code = 130
    sys.exit(code)


@contextmanager
def _warnings_as_lines() -> Iterator[None]:
    """Show each warning once, as one line: no line of the user's led to it."""
    shown: set[str] = set()

    def show(message: Warning | str, *place: Any) -> None:
        line = f"digrad: warning: {' '.join(str(message).split())}"
        if line not in shown:
            shown.add(line)
            click.echo(line, err=True)

    with warnings.catch_warnings():
        if not sys.warnoptions:
            warnings.simplefilter("always", UserWarning)
        warnings.showwarning = show
        yield


def _refuse(message: str) -> int:
    click.echo(f"digrad: {' '.join(message.split())}", err=True)
    return 2
