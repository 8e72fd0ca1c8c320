"""Several methods, and several seeds of each, on the same problem and network."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy.typing as npt

from digrad import checks
from digrad._internal.files import file_stem
from digrad.links import Event
from digrad.network import AnyNetwork
from digrad.problems import Problem
from digrad.simulation.arguments import labelled, make_seed
from digrad.simulation.batched import drive_together
from digrad.simulation.checkpoint import Checkpoint
from digrad.simulation.driver import Progress
from digrad.simulation.simulate import arrange, simulate
from digrad.trace import Ensemble, Trace
from digrad.types import Average, Method


def run_each(
    labels: Iterable[str], seeds: Sequence[int], run: Callable[[str, int], Trace]
) -> dict[str, Trace | Ensemble]:
    """Run every label with every seed and return a trace per label, or an ensemble if there are several seeds.

    After a run that Ctrl-C has ended no other begins.

    Args:
        labels: Of the methods, in order.
        seeds: Of the runs of each.
        run: Runs one of them, or finds its stored result.
    """
    results: dict[str, Trace | Ensemble] = {}
    for label in labels:
        traces: list[Trace] = []
        for seed in seeds:
            traces.append(run(label, seed))
            results[label] = traces[0] if len(seeds) == 1 else Ensemble(tuple(traces))
            if traces[-1].interrupted:
                return results
    return results


def compare(
    methods: Mapping[str, Method] | Sequence[Method],
    problem: Problem,
    network: AnyNetwork,
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
    sampling: Literal["replacement", "epoch"] = "replacement",
    average: Average = "plain",
    paths: bool = False,
    invariant: bool = False,
    callback: Callable[[Progress], None] | None = None,
    checkpoint: Checkpoint | None = None,
    chunk: int | None = None,
    churn: Sequence[Event] = (),
) -> dict[str, Any]:
    """Run several methods on the same samples from the same start, and return their traces by name.

    A method that diverges stops; the others go on. With ``seeds`` above 1 each method runs with seeds
    ``seed``, ``seed + 1``, ... and the result holds an :class:`~digrad.trace.Ensemble` per method, whose
    plots show bands. Samples, random starts and all that the network draws follow the seed. Every run is that of
    :func:`simulate`, bit for bit; only seeds of runs that use all samples at every step, on a network that draws
    nothing, advance side by side, which is faster and changes the rounding.

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
        sampling: ``replacement`` or ``epoch``.
        average: Where all methods are measured: at the ``plain`` mean of the agents, or each at its ``weighted`` one.
        paths: Also record the estimate of every agent.
        invariant: Also record the residual of the invariant.
        callback: Called after every chunk of every run.
        checkpoint: Where to store the runs: a folder, with a file per label and seed.
        chunk: Steps per compiled call.
        churn: Agents that go and come.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> methods = [dg.CGT(step_size=0.05, threshold=5.0), dg.DGD(step_size=0.05)]
        >>> traces = compare(methods, problem, network, steps=400)
        >>> {name: trace.verdict for name, trace in traces.items()}
        {'CGT': 'converged', 'DGD': 'stalled'}
    """
    by_label, first = labelled(methods), make_seed(seed)
    several = range(first, first + checks.count(seeds, "seeds", "compare"))

    def options(label: str, seed: int) -> dict[str, Any]:
        return {
            "method": by_label[label], "problem": problem, "network": network, "steps": steps, "seed": seed,
            "batch_size": batch_size, "x0": x0, "name": label, "record_every": record_every, "dtype": dtype,
            "tolerance": tolerance, "stop_at_tolerance": stop_at_tolerance, "sampling": sampling,
            "average": average, "paths": paths, "invariant": invariant, "callback": callback, "chunk": chunk,
            "checkpoint": _of_run(checkpoint, label, seed), "churn": churn,
        }  # fmt: skip

    # Runs side by side neither stop in between nor record what has a shape of its own.
    alone = (callback, checkpoint, chunk) != (None, None, None) or any(
        (stop_at_tolerance, paths, invariant, churn)
    )
    is_shared = batch_size is None and not getattr(network, "is_random", False)  # by all seeds
    if len(several) > 1 and is_shared and not alone:
        ensembles: dict[str, Any] = {}
        for label in by_label:
            ensembles[label] = _side_by_side([options(label, one) for one in several])
            if ensembles[label].traces[0].interrupted:
                break
        return ensembles
    return run_each(by_label, several, lambda label, seed: simulate(**options(label, seed)))


def _side_by_side(each: Sequence[dict[str, Any]]) -> Ensemble:
    with jax.enable_x64(True):
        arranged = [arrange(**options) for options in each]
        return Ensemble(tuple(drive_together([run for run, _ in arranged], arranged[0][1])))


def _of_run(checkpoint: Checkpoint | None, label: str, seed: int) -> Checkpoint | None:
    if checkpoint is None:
        return None
    return dataclasses.replace(checkpoint, path=Path(checkpoint.path) / f"{file_stem(str(label))}-{seed}.npz")
