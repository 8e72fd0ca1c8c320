"""Run a method on a problem over a network: the one loop of the simulator, as its users call it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import numpy.typing as npt

from digrad import checks
from digrad.mixing import Network
from digrad.problems import Problem
from digrad.simulation.arguments import (
    check_parts,
    check_watchers,
    labelled,
    make_batch_size,
    make_dtype,
    make_name,
    make_sampler,
    make_seed,
    make_start,
    make_steps,
)
from digrad.simulation.checkpoint import Checkpoint
from digrad.simulation.run import Plan, Progress, Run
from digrad.trace import Ensemble, Trace
from digrad.types import Method


def simulate(
    method: Method,
    problem: Problem,
    network: Network,
    *,
    steps: int,
    batch_size: int | None = None,
    seed: int = 0,
    x0: npt.ArrayLike | Literal["zeros", "normal"] | None = None,
    record_every: int = 1,
    dtype: npt.DTypeLike = "float64",
    tolerance: float = 1e-6,
    stop_at_tolerance: bool = False,
    sampling: Literal["replacement", "epoch"] = "replacement",
    plain_mean: bool = False,
    name: str | None = None,
    callback: Callable[[Progress], None] | None = None,
    checkpoint: Checkpoint | None = None,
    chunk: int | None = None,
) -> Trace:
    """Run a method and return what was recorded.

    The result is a pure function of the arguments: the same call gives the same numbers, bit for bit, for
    every ``chunk`` and after a resume (on one kind of machine and version of JAX). A run that diverges ends
    there, with that verdict. Ctrl-C ends the run and returns what was computed.

    Args:
        method: For example ``CGT(step_size=0.05, threshold=5.0)``; step sizes and thresholds may be functions
            of k.
        problem: The private losses.
        network: Who hears whom, and with which weights.
        steps: How many steps to take.
        batch_size: Samples per agent and step; None uses all of them.
        seed: Of the samples and of a random start.
        x0: The start: an array ``[n, d]`` or ``[d]``, ``"zeros"``, ``"normal"`` (standard normal, different
            for every agent), or None for the start of the problem (zeros for built-in problems).
        record_every: Iterations between two recorded rows; the first and the last iteration are always
            recorded.
        dtype: ``float64`` or ``float32``.
        tolerance: ``converged`` means gradient norm and consensus error of the last row are both at most
            this.
        stop_at_tolerance: End the run at the first recorded iteration that is within ``tolerance``.
        sampling: ``replacement``, or ``epoch`` for a fresh permutation of each agent's samples per epoch.
        plain_mean: Also evaluate the plain average of the agents (columns ``loss_plain_mean``,
            ``grad_norm_plain_mean``).
        name: What the trace is called; the method's class by default.
        callback: Called after every chunk.
        checkpoint: Where to store the run, and whether to go on from there.
        chunk: Steps per compiled call; does not change the numbers.

    Example:
        >>> import digrad as dg
        >>> network = dg.Network(dg.graphs.example5())
        >>> problem = dg.problems.example_quartic()
        >>> trace = simulate(dg.AB(step_size=0.05), problem, network, steps=100, x0=[10.0, 10.0])
        >>> trace.verdict, trace.diverged_at  # plain gradient tracking overflows
        ('diverged', 4)
    """
    name = make_name(name, method)
    check_parts(method, problem, network, name)
    check_watchers(checkpoint, callback)
    checks.positive(tolerance, "tolerance", name)
    seed, batch_size = make_seed(seed), make_batch_size(batch_size)
    steps, record_every = make_steps(steps, record_every, name)
    plan = Plan(
        steps=steps,
        record_every=record_every,
        tolerance=tolerance,
        stop_at_tolerance=stop_at_tolerance,
        plain_mean=plain_mean,
        callback=callback,
        checkpoint=checkpoint,
        chunk=None if chunk is None else checks.count(chunk, "chunk", name),
    )
    sampler = make_sampler(problem, batch_size, sampling, seed)
    start = make_start(x0, problem, seed).astype(make_dtype(dtype))
    facts = {"seed": seed, "batch_size": batch_size, "sampling": sampling}
    with jax.enable_x64(True):
        return Run(name, method, problem, network, start, sampler, plan, facts).go()


def compare(
    methods: Mapping[str, Method] | Sequence[Method],
    problem: Problem,
    network: Network,
    *,
    steps: int,
    batch_size: int | None = None,
    seed: int = 0,
    seeds: int = 1,
    x0: npt.ArrayLike | Literal["zeros", "normal"] | None = None,
    record_every: int = 1,
    dtype: npt.DTypeLike = "float64",
    tolerance: float = 1e-6,
    stop_at_tolerance: bool = False,
    callback: Callable[[Progress], None] | None = None,
) -> dict[str, Any]:
    """Run several methods on the same samples from the same start, and return their traces by name.

    A method that diverges stops; the others go on. With ``seeds`` above 1 each method runs with seeds
    ``seed``, ``seed + 1``, ... and the result holds an :class:`~digrad.trace.Ensemble` per method, whose
    plots show bands.

    Args:
        methods: A list, or a mapping from labels to methods (needed when a class occurs twice).
        problem: As in :func:`simulate`, and so are the other arguments.
        network: Who hears whom.
        steps: How many steps to take.
        batch_size: Samples per agent and step.
        seed: The first seed.
        seeds: How many seeds.
        x0: The start.
        record_every: Iterations between two recorded rows.
        dtype: ``float64`` or ``float32``.
        tolerance: Of the verdict.
        stop_at_tolerance: End a run at ``tolerance``.
        callback: Called after every chunk of every run.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> methods = [dg.CGT(step_size=0.05, threshold=5.0), dg.DGD(step_size=0.05)]
        >>> traces = compare(methods, problem, network, steps=400)
        >>> {name: trace.verdict for name, trace in traces.items()}
        {'CGT': 'converged', 'DGD': 'running'}
    """
    results: dict[str, Any] = {}
    count = checks.count(seeds, "seeds", "compare")
    for name, method in labelled(methods).items():
        runs: list[Trace] = []
        for run_seed in range(seed, seed + count):
            trace = simulate(
                method, problem, network, steps=steps, batch_size=batch_size, seed=run_seed, x0=x0, name=name,
                record_every=record_every, dtype=dtype, tolerance=tolerance, callback=callback,
                stop_at_tolerance=stop_at_tolerance,
            )  # fmt: skip
            runs.append(trace)
            results[name] = trace if count == 1 else Ensemble(tuple(runs))
            if trace.interrupted:
                return results
    return results
