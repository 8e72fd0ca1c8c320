"""The table ``[problem]`` of a specification: the private losses of the agents."""

import inspect
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Discriminator, Field, PlainValidator, Tag

from digrad import data, problems
from digrad._internal import plugins
from digrad.data import Dataset
from digrad.data.bundled import BUNDLED
from digrad.data.catalog import CATALOG
from digrad.errors import DataError, PluginError
from digrad.problems import Problem
from digrad.specs.graph_table import absolute
from digrad.specs.image_table import ImagesTable
from digrad.specs.messages import Table, is_number, numbers, refuse
from digrad.specs.partition_table import PartitionTable, as_partition

_LARGEST_STATE = 2**31  # numbers, one per agent and feature: 17 GB for each of several copies


def _matrix(value: Any) -> Any:
    if isinstance(value, list) and value and all(isinstance(row, list) and row for row in value):
        same_length = len({len(row) for row in value}) == 1
        if same_length and all(is_number(entry) for row in value for entry in row):
            return [[float(entry) for entry in row] for row in value]
    raise refuse(f"must be one list of numbers per agent, all of one length, but got {value!r}.")


PerAgent: TypeAlias = Annotated[float | list[float], numbers("agent")]
Matrix: TypeAlias = Annotated[list[list[float]], PlainValidator(_matrix)]


class LogisticTable(Table):
    """``kind = "logistic"``: see :func:`digrad.problems.logistic`.

    Args:
        kind: ``"logistic"``.
        data: The name of a data set (``digrad data list``), or a LIBSVM file.
        partition: A scheme, or the table below.
        reg_weight: lambda, a number or one per agent.
        reg_power: p, a number or one per agent, at least 2.
        held_out: A share of the samples that no agent trains on; ``digrad tune`` and ``digrad sweep`` compare there.
    """

    kind: Literal["logistic"]
    data: str
    partition: Annotated[PartitionTable, BeforeValidator(as_partition)] = PartitionTable(scheme="sorted")
    reg_weight: PerAgent = 0.0
    reg_power: PerAgent = 2.0
    held_out: Annotated[float, Field(gt=0, lt=1)] | None = None

    def resolved(self, base: Path) -> "LogisticTable":
        """Return the table with a data file relative to ``base`` made absolute."""
        if self.data in BUNDLED or self.data in CATALOG or not Path(absolute(self.data, base)).is_file():
            return self
        return self.model_copy(update={"data": absolute(self.data, base)})

    def build(self, agents: int) -> Problem:
        """Load and divide the data, and return the problem."""
        dataset, _ = self._parts()
        if agents * dataset.dim > _LARGEST_STATE:
            raise DataError(
                f"{dataset.name} has {dataset.dim} features, so that the states of {agents} agents alone would take "
                f"{8 * agents * dataset.dim / 1e9:.3g} GB; check its largest index, or leave out features."
            )
        options = self.partition.model_dump(exclude_none=True)
        split = data.partition(data.binary_labels(dataset), agents, **options)
        return problems.logistic(
            data=dataset,
            agents=agents,
            partition=split,
            reg_weight=self.reg_weight,
            reg_power=self.reg_power,
        )

    def build_held_out(self) -> Problem | None:
        """Return the loss on the samples that were set aside, without the regulariser."""
        rest = self._parts()[1]
        return None if rest is None else problems.logistic(data=rest, agents=1, partition="iid")

    def _parts(self) -> tuple[Dataset, Dataset | None]:
        dataset = data.load(self.data)
        return (dataset, None) if self.held_out is None else dataset.split(self.held_out, seed=0)


class _Analytic(Table):
    def resolved(self, base: Path) -> "_Analytic":
        """Return the table itself: it names no file."""
        return self

    def build_held_out(self) -> None:
        """Return None: there are no samples."""


class QuadraticTable(_Analytic):
    """``kind = "quadratic"``: see :func:`digrad.problems.quadratic`.

    Args:
        kind: ``"quadratic"``.
        curvature: One list of numbers per agent.
        linear: One list of numbers per agent.
        quartic: A number, or one per agent.
    """

    kind: Literal["quadratic"]
    curvature: Matrix
    linear: Matrix
    quartic: PerAgent = 0.0

    def build(self, agents: int) -> Problem:
        """Return the problem."""
        return problems.quadratic(curvature=self.curvature, linear=self.linear, quartic=self.quartic)


class CoshTable(_Analytic):
    """``kind = "cosh"``: see :func:`digrad.problems.cosh`.

    Args:
        kind: ``"cosh"``.
        center: One list of numbers per agent.
        scale: A positive number, or one per agent.
        sharpness: A positive number, or one per agent.
    """

    kind: Literal["cosh"]
    center: Matrix
    scale: PerAgent = 1.0
    sharpness: PerAgent = 1.0

    def build(self, agents: int) -> Problem:
        """Return the problem."""
        return problems.cosh(center=self.center, scale=self.scale, sharpness=self.sharpness)


class QuarticTable(_Analytic):
    """``kind = "quartic"``: see :func:`digrad.problems.quartic`.

    Args:
        kind: ``"quartic"``.
        center: One list of numbers per agent.
        scale: A positive number, or one per agent.
    """

    kind: Literal["quartic"]
    center: Matrix
    scale: PerAgent = 1.0

    def build(self, agents: int) -> Problem:
        """Return the problem."""
        return problems.quartic(center=self.center, scale=self.scale)


class ExampleTable(_Analytic):
    """``kind = "example_quadratic"`` or ``"example_quartic"``: the five-agent oracles of the tests.

    Args:
        kind: ``"example_quadratic"`` or ``"example_quartic"``.
    """

    kind: Literal["example_quadratic", "example_quartic"]

    def build(self, agents: int) -> Problem:
        """Return the problem."""
        return getattr(problems, self.kind)()


class PluginTable(_Analytic):
    """``kind`` of another package, which announces a function under that name; see :mod:`digrad._internal.plugins`.

    Args:
        kind: The name of the entry point; the other keys are arguments of the function, besides ``agents``.
    """

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    kind: str

    def build(self, agents: int) -> Problem:
        """Call the function of the other package."""
        make = plugins.load(plugins.PROBLEMS, self.kind)
        arguments = self.model_extra or {}
        try:
            inspect.signature(make).bind(agents=agents, **arguments)
        except TypeError as error:
            raise PluginError(
                f"`problem` of kind {self.kind!r} does not fit its function: {error}."
            ) from error
        problem = make(agents=agents, **arguments)
        if not isinstance(problem, Problem):
            kind = type(problem).__name__
            raise PluginError(
                f"`problem` of kind {self.kind!r} must return a Problem, but it returns a {kind}."
            )
        return problem


PROBLEM_TABLES = {
    "logistic": LogisticTable,
    "quadratic": QuadraticTable,
    "cosh": CoshTable,
    "quartic": QuarticTable,
    "example_quadratic": ExampleTable,
    "example_quartic": ExampleTable,
    "images": ImagesTable,
}


def _alternative(value: Any) -> str | None:
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    if kind in PROBLEM_TABLES:
        plugins.warn_if_announced(plugins.PROBLEMS, kind)
        return kind
    return _PLUGIN if kind in plugins.installed(plugins.PROBLEMS) else kind


_PLUGIN = "plug-in"
ProblemTable: TypeAlias = Annotated[
    Annotated[LogisticTable, Tag("logistic")]
    | Annotated[QuadraticTable, Tag("quadratic")]
    | Annotated[CoshTable, Tag("cosh")]
    | Annotated[QuarticTable, Tag("quartic")]
    | Annotated[ExampleTable, Tag("example_quadratic")]
    | Annotated[ExampleTable, Tag("example_quartic")]
    | Annotated[ImagesTable, Tag("images")]
    | Annotated[PluginTable, Tag(_PLUGIN)],
    Discriminator(_alternative),
]
