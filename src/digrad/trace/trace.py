"""One run: what it recorded, row by row, and how it ended."""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from digrad import checks, plots
from digrad._internal.formatting import size
from digrad._internal.json_files import strict
from digrad._internal.tables import Interval, Table
from digrad.errors import ArgumentError, DataError
from digrad.plots.saving import saved
from digrad.trace import trace_files

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from digrad.problems import Problem

Verdict: TypeAlias = Literal["converged", "not converged", "stalled", "diverged"]

VERDICTS: tuple[Verdict, ...] = ("converged", "not converged", "stalled", "diverged")  # from best to worst
HEADLINE = ("loss", "grad_norm", "consensus_error")  # the columns a summary reports
_COUNTS = ("k", "bytes_sent")
_REQUIRED = ("k", *HEADLINE, "bytes_sent")
_OPTIONAL = ("tracking_error", "fraction_clipped")  # NaN where a method does not report it
_JUDGED_ROWS = 8  # the fewest rows whose quarters say something
_SAME = 0.05  # a gradient norm that falls like k^(-1/4) changes by more from one quarter to the next


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """Record of one run, row by row, and how it ended.

    Args:
        name: Label of the run, e.g. ``"CGT"``.
        columns: One array ``[K]`` per metric. ``k`` (iteration, increasing) and ``bytes_sent`` (by all
            agents so far) are int64; ``loss``, ``grad_norm`` and ``consensus_error`` float64. What has
            overflowed is infinite; NaN means that a figure was not measured.
            ``tracking_error`` and ``fraction_clipped`` are filled with NaN when absent; others are kept.
        final_x: The last estimates of the agents, ``[n, d]``.
        verdict: ``"converged"``: gradient norm and consensus error of the last row are within the tolerance;
            ``"diverged"``: an estimate is not finite, or beyond 1e12 max|x_0| (max|x_1| if x_0 = 0, and so on) where
            gradients are 1000 times those of the start; ``"stalled"``: neither, and the run no longer moves
            (``digrad.trace.is_stalled``); ``"not converged"``: neither, and it still moves. Trainings of networks are
            never the first or the third.
        diverged_at: The first iteration that diverged, or None.
        steps: Iterations done.
        seconds: Wall-clock time of the run.
        interrupted: Whether the user stopped the run.
        stopped_early: Whether the run ended before its last step because it had converged.
        facts: Facts of the run: hyper-parameters, seed, data type, versions. Anything JSON can hold.
        arrays: The hyper-parameters that are long arrays, by name; ``facts`` has their hashes.

    Raises:
        ArgumentError: A column is missing or has the wrong shape, or a fact cannot be written as JSON.
    """

    name: str
    columns: Mapping[str, npt.NDArray[Any]]
    final_x: npt.NDArray[Any]
    verdict: Verdict
    diverged_at: int | None
    steps: int
    seconds: float
    interrupted: bool = False
    stopped_early: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the columns once, and keep read-only views of the arrays."""
        if not isinstance(self.name, str) or not self.name:
            raise ArgumentError(f"`name` of Trace must be a non-empty string, but got {self.name!r}.")
        checks.choice(self.verdict, "verdict", "Trace", VERDICTS)
        checks.count(self.steps, "steps", "Trace", minimum=0)
        if self.diverged_at is not None:
            checks.count(self.diverged_at, "diverged_at", "Trace", minimum=0)
        if not 0 <= checks.number(self.seconds, "seconds", "Trace") < math.inf:
            raise ArgumentError(
                f"`seconds` of Trace must be finite and not negative, but got {self.seconds!r}."
            )
        if not isinstance(self.facts, Mapping):
            raise ArgumentError(f"`facts` of Trace must map names to values, but got {self.facts!r}.")
        final_x = np.asarray(self.final_x)
        if final_x.ndim != 2 or not final_x.size:
            raise ArgumentError(
                f"`final_x` of Trace must be [n, d], not empty, but its shape is {final_x.shape}."
            )
        object.__setattr__(self, "columns", _checked_columns(self.columns))
        object.__setattr__(self, "final_x", _read_only(final_x))
        object.__setattr__(self, "facts", _plain(self.facts))
        arrays = {name: _read_only(np.asarray(array)) for name, array in self.arrays.items()}
        object.__setattr__(self, "arrays", arrays)

    @property
    def k(self) -> npt.NDArray[np.int64]:
        """The iteration of each row."""
        return self.columns["k"]

    @property
    def loss(self) -> npt.NDArray[np.float64]:
        """The global loss at the average of the agents; ``facts["average"]`` says which: ``plain`` or ``weighted``."""
        return self.columns["loss"]

    @property
    def grad_norm(self) -> npt.NDArray[np.float64]:
        """The norm of the global gradient at the same average."""
        return self.columns["grad_norm"]

    @property
    def consensus_error(self) -> npt.NDArray[np.float64]:
        """Distance of the agents from their average, ``||x - 1 xbar^T||_F / sqrt(n)``."""
        return self.columns["consensus_error"]

    @property
    def tracking_error(self) -> npt.NDArray[np.float64]:
        """Distance of the trackers y from their mean; NaN for a state without a field y."""
        return self.columns["tracking_error"]

    @property
    def fraction_clipped(self) -> npt.NDArray[np.float64]:
        """The share of agents whose direction was clipped; NaN where the method does not report it."""
        return self.columns["fraction_clipped"]

    @property
    def bytes_sent(self) -> npt.NDArray[np.int64]:
        """The bytes that all agents together have sent so far."""
        return self.columns["bytes_sent"]

    @property
    def seconds_simulated(self) -> npt.NDArray[np.float64]:
        """The seconds that the clock of the links has counted so far.

        Raises:
            ArgumentError: The links of the network have no clock.
        """
        if "seconds_simulated" not in self.columns:
            raise ArgumentError(
                f"{self.name} has no simulated seconds; give the network Links(clock=digrad.links.Clock(...))."
            )
        return self.columns["seconds_simulated"]

    @property
    def final(self) -> dict[str, float]:
        """Loss, gradient norm and consensus error of the last row; not finite when the run diverged."""
        return {name: float(self.columns[name][-1]) for name in HEADLINE}

    @property
    def best(self) -> dict[str, float]:
        """The smallest finite loss, gradient norm and consensus error, each on its own; NaN if none is."""
        return {name: _smallest_finite(self.columns[name]) for name in HEADLINE}

    def summary(self) -> dict[str, Any]:
        """Return the entry of this run in ``summary.json``; a figure that is infinite is None, for strict JSON."""
        return {
            "verdict": self.verdict,
            "diverged_at": self.diverged_at,
            "steps": self.steps,
            "final": strict(self.final),
            "best": strict(self.best),
            "bytes_sent": int(self.bytes_sent[-1]),
            "seconds": self.seconds,
        }

    def to_pandas(self) -> "pd.DataFrame":
        """Return the columns as a data frame, one row per recorded iteration."""
        import pandas as pd

        return pd.DataFrame(dict(self.columns))

    def plot(
        self, metrics: Sequence[str] | str = ("loss", "grad_norm"), path: str | os.PathLike[str] | None = None
    ) -> "Figure":
        """Draw ``metrics`` over the iterations.

        Args:
            metrics: Names of columns, one panel each, or one name.
            path: Path to save the figure to: as its suffix (.png, .pdf or .svg) says, without one as PNG and PDF.

        Returns:
            The figure, which a notebook shows.

        Raises:
            ArgumentError: ``path`` has another suffix, or a metric is not a column.
        """
        return saved(plots.curves({self.name: self}, metrics), path)

    def save(self, directory: str | os.PathLike[str]) -> list[Path]:
        """Write ``trace-<name>.parquet``, ``final-<name>.parquet`` and ``trace-<name>.json``.

        If hyper-parameters are long arrays, also ``arrays-<name>.npz``.

        Args:
            directory: The folder, created if missing. Each file is replaced atomically if it exists.

        Returns:
            The paths. In them a name that is not safe in a file name is replaced by one that is.
        """
        record = {key: getattr(self, key) for key in _ENDING}
        return trace_files.write_trace(
            Path(directory), self.name, self.columns, self.final_x, self.arrays, record
        )

    @classmethod
    def load(cls, directory: str | os.PathLike[str], name: str) -> "Trace":
        """Read the trace that :meth:`save` wrote under ``name``, bit for bit the same.

        Raises:
            DataError: There is no such trace, or one of its files is missing, damaged or of another run.
        """
        columns, final_x, arrays, record = trace_files.read_trace(Path(directory), name)
        try:
            return cls(
                columns=columns, final_x=final_x, arrays=arrays, **{key: record[key] for key in _ENDING}
            )
        except (KeyError, TypeError, ArgumentError) as error:
            raise DataError(
                f"The trace {name!r} in {directory} is not complete ({error}); run it again."
            ) from error

    def _repr_html_(self) -> str:
        """Return how the run ended, for notebooks."""
        return results_table({self.name: self})._repr_html_()

    def __repr__(self) -> str:
        """Return one line: how the run ended and what it cost."""
        return f"Trace({self.name}: {_ended(self)}, {headline({**self.summary(), 'final': self.final})})"


_ENDING = ("name", "verdict", "diverged_at", "steps", "seconds", "interrupted", "stopped_early", "facts")


def _checked_columns(columns: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    missing = [name for name in _REQUIRED if name not in columns]
    if missing:
        raise ArgumentError(
            f"`columns` of Trace must hold {', '.join(_REQUIRED)}, but {', '.join(missing)} is missing."
        )
    absent = {name: np.full(len(columns["k"]), np.nan) for name in _OPTIONAL if name not in columns}
    arrays = {
        name: _read_only(_checked_dtype(name, values)) for name, values in {**columns, **absent}.items()
    }
    rows = arrays["k"].shape
    for name, array in arrays.items():
        if array.ndim != 1 or array.shape != rows or not array.size:
            raise ArgumentError(
                f"`columns` of Trace must be of one length, at least 1, but `{name}` has shape {array.shape} "
                f"and `k` has {rows}."
            )
    if np.any(np.diff(arrays["k"]) <= 0):
        raise ArgumentError("`k` of Trace must increase from row to row, but it does not.")
    return arrays


def _checked_dtype(name: str, values: Any) -> npt.NDArray[Any]:
    array = np.asarray(values)
    if array.dtype.kind not in ("iu" if name in _COUNTS else "iuf"):
        kind = "integers" if name in _COUNTS else "numbers"
        raise ArgumentError(
            f"`{name}` in the columns of Trace must hold {kind}, but its dtype is {array.dtype}."
        )
    is_measure = name in HEADLINE or name in _OPTIONAL or array.dtype.kind == "f"
    return array.astype(np.float64 if is_measure else np.int64, copy=False)


def _read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    view = array.view()
    view.flags.writeable = False
    return view


def _plain(value: Any) -> Any:
    """Return ``value`` in the types that JSON gives back, so that saving and loading changes nothing."""
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist())
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(item) for key, item in value.items()}
    raise ArgumentError(
        f"`facts` of Trace must hold what JSON can write (None, numbers, strings, lists, dicts by string), "
        f"but got {type(value).__name__} {value!r}."
    )


def is_stalled(columns: Mapping[str, npt.NDArray[Any]], tolerance: float) -> bool:
    """Return whether a run no longer moves: its medians over the last two quarters of its rows are the same.

    The same means: gradient norm and consensus error differ by at most 5 %, or are within ``tolerance`` in both
    quarters, and the losses differ by at most 5 % of all that the loss has fallen or risen during the run. So neither
    units nor a constant added to the loss matter. A run of fewer than eight rows is not judged.
    """
    rows = len(columns["k"])
    if rows < _JUDGED_ROWS:
        return False
    quarter, loss = rows // 4, columns["loss"]
    before, after = (
        {name: float(np.median(columns[name][part])) for name in HEADLINE}
        for part in (slice(-2 * quarter, -quarter), slice(-quarter, None))
    )
    scales = {name: max(before[name], after[name]) for name in ("grad_norm", "consensus_error")}
    with np.errstate(invalid="ignore"):  # a loss may overflow where the estimates do not
        allowed = {"loss": _SAME * float(loss.max() - loss.min())}
    allowed |= {name: tolerance if scale <= tolerance else _SAME * scale for name, scale in scales.items()}
    is_same = all(abs(after[name] - before[name]) <= allowed[name] for name in HEADLINE)
    return is_same and max(scales.values()) > tolerance  # else only what is under way is waited for


def _smallest_finite(values: npt.NDArray[np.float64]) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.min()) if finite.size else math.nan


def _ended(trace: Trace) -> str:
    at = f" at k={trace.diverged_at}" if trace.verdict == "diverged" else ""
    stop = " (interrupted)" if trace.interrupted else " (stopped early)" if trace.stopped_early else ""
    return f"{trace.verdict}{at}, {trace.steps} steps{stop}"


def results_table(
    traces: Mapping[str, Any],
    *,
    problem: "Problem | None" = None,
    columns: Sequence[str] | None = None,
    statistic: Literal["median", "mean"] = "median",
) -> Table:
    """Return how each run ended, one row per trace or ensemble, as a table for papers.

    The column ``average`` says where loss, gradient norm and consensus error were measured.

    Args:
        traces: The runs by label, as :func:`digrad.compare` returns them.
        problem: Adds what its minimum x* tells: ``excess_loss`` (F - F*), ``distance`` of the mean of the agents from
            x*, and ``worst_distance``, that of the agent farthest from it.
        columns: Which columns, in this order; all by default.
        statistic: Of several seeds, ``"median"``, or ``"mean"`` with its 95 % confidence interval, by Student's t.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> traces = dg.compare([dg.CGT(0.05, 5.0)], problem, network, steps=400)
        >>> dg.results_table(traces)[0]["verdict"]
        'converged'
        >>> dg.results_table(traces, problem=problem, columns=("method", "worst_distance"))[0]["worst_distance"] < 1e-9
        True
    """
    checks.choice(statistic, "statistic", "results_table", ("median", "mean"))
    minimum = None if problem is None else problem.solve(tolerance=math.inf)
    rows = [_result(label, run, minimum, statistic) for label, run in traces.items()]
    known = list(dict.fromkeys(name for row in rows for name in row))
    for name in columns or ():
        checks.choice(name, "columns", "results_table", known)
    return Table(tuple({name: row.get(name) for name in columns or known} for row in rows))


def _result(label: str, run: Any, minimum: Any, statistic: str) -> dict[str, Any]:
    members, summary = getattr(run, "traces", (run,)), run.summary()
    measured = [_measured(trace, minimum) for trace in members]
    return {
        "method": label,
        "verdict": summary["verdict"],
        "diverged_at": summary["diverged_at"],
        "steps": summary["steps"],
        **{name: _over_seeds([each[name] for each in measured], statistic) for name in measured[0]},
        "average": plots.measured_at([run]),
        "bytes_sent": summary["bytes_sent"],
        "seconds": summary["seconds"],
        **({"seeds": summary["seeds"]} if "seeds" in summary else {}),
    }


def _measured(trace: Trace, minimum: Any) -> dict[str, float]:
    if minimum is None:
        return trace.final
    away = np.asarray(trace.final_x, np.float64) - minimum.x
    with np.errstate(over="ignore", invalid="ignore"):
        return {
            **trace.final,
            "excess_loss": float(plots.excess_loss(trace.final["loss"], minimum.loss)),
            "distance": float(np.linalg.norm(away.mean(axis=0))),
            "worst_distance": float(np.linalg.norm(away, axis=1).max()),
        }


def _over_seeds(values: Sequence[float], statistic: str) -> float | Interval | None:
    """Return one figure for all seeds; None where it is not finite."""
    if statistic == "mean" and len(values) > 1:
        mean, half = mean_interval(np.array(values))
        return Interval(float(mean), float(half)) if math.isfinite(mean) else None
    return strict(float(np.median([value if math.isfinite(value) else math.inf for value in values])))


def mean_interval(values: npt.NDArray[np.float64]) -> tuple[Any, Any]:
    """Return the mean over the first axis, the seeds, and half the width of its 95 % confidence interval."""
    from scipy.special import stdtrit

    seeds = len(values)
    if seeds == 1:
        return values[0], np.full_like(values[0], np.nan)
    with np.errstate(over="ignore", invalid="ignore"):
        error = values.std(axis=0, ddof=1) / math.sqrt(seeds)
        return values.mean(axis=0), stdtrit(seeds - 1, 0.975) * error


def headline(summary: Mapping[str, Any]) -> str:
    """Return what a run reached and what it cost, in one line."""
    loss, grad_norm, consensus = (
        math.inf if summary["final"][metric] is None else summary["final"][metric] for metric in HEADLINE
    )
    return (
        f"loss {loss:.4g}, |grad| {grad_norm:.2g}, consensus {consensus:.2g}, "
        f"{size(summary['bytes_sent'])} sent, {summary['seconds']:.2f} s"
    )
