"""``python -m digrad`` is the command line."""

from digrad.cli import main

main()
