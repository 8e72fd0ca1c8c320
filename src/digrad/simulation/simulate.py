"""Run a method on a problem over a network, as users call it."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import numpy.typing as npt

from digrad import checks
from digrad.core.churn import check_churn
from digrad.links import Event
from digrad.metrics import AVERAGES
from digrad.network import AnyNetwork
from digrad.problems import Problem
from digrad.simulation.arguments import (
    check_parts,
    check_watchers,
    make_batch_size,
    make_dtype,
    make_name,
    make_sampler,
    make_seed,
    make_start,
    make_steps,
)
from digrad.simulation.checkpoint import Checkpoint
from digrad.simulation.driver import Plan, Progress, drive
from digrad.simulation.record import observer
from digrad.simulation.setup import Prepared, prepare
from digrad.trace import Trace
from digrad.types import Average, Method


def simulate(
    method: Method,
    problem: Problem,
    network: AnyNetwork,
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
    average: Average = "plain",
    paths: bool = False,
    invariant: bool = False,
    name: str | None = None,
    callback: Callable[[Progress], None] | None = None,
    checkpoint: Checkpoint | None = None,
    chunk: int | None = None,
    churn: Sequence[Event] = (),
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
        seed: Of the samples, of a random start and of all that the network draws; see :meth:`Network.with_seed`.
        x0: The start: an array ``[n, d]`` or ``[d]``, ``"zeros"``, ``"normal"`` (standard normal, different
            for every agent), or None for the start of the problem (zeros for built-in problems).
        record_every: Iterations between two recorded rows; the first and the last iteration are always
            recorded.
        dtype: ``float64`` or ``float32``.
        tolerance: ``converged`` means gradient norm and consensus error of the last row are both at most
            this.
        stop_at_tolerance: End the run at the first recorded iteration that is within ``tolerance``.
        sampling: ``replacement``, or ``epoch`` for a fresh permutation of each agent's samples per epoch.
        average: Where loss and gradient norm are evaluated, and what the consensus error is the distance to: the
            ``plain`` mean of the agents' estimates, one function for all methods, or the ``weighted`` one that the
            dynamics of the method conserve (by the Perron vector u of R where estimates are pulled, by the weights of
            push-sum methods). Theory is about the second; curves of different methods compare by the first.
        paths: Also record the estimate of every agent (columns ``x[agent][entry]``): n times d numbers per row.
        invariant: Also record by how much the trackers of the method do not sum to its gradients (column
            ``mass_error``), if it has both.
        name: What the trace is called; the method's class by default.
        callback: Called after every chunk.
        checkpoint: Where to store the run, and whether to go on from there.
        chunk: Steps per compiled call; does not change the numbers.
        churn: Agents that go and come: a list of ``Leave``, ``Crash`` and ``Join`` of :mod:`digrad.links`. Averages and
            losses are those of the agents that are there.

    Example:
        >>> import digrad as dg
        >>> network = dg.Network(dg.graphs.example5())
        >>> problem = dg.problems.example_quartic()
        >>> trace = simulate(dg.AB(step_size=0.05), problem, network, steps=100, x0=[10.0, 10.0])
        >>> trace.verdict, trace.diverged_at  # plain gradient tracking overflows
        ('diverged', 4)
    """
    with jax.enable_x64(True):
        return drive(
            *arrange(
                method, problem, network, steps=steps, batch_size=batch_size, seed=seed, x0=x0, name=name,
                record_every=record_every, dtype=dtype, tolerance=tolerance, stop_at_tolerance=stop_at_tolerance,
                sampling=sampling, average=average, paths=paths, invariant=invariant, callback=callback,
                checkpoint=checkpoint, chunk=chunk, churn=churn,
            )
        )  # fmt: skip


def arrange(
    method: Method,
    problem: Problem,
    network: AnyNetwork,
    *,
    steps: int,
    batch_size: int | None,
    seed: int,
    x0: npt.ArrayLike | Literal["zeros", "normal"] | None,
    record_every: int,
    dtype: npt.DTypeLike,
    tolerance: float,
    stop_at_tolerance: bool,
    sampling: str,
    average: str,
    paths: bool = False,
    invariant: bool = False,
    name: str | None,
    callback: Callable[[Progress], None] | None,
    checkpoint: Checkpoint | None,
    chunk: int | None,
    churn: Sequence[Event] = (),
) -> tuple[Prepared, Plan]:
    """Check the arguments of :func:`simulate` and return the run, ready to advance, and what to do with it."""
    name = make_name(name, method)
    check_parts(method, problem, network, name)
    check_watchers(checkpoint, callback)
    check_churn(churn, method, network, name, "simulate")
    checks.positive(tolerance, "tolerance", name)
    checks.choice(average, "average", name, AVERAGES)
    seed, batch_size = make_seed(seed), make_batch_size(batch_size)
    steps, record_every = make_steps(steps, record_every, name)
    plan = Plan(
        steps=steps,
        record_every=record_every,
        tolerance=tolerance,
        stop_at_tolerance=stop_at_tolerance,
        paths=paths,
        invariant=invariant,
        callback=callback,
        checkpoint=checkpoint,
        chunk=None if chunk is None else checks.count(chunk, "chunk", name),
    )
    network = network.with_seed(seed)
    sampler = make_sampler(problem, batch_size, sampling, seed)
    start = make_start(x0, problem, seed).astype(make_dtype(dtype))
    facts = {"seed": seed, "batch_size": batch_size, "sampling": sampling}
    run = prepare(
        method,
        problem,
        network,
        start,
        name=name,
        sampler=sampler,
        length=plan.chunk,
        keep=observer(paths=paths, invariant=invariant),
        average=average,
        facts=facts,
        is_stored=checkpoint is not None,
        churn=churn,
    )
    return run, plan


def facts_of_run(method: Method, problem: Problem, network: AnyNetwork, **options: Any) -> dict[str, Any]:
    """Return the facts by which the trace of such a run is known again, without running it.

    Args:
        method: The method.
        problem: The private losses.
        network: Who hears whom.
        options: Of :func:`simulate`.
    """
    with jax.enable_x64(True):
        run, plan = arrange(
            method, problem, network, name=None, callback=None, checkpoint=None, chunk=None, **options
        )
    return {**run.facts, **plan.facts, **plan.rule}
