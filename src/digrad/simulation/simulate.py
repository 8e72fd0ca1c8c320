"""Run a method on a problem over a network, as users call it."""

from collections.abc import Callable, Mapping
from typing import Any, Unpack

import jax

from digrad.network import Network
from digrad.problems import Problem
from digrad.simulation.checkpoint import Checkpoint
from digrad.simulation.driver import Progress, drive
from digrad.simulation.run_options import RunOptions, SimulatorOptions, check_parts, complete, lists_options
from digrad.simulation.setup import set_up
from digrad.simulation.simulator import Simulator
from digrad.trace import Trace
from digrad.types import Method


@lists_options(RunOptions)
def simulate(
    method: Method,
    problem: Problem,
    network: Network,
    *,
    callback: Callable[[Progress], None] | None = None,
    checkpoint: Checkpoint | None = None,
    **options: Unpack[RunOptions],
) -> Trace:
    """Run a method and return what was recorded.

    The result is a pure function of the arguments: the same call gives the same numbers, bit for bit, also after a
    resume (on one kind of machine and version of JAX). A run that diverges ends there, with that verdict. Ctrl-C ends
    the run and returns what was computed.

    Args:
        method: For example ``CGT(step_size=0.05, threshold=5.0)``; step sizes and thresholds may be functions
            of k.
        problem: The private losses.
        network: The communication graph and its weights.
        callback: Called every half second, about, with the progress of the run.
        checkpoint: File to store the run in, and whether to resume from it.
        options: Keywords of :class:`digrad.RunOptions`; ``steps`` is required.

    Example:
        >>> import digrad as dg
        >>> network = dg.Network(dg.graphs.example5())
        >>> problem = dg.problems.example_quartic()
        >>> trace = simulate(dg.AB(step_size=0.05), problem, network, steps=100, x0=[10.0, 10.0])
        >>> trace.verdict, trace.diverged_at  # plain gradient tracking overflows
        ('diverged', 4)
    """
    wanted = complete(options, "simulate")
    check_parts(method, problem, network, type(method).__name__)
    return drive(
        simulator_of(method, problem, network, wanted), wanted, callback=callback, checkpoint=checkpoint
    )


def simulator_of(
    method: Method, problem: Problem, network: Network, options: Mapping[str, Any], name: str | None = None
) -> Simulator:
    """Return the simulator of a run, from arguments that have been checked and all its options."""
    own = {key: options[key] for key in SimulatorOptions.__annotations__}
    with jax.enable_x64(True):
        return Simulator.of(set_up(method, problem, network, own, name=name or type(method).__name__))
