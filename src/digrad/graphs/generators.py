"""Standard digraphs: size first, seed last. Self loops are implicit; a single agent is a valid graph."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from digrad import checks
from digrad.errors import ArgumentError
from digrad.graphs.digraph import LARGEST_GRAPH, MOST_EDGES, Digraph, from_edges


def ring(n: int) -> Digraph:
    """Return the one-way ring: agent i sends to i + 1 mod n.

    Example:
        >>> ring(3).edges
        ((2, 0), (0, 1), (1, 2))
    """
    return _circulant(_agents(n, "n", "ring"), [1])


def exponential(n: int) -> Digraph:
    """Return the static exponential graph: agent i sends to i + 1, i + 2, i + 4, ... mod n (offsets below n).

    Example:
        >>> exponential(8).out_neighbors(0)
        array([1, 2, 4])
    """
    n = _agents(n, "n", "exponential")
    return _circulant(n, [2**k for k in range((n - 1).bit_length())])


def star(n: int) -> Digraph:
    """Return the two-way star: with an edge from agent 0 to each other agent and one back."""
    return out_star(_agents(n, "n", "star")).symmetrized()


def out_star(n: int) -> Digraph:
    """Return the one-way star: agent 0 sends to all others and receives from none. Only agent 0 is a root."""
    leaves = np.arange(1, _agents(n, "n", "out_star"))
    return Digraph(n, _edges(np.zeros_like(leaves), leaves))


def complete(n: int) -> Digraph:
    """Return the complete digraph, in which every agent sends to every other: n(n - 1) edges."""
    n = _agents(n, "n", "complete")
    return _circulant(n, range(1, n))


def random_digraph(n: int, p: float, *, seed: int) -> Digraph:
    """Return a random Hamiltonian cycle plus each other ordered pair with probability ``p``.

    Always strongly connected, in general unbalanced. Time and memory grow with the number of edges, not with
    n squared.

    Args:
        n: Number of agents.
        p: Probability of each edge that is not on the cycle, from 0 to 1.
        seed: The graph is a function of (n, p, seed).

    Example:
        >>> random_digraph(5, 0.3, seed=0) == random_digraph(5, 0.3, seed=0)
        True
    """
    n = _agents(n, "n", "random_digraph")
    if isinstance(p, bool) or not isinstance(p, int | float | np.floating) or not 0 <= p <= 1:
        raise ArgumentError(f"`p` of random_digraph must be a probability from 0 to 1, but got {p!r}.")
    _check_edges(n + n * max(n - 2, 0) * float(p), "random_digraph")
    generator = _generator(seed, "random_digraph")
    following = _random_cycle(n, generator)
    picked = _bernoulli_positions(n * max(n - 2, 0), float(p), generator)
    sender, slot = np.divmod(picked, max(n - 2, 1))
    extra = _edges(sender, _skip(slot, sender, following[sender]))
    return Digraph(n, np.vstack([_cycle_edges(following), extra]))


def k_out(n: int, k: int, *, seed: int) -> Digraph:
    """Return a digraph in which each agent sends to exactly ``k`` others, chosen at random.

    One of the k edges lies on a random Hamiltonian cycle, so the graph is strongly connected; in-degrees vary.

    Args:
        n: Number of agents.
        k: Out-degree, from 1 to n - 1 (0 for a single agent).
        seed: The graph is a function of (n, k, seed).

    Example:
        >>> k_out(6, 2, seed=0).out_degree
        array([2, 2, 2, 2, 2, 2])
    """
    n = _agents(n, "n", "k_out")
    k = checks.count(k, "k", "k_out", minimum=min(1, n - 1))
    if k > n - 1:
        raise ArgumentError(
            f"`k` of k_out must be at most n - 1 = {n - 1}, the number of others, but got {k}."
        )
    _check_edges(n * k, "k_out")
    generator = _generator(seed, "k_out")
    following = _random_cycle(n, generator)
    agents = np.arange(n)[:, None]
    slots = _distinct_draws(n, n - 2, k - 1, generator)
    extra = _skip(slots, agents, following[:, None])
    return Digraph(
        n, np.vstack([_cycle_edges(following), _edges(np.broadcast_to(agents, extra.shape), extra)])
    )


def de_bruijn(n: int) -> Digraph:
    """Return the binary de Bruijn graph: j sends to 2j and 2j + 1 mod n, with n a power of two.

    The natural self loops of agents 0 and n - 1 are dropped, because every agent has an implicit one.

    Raises:
        ArgumentError: ``n`` is not a power of two; the message names the nearest ones.

    Example:
        >>> de_bruijn(4).edges
        ((2, 0), (0, 1), (2, 1), (1, 2), (3, 2), (1, 3))
    """
    n = _agents(n, "n", "de_bruijn")
    if n & (n - 1):
        below = 1 << (n.bit_length() - 1)
        raise ArgumentError(
            f"`n` of de_bruijn must be a power of two, but got {n}; use {below} or {2 * below}."
        )
    senders = np.tile(np.arange(n), 2)
    receivers = (2 * senders + np.repeat([0, 1], n)) % n
    return Digraph(n, _without_loops(_edges(senders, receivers)))


def grid(rows: int, columns: int) -> Digraph:
    """Return the two-way grid: agent ``r * columns + c`` and its neighbours left, right, above and below."""
    agents = _rectangle(rows, columns, "grid")
    right = _edges(agents[:, :-1], agents[:, 1:])
    down = _edges(agents[:-1], agents[1:])
    return Digraph(agents.size, np.vstack([right, down])).symmetrized()


def torus(rows: int, columns: int) -> Digraph:
    """Return the one-way torus: agent ``r * columns + c`` sends right and down, with wrap-around."""
    agents = _rectangle(rows, columns, "torus")
    right = _edges(agents, np.roll(agents, -1, axis=1))
    down = _edges(agents, np.roll(agents, -1, axis=0))
    return Digraph(agents.size, _without_loops(np.vstack([right, down])))


def example5() -> Digraph:
    """Return the unbalanced five-agent digraph of the reference problem: a ring and two chords."""
    return from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 2), (1, 4)])


def triangle() -> Digraph:
    """Return the smallest unbalanced strongly connected digraph: a ring of three with one chord."""
    return from_edges(3, [(0, 1), (1, 2), (2, 0), (0, 2)])


GENERATORS: dict[str, Callable[..., Digraph]] = {
    "ring": ring,
    "exponential": exponential,
    "star": star,
    "out_star": out_star,
    "complete": complete,
    "random_digraph": random_digraph,
    "k_out": k_out,
    "de_bruijn": de_bruijn,
    "grid": grid,
    "torus": torus,
    "example5": example5,
    "triangle": triangle,
}
"""Every generator by name, for the command line."""


def _agents(value: int, name: str, owner: str) -> int:
    return checks.count(value, name, owner, maximum=LARGEST_GRAPH)


def _check_edges(count: float, owner: str) -> None:
    if count > MOST_EDGES:
        raise ArgumentError(
            f"{owner} would have {count:.3g} edges, but at most {MOST_EDGES:.3g} can be handled; use fewer."
        )


def _rectangle(rows: int, columns: int, owner: str) -> npt.NDArray[np.int64]:
    rows, columns = _agents(rows, "rows", owner), _agents(columns, "columns", owner)
    _agents(rows * columns, "rows * columns", owner)
    return np.arange(rows * columns).reshape(rows, columns)


def _edges(senders: npt.NDArray[np.int64], receivers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return np.stack([senders.ravel(), receivers.ravel()], axis=1)


def _without_loops(edges: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return edges[edges[:, 0] != edges[:, 1]]


def _circulant(n: int, offsets: list[int] | range) -> Digraph:
    _check_edges(n * len(offsets), "The graph")
    senders = np.arange(n)[:, None]
    receivers = (senders + np.array(offsets, dtype=np.int64)) % n
    return Digraph(n, _without_loops(_edges(np.broadcast_to(senders, receivers.shape), receivers)))


def _generator(seed: int, owner: str) -> np.random.Generator:
    return np.random.default_rng(checks.count(seed, "seed", owner, minimum=0))


def _random_cycle(n: int, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    order = generator.permutation(n)
    following = np.empty(n, dtype=np.int64)
    following[order] = np.roll(order, -1)
    return following


def _cycle_edges(following: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return _without_loops(_edges(np.arange(len(following)), following))


def _skip(
    slot: npt.NDArray[np.int64], sender: npt.NDArray[np.int64], following: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    # Numbers 0 to n - 3 become the agents other than the sender and its follower on the cycle, in order.
    slot = slot + (slot >= np.minimum(sender, following))
    return slot + (slot >= np.maximum(sender, following))


def _bernoulli_positions(trials: int, p: float, generator: np.random.Generator) -> npt.NDArray[np.int64]:
    # The gaps between successes of independent trials are geometric: exact, without an array of all trials.
    if trials == 0 or p == 0:
        return np.empty(0, dtype=np.int64)
    batch = int(trials * p + 6 * (trials * p) ** 0.5) + 10
    last, parts = -1, []
    while last < trials:
        gaps = np.minimum(generator.geometric(p, size=batch), trials + 1)
        parts.append(last + np.cumsum(gaps))
        last = int(parts[-1][-1])
    positions = np.concatenate(parts)
    return positions[positions < trials]


def _distinct_draws(
    rows: int, population: int, k: int, generator: np.random.Generator
) -> npt.NDArray[np.int64]:
    # Floyd's sampling without replacement, all rows at once: k distinct numbers below `population` per row.
    drawn = np.empty((rows, max(k, 0)), dtype=np.int64)
    for column in range(k):
        top = population - k + column
        candidate = generator.integers(0, top + 1, size=rows)
        taken = (drawn[:, :column] == candidate[:, None]).any(axis=1)
        drawn[:, column] = np.where(taken, top, candidate)
    return drawn
