"""The table ``[sweep]`` of a specification: which values of the hyper-parameters to try."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, Field, PlainValidator

from digrad.errors import DigradError
from digrad.specs.graph_table import Count, GraphTable
from digrad.specs.messages import Table, is_number, refuse
from digrad.specs.method_table import hyper_parameter
from digrad.sweeps import LogUniform, Uniform

GRAPH = "graph"  # what a sweep over several graphs calls the table [graph]
_GRID_KEYS, _RANDOM_KEYS = {"low", "high", "count"}, {"low", "high", "scale"}


def _check_grid(value: Any) -> Any:
    for name, values in _table(value, "field", "[0.01, 0.1]").items():
        if isinstance(values, dict):
            if set(values) != _GRID_KEYS or not isinstance(values["count"], int) or values["count"] < 1:
                raise refuse(
                    f"must be a list or {{low = ..., high = ..., count = ...}}, but got {values!r}.", name
                )
            _bounds(values, name, positive=True)
        elif not isinstance(values, list) or not values:
            raise refuse(f"must be a list of at least one value, but got {values!r}.", name)
    return value


def _check_random(value: Any) -> Any:
    for name, values in _table(value, "field", "{low = 1e-3, high = 1.0}").items():
        if isinstance(values, dict):
            scale = values.get("scale", "log")
            if not {"low", "high"} <= set(values) <= _RANDOM_KEYS or scale not in ("log", "linear"):
                raise refuse(
                    'must be a list or {low = ..., high = ..., scale = "log" | "linear"}, but got '
                    f"{values!r}.",
                    name,
                )
            _bounds(values, name, positive=scale == "log")
        elif not isinstance(values, list) or not values:
            raise refuse(f"must be a list of at least one value, or bounds, but got {values!r}.", name)
    return value


def _check_target(value: Any) -> Any:
    for name, level in _table(value, "column", "1e-3").items():
        if not is_number(level):
            raise refuse(f"must be a number, but got {level!r}.", name)
    return value


def _check_graphs(value: Any) -> Any:
    if isinstance(value, dict) and GRAPH in value:
        raise refuse("is the label of [graph] itself, which is always tried; give this graph another.", GRAPH)
    return value


def _table(value: Any, key: str, example: str) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        raise refuse(
            f"must give something for at least one {key}, as in `{key} = {example}`, but got {value!r}."
        )
    return value


def _bounds(values: dict[str, Any], name: str, *, positive: bool) -> None:
    low, high = values["low"], values["high"]
    if not (is_number(low) and is_number(high) and low <= high and (low > 0 or not positive)):
        kind = "positive numbers" if positive else "numbers"
        raise refuse(f"must have {kind} with low <= high, but got {low!r} and {high!r}.", name)


class SweepTable(Table):
    """``[sweep]``: what ``digrad sweep`` tries, for every method of the specification that has the field.

    Args:
        grid: By field a list of values, or ``{low, high, count}`` with a constant ratio between neighbours. All
            combinations are run.
        random: By field ``{low, high}`` (log-uniform; ``scale = "linear"`` for uniform), or a list to choose from.
        samples: How many random draws.
        common_random_numbers: Give all mini-batch runs of one seed the same samples: faster, and compared in pairs, but
            not independent.
        target: Levels by column, as in ``{grad_norm = 1e-3}``: after how many iterations are all reached?
        graphs: More graphs by label, each a table like ``[graph]``, which is itself called ``graph``.
        starts: Several starts, as ``["zeros", "normal"]``, instead of ``start``.
    """

    grid: Annotated[dict[str, Any], PlainValidator(_check_grid)] | None = None
    random: Annotated[dict[str, Any], PlainValidator(_check_random)] | None = None
    samples: Count | None = None
    common_random_numbers: bool = False
    target: Annotated[dict[str, Any], PlainValidator(_check_target)] | None = None
    graphs: Annotated[dict[str, GraphTable], BeforeValidator(_check_graphs)] = Field(default_factory=dict)
    starts: list[str] = Field(default_factory=list)

    def resolved(self, base: Path) -> "SweepTable":
        """Return the table with files relative to ``base`` made absolute."""
        return self.model_copy(
            update={"graphs": {k: graph.resolved(base) for k, graph in self.graphs.items()}}
        )

    def space(self) -> dict[str, Any]:
        """Return ``grid``, ``random`` and ``samples`` as :func:`digrad.sweep` takes them."""
        grid = self.grid and {name: _values(values, name) for name, values in self.grid.items()}
        random = self.random and {name: _draws(values, name) for name, values in self.random.items()}
        return {"grid": grid, "random": random, "samples": self.samples}


def _values(values: Any, name: str) -> list[Any]:
    if isinstance(values, dict):
        return np.geomspace(values["low"], values["high"], values["count"]).tolist()
    return [_value(value, name) for value in values]


def _draws(values: Any, name: str) -> Any:
    if isinstance(values, list):
        return [_value(value, name) for value in values]
    kind = Uniform if values.get("scale") == "linear" else LogUniform
    return kind(float(values["low"]), float(values["high"]))


def _value(value: Any, name: str) -> Any:
    """Return a value of a field: a schedule or a column of one number per agent, or what is written."""
    try:
        return hyper_parameter(value, name) if isinstance(value, dict | list) else value
    except ValueError as error:
        raise DigradError(f"`{name}`: {error}") from error
