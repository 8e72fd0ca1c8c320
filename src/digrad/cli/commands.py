"""The table of all commands."""

from digrad.cli.doctor import doctor
from digrad.cli.experiments import demo, report, reproduce, run
from digrad.cli.lookup import data, graph, methods
from digrad.cli.machines import bench, launch
from digrad.cli.theory import certify, smoothness

COMMANDS = (demo, run, reproduce, certify, smoothness, launch, graph, methods, data, bench, report, doctor)
