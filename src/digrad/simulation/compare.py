"""Several methods, and several seeds of each, on the same problem and network."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from digrad import checks
from digrad._internal.files import file_stem
from digrad.network import Network
from digrad.problems import Problem
from digrad.simulation.batched_runs import can_be_batched
from digrad.simulation.checkpoint import Checkpoint
from digrad.simulation.run_options import RunOptions, check_parts, complete, labelled, lists_options
from digrad.simulation.simulate import Progress, check_observers, drive, drive_batch, run_name
from digrad.simulation.simulator import Simulator
from digrad.trace import Ensemble, Trace
from digrad.types import Method


def run_each(
    labels: Iterable[str], seeds: Sequence[int], run: Callable[[str, int], Trace]
) -> dict[str, Trace | Ensemble]:
    """Run every label with every seed and return a trace per label, or an ensemble if there are several seeds.

    After a run that Ctrl-C has ended no other begins.

    Args:
        labels: Labels of the methods, in order.
        seeds: Seeds of the runs of each method.
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


@lists_options(RunOptions)
def compare(
    methods: Mapping[str, Method] | Sequence[Method],
    problem: Problem,
    network: Network,
    *,
    seeds: int = 1,
    callback: Callable[[Progress], None] | None = None,
    checkpoint: Checkpoint | None = None,
    **options: Unpack[RunOptions],
) -> dict[str, Any]:
    """Run several methods on the same samples from the same start, and return their traces by name.

    A method that diverges stops; the others go on. With ``seeds`` above 1 each method runs with seeds
    ``seed``, ``seed + 1``, ... and the result holds an :class:`~digrad.trace.Ensemble` per method, whose
    plots show bands. Samples, random starts and all that the network draws follow the seed. Every run is that of
    :func:`simulate`, bit for bit; only seeds of runs that use all samples at every step, on a network that draws
    nothing, are batched, which is faster and changes the rounding.

    Args:
        methods: A list, or a mapping from labels to methods (needed when a class occurs twice).
        problem: The private losses.
        network: The communication graph and its weights.
        seeds: How many seeds.
        callback: Called during every run, as in :func:`simulate`; batched runs do not call it, so that with a callback
            none are.
        checkpoint: Folder to store the runs in, with a file per label and seed.
        options: Keywords of :class:`digrad.RunOptions`, as in :func:`simulate`; ``seed`` is the first one.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> methods = [dg.CGT(step_size=0.05, threshold=5.0), dg.DGD(step_size=0.05)]
        >>> traces = compare(methods, problem, network, steps=400)
        >>> {name: trace.verdict for name, trace in traces.items()}
        {'CGT': 'converged', 'DGD': 'stalled'}
    """
    by_label, wanted = labelled(methods, "compare"), complete(options, "compare")
    first = wanted["seed"]
    several = range(first, first + checks.count(seeds, "seeds", "compare"))
    for label, method in by_label.items():
        check_parts(method, problem, network, label, "compare")
    check_observers(callback, checkpoint, "compare")
    is_shared = wanted["batch_size"] is None and not network.is_random  # by all seeds
    is_batched = len(several) > 1 and is_shared and can_be_batched(network, wanted)
    if is_batched and callback is None and checkpoint is None:
        ensembles: dict[str, Any] = {}
        for label, method in by_label.items():
            simulator = Simulator.of(method, problem, network, wanted, label)
            every = [simulator.with_numbers(method, seed, label) for seed in several]
            ensembles[label] = Ensemble(
                tuple(drive_batch(every, [{**wanted, "seed": one} for one in several]))
            )
            if any(trace.interrupted for trace in ensembles[label].traces):
                break
        return ensembles

    def run(label: str, seed: int) -> Trace:
        own = {**wanted, "seed": seed}
        simulator = Simulator.of(by_label[label], problem, network, own, label)
        stored, name = _of_run(checkpoint, label, seed), run_name(label, seed, seeds)
        return drive(simulator, own, callback=callback, checkpoint=stored, name=name)

    return run_each(by_label, several, run)


def _of_run(checkpoint: Checkpoint | None, label: str, seed: int) -> Checkpoint | None:
    if checkpoint is None:
        return None
    return dataclasses.replace(checkpoint, path=Path(checkpoint.path) / f"{file_stem(str(label))}-{seed}.npz")
