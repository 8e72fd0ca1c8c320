"""The network that a run is given: a digraph, or one per iteration, with validated weights R, C and W."""

import hashlib
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from digrad import checks
from digrad._internal.tables import facts_html
from digrad.errors import ArgumentError, MixingError
from digrad.graphs import Digraph, GraphSequence, from_networkx, roots, sequence, sinks
from digrad.graphs.digraph import numbered
from digrad.links import Links, check_links
from digrad.network.perron_vectors import DENSE_LIMIT, perron_column, perron_row
from digrad.network.proportional_weights import proportions, scaled
from digrad.network.summary import NetworkSummary, summarize
from digrad.network.validation import (
    Connectivity,
    check_connected,
    check_connectivity,
    custom,
    disconnected,
)
from digrad.network.weights import KINDS, Kind, Mixing, column_stochastic, row_stochastic, sinkhorn

if TYPE_CHECKING:
    import networkx


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Network:
    """A digraph and the weights on it: a description, from which each engine builds its executor.

    Args:
        graph: Communication graph: a digraph, or a networkx graph (for weights on its edges:
            :meth:`from_weights`); a sequence (:func:`digrad.graphs.split` and others) changes with the iteration, with
            uniform weights recomputed from the degrees of each. Or a list of networks with weights of their own:
            iteration k mixes with number k mod P of the P given, which together must connect the agents.
        R: Row-stochastic weights for ``pull``; by default :func:`row_stochastic` of ``graph``.
        C: Column-stochastic weights for ``push``; by default :func:`column_stochastic` of ``graph``, on first use.
        W: Doubly stochastic weights for ``mix``; by default :func:`sinkhorn` of ``graph``, on first use.
        links: Unreliable or compressed links, :class:`digrad.Links`; by default messages arrive as sent.
        partial: One of a list of networks, whose edges need not connect the agents alone.

    Weights given as an array must live on the edges of ``graph``. Given as :class:`Mixing`, they bring their
    own graph, so R and C may use different edges; doubly stochastic weights may serve as R or C.

    Raises:
        MixingError: Weights are invalid, or absent for a graph that does not allow the default; the message
            names the agents and the remedy.

    Example:
        >>> from digrad.graphs import example5, from_edges, split
        >>> network = Network(example5())
        >>> network
        Network(n=5, n_edges=7)
        >>> 27 * network.u
        array([40., 30., 15., 20., 30.])
        >>> Network(split(example5(), 3)).at(4)
        Network(n=5, n_edges=2)
        >>> there, back = from_edges(2, [(0, 1)]), from_edges(2, [(1, 0)])
        >>> Network([Network(there, partial=True), Network(back, partial=True)]).at(3).R.toarray()
        array([[0.5, 0.5], [0. , 1. ]])
    """

    graph: Digraph | GraphSequence
    links: Links | None
    partial: bool
    networks: tuple["Network", ...]
    _given: dict[str, Mixing]
    _steps: dict[int, "Network"] = field(default_factory=dict)

    def __init__(
        self,
        graph: "Digraph | GraphSequence | Sequence[Network] | networkx.Graph",
        *,
        R: Any = None,
        C: Any = None,
        W: Any = None,
        links: Links | None = None,
        partial: bool = False,
    ) -> None:
        """Validate what is given."""
        given = {name: weights for name, weights in (("R", R), ("C", C), ("W", W)) if weights is not None}
        members: tuple[Network, ...] = ()
        if isinstance(graph, Sequence):
            members = _members(graph)
            graph = sequence([one.union for one in members])
            if len(members) == 1 and not given:
                members, graph, given = (), members[0].union, members[0]._given
        if hasattr(graph, "is_multigraph"):
            graph = numbered(graph)[0] if given else from_networkx(graph)  # pyright: ignore[reportArgumentType]
        if not isinstance(graph, Digraph | GraphSequence):
            raise _no_graph(type(graph).__name__)
        if isinstance(graph, GraphSequence) and given:
            raise ArgumentError(
                f"`{min(given)}` of Network is one matrix, but the graph changes with the iteration; give those of "
                "every step: Network([Network(graph, R=..., C=..., partial=True), ...])."
            )
        check_links(links, graph.n, "Network")
        object.__setattr__(self, "graph", graph)
        object.__setattr__(self, "links", links)
        object.__setattr__(self, "partial", partial)
        object.__setattr__(self, "networks", members)
        accepted = {name: _accept(weights, self.union, name, partial) for name, weights in given.items()}
        object.__setattr__(self, "_given", accepted)
        object.__setattr__(self, "_steps", dict(enumerate(members)))
        if "R" not in accepted and not partial:
            _check_union(_together(members, "R") if members else self.union, "row")

    @classmethod
    def from_weights(
        cls, weights: "npt.ArrayLike | networkx.Graph", *, links: Links | None = None
    ) -> "Network":
        """Return the network whose agents mix in proportion to given numbers: rows are scaled for R, columns for C.

        Args:
            weights: ``[n, n]``, dense or scipy sparse, not negative; ``[i, j]`` is how much receiver i counts what
                sender j says. Or a networkx graph: the ``weight`` of its edge (j, i), or 1. The diagonal, or a self
                loop, is how much an agent counts itself; where it is missing, the mean of the others in its row
                (for R) or column (for C): equal numbers give uniform weights.
            links: As for :class:`Network`.

        Raises:
            MixingError: A number is negative or not finite, or no agent reaches all others.

        Example:
            >>> Network.from_weights([[1, 3], [1, 1]]).R.toarray()
            array([[0.25, 0.75],
                   [0.5 , 0.5 ]])
        """
        graph, numbers = proportions(weights, "weights")
        has_sink = sinks(graph).size > 0
        return cls(graph, R=scaled(numbers, 1), C=scaled(numbers, 0) if has_sink else None, links=links)

    def __repr__(self) -> str:
        """Return the sizes; ``describe()`` tells more."""
        changing = "" if self.period == 1 else ", changes with time"
        return f"Network(n={self.n}, n_edges={self.union.n_edges}{changing})"

    def _repr_html_(self) -> str:
        """Return the figures of :meth:`describe`, for notebooks."""
        return facts_html(repr(self), self.describe().lines())

    @property
    def n(self) -> int:
        """Number of agents."""
        return self.graph.n

    @property
    def union(self) -> Digraph:
        """All edges that are ever used."""
        return self.graph.union if isinstance(self.graph, GraphSequence) else self.graph

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields, without the steps that were built when they were asked for."""
        return {**vars(self), "_steps": dict(enumerate(self.networks))}

    @property
    def period(self) -> int | None:
        """Iterations after which the network repeats: 1 if it never changes, None if it never repeats."""
        return self.graph.period if isinstance(self.graph, GraphSequence) else 1

    def at(self, k: int) -> "Network":
        """Return the network of iteration k."""
        if not isinstance(self.graph, GraphSequence):
            return self
        if self.period is None:
            return Network(self.graph.at(k), partial=True)
        phase = k % self.period
        if phase not in self._steps:
            self._steps[phase] = Network(self.graph.at(phase), partial=True)
        return self._steps[phase]

    @property
    def is_random(self) -> bool:
        """Return whether edges, or what happens to messages, are drawn."""
        return self.period is None or (self.links is not None and self.links.is_random)

    @property
    def is_unreliable(self) -> bool:
        """Return whether packets may be lost, late or noisy, or agents join and leave."""
        return self.links is not None and not self.links.is_reliable

    def with_seed(self, seed: int) -> "Network":
        """Return the network of a run with this seed.

        Everything that is drawn (loss, delay, sleep, noise, entries, seconds, edges) is drawn anew; in a run with seed
        0 the seeds of links, clock and graph are used as given. A network that draws nothing is returned itself.

        Example:
            >>> from digrad.graphs import example5
            >>> network = Network(example5(), links=Links(loss=0.3))
            >>> network.with_seed(0) is network, network.with_seed(1).links.seed == network.links.seed
            (True, False)
        """
        if seed == 0 or not self.is_random:
            return self
        other = copy(self)  # nothing that was checked or computed depends on the seeds
        if isinstance(self.graph, GraphSequence):
            object.__setattr__(other, "graph", self.graph.with_seed(seed))
        if self.links is not None:
            object.__setattr__(other, "links", self.links.with_seed(seed))
        return other

    @cached_property
    def R(self) -> Mixing:  # noqa: N802
        """Row-stochastic weights: those given, else uniform."""
        return self._given["R"] if "R" in self._given else row_stochastic(self._constant("R"))

    @cached_property
    def C(self) -> Mixing:  # noqa: N802
        """Column-stochastic weights: those given, else uniform.

        Raises:
            MixingError: No agent of the graph is reached by all others.
        """
        if "C" in self._given:
            return self._given["C"]
        graph = self._constant("C")
        if not self.partial:
            _check_union(graph, "column")
        return column_stochastic(graph)

    @cached_property
    def W(self) -> Mixing:  # noqa: N802
        """Doubly stochastic weights: those given, else :func:`sinkhorn` of the graph."""
        if "W" in self._given:
            return self._given["W"]
        return sinkhorn(self._constant("W"), partial=self.partial)

    @property
    def given(self) -> tuple[Mixing, ...]:
        """The weights that were given."""
        return tuple(self._given.values())

    @cached_property
    def u(self) -> npt.NDArray[np.float64]:
        """Perron vector of R, ``[n]``, sum n: how much each agent counts when all pull; 0 unless it reaches all."""
        return perron_row(self.R)

    @cached_property
    def v(self) -> npt.NDArray[np.float64]:
        """Perron vector of C, ``[n]``, sum n: where the mass settles when all push; 0 unless all others reach it."""
        return perron_column(self.C)

    @property
    def gain(self) -> float:
        """u'v/n: the factor by which push-pull methods take longer steps than their step size says; n for two trees."""
        return float(self.u @ self.v) / self.n

    @property
    def common_roots(self) -> npt.NDArray[np.int64]:
        """The agents that reach all others along R and that all others reach along C, in ascending order."""
        return np.intersect1d(roots(self.R.support), sinks(self.C.support))

    @cached_property
    def _met(self) -> set[tuple[frozenset[str], Connectivity]]:
        """Needs that :meth:`require` has found to be met."""
        return set()

    @property
    def content_hash(self) -> str:
        """SHA-256 of the graph, of all weights that were given and of the links, in hexadecimal."""
        parts = [one.content_hash for one in self.networks] or [self.graph.content_hash]
        parts += [f"{name}={weights.content_hash}" for name, weights in self._given.items()]
        parts += [] if self.links is None else [repr(self.links)]
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

    def require(self, needs: frozenset[str], owner: str, connectivity: Connectivity = "root") -> None:
        """Make sure, before the first step, that the weights a method mixes with exist and connect the agents.

        Args:
            needs: Any of ``"row"``, ``"column"``, ``"doubly"``, ``"mean"``.
            owner: The method's name, for the message.
            connectivity: ``"strong"``: all weights must connect the agents strongly; ``"common root"``: an agent must
                reach all others along R and be reached by all others along C; ``"root"``: each must have such an agent.

        Raises:
            MixingError: The network lacks weights that are needed.
        """
        if (needs, connectivity) in self._met:
            return
        for need in sorted(needs):
            checks.choice(need, "needs", owner, (*KINDS, "mean"))
        if self.networks:
            _require_each(self.networks, needs, owner, connectivity)
        elif isinstance(self.graph, GraphSequence):
            _require_sequence(self, needs, owner, connectivity)
        else:
            self._require_weights(needs, owner, connectivity)
        self._met.add((needs, connectivity))

    def describe(self) -> NetworkSummary:
        """Return the figures that decide how well the network mixes; ``print`` shows them as a table.

        Of a graph in which no agent is reached by all others, the figures of C and W are ``None`` and ``no_column``
        says why. Of a graph that changes with the iteration, the union of all edges is described.

        Example:
            >>> from digrad.graphs import out_star
            >>> Network(out_star(3)).describe().no_column
            'no agent is reached by all others (agent 1 cannot reach agent 0), but column-stochastic weights need one'
        """
        if isinstance(self.graph, GraphSequence):
            when = "at random" if self.period is None else f"with period {self.period}"
            changes = f"{when}; the figures are those of all its edges together, with uniform weights"
            return replace(Network(self.union).describe(), changes=changes)
        if "C" not in self._given and (reason := disconnected(self.graph, "column")):
            return summarize(self.graph, self.R, self.u, no_column=reason)
        doubly = self._doubly_or_none() if self.n <= DENSE_LIMIT else None
        return summarize(self.graph, self.R, self.u, C=self.C, v=self.v, W=doubly)

    def _constant(self, name: str) -> Digraph:
        if self.period != 1:
            raise MixingError(
                f"`{name}` of Network changes with the iteration; ask for that of iteration k: network.at(k).{name}."
            )
        return self.graph.at(0) if isinstance(self.graph, GraphSequence) else self.graph

    def _require_weights(self, needs: frozenset[str], owner: str, connectivity: Connectivity) -> None:
        for need in ("column", "doubly"):
            kind = KINDS[need]
            try:
                _ = getattr(self, kind.matrix) if need in needs else None
            except MixingError as error:
                raise MixingError(
                    f"`{owner}` needs {kind.adjective} weights for `{kind.primitive}`, but the network has none: "
                    f"{error} Or pass {kind.matrix}=... to Network."
                ) from None
        if not self.partial:
            used = [need for need in ("row", "column") if need in needs]
            supports = {need: getattr(self, KINDS[need].matrix).support for need in used}
            check_connectivity(supports, owner, connectivity)

    def _doubly_or_none(self) -> Mixing | None:
        # A summary of what exists: a graph without doubly stochastic weights is a finding, not a failure.
        try:
            return self.W
        except MixingError:
            return None


def _no_graph(what: str) -> ArgumentError:
    return ArgumentError(
        f"`graph` of Network must be a Digraph, a networkx graph or a list of networks of one graph each, but got "
        f"{what}; use digrad.graphs.from_edges or from_adjacency."
    )


def _members(networks: Sequence[Any]) -> tuple[Network, ...]:
    """Return a list of networks, checked to fit together."""
    members = tuple(networks)
    if not members or not all(isinstance(one, Network) and one.period == 1 for one in members):
        kinds = " and ".join(sorted({type(one).__name__ for one in members})) or "nothing"
        raise _no_graph(f"a list of {kinds}")
    if len({one.n for one in members}) > 1:
        raise ArgumentError(
            f"`graph` of Network: the networks must have the same agents, but have {[one.n for one in members]}."
        )
    linked = [phase for phase, one in enumerate(members) if one.links is not None]
    if linked:
        raise ArgumentError(
            f"`graph` of Network: number {linked[0]} has links of its own, but all share those of the whole; pass "
            "links=... after the list."
        )
    return members


def _require_each(
    members: tuple[Network, ...], needs: frozenset[str], owner: str, connectivity: Connectivity
) -> None:
    for one in members:
        one.require(needs, owner)
    used = {need: _together(members, KINDS[need].matrix) for need in KINDS if need in needs}
    for need, graph in used.items():
        _check_union(graph, need)
    check_connectivity({need: used[need] for need in ("row", "column") if need in used}, owner, connectivity)


def _check_union(graph: Digraph, kind: str) -> None:
    if reason := disconnected(graph, kind):
        raise MixingError(
            f"`graph` of Network: {reason}; add edges, or pass {KINDS[kind].matrix} on a graph that has enough of them."
        )


def _together(members: Sequence[Network], name: str) -> Digraph:
    """Return the edges to which one of the networks gives weight."""
    return sequence([getattr(one, name).support for one in members]).union


def _require_sequence(
    network: Network, needs: frozenset[str], owner: str, connectivity: Connectivity
) -> None:
    if "column" in needs:
        _check_union(network.union, "column")
    check_connectivity(
        {need: network.union for need in ("row", "column") if need in needs}, owner, connectivity
    )
    if "doubly" not in needs:
        return
    if network.period is None:
        raise MixingError(
            f"`{owner}` needs doubly stochastic weights for `mix`, which randomly thinned digraphs do not have; "
            "use a method that pulls or pushes, such as CGT or SGP."
        )
    for k in range(network.period):
        try:
            _ = network.at(k).W
        except MixingError as error:
            raise MixingError(
                f"`{owner}` needs doubly stochastic weights for `mix` at every iteration, but at k = {k}: {error}"
            ) from None


def _accept(weights: Any, graph: Digraph, name: str, partial: bool) -> Mixing:
    kind: Kind = next(kind for kind, facts in KINDS.items() if facts.matrix == name)  # pyright: ignore[reportAssignmentType]
    if not isinstance(weights, Mixing):
        return custom(weights, kind, graph, name=name, partial=partial)
    if weights.n != graph.n:
        raise MixingError(
            f"`{name}` of Network has {weights.n} agents, but the graph has {graph.n}; "
            "build both for the same agents."
        )
    if weights.kind not in (kind, "doubly"):
        raise MixingError(
            f"`{name}` of Network must be {KINDS[kind].adjective}, but got {KINDS[weights.kind].adjective} weights; "
            f"build it with {KINDS[kind].builder}(graph)."
        )
    if not partial:
        check_connected(weights, name)
    return weights
