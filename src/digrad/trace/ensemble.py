"""One method under several seeds."""

import math
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from digrad import checks, plots
from digrad._internal.json_files import strict
from digrad.errors import ArgumentError, DataError
from digrad.plots.saving import saved
from digrad.trace import trace_files
from digrad.trace.trace import HEADLINE, VERDICTS, Trace, Verdict, headline, mean_interval, results_table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Band: TypeAlias = tuple[
    npt.NDArray[np.int64], npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float64]
]


@dataclass(frozen=True, eq=False, repr=False)
class Ensemble:
    """Runs of one method under several seeds.

    Args:
        traces: At least one trace, all of the same name.

    Raises:
        ArgumentError: There is no trace, or their names differ.
    """

    traces: tuple[Trace, ...]

    def __post_init__(self) -> None:
        """Check that the traces belong together."""
        object.__setattr__(self, "traces", tuple(self.traces))
        names = sorted({trace.name for trace in self.traces})
        if len(names) != 1:
            raise ArgumentError(
                f"`traces` of Ensemble must be one or more runs of the same name, but got the names {names}."
            )

    @property
    def name(self) -> str:
        """The name that the traces share."""
        return self.traces[0].name

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seed of each trace, from its facts; 0, 1, ... when they do not say or repeat themselves."""
        seeds = [seed for trace in self.traces if isinstance(seed := trace.facts.get("seed"), int)]
        distinct = len(set(seeds)) == len(self.traces)
        return tuple(seeds) if distinct else tuple(range(len(self.traces)))

    @property
    def verdicts(self) -> dict[Verdict, int]:
        """Number of runs for each verdict that occurred, the worst last."""
        counts = Counter(trace.verdict for trace in self.traces)
        return {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]}

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of any run."""
        return list(self.verdicts)[-1]

    @property
    def diverged_at(self) -> int | None:
        """The first iteration at which any run diverged, or None."""
        return min(
            (trace.diverged_at for trace in self.traces if trace.diverged_at is not None), default=None
        )

    def band(self, column: str) -> Band:
        """Return ``(k, low, median, high)``: the smallest, middle and largest value over the seeds.

        The rows are matched by iteration. Where a run has no row, because it has ended, all three are NaN: a
        statistic of the survivors would make divergence look like progress.
        """
        k, values = self._matched(column)
        with np.errstate(invalid="ignore"):
            return k, values.min(axis=0), np.median(values, axis=0), values.max(axis=0)

    def interval(self, column: str) -> Band:
        """Return ``(k, low, mean, high)``: the mean over the seeds and its 95 % confidence interval, by Student's t.

        The rows are matched as in :meth:`band`.
        """
        k, values = self._matched(column)
        mean, half = mean_interval(values)
        return k, mean - half, mean, mean + half

    def _matched(self, column: str) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
        """Return all iterations, and the values of each seed there, ``[seeds, K]``; NaN where it has no row."""
        checks.choice(column, "column", f"the ensemble {self.name}", self.traces[0].columns)
        k = np.unique(np.concatenate([trace.k for trace in self.traces]))
        values = np.full((len(self.traces), k.size), np.nan)
        for row, trace in zip(values, self.traces, strict=True):
            row[np.searchsorted(k, trace.k)] = trace.columns[column]
        return k, values

    def summary(self) -> dict[str, Any]:
        """Return the entry in ``summary.json``: worst verdict, earliest divergence, medians of the rest.

        A value that is not finite counts as larger than any other, so a median is None once half of the seeds
        have diverged.
        """
        summaries = [trace.summary() for trace in self.traces]
        return {
            "verdict": self.verdict,
            "diverged_at": self.diverged_at,
            "steps": int(_median([entry["steps"] for entry in summaries])),
            "final": strict({m: _median([entry["final"][m] for entry in summaries]) for m in HEADLINE}),
            "best": strict({m: _median([entry["best"][m] for entry in summaries]) for m in HEADLINE}),
            "bytes_sent": int(_median([entry["bytes_sent"] for entry in summaries])),
            "seconds": _median([entry["seconds"] for entry in summaries]),
            "seeds": len(self.traces),
        }

    def to_pandas(self) -> "pd.DataFrame":
        """Return the rows of all runs in one data frame, with a column ``seed``."""
        import pandas as pd

        frames = [trace.to_pandas() for trace in self.traces]
        for seed, frame in zip(self.seeds, frames, strict=True):
            frame.insert(0, "seed", seed)
        return pd.concat(frames, ignore_index=True)

    def plot(
        self, metrics: Sequence[str] | str = ("loss", "grad_norm"), path: str | os.PathLike[str] | None = None
    ) -> "Figure":
        """Draw the median and the band of ``metrics`` over the iterations; see :meth:`Trace.plot`."""
        return saved(plots.curves({self.name: self}, metrics), path)

    def save(self, directory: str | os.PathLike[str]) -> list[Path]:
        """Write each run as the trace ``<name>-seed<seed>``, and ``ensemble-<name>.json`` that lists them."""
        members = [f"{self.name}-seed{seed}" for seed in self.seeds]
        written: list[Path] = []
        for member, trace in zip(members, self.traces, strict=True):
            written += replace(trace, name=member).save(directory)
        return [
            *written,
            trace_files.write_record(Path(directory), "ensemble", self.name, {"traces": members}),
        ]

    @classmethod
    def load(cls, directory: str | os.PathLike[str], name: str) -> "Ensemble":
        """Read the ensemble that :meth:`save` wrote under ``name``.

        Raises:
            DataError: There is no such ensemble, or one of its files is missing, damaged or of another run.
        """
        members = trace_files.read_record(Path(directory), "ensemble", name).get("traces")
        if not isinstance(members, list) or not members or not all(isinstance(one, str) for one in members):
            raise DataError(f"The ensemble {name!r} in {directory} lists no traces; run it again.")
        return cls(tuple(replace(Trace.load(directory, member), name=name) for member in members))

    def _repr_html_(self) -> str:
        """Return how the runs ended, for notebooks: their medians, then one row per seed."""
        seeds = {
            f"{self.name}, seed {seed}": trace for seed, trace in zip(self.seeds, self.traces, strict=True)
        }
        return results_table({f"{self.name}, medians": self, **seeds})._repr_html_()

    def __repr__(self) -> str:
        """Return one line: how the runs ended and the medians of what they reached."""
        ended = ", ".join(f"{count} {verdict}" for verdict, count in self.verdicts.items())
        return f"Ensemble({self.name}: {len(self.traces)} seeds, {ended}; medians {headline(self.summary())})"


def _median(values: Sequence[float | None]) -> float:
    return float(np.median([math.inf if value is None else value for value in values]))


def members(result: Trace | Ensemble) -> tuple[Trace, ...]:
    """Return the traces of a result, one per seed."""
    return result.traces if isinstance(result, Ensemble) else (result,)
