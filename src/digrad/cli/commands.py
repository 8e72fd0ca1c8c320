"""The table of all commands."""

from digrad.cli.doctor import doctor
from digrad.cli.experiments import demo, report, reproduce, run
from digrad.cli.lookup import data, graph, methods
from digrad.cli.machines import keygen, launch
from digrad.cli.sweeps import sweep, tune
from digrad.cli.theory import certify, smoothness

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
