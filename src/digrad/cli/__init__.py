"""The command line: parse, call one library function, print. What it can do, Python can do in one call."""

from digrad.cli.main import main

__all__ = ["main"]
