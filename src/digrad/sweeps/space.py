"""Space of a sweep: methods with the values of a grid, or random ones, checked before the first run."""

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from digrad import checks
from digrad.errors import ArgumentError, DigradError
from digrad.simulation.run_options import labelled
from digrad.types import Method

MethodLike: TypeAlias = Method | type


@dataclass(frozen=True)
class LogUniform:
    """Numbers from ``low`` to ``high`` whose logarithm is uniform: of step sizes and thresholds."""

    low: float
    high: float

    def __post_init__(self) -> None:
        """Check the bounds."""
        checks.positive(self.low, "low", "LogUniform")
        checks.positive(self.high, "high", "LogUniform")
        _check_order(self)

    def draw(self, generator: np.random.Generator) -> float:
        """Return one of them."""
        return float(np.exp(generator.uniform(np.log(self.low), np.log(self.high))))


@dataclass(frozen=True)
class Uniform:
    """Numbers from ``low`` to ``high``, uniform: of momenta."""

    low: float
    high: float

    def __post_init__(self) -> None:
        """Check the bounds."""
        _check_order(self)

    def draw(self, generator: np.random.Generator) -> float:
        """Return one of them."""
        return float(generator.uniform(self.low, self.high))


Draws: TypeAlias = LogUniform | Uniform | Sequence[Any]


@dataclass(frozen=True)
class Configuration:
    """One run of a sweep.

    Args:
        label: Label of the method in the table.
        method: With its hyper-parameters.
        values: Those of the grid, and those drawn.
        network: The label of its network.
        start: The label of its start.
        seed: Random seed of the start, and of the samples if they are common.
        sample_seed: Random seed of the samples and of random events of the network.
    """

    label: str
    method: Any
    values: Mapping[str, Any]
    network: str = ""
    start: str = ""
    seed: int = 0
    sample_seed: int = 0


def candidates(
    methods: Any,
    grid: Mapping[str, Sequence[Any]] | None,
    random: Mapping[str, Draws] | None,
    samples: int | None,
    seed: int,
) -> list[Configuration]:
    """Return every method with every point of the grid and every random draw of the fields that it has.

    A field that a method lacks does not multiply its configurations; one that no method has is refused.

    Raises:
        ArgumentError: The grid is empty, names an unknown field, or holds a value that a method refuses.
    """
    by_label = labelled(methods, "sweep")
    axes, draws = _axes(grid), _draws(random, samples, seed, grid)
    known = {name for method in by_label.values() for name in _fields(method)}
    for name in (*axes, *(draws[0] if draws else ())):
        if name not in known:
            listed, owners = ", ".join(sorted(known)), ", ".join(by_label)
            raise ArgumentError(
                f"`{name}` of the sweep is no field of {owners}, which take {listed}.{checks.did_you_mean(name, known)}"
            )
    return [
        Configuration(label, _build(method, values, label), values)
        for label, method in by_label.items()
        for values in _points(axes, draws, set(_fields(method)))
    ]


def _points(
    axes: Mapping[str, Sequence[Any]], draws: list[dict[str, Any]], has: set[str]
) -> list[dict[str, Any]]:
    mine = {name: values for name, values in axes.items() if name in has}
    kept = [{name: value for name, value in draw.items() if name in has} for draw in draws]
    kept = kept if any(kept) else [{}]
    return [
        {**dict(zip(mine, point, strict=True)), **draw}
        for point in itertools.product(*mine.values())
        for draw in kept
    ]


def _axes(grid: Mapping[str, Sequence[Any]] | None) -> dict[str, list[Any]]:
    if grid is None:
        return {}
    if not isinstance(grid, Mapping) or not grid:
        raise ArgumentError(
            "`grid` of sweep must map at least one field to the values to try, as in "
            f"{{'step_size': [0.01, 0.1]}}, but got {grid!r}."
        )
    return {name: _values(values, name, "grid") for name, values in grid.items()}


def _values(values: Any, name: str, argument: str) -> list[Any]:
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        raise ArgumentError(
            f"`{argument}` of sweep must hold a list of values for `{name}`, but got {values!r}; write [{values!r}]."
        )
    listed = [value.item() if isinstance(value, np.generic) else value for value in values]
    if not listed:
        raise ArgumentError(f"`{argument}` of sweep must hold at least one value for `{name}`, but got none.")
    return listed


def _draws(
    random: Mapping[str, Draws] | None, samples: int | None, seed: int, grid: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    if random is None:
        if samples is not None:
            raise ArgumentError("`samples` of sweep counts random draws, but `random` is missing; give both.")
        return [{}]
    if not isinstance(random, Mapping) or not random or samples is None:
        raise ArgumentError(
            "`random` of sweep must map fields to LogUniform(low, high), Uniform(low, high) or a list, and `samples` "
            f"must say how many draws, but got {random!r} and {samples!r}."
        )
    both = sorted({*random} & {*(grid or {})})
    if both:
        raise ArgumentError(
            f"`{both[0]}` is in `grid` and in `random` of sweep; leave it out of one of them."
        )
    axes = {
        name: draw if isinstance(draw, LogUniform | Uniform) else _values(draw, name, "random")
        for name, draw in random.items()
    }
    generator = np.random.default_rng(seed)
    return [
        {name: _draw(axis, generator) for name, axis in axes.items()}
        for _ in range(checks.count(samples, "samples", "sweep"))
    ]


def _draw(axis: Any, generator: np.random.Generator) -> Any:
    return axis[generator.integers(len(axis))] if isinstance(axis, list) else axis.draw(generator)


def _fields(method: MethodLike) -> list[str]:
    return [field.name for field in dataclasses.fields(method)]  # pyright: ignore[reportArgumentType]


def _build(method: Any, values: dict[str, Any], label: str) -> Any:
    try:
        return method(**values) if isinstance(method, type) else dataclasses.replace(method, **values)
    except DigradError as error:
        raise ArgumentError(f"The sweep holds a value that {label} refuses: {error}") from error
    except TypeError:
        given = ", ".join(values) or "nothing"
        raise ArgumentError(
            f"{label} of the sweep takes {', '.join(_fields(method))}, but the sweep gives {given}; add the others to "
            f"`grid`, or pass {label}(...) with them."
        ) from None


def _check_order(bounds: Any) -> None:
    if not -np.inf < bounds.low <= bounds.high < np.inf:
        raise ArgumentError(
            f"`low` of {type(bounds).__name__} must be finite and at most `high`, but got {bounds.low!r} and "
            f"{bounds.high!r}."
        )
