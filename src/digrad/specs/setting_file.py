"""``setting.json``: the problem and the network of a run, as pages show them; nothing in it can be run again."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from digrad.errors import ArgumentError, MixingError
from digrad.graphs import Digraph
from digrad.simulation.record import evaluate
from digrad.trace import Ensemble, Trace
from digrad.trace.ensemble import members

MOST_EDGES = 5000  # a page lists the weights of so many
MOST_AGENTS = 200  # a page shows the labels of so many
MOST_PATHS = 50  # agents whose way through the plane is recorded
MOST_LABELS = 100
GRID = 61  # points along each side of the plane
LARGEST_SOLVED = 50_000_000  # entries of the data up to which the minimum is found within seconds
_EXPLOSION = 1e3  # a point this many times as far away as the farthest start is left out of the plane


class _Labels(BaseModel):
    names: list[str]
    counts: list[list[int]]


class _Plane(BaseModel):
    across: list[float]
    up: list[float]
    values: list[list[float | None]]


class _Minimum(BaseModel):
    loss: float | None
    x: list[float] | None = None


class _Problem(BaseModel):
    agents: int
    samples: list[int] | None
    labels: _Labels | None
    minimum: _Minimum | None
    plane: _Plane | None


class _Network(BaseModel):
    n: int
    edges: list[tuple[int, int]] | None
    figures: str | None


class Setting(BaseModel):
    """Parts of ``setting.json`` that a page needs; people may have edited it."""

    problem: _Problem | None = None
    network: _Network | None = None


def has_paths(problem: Any) -> bool:
    """Return whether a run records where every agent is: in the plane, for as many agents as can be told apart."""
    return getattr(problem, "dim", None) == 2 and problem.n_agents <= MOST_PATHS


def setting_of(
    problem: Any, network: Any, results: Mapping[str, Trace | Ensemble], *, with_minimum: bool
) -> dict[str, Any]:
    """Return what a page shows of the problem and the network besides the results.

    Args:
        problem: The problem; None if it is not known.
        network: The network; None if it is not known.
        results: Results by label; they decide which part of a plane is shown.
        with_minimum: Whether to look for the minimum of the problem, which takes a second or more.
    """
    return {
        "problem": None if problem is None else _problem(problem, results, with_minimum),
        "network": None if network is None else _network(network),
    }


def _problem(problem: Any, results: Mapping[str, Trace | Ensemble], with_minimum: bool) -> dict[str, Any]:
    minimum = _minimum(problem) if with_minimum and _is_solvable(problem) else None
    return {
        "name": problem.name,
        "agents": problem.n_agents,
        "dim": getattr(problem, "dim", None),
        "samples": None if problem.sizes is None else [int(size) for size in problem.sizes],
        "labels": _labels(problem),
        "minimum": minimum,
        "plane": _plane(problem, results, minimum) if has_paths(problem) else None,
    }


def _is_solvable(problem: Any) -> bool:
    if not hasattr(problem, "solve"):  # a network of torch
        return False
    rows = problem.n_agents if problem.sizes is None else sum(problem.sizes)
    return rows * problem.dim <= LARGEST_SOLVED


def _minimum(problem: Any) -> dict[str, Any]:
    try:
        found = problem.solve()
    except ArgumentError as error:
        return {"loss": None, "reason": str(error)}
    x = found.x.tolist() if problem.dim == 2 else None
    return {"loss": found.loss, "grad_norm": found.grad_norm, **({"x": x} if x else {})}


def _labels(problem: Any) -> dict[str, Any] | None:
    """Return how often each agent has each label."""
    targets = getattr(problem, "targets", None)
    if targets is None:
        return None
    names = np.unique(np.concatenate([np.unique(part) for part in targets]))
    if len(names) > MOST_LABELS:
        return None
    shown = targets[:MOST_AGENTS]
    counts = [[int((np.asarray(part) == name).sum()) for name in names] for part in shown]
    return {"names": [f"{name:g}" for name in names], "counts": counts}


def _plane(
    problem: Any, results: Mapping[str, Trace | Ensemble], minimum: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """Return F on a grid around all that the agents visited, save for explosions; None if that was not recorded."""
    traces = [trace for result in results.values() for trace in members(result)]
    if not all("x[0][0]" in trace.columns for trace in traces):
        return None
    points = np.concatenate([*_visited(traces), *([[minimum["x"]]] if minimum and "x" in minimum else [])])
    low, high = points.min(axis=0), points.max(axis=0)
    margin = 0.08 * np.maximum(high - low, 1e-9 + 0.05 * (high - low).max())
    across, up = (np.linspace(low[j] - margin[j], high[j] + margin[j], GRID) for j in (0, 1))
    grid = np.stack(np.meshgrid(across, up), axis=-1).reshape(-1, 2)
    with jax.enable_x64(True):
        values = np.asarray(evaluate(problem.code, problem.arrays("float64"), grid)[0]).reshape(GRID, GRID)
    return {
        "across": across[[0, -1]],
        "up": up[[0, -1]],
        "values": values,
    }


def _visited(traces: Sequence[Trace]) -> Iterator[npt.NDArray[np.float64]]:
    paths = [_path(trace) for trace in traces]
    reach = _EXPLOSION * max(1.0, *(np.abs(path[0]).max() for path in paths))
    calm = [trace.verdict != "diverged" for trace in traces]
    for path, is_calm in zip(paths, calm, strict=True):
        seen = path.reshape(-1, 2) if is_calm or not any(calm) else path[0]
        yield seen[np.isfinite(seen).all(axis=1) & (np.abs(seen) <= reach).all(axis=1)]


def _path(trace: Trace) -> npt.NDArray[np.float64]:
    """Return where the agents were, ``[rows, n, 2]``."""
    names = [name for name in trace.columns if name.startswith("x[")]
    return np.stack([trace.columns[name] for name in names], axis=1).reshape(len(trace.k), -1, 2)


def _network(network: Any) -> dict[str, Any]:
    """Return the edges with their weights, and the Perron vectors; of a network that changes, all its edges."""
    union: Digraph = network.union
    edges = np.asarray(union.edge_array, dtype=np.int64).reshape(-1, 2)
    edges = edges[edges[:, 0] != edges[:, 1]]
    found: dict[str, Any] = {
        "n": network.n,
        "names": list(union.names) if union.names else None,
        "n_edges": len(edges),
        "period": network.period,
    }
    if len(edges) > MOST_EDGES:
        return {**found, "edges": None, "figures": None}
    found |= {"edges": edges.tolist(), "figures": str(network.describe())}
    if network.period != 1:
        return found
    for letter, vector in (("R", "u"), ("C", "v")):
        try:
            matrix, perron = getattr(network, letter).matrix, getattr(network, vector)
        except MixingError:  # a graph in which no agent is reached by all others has no C
            continue
        found[letter] = matrix[edges[:, 1], edges[:, 0]].tolist()
        found[f"{letter}_self"] = matrix.diagonal().tolist()
        found[vector] = perron.tolist()
    return found
