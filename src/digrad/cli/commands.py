"""The table of all commands."""

from digrad.cli.doctor import doctor
from digrad.cli.launch_commands import keygen, launch
from digrad.cli.lookup_commands import data, graph, methods
from digrad.cli.run_commands import demo, report, reproduce, run
from digrad.cli.sweep_commands import sweep, tune
from digrad.cli.theory_commands import certify, smoothness

COMMANDS = (
    demo,
    run,
    sweep,
    tune,
    reproduce,
    certify,
    smoothness,
    launch,
    keygen,
    graph,
    methods,
    data,
    report,
    doctor,
)
