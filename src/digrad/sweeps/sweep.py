"""Many runs in one call: every method with every configuration, one row each."""

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy.typing as npt

from digrad import checks, plots
from digrad._internal.files import locked, write_atomically
from digrad.core.hyperparameters import describe
from digrad.errors import ArgumentError, DataError, WorkerError
from digrad.network import AnyNetwork
from digrad.problems import Problem
from digrad.simulation.arguments import (
    check_parts,
    make_batch_size,
    make_dtype,
    make_sampler,
    make_seed,
    make_start,
    make_steps,
)
from digrad.simulation.record import FLOATS
from digrad.sweeps.batches import Configuration, Study, batches, form, identity, long_arrays
from digrad.sweeps.space import Draws, MethodLike, candidates
from digrad.sweeps.store import TABLE, Journal, read_facts, read_rows, write_arrays, write_facts
from digrad.sweeps.workers import run_here, run_on_workers
from digrad.trace.trace import VERDICTS
from digrad.types import Average

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

TOLERANCE = 1e-6  # of the verdict, unless a sweep says otherwise
_ABOUT = ("method", "network", "start", "seed", "sample_seed")
_MEASURED = ("verdict", "diverged_at", "steps")  # from here on a column is a result
_COUNTS = ("diverged_at", "iterations_to_target", "bytes_to_target")


@dataclass(frozen=True)
class SweepProgress:
    """What a callback is told after each batch.

    Args:
        done: Rows that are done, also in earlier calls.
        total: Rows of the whole sweep.
        seconds: Since this call began.
        seconds_left: What is left at the present pace; None before the first batch.
    """

    done: int
    total: int
    seconds: float
    seconds_left: float | None


@dataclass(frozen=True, eq=False)
class Sweep:
    """What :func:`sweep` found.

    Args:
        table: One row per configuration, in the order of the grid.
        facts: What all rows have in common, with ``common_random_numbers``.
        interrupted: Whether Ctrl-C or a kill ended the sweep; the table holds what was finished.
    """

    table: "pd.DataFrame"
    facts: Mapping[str, Any]
    interrupted: bool = False

    @property
    def fields(self) -> list[str]:
        """The hyper-parameters that were swept."""
        columns = list(self.table.columns)
        cut = columns.index(_MEASURED[0]) if columns else 0  # none before the first row
        return [name for name in columns[:cut] if name not in _ABOUT]

    @property
    def average(self) -> Average | None:
        """The average of the agents where runs were measured; held-out losses are always those of the plain mean."""
        return self.facts.get("options", {}).get("average")

    def to_pandas(self) -> "pd.DataFrame":
        """Return the table as a data frame of one's own."""
        return self.table.copy()

    def medians(self, metric: str = "final_loss") -> "pd.DataFrame":
        """Return one row per configuration, the smallest median of ``metric`` over the seeds first.

        All results are medians over the seeds; ``seeds`` says of how many, ``<metric>_low`` and ``<metric>_high`` how
        far they spread, and ``verdict`` is the worst. A run that diverged counts as infinite.

        Args:
            metric: A column, e.g. ``iterations_to_target``.
        """
        checks.choice(metric, "metric", "Sweep", self.table.columns)
        return _medians(self, metric)

    def best(self, metric: str = "final_loss") -> "pd.DataFrame":
        """Return the row of :meth:`medians` of each method with the smallest median; diverged ones come last.

        Args:
            metric: A column, e.g. ``iterations_to_target``.
        """
        return self.medians(metric).drop_duplicates("method").reset_index(drop=True)

    def plot(
        self,
        metric: str = "final_loss",
        x: str | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> "Figure":
        """Draw ``metric`` against the field ``x``: a curve per method and values of the other fields.

        Diverged runs are crosses at the upper edge; several seeds are their median and a band.

        Args:
            metric: A column of the table.
            x: A swept field; by default the step size, or the first one that takes several values.
            path: Where to save the figure; see :meth:`digrad.Trace.plot`.
        """
        (x,) = self._axes(x)
        self._check(metric, x)
        return _saved(plots.values_against(_curves(self, metric, x), x, metric, average=self.average), path)

    def heat_map(
        self,
        metric: str = "final_loss",
        x: str | None = None,
        y: str | None = None,
        path: str | os.PathLike[str] | None = None,
    ) -> "Figure":
        """Draw ``metric`` over two fields, a panel per method that has both and values of the other fields.

        A cell is the median of the seeds; a cross marks where one of them diverged.

        Args:
            metric: A column of the table.
            x: A swept field; by default the step size, or the first one that takes several values.
            y: Another; by default the next one.
            path: Where to save the figure; see :meth:`digrad.Trace.plot`.
        """
        x, y = self._axes(x, y)
        self._check(metric, x, y)
        panels = {}
        for label, part in _parts(self, metric, x, y):
            cells = part.pivot_table(index=y, columns=x, values="_value", aggfunc=_median)
            panels[label] = (cells.columns.tolist(), cells.index.tolist(), cells.to_numpy())
        return _saved(plots.heat_maps(panels, x, y, metric, average=self.average), path)

    def save(self, directory: str | os.PathLike[str]) -> Path:
        """Write ``table.parquet`` and ``sweep.json``; return the table's path."""
        (Path(directory) / TABLE).unlink(missing_ok=True)
        write_facts(Path(directory), self.facts, ())
        return _write_table(Path(directory), self.table)

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> "Sweep":
        """Read what :meth:`save`, or ``out`` of :func:`sweep`, wrote; of a sweep that was killed, the finished rows.

        Raises:
            DataError: The folder is not that of a sweep.
        """
        import pandas as pd

        folder = Path(directory)
        facts = read_facts(folder)
        names = facts.pop("rows")
        has_table = (folder / TABLE).exists()
        try:
            table = pd.read_parquet(folder / TABLE) if has_table else table_of(read_rows(folder, names))
        except (OSError, ValueError) as error:
            raise DataError(f"{folder / TABLE} cannot be read ({error}); run the sweep again.") from error
        return cls(table, facts, interrupted=len(table) < len(names))

    def _axes(self, *given: str | None) -> list[str]:
        """Return the fields given, the missing ones chosen from those that take several values."""
        table: Any = self.table
        several = [name for name in self.fields if table[name].nunique() > 1]
        free = [name for name in sorted(several, key=lambda name: name != "step_size") if name not in given]
        if len(free) < given.count(None):
            raise ArgumentError(
                f"a figure over {len(given)} swept fields needs as many that take several values, but those of the "
                f"sweep are {', '.join(several) or 'none'}; draw fewer, or name the fields."
            )
        return [free.pop(0) if name is None else name for name in given]

    def _check(self, metric: str, *fields: str) -> None:
        checks.choice(metric, "metric", "Sweep", self.table.columns)
        for field in fields:
            checks.choice(field, "x" if field == fields[0] else "y", "Sweep", self.fields)


def sweep(
    methods: MethodLike | Sequence[MethodLike] | Mapping[str, MethodLike],
    problem: Problem,
    network: AnyNetwork | Mapping[str, AnyNetwork],
    *,
    steps: int,
    grid: Mapping[str, Sequence[Any]] | None = None,
    random: Mapping[str, Draws] | None = None,
    samples: int | None = None,
    seed: int = 0,
    seeds: int = 1,
    x0: npt.ArrayLike | Literal["zeros", "normal"] | Callable[..., Any] | Mapping[str, Any] | None = None,
    batch_size: int | None = None,
    common_random_numbers: bool = False,
    target: Mapping[str, float] | None = None,
    held_out: Problem | None = None,
    record_every: int = 1,
    dtype: npt.DTypeLike = "float64",
    tolerance: float = TOLERANCE,
    stop_at_tolerance: bool = False,
    sampling: Literal["replacement", "epoch"] = "replacement",
    average: Average = "plain",
    workers: int = 1,
    backend: str | None = None,
    backend_options: Mapping[str, Any] | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    overwrite: bool = False,
    progress: Callable[[SweepProgress], None] | None = None,
) -> Sweep:
    """Run every method with every configuration, and return a table with one row for each.

    A run that diverges is a row like any other. Runs that use all samples at every step advance side by side, which is
    several times faster and changes the rounding. Runs on mini-batches go one after another, each with samples of its
    own (column ``sample_seed``); with ``common_random_numbers`` all runs of one seed get the same samples and advance
    side by side too: faster, and compared in pairs, but not independent of each other. The result says which.

    Args:
        methods: A class, whose fields all come from ``grid`` or ``random``, or a method whose other fields stay; or a
            list of them, or a mapping from labels.
        problem: The private losses.
        network: Who hears whom, or several by label.
        steps: Of each run.
        grid: Values to try, by field; every combination is run. A field counts for the methods that have it.
        random: What to draw ``samples`` times: :class:`LogUniform`, :class:`Uniform`, or a list to choose from, by
            field. Each draw is combined with each point of the grid.
        samples: How many draws.
        seed: The first seed, of starts, samples and what networks draw, and the seed of the draws.
        seeds: How many seeds.
        x0: The start as in :func:`simulate`, or a function of problem and seed that returns one, or several by label.
        batch_size: Samples per agent and step; None uses all of them.
        common_random_numbers: Give all runs of one seed the same samples.
        target: Levels by column, as in ``{"grad_norm": 1e-3}``: the table says after how many iterations and bytes all
            of them are reached first. By default those of ``converged``.
        held_out: Losses on samples that no agent trains on; the table gets their average at the end of each run.
        record_every: Iterations between two recorded rows of a run; ``best_...`` and the target look at these.
        dtype: ``float64`` or ``float32``.
        tolerance: Of the verdict.
        stop_at_tolerance: End a run there; then runs go one after another.
        sampling: ``replacement`` or ``epoch``.
        average: Where runs are measured: at the ``plain`` mean of the agents, as held-out losses always are, or each at
            its ``weighted`` average.
        workers: Processes that share the work.
        backend: A backend of joblib, e.g. ``"dask"`` for a cluster; ``"loky"`` (processes of this machine) by default.
        backend_options: Of the backend, e.g. ``{"scheduler_host": "10.8.0.1:8786"}``.
        out: A folder where every finished batch is kept at once, and the table in the end. Its ``arrays.npz`` holds
            values of more than 64 entries, which the table names by shape and hash.
        resume: Take over the rows that are there, whatever ended the process that wrote them.
        overwrite: Delete them.
        progress: Called after every batch.

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
    study, wanted = plan(
        methods, problem, network, grid=grid, random=random, samples=samples, seed=seed, seeds=seeds, x0=x0,
        share_samples=common_random_numbers, target=target, held_out=held_out,
        options={
            "steps": steps, "batch_size": make_batch_size(batch_size), "record_every": record_every,
            "dtype": make_dtype(dtype), "tolerance": tolerance, "stop_at_tolerance": stop_at_tolerance,
            "sampling": sampling, "average": average,
        },
    )  # fmt: skip
    workers = checks.count(workers, "workers", "sweep")
    if backend == "multiprocessing":
        raise ArgumentError(
            "`backend` of sweep must not be 'multiprocessing', which forks: JAX hangs in a forked process; use 'loky'."
        )
    folder = None if out is None else Path(out)
    facts = study.facts() if folder else _facts_or_none(study)
    names = [identity(facts, one) if folder else str(place) for place, one in enumerate(wanted)]
    with nullcontext() if folder is None else locked(folder):
        journal = Journal(folder, resume=resume, overwrite=overwrite)
        if folder:
            write_facts(folder, facts, names)
            write_arrays(folder, long_arrays(wanted))
        missing = {name: one for name, one in zip(names, wanted, strict=True) if name not in journal.rows}
        interrupted = _run_missing(
            study, missing, journal, workers, backend, backend_options or {}, progress, len(wanted)
        )
        table = table_of([journal.rows[name] for name in names if name in journal.rows])
        if folder:
            _write_table(folder, table)
    return Sweep(table, facts, interrupted)


def plan(
    methods: Any,
    problem: Any,
    network: Any,
    *,
    grid: Any,
    random: Any,
    samples: Any,
    seed: Any,
    seeds: Any,
    x0: Any,
    share_samples: bool,
    target: Any,
    held_out: Any,
    options: dict[str, Any],
    asks_settling: bool = False,
) -> tuple[Study, list[Configuration]]:
    """Check everything before the first run, and return what is shared and what is to be run."""
    first = make_seed(seed)
    several = range(first, first + checks.count(seeds, "seeds", "sweep"))
    found = candidates(methods, grid, random, samples, first)
    networks = dict(network) if isinstance(network, Mapping) else {"": network}
    starts = dict(x0) if isinstance(x0, Mapping) else {"": x0}
    if not networks or not starts:
        raise ArgumentError("`network` and `x0` of sweep must not be empty.")
    checks.positive(options["tolerance"], "tolerance", "sweep")
    options["steps"], options["record_every"] = make_steps(options["steps"], options["record_every"], "sweep")
    for one in {(each.label, form(each.method)): each for each in found}.values():
        for each in networks.values():
            check_parts(one.method, problem, each, one.label)
    make_sampler(problem, options["batch_size"], options["sampling"], first)
    for start in starts.values():
        make_start(start(problem, first) if callable(start) else start, problem, first)
    if held_out is not None and not (isinstance(held_out, Problem) and held_out.dim == problem.dim):
        raise ArgumentError(
            f"`held_out` of sweep must be a Problem of dimension {problem.dim}, like `problem`, but got {held_out!r}."
        )
    is_sampled = options["batch_size"] is not None
    wanted = [
        Configuration(
            one.label, one.method, one.values, on, start, run_seed,
            run_seed if share_samples or not is_sampled else _own_seed(one, on, start, run_seed),
        )
        for one in found
        for on in networks
        for start in starts
        for run_seed in several
    ]  # fmt: skip
    levels = _target(target, options["tolerance"])
    study = Study(problem, networks, starts, held_out, options, levels, share_samples, asks_settling)
    return study, wanted


def _run_missing(
    study: Study,
    missing: Mapping[str, Configuration],
    journal: Journal,
    workers: int,
    backend: str | None,
    backend_options: Mapping[str, Any],
    progress: Callable[[SweepProgress], None] | None,
    total: int,
) -> bool:
    """Run what is not done, keep each batch at once, and return whether Ctrl-C ended it."""
    work = list(batches(study, list(missing.values()), workers))
    began, before = time.perf_counter(), total - len(missing)
    done = 0
    if workers == 1 and backend is None:
        results = run_here(study, work)
    else:
        results = run_on_workers(
            study, work, workers=workers, backend=backend or "loky", backend_options=backend_options
        )
    name_of = {id(one): name for name, one in missing.items()}
    try:
        for batch, rows in results:
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
                "they are kept, go on with resume=True (--resume)."
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


def _own_seed(one: Any, network: str, start: str, seed: int) -> int:
    """Return the seed of the samples of one configuration, which does not depend on the others."""
    try:
        content = describe(one.method)
    except ArgumentError:
        content = sorted(one.values)
    text = repr((one.label, content, network, start, seed))
    return int.from_bytes(sha256(text.encode()).digest()[:6], "little")


def _target(target: Any, tolerance: float) -> dict[str, float]:
    if target is None:
        return {"grad_norm": tolerance, "consensus_error": tolerance}
    if not isinstance(target, Mapping) or not target:
        raise ArgumentError(
            f"`target` of sweep must map columns to levels, as in {{'grad_norm': 1e-3}}, but got {target!r}."
        )
    for name, level in target.items():
        checks.choice(name, "target", "sweep", FLOATS)
        if isinstance(level, bool) or not isinstance(level, int | float) or level != level:
            raise ArgumentError(f"`target` of sweep must give a number for `{name}`, but got {level!r}.")
    return {name: float(level) for name, level in target.items()}


def table_of(rows: Sequence[Mapping[str, Any]]) -> "pd.DataFrame":
    """Return the rows as a table, each column of one kind."""
    import pandas as pd

    order = _column_order(rows)
    table: Any = pd.DataFrame({name: [row.get(name) for row in rows] for name in order})
    for name in order:
        if name in _COUNTS:
            table[name] = table[name].astype("Int64")
        elif table[name].dtype == object or str(table[name].dtype) in ("str", "string"):
            table[name] = _one_kind(table[name])
    return table


def _column_order(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns: what a run was, with the fields of all methods, then what it did."""
    about: dict[str, None] = {}
    measured: dict[str, None] = {}
    for row in rows:
        names = list(row)
        cut = names.index(_MEASURED[0])
        about |= dict.fromkeys(names[:cut])
        measured |= dict.fromkeys(names[cut:])
    last = [name for name in _ABOUT[1:] if name in about]
    return [*(name for name in about if name not in last), *last, *measured]


def _one_kind(column: Any) -> Any:
    """Return numbers as numbers; a column that also holds words or schedules as words."""
    import pandas as pd

    present = column.dropna()
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in present):
        return pd.to_numeric(column)
    return column.map(lambda value: None if value is None or value != value else str(value)).astype("string")


def _write_table(folder: Path, table: "pd.DataFrame") -> Path:
    import io

    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False)
    return write_atomically(folder / TABLE, buffer.getvalue())


def _finite(table: Any, metric: str) -> Any:
    """Return a metric as floats, infinite where the run diverged or never got there."""
    import numpy as np

    values = table[metric].astype("Float64").to_numpy(dtype=np.float64, na_value=np.inf)
    return np.where((table["verdict"] == "diverged") | np.isnan(values), np.inf, values)


def _medians(found: Sweep, metric: str) -> Any:
    import pandas as pd

    columns = list(found.table.columns)
    results = columns[columns.index(_MEASURED[0]) + 1 :]
    keys = ["method", *found.fields, *(name for name in ("network", "start") if name in columns)]
    table: Any = found.table.assign(_key=_finite(found.table, metric))
    for name in ("iterations_to_target", "bytes_to_target"):  # never is later than any number
        table[name] = table[name].astype("Float64").fillna(math.inf)
    groups = table.groupby(keys, dropna=False, sort=False)
    verdicts = groups["verdict"].agg(lambda each: max(each, key=VERDICTS.index))
    parts = {
        "seeds": groups.size(),
        "verdict": verdicts,
        **{name: groups[name].median() for name in results},
        metric: groups["_key"].median(),
        f"{metric}_low": groups["_key"].min(),
        f"{metric}_high": groups["_key"].max(),
    }
    medians = pd.DataFrame(parts).reset_index().sort_values(metric, kind="stable", ignore_index=True)
    for name in ("iterations_to_target", "bytes_to_target"):
        medians[name] = medians[name].astype("Float64").mask(lambda values: values == math.inf)
    return medians


def _curves(found: Sweep, metric: str, x: str) -> dict[str, tuple[list[Any], list[Any]]]:
    """Return xs, and for each x the values of all seeds, by the label of the curve."""
    per_x = {
        label: part.groupby(x, sort=True)["_value"].apply(list) for label, part in _parts(found, metric, x)
    }
    return {label: (values.index.tolist(), values.tolist()) for label, values in per_x.items()}


def _parts(found: Sweep, metric: str, *axes: str) -> "Iterator[tuple[str, pd.DataFrame]]":
    """Yield the rows that differ in ``axes`` and seed only, with the metric as ``_value``, and what they are called."""
    import pandas as pd

    table: Any = found.table.assign(_value=_finite(found.table, metric))
    table = table[table[list(axes)].notna().all(axis=1)]
    others = [name for name in (*found.fields, "network", "start") if name in table and name not in axes]
    varying = [name for name in others if table[name].nunique(dropna=False) > 1]
    for keys, part in table.groupby(["method", *varying], dropna=False, sort=False):
        given = [(name, value) for name, value in zip(varying, keys[1:], strict=True) if not pd.isna(value)]
        named = [
            f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in given
        ]
        yield ", ".join([str(keys[0]), *named]), part


def _median(values: "pd.Series") -> float:
    """Return the median of the seeds, infinite when one of them is."""
    return math.inf if math.inf in values.to_numpy() else float(values.median())


def _saved(figure: "Figure", path: str | os.PathLike[str] | None) -> "Figure":
    if path is not None:
        stem, formats = plots.split_suffix(path, "path", "plot")
        plots.save_figure(figure, stem, formats=formats)
    return figure
