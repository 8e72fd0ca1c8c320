"""Weights that the user brings: checked once, with messages that name the agent and the remedy."""

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array, issparse

from digrad import checks
from digrad.errors import MixingError
from digrad.graphs import (
    Digraph,
    from_adjacency,
    is_strongly_connected,
    roots,
    sinks,
    unreachable_pair,
)
from digrad.network.weights import KINDS, Kind, Mixing

SUM_TOLERANCE = 1e-10  # of the sum of a row or column
#: How weights must connect the agents for a method.
Connectivity: TypeAlias = Literal["root", "common root", "strong"]


def custom(
    matrix: Any,
    kind: Kind,
    graph: Digraph | None = None,
    *,
    name: str | None = None,
    partial: bool = False,
) -> Mixing:
    """Check weights given as a matrix and return them as :class:`Mixing`.

    Args:
        matrix: ``[n, n]``, dense or scipy sparse; ``[i, j]`` is the weight receiver i gives to sender j.
        kind: ``"row"``, ``"column"`` or ``"doubly"``: which sums must be one, within 1e-10.
        graph: The edges that may carry weight; by default they are read off the matrix. Edges of weight zero
            are allowed as long as the others connect the agents.
        name: How error messages call the matrix; by default R, C or W.
        partial: One step of a sequence: the positive weights need not connect the agents.

    Raises:
        MixingError: A number is not finite, negative or outside the graph, a sum is not one, the positive weights do
            not connect the agents (an agent that reaches all others for ``"row"``, one that all others reach for
            ``"column"``, else strongly), or diagonal entries are missing: one of these agents must have one, and of
            doubly stochastic weights and of one step of a sequence all.

    Example:
        >>> custom([[0.5, 0.5], [0.25, 0.75]], "row")
        Mixing(kind='row', n=2, n_edges=2)
    """
    checks.choice(kind, "kind", "custom", KINDS)
    name = KINDS[kind].matrix if name is None else name
    weights = as_weights(matrix, name)
    if graph is not None:
        _check_inside(weights, graph, name)
    if partial or kind == "doubly":
        _check_diagonal(weights, name)
    for axis in ("row", "column"):
        if kind in (axis, "doubly"):
            _check_sums(weights, axis, kind, name)
    mixing = Mixing(from_adjacency(weights) if graph is None else graph, weights, kind)
    if not partial:
        check_connected(mixing, name)
    return mixing


def as_weights(matrix: Any, name: str) -> csr_array:
    """Return a square matrix of finite numbers, none negative, or say which entry is not."""
    weights = _as_csr(matrix, name)
    _check_entries(weights, name)
    return weights


def check_connected(mixing: Mixing, name: str) -> None:
    """Raise unless repeated mixing settles: the positive weights have an agent that reaches all others (R), one that
    all others reach (C) or connect strongly (W), and one of these agents keeps some of its own value.
    """
    if reason := disconnected(mixing.support, mixing.kind):
        raise MixingError(f"`{name}`: {reason}; give weight to more edges.")
    if mixing.kind != "doubly":
        deciding = (roots if mixing.kind == "row" else sinks)(mixing.support)
        _check_some_diagonal(mixing.matrix, name, deciding)


def check_connectivity(used: Mapping[str, Digraph], owner: str, connectivity: Connectivity) -> None:
    """Raise unless the edges that carry weights, by kind, connect the agents as the method ``owner`` needs it."""
    if used.get("row") is used.get("column") and all(map(is_strongly_connected, used.values())):
        return  # the usual case, found out at half the price
    if connectivity == "common root" and len(used) == 2:
        deciding, receiving = roots(used["row"]), sinks(used["column"])
        if not np.intersect1d(deciding, receiving).size:
            raise MixingError(
                f"`{owner}` needs an agent that reaches all others along R and that all others reach along C, but the "
                f"former are {_listed(deciding)} and the latter {_listed(receiving)}: no tracked gradient would ever "
                "arrive where the estimates come from; give R and C a common root, for example by "
                "digrad.graphs.spanning_trees(graph, root)."
            )
    if connectivity != "strong":
        return
    for kind, graph in used.items():
        if (pair := unreachable_pair(graph)) is not None:
            raise MixingError(
                f"`{owner}` needs {KINDS[kind].adjective} weights that connect all agents strongly, because it "
                f"divides by a weight of every agent, but agent {pair[0]} cannot reach agent {pair[1]}; give weight to "
                "more edges or use a method for which a common root suffices, such as AB, CGT or PushPull."
            )


def _listed(agents: npt.NDArray[np.int64]) -> str:
    shown = ", ".join(map(str, agents[:5].tolist())) + (", ..." if agents.size > 5 else "")
    return shown or "none"


def disconnected(graph: Digraph, kind: str) -> str | None:
    """Return why weights of a kind on these edges would not mix, with agents that show it; None if they do."""
    pair = unreachable_pair(graph)
    if pair is None or (kind != "doubly" and (roots if kind == "row" else sinks)(graph).size):
        return None
    witness = f"agent {pair[0]} cannot reach agent {pair[1]}"
    return {
        "row": f"no agent reaches all others ({witness}), but row-stochastic weights need one that does",
        "column": f"no agent is reached by all others ({witness}), but column-stochastic weights need one",
        "doubly": f"{witness}, but doubly stochastic weights need a strongly connected graph",
    }[kind]


def _as_csr(matrix: Any, name: str) -> csr_array:
    try:
        source = matrix if issparse(matrix) else np.asarray(matrix)
        if np.iscomplexobj(source):
            raise TypeError("got complex ones")
        if source.ndim == 0:
            raise TypeError(f"got {type(matrix).__name__}")
        weights = csr_array(source, dtype=np.float64, copy=True)
    except (TypeError, ValueError) as error:
        raise MixingError(
            f"`{name}`: must be a square matrix of real numbers ({error}); "
            "give one row per receiver and one column per sender."
        ) from None
    shape: tuple[int, ...] = weights.shape or ()
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] == 0:
        raise MixingError(
            f"`{name}`: must be square and not empty, but got shape {shape}; "
            "give one row per receiver and one column per sender."
        )
    weights.sum_duplicates()
    weights.eliminate_zeros()
    return weights


def _check_entries(weights: csr_array, name: str) -> None:
    bad = np.flatnonzero(~(np.isfinite(weights.data) & (weights.data > 0)))
    if bad.size:
        receiver, sender = _position(weights, int(bad[0]))
        raise MixingError(
            f"`{name}`: the weight that agent {receiver} gives to agent {sender} is "
            f"{weights.data[bad[0]]:g}, but weights must be finite and not negative; "
            f"change entry [{receiver}, {sender}]."
        )


def _check_inside(weights: csr_array, graph: Digraph, name: str) -> None:
    rows = weights.indptr.size - 1
    if rows != graph.n:
        raise MixingError(
            f"`{name}`: has {rows} rows, but the graph has {graph.n} agents; give one row per agent."
        )
    receivers = np.repeat(np.arange(graph.n), np.diff(weights.indptr))
    allowed = np.isin(
        receivers * graph.n + weights.indices, graph.edge_array[:, 1] * graph.n + graph.edge_array[:, 0]
    )
    bad = np.flatnonzero(~allowed & (receivers != weights.indices))
    if bad.size:
        receiver, sender = _position(weights, int(bad[0]))
        raise MixingError(
            f"`{name}`: agent {receiver} gives weight {weights.data[bad[0]]:g} to agent {sender}, but "
            f"({sender}, {receiver}) is not an edge of the graph; set entry [{receiver}, {sender}] to 0 "
            "or add the edge."
        )


def _check_diagonal(weights: csr_array, name: str) -> None:
    empty = np.flatnonzero(weights.diagonal() <= 0)
    if empty.size:
        agent = int(empty[0])
        raise MixingError(
            f"`{name}`: agent {agent} gives itself no weight, but every diagonal entry must be positive; "
            f"set entry [{agent}, {agent}], for example by averaging the matrix with the identity."
        )


def _check_some_diagonal(weights: csr_array, name: str, agents: npt.NDArray[np.int64]) -> None:
    """Raise unless one of the agents that decide gives itself weight: values could go round for ever."""
    if not (weights.diagonal()[agents] > 0).any():
        agent = int(agents[0])
        raise MixingError(
            f"`{name}`: agent {agent} gives itself no weight, and neither does any other agent that reaches all "
            f"others, so values may circulate for ever; set entry [{agent}, {agent}], for example by averaging the "
            "matrix with the identity."
        )


def _check_sums(weights: csr_array, axis: str, kind: Kind, name: str) -> None:
    sums = {"row": weights.sum(axis=1), "column": weights.sum(axis=0)}
    off = np.flatnonzero(np.abs(sums[axis] - 1.0) > SUM_TOLERANCE)
    if off.size:
        agent = int(off[0])
        raise MixingError(
            f"`{name}`: {axis} {agent} sums to {sums[axis][agent]:.12g}, but {KINDS[kind].adjective} weights "
            f"must sum to 1 (within {SUM_TOLERANCE:g}); {_remedy(axis, kind, agent)} "
            f"or use {KINDS[kind].builder}(graph)." + _hint(sums, axis, kind)
        )


def _remedy(axis: str, kind: Kind, agent: int) -> str:
    return "balance rows and columns" if kind == "doubly" else f"divide agent {agent}'s {axis} by its sum"


def _hint(sums: dict[str, npt.NDArray[np.float64]], axis: str, kind: Kind) -> str:
    other = "column" if axis == "row" else "row"
    fits = kind != "doubly" and bool((np.abs(sums[other] - 1.0) <= SUM_TOLERANCE).all())
    return f" Its {other}s do sum to 1: is it transposed, or meant as {KINDS[other].matrix}?" if fits else ""


def _position(weights: csr_array, entry: int) -> tuple[int, int]:
    receiver = int(np.searchsorted(weights.indptr, entry, side="right")) - 1
    return receiver, int(weights.indices[entry])
