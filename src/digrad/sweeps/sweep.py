"""Many runs in one call: every method with every configuration, one row each."""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

from digrad._internal.files import locked
from digrad.errors import ArgumentError, WorkerError
from digrad.network import Network
from digrad.problems import Problem
from digrad.simulation.run_options import (
    RunOptions,
    lists_options,
)
from digrad.sweeps.space import Configuration, Draws, MethodLike, candidates
from digrad.sweeps.study import Study, batches, configurations, identity, long_arrays, make_study
from digrad.sweeps.sweep_folder import TABLE, Journal, write_arrays, write_facts
from digrad.sweeps.sweep_results import Sweep, table_of, write_table
from digrad.sweeps.workers import Workers, run_all


@dataclass(frozen=True)
class SweepProgress:
    """Progress of a sweep, passed to a callback after each batch.

    Args:
        done: Rows that are done, also in earlier calls.
        total: Rows of the whole sweep.
        seconds: Since this call began.
        seconds_left: Time left at the present pace; None before the first batch.
    """

    done: int
    total: int
    seconds: float
    seconds_left: float | None


@lists_options(RunOptions)
def sweep(
    methods: MethodLike | Sequence[MethodLike] | Mapping[str, MethodLike],
    problem: Problem,
    network: Network | Mapping[str, Network],
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    random: Mapping[str, Draws] | None = None,
    samples: int | None = None,
    seeds: int = 1,
    common_random_numbers: bool = False,
    target: Mapping[str, float] | None = None,
    held_out: Problem | None = None,
    workers: int | Workers = 1,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Callable[[SweepProgress], None] | None = None,
    **options: Unpack[RunOptions],
) -> Sweep:
    """Run every method with every configuration, and return a table with one row for each.

    A run that diverges is a row like any other. Runs that use all samples at every step are batched, which is several
    times faster and changes the rounding. Runs on mini-batches go one after another, each with samples of its own
    (column ``sample_seed``); with ``common_random_numbers`` all runs of one seed get the same samples and are batched
    too: faster, and compared in pairs, but not independent of each other. The result says which.

    Args:
        methods: A class, whose fields all come from ``grid`` or ``random``, or a method whose other fields stay; or a
            list of them, or a mapping from labels.
        problem: The private losses.
        network: The communication graph and its weights, or several by label.
        grid: Values to try, by field; every combination is run. A field counts for the methods that have it.
        random: Distributions to draw ``samples`` values from: :class:`LogUniform`, :class:`Uniform`, or a list, by
            field. Each draw is combined with each point of the grid.
        samples: How many draws.
        seeds: How many seeds.
        common_random_numbers: Give all runs of one seed the same samples.
        target: Levels by column, as in ``{"grad_norm": 1e-3}``: the table says after how many iterations and bytes all
            of them are reached first. By default those of ``converged``.
        held_out: Losses on samples that no agent trains on; the table gets their average at the end of each run, always
            that of the plain mean of the agents.
        workers: Processes that share the work: how many, or :class:`Workers` for a cluster or for a part of the work.
        out: A folder where every finished batch is kept at once, and the table in the end. Its ``arrays.npz`` holds
            values of more than 64 entries, which the table names by shape and hash.
        resume: Take over the rows that are there, whatever ended the process that wrote them.
        overwrite: Delete them.
        progress: Called after every batch.
        options: Keywords of :class:`digrad.RunOptions`, as in :func:`digrad.simulate`. ``seed`` is the first one, of
            starts, samples and what networks draw, and the seed of the draws; ``x0`` may be several by label; with
            ``stop_at_tolerance`` runs go one after another; ``record_every`` decides which rows the target and
            ``best_...`` look at.

    Raises:
        ArgumentError: The grid is empty, a field unknown, a value refused; nothing has been run then.
        WorkerError: A worker was killed; with ``out`` the finished rows are kept.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> grid = {"step_size": [0.01, 0.1, 3.0], "threshold": [2.0]}
        >>> found = dg.sweep(dg.CGT, problem, network, steps=300, grid=grid)
        >>> found.table[["step_size", "verdict"]].values.tolist()
        [[0.01, 'not converged'], [0.1, 'converged'], [3.0, 'stalled']]
    """
    study = make_study(
        problem,
        network,
        options,
        "sweep",
        target=target,
        held_out=held_out,
        share_samples=common_random_numbers,
    )
    found = candidates(methods, grid, random, samples, study.options["seed"])
    pool = workers if isinstance(workers, Workers) else Workers(workers)
    wanted = pool.share(configurations(study, found, seeds, "sweep"))
    folder = None if out is None else pool.folder(Path(out))
    facts = study.facts() if folder else _facts_or_none(study)
    names = [identity(facts, one) if folder else str(place) for place, one in enumerate(wanted)]
    with nullcontext() if folder is None else locked(folder):
        journal = Journal(folder, resume=resume, overwrite=overwrite)
        if folder:
            write_facts(folder, facts, names)
            write_arrays(folder, long_arrays(wanted))
        missing = {name: one for name, one in zip(names, wanted, strict=True) if name not in journal.rows}
        interrupted = _run_missing(study, missing, journal, pool, progress, len(wanted))
        table = table_of([journal.rows[name] for name in names if name in journal.rows])
        if folder:
            write_table(folder / TABLE, table)
    return Sweep(table, facts, interrupted)


def _run_missing(
    study: Study,
    missing: Mapping[str, Configuration],
    journal: Journal,
    workers: Workers,
    progress: Callable[[SweepProgress], None] | None,
    total: int,
) -> bool:
    """Run what is not done, keep each batch at once, and return whether Ctrl-C ended it."""
    work = list(batches(study, list(missing.values()), workers.count))
    began, before = time.perf_counter(), total - len(missing)
    done = 0
    name_of = {id(one): name for name, one in missing.items()}
    try:
        for batch, rows in run_all(study, work, workers):
            if len(rows) < len(batch.runs):
                return True
            journal.add({name_of[id(one)]: row for one, row in zip(batch.runs, rows, strict=True)})
            done += len(rows)
            if progress:
                seconds = time.perf_counter() - began
                left = seconds / done * (len(missing) - done)
                progress(SweepProgress(before + done, total, seconds, left))
    except KeyboardInterrupt:
        return True
    except WorkerError as error:
        raise WorkerError(
            f"The sweep ended after {before + done} of {total} rows: {error}; "
            + (
                "they are kept; continue with resume=True (--resume)."
                if journal.is_stored
                else "give `out`, so that finished rows are kept."
            )
        ) from error
    return False


def _facts_or_none(study: Study) -> dict[str, Any]:
    try:
        return study.facts()
    except ArgumentError:  # a loss that no other process could recognise; nothing is stored
        return study.settings()
