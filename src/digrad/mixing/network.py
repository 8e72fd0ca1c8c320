"""The network that a run is given: a digraph with validated weights R, C and W."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from digrad import checks
from digrad.errors import ArgumentError, MixingError
from digrad.graphs import Digraph, roots, unreachable_pair
from digrad.mixing.spectral import DENSE_LIMIT, perron_column, perron_row
from digrad.mixing.summary import NetworkSummary, summarize
from digrad.mixing.validation import ADJECTIVES, BUILDERS, check_connected, custom, no_column, no_root
from digrad.mixing.weights import Kind, Mixing, column_stochastic, row_stochastic, sinkhorn

NEEDS = ("row", "column", "doubly", "mean")


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Network:
    """A digraph and the weights on it: a description, from which each engine builds its executor.

    Args:
        graph: Who hears whom.
        R: Row-stochastic weights for ``pull``; by default :func:`row_stochastic` of ``graph``.
        C: Column-stochastic weights for ``push``; by default :func:`column_stochastic` of ``graph``.
        W: Doubly stochastic weights for ``mix``; by default :func:`sinkhorn` of ``graph``, on first use.

    Weights given as an array must live on the arcs of ``graph``. Given as :class:`Mixing`, they bring their
    own graph, so R and C may use different arcs; doubly stochastic weights may serve as R or C.

    Raises:
        MixingError: Weights are invalid, or absent for a graph that does not allow the default; the message
            names the agents and the remedy.

    Example:
        >>> from digrad.graphs import example5
        >>> network = Network(example5())
        >>> network
        Network(n=5, n_arcs=7)
        >>> 27 * network.u
        array([40., 30., 15., 20., 30.])
    """

    graph: Digraph
    R: Mixing
    C: Mixing
    _given_doubly: Mixing | None

    def __init__(self, graph: Digraph, *, R: Any = None, C: Any = None, W: Any = None) -> None:
        """Validate what is given and build R and C."""
        if not isinstance(graph, Digraph):
            raise ArgumentError(
                f"`graph` of Network must be a Digraph, but got {type(graph).__name__}; "
                "use digrad.graphs.from_edges, from_adjacency or from_networkx."
            )
        object.__setattr__(self, "graph", graph)
        object.__setattr__(self, "R", _default_row(graph) if R is None else _accept(R, "row", graph, "R"))
        object.__setattr__(
            self, "C", _default_column(graph) if C is None else _accept(C, "column", graph, "C")
        )
        object.__setattr__(self, "_given_doubly", None if W is None else _accept(W, "doubly", graph, "W"))

    def __repr__(self) -> str:
        """Return the sizes; ``describe()`` tells more."""
        return f"Network(n={self.n}, n_arcs={self.graph.n_arcs})"

    @property
    def n(self) -> int:
        """Number of agents."""
        return self.graph.n

    @cached_property
    def W(self) -> Mixing:  # noqa: N802
        """Doubly stochastic weights: those given, else :func:`sinkhorn` of the graph."""
        return sinkhorn(self.graph) if self._given_doubly is None else self._given_doubly

    @cached_property
    def u(self) -> npt.NDArray[np.float64]:
        """Perron vector of R, ``[n]``, sum n: how much each agent counts when all pull."""
        return perron_row(self.R)

    @cached_property
    def v(self) -> npt.NDArray[np.float64]:
        """Perron vector of C, ``[n]``, sum n: where the mass settles when all push."""
        return perron_column(self.C)

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of the graph and of all weights that were given or built from it, in hexadecimal."""
        parts = [self.graph.content_hash, self.R.content_hash, self.C.content_hash]
        parts += [self._given_doubly.content_hash] if self._given_doubly else []
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

    def require(self, needs: frozenset[str], owner: str) -> None:
        """Make sure, before the first step, that the weights a method mixes with exist.

        Args:
            needs: Any of ``"row"``, ``"column"``, ``"doubly"``, ``"mean"``.
            owner: The method's name, for the message.

        Raises:
            MixingError: The network has no doubly stochastic weights and they are needed.
        """
        for need in sorted(needs):
            checks.choice(need, "needs", owner, NEEDS)
        if "doubly" in needs:
            try:
                _ = self.W
            except MixingError as error:
                raise MixingError(
                    f"`{owner}` needs doubly stochastic weights for `mix`, but the network has none: {error} "
                    "Or pass W=... to Network."
                ) from None

    def describe(self) -> NetworkSummary:
        """Return the figures that decide how well the network mixes; ``print`` shows them as a table."""
        doubly = self._doubly_or_none() if self.n <= DENSE_LIMIT else None
        return summarize(self.graph, self.R, self.u, C=self.C, v=self.v, W=doubly)

    def _doubly_or_none(self) -> Mixing | None:
        # A summary of what exists: a graph without doubly stochastic weights is a finding, not a failure.
        try:
            return self.W
        except MixingError:
            return None


def describe(graph: Digraph) -> NetworkSummary:
    """Return the figures of a digraph with its uniform weights, also when it allows no column-stochastic ones.

    Of a graph that has a root but is not strongly connected, the figures of C and W are ``None`` and
    ``no_column`` says why.

    Raises:
        MixingError: No agent reaches all others, so that not even row-stochastic weights make them agree.

    Example:
        >>> from digrad.graphs import out_star
        >>> describe(out_star(3)).no_column
        'agent 1 cannot reach agent 0, but column-stochastic weights need a strongly connected graph'
    """
    if unreachable_pair(graph) is None:
        return Network(graph).describe()
    rows = _default_row(graph)
    return summarize(graph, rows, perron_row(rows), no_column=no_column(graph))


def _default_row(graph: Digraph) -> Mixing:
    if not roots(graph).size:
        raise MixingError(
            f"`graph` of Network: {no_root(graph)}; add arcs, or pass R on a graph that has a root."
        )
    return row_stochastic(graph)


def _default_column(graph: Digraph) -> Mixing:
    if unreachable_pair(graph) is not None:
        raise MixingError(
            f"`graph` of Network: {no_column(graph)}; add arcs, or pass C on a strongly connected graph."
        )
    return column_stochastic(graph)


def _accept(weights: Any, kind: Kind, graph: Digraph, name: str) -> Mixing:
    if not isinstance(weights, Mixing):
        return custom(weights, kind, graph, name=name)
    if weights.n != graph.n:
        raise MixingError(
            f"`{name}` of Network has {weights.n} agents, but the graph has {graph.n}; "
            "build both for the same agents."
        )
    if weights.kind not in (kind, "doubly"):
        raise MixingError(
            f"`{name}` of Network must be {ADJECTIVES[kind]}, but got {ADJECTIVES[weights.kind]} weights; "
            f"build it with {BUILDERS[kind]}(graph)."
        )
    check_connected(weights, name)
    return weights
