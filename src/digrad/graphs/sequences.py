"""Digraphs that change with the iteration: periodic, thinned at random, or present only now and then.

At iteration k an agent receives from its in-neighbours in the digraph of that iteration only.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from digrad import checks
from digrad.errors import ArgumentError, GraphError
from digrad.graphs.digraph import Digraph
from digrad.graphs.generators import exponential
from digrad.sampling import EDGES, seed_of_run, uniforms


@dataclass(frozen=True, eq=False, repr=False)
class GraphSequence:
    """One digraph per iteration; made by the functions of this module.

    Iteration k is silent unless k is a multiple of ``every``. At its j-th digraph, j = k / every, the edge a of
    ``union`` is there if ``table[j mod P, a]`` says so and, with ``probability`` below one, a coin of that
    probability does.

    Args:
        union: Every edge that may ever be there.
        table: ``[P, n_edges]``, the periodic part.
        probability: Probability of each edge at each iteration.
        seed: Random seed of the edges.
        every: Iterations from one digraph to the next; those between send nothing.
    """

    union: Digraph
    table: npt.NDArray[np.bool_]
    probability: float = 1.0
    seed: int = 0
    every: int = 1

    def __repr__(self) -> str:
        """Return the sizes."""
        period = "random" if self.period is None else f"period={self.period}"
        return f"GraphSequence(n={self.n}, n_edges={self.union.n_edges}, {period})"

    @property
    def n(self) -> int:
        """Number of agents."""
        return self.union.n

    @property
    def period(self) -> int | None:
        """Iterations after which the digraphs repeat; None if they never do."""
        return self.every * len(self.table) if self.probability == 1 else None

    def with_seed(self, seed: int) -> "GraphSequence":
        """Return the sequence of a run with this seed; see :meth:`digrad.Network.with_seed`."""
        return replace(self, seed=seed_of_run(self.seed, seed))

    def presence(self, first: int, length: int) -> npt.NDArray[np.bool_]:
        """Return which edges of ``union`` are there at first, ..., first + length - 1, ``[length, n_edges]``."""
        ks = np.arange(first, first + length)
        there = self.table[ks // self.every % len(self.table)] & (ks % self.every == 0)[:, None]
        if self.probability < 1:
            blocks = range(first // self.every, (first + length - 1) // self.every + 1)
            coins = (
                uniforms(self.seed, EDGES, blocks.start, len(blocks), self.union.n_edges) < self.probability
            )
            there &= coins[ks // self.every - blocks.start]
        return there

    def at(self, k: int) -> Digraph:
        """Return the digraph of iteration k."""
        return Digraph(self.n, self.union.edge_array[self.presence(k, 1)[0]])

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of everything that decides the digraphs, in hexadecimal."""
        numbers = f"{self.probability!r} {self.seed} {self.every} {self.table.shape}"
        digest = hashlib.sha256(f"{self.union.content_hash} {numbers}".encode())
        digest.update(np.packbits(self.table).tobytes())
        return digest.hexdigest()


def sequence(graphs: Sequence[Digraph]) -> GraphSequence:
    """Return the sequence that repeats ``graphs``: iteration k has number k mod P of the P given.

    Example:
        >>> from digrad.graphs import from_edges
        >>> periodic = sequence([from_edges(2, [(0, 1)]), from_edges(2, [(1, 0)])])
        >>> periodic, periodic.at(3).edges
        (GraphSequence(n=2, n_edges=2, period=2), ((1, 0),))
    """
    members = list(graphs) if isinstance(graphs, Sequence) else []
    if not members or not all(isinstance(member, Digraph) for member in members):
        raise ArgumentError(f"`graphs` of sequence must be a list of digraphs, but got {graphs!r}.")
    if len({member.n for member in members}) > 1:
        raise GraphError(
            f"`graphs` of sequence must have the same agents, but have {[member.n for member in members]}."
        )
    n = members[0].n
    keys = [member.edge_array[:, 1] * n + member.edge_array[:, 0] for member in members]
    every_key = np.unique(np.concatenate(keys))
    union = Digraph(n, np.stack([every_key % n, every_key // n], axis=1))
    return GraphSequence(union, np.stack([np.isin(every_key, present) for present in keys]))


def one_peer_exponential(n: int) -> GraphSequence:
    """Return the exponential graph one offset at a time: at iteration k agent i sends to i + 2^(k mod P) mod n only.

    P is log2 n, rounded up. For n a power of two, one period of uniform weights averages exactly.

    Example:
        >>> one_peer_exponential(8).at(2).out_neighbors(0)
        array([4])
    """
    union = exponential(n)
    offset = (union.edge_array[:, 1] - union.edge_array[:, 0]) % n
    period = max((n - 1).bit_length(), 1)
    return GraphSequence(union, offset == 2 ** np.arange(period)[:, None])


def split(graph: Digraph, parts: int) -> GraphSequence:
    """Return the edges of ``graph`` dealt out to ``parts`` phases: edge a is there iff a mod parts = k mod parts.

    Edges are counted in their order by receiver, then sender. No phase need connect the agents.

    Example:
        >>> from digrad.graphs import ring
        >>> split(ring(4), 2).at(1).edges
        ((0, 1), (2, 3))
    """
    _check_graph(graph, "split")
    parts = checks.count(parts, "parts", "split")
    return GraphSequence(graph, np.arange(graph.n_edges) % parts == np.arange(parts)[:, None])


def random_edges(graph: Digraph, p: float, *, seed: int = 0) -> GraphSequence:
    """Return ``graph`` thinned anew at every iteration: each edge is there with probability ``p``, independently.

    The choice is a function of (seed, k) alone.

    Example:
        >>> from digrad.graphs import complete
        >>> random_edges(complete(10), 0.5).at(7) == random_edges(complete(10), 0.5).at(7)
        True
    """
    _check_graph(graph, "random_edges")
    checks.positive(p, "p", "random_edges")
    if p > 1:
        raise ArgumentError(f"`p` of random_edges must be a probability of at most 1, but got {p!r}.")
    return GraphSequence(
        graph,
        np.ones((1, graph.n_edges), bool),
        probability=float(p),
        seed=checks.seed(seed, "random_edges"),
    )


def every(steps: int, graph: Digraph | GraphSequence) -> GraphSequence:
    """Return local steps: iterations k with k mod ``steps`` = 0 mix, all others send nothing.

    Args:
        steps: H; 1 changes nothing.
        graph: Graph of the mixing iterations; a sequence advances by one each time.

    Example:
        >>> from digrad.graphs import ring
        >>> [every(3, ring(4)).at(k).n_edges for k in range(4)]
        [4, 0, 0, 4]
    """
    steps = checks.count(steps, "steps", "every")
    if isinstance(graph, GraphSequence):
        return GraphSequence(graph.union, graph.table, graph.probability, graph.seed, steps * graph.every)
    _check_graph(graph, "every")
    return GraphSequence(graph, np.ones((1, graph.n_edges), bool), every=steps)


def _check_graph(graph: object, owner: str) -> None:
    if not isinstance(graph, Digraph):
        raise ArgumentError(f"`graph` of {owner} must be a Digraph, but got {type(graph).__name__}.")
