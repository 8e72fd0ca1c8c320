"""The table ``[sweep]`` of a specification: which values of the hyper-parameters to try."""

from typing import Annotated, Any, Literal

import numpy as np
from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from digrad.errors import DigradError
from digrad.specs.graph_table import Count, GraphTable
from digrad.specs.messages import Section, refuse
from digrad.specs.method_table import hyper_parameter
from digrad.sweeps import LogUniform, Uniform

GRAPH = "graph"  # what a sweep over several graphs calls the table [graph]


class _Range(Section):
    low: float
    high: float

    @model_validator(mode="after")
    def _check(self) -> "_Range":
        if not (self.low <= self.high and (self.low > 0 or getattr(self, "scale", "log") == "linear")):
            raise refuse(
                f"must have low <= high, and low > 0 on a log scale, but got {self.low!r}, {self.high!r}."
            )
        return self


class _Grid(_Range):
    count: Count

    def values(self) -> list[float]:
        return np.geomspace(self.low, self.high, self.count).tolist()


class _Random(_Range):
    scale: Literal["log", "linear"] = "log"

    def values(self) -> Uniform | LogUniform:
        return (Uniform if self.scale == "linear" else LogUniform)(self.low, self.high)


def _alternative(value: Any) -> str:
    return "range" if isinstance(value, dict | _Range) else "list"


_Listed = Annotated[list[Any], Field(min_length=1), Tag("list")]
_GridValues = Annotated[_Listed | Annotated[_Grid, Tag("range")], Discriminator(_alternative)]
_RandomValues = Annotated[_Listed | Annotated[_Random, Tag("range")], Discriminator(_alternative)]


def _check_graphs(value: Any) -> Any:
    if isinstance(value, dict) and GRAPH in value:
        raise refuse("is the label of [graph] itself, which is always tried; give this graph another.", GRAPH)
    return value


class SweepTable(Section):
    """``[sweep]``: what ``digrad sweep`` tries, for every method of the specification that has the field.

    Args:
        grid: For each field a list of values, or ``{low, high, count}`` for logarithmically spaced ones. All
            combinations are run.
        random: For each field ``{low, high}`` (log-uniform; with ``scale = "linear"`` uniform), or a list.
        samples: Number of random draws.
        common_random_numbers: Give all mini-batch runs of one seed the same samples: faster, and compared in pairs, but
            not independent.
        target: Levels such as ``{grad_norm = 1e-3}``; the table shows after how many iterations all were reached.
        graphs: Further graphs by label, each a table like ``[graph]``; the label of ``[graph]`` itself is ``graph``.
        starts: Several starts instead of ``start``, such as ``["zeros", "normal"]``.
    """

    grid: Annotated[dict[str, _GridValues], Field(min_length=1)] | None = None
    random: Annotated[dict[str, _RandomValues], Field(min_length=1)] | None = None
    samples: Count | None = None
    common_random_numbers: bool = False
    target: Annotated[dict[str, float], Field(min_length=1)] | None = None
    graphs: Annotated[dict[str, GraphTable], BeforeValidator(_check_graphs)] = Field(default_factory=dict)
    starts: list[str] = Field(default_factory=list)

    def space(self) -> dict[str, Any]:
        """Return ``grid``, ``random`` and ``samples`` as :func:`digrad.sweep` takes them."""
        grid, random = (
            given and {name: _values(values, name) for name, values in given.items()}
            for given in (self.grid, self.random)
        )
        return {"grid": grid, "random": random, "samples": self.samples}


def _values(values: list[Any] | _Grid | _Random, name: str) -> Any:
    """Return what is tried for a field; in a list, a schedule or one number per agent may stand for a value."""
    if not isinstance(values, list):
        return values.values()
    try:
        return [hyper_parameter(value, name) if isinstance(value, dict | list) else value for value in values]
    except ValueError as error:
        raise DigradError(f"`{name}`: {error}") from error
