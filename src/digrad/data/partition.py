"""Partitions of samples among agents, from identical mixtures to one label each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from digrad._internal.tables import Table
from digrad._internal.user_warnings import warn_user
from digrad.checks import choice, count, positive
from digrad.errors import ArgumentError, DataError

Indices: TypeAlias = npt.NDArray[np.int64]

SCHEMES = ("iid", "stratified", "sorted", "shards", "dirichlet")

_STREAM = 0x70617274  # second word of the Philox key: a stream apart from the one that samples mini-batches
_DIRICHLET_ATTEMPTS = 1000
_SHARDS_PER_AGENT = 2  # McMahan et al., Communication-efficient learning ..., AISTATS 2017, section 3
_ROWS_DESCRIBED = 20
_MANY = 10  # samples per agent on average from which a single one surprises


@dataclass(frozen=True, eq=False)
class Partition:
    """Samples of each agent.

    Args:
        indices: One integer array per agent; disjoint, none empty, together 0, ..., m-1.
        scheme: The name of the rule that made it.

    Raises:
        DataError: When the arrays are not a partition.

    Example:
        >>> parts = partition(np.array([0, 1, 0, 1]), agents=2, scheme="sorted")
        >>> parts.indices
        (array([0, 2]), array([1, 3]))
        >>> parts.total_variation(np.array([0, 1, 0, 1]))
        0.5
    """

    indices: tuple[Indices, ...]
    scheme: str = "custom"

    def __post_init__(self) -> None:
        indices = tuple(np.asarray(part, dtype=np.int64) for part in self.indices)
        empty = [agent for agent, part in enumerate(indices) if not part.size]
        if empty or not indices:
            who = f"agent {empty[0]} has none" if empty else "there are no agents"
            raise DataError(f"`Partition` needs at least one sample per agent, but {who}.")
        together = np.sort(np.concatenate(indices))
        if not np.array_equal(together, np.arange(together.size)):
            raise DataError(
                f"`indices` of `Partition` must hold each of 0, ..., {together.size - 1} once, but some are "
                "missing or repeated; samples without an agent must be cut out of the data first."
            )
        object.__setattr__(self, "indices", indices)

    @property
    def n_agents(self) -> int:
        """The number of agents."""
        return len(self.indices)

    @property
    def sizes(self) -> Indices:
        """The number of samples of each agent, ``[n]``."""
        return np.array([part.size for part in self.indices], dtype=np.int64)

    def label_counts(self, labels: npt.ArrayLike) -> Indices:
        """Return how often each agent has each label, ``[n, classes]``; columns as in ``np.unique``."""
        classes, codes = np.unique(_checked_labels(labels, "label_counts"), return_inverse=True)
        sizes = self.sizes
        if len(codes) != sizes.sum():
            raise DataError(
                f"`labels` must have the {sizes.sum()} samples of the partition, but has {len(codes)}."
            )
        owners = np.repeat(np.arange(self.n_agents), sizes)
        cells = owners * len(classes) + codes[np.concatenate(self.indices)]
        counts = np.bincount(cells, minlength=self.n_agents * len(classes))
        return counts.reshape(self.n_agents, len(classes)).astype(np.int64)

    def total_variation(self, labels: npt.ArrayLike) -> float:
        """Return how far agents are from the common mixture of labels: 0 is the same, towards 1 is disjoint.

        It is the mean over agents of the total variation distance of an agent's label frequencies to those of
        all samples.
        """
        counts = self.label_counts(labels)
        frequencies = counts / counts.sum(axis=1, keepdims=True)
        overall = counts.sum(axis=0) / counts.sum()
        return float(0.5 * np.abs(frequencies - overall).sum(axis=1).mean())

    def describe(self, labels: npt.ArrayLike) -> str:
        """Return a table for people: the samples of each agent by label (of many agents, the first).

        Example:
            >>> print(partition([0, 1, 0, 1], agents=2, scheme="sorted").describe([0, 1, 0, 1]))
            sorted: 4 samples, 2 agents of 2 to 2, total variation 0.500
            agent  samples  0  1
                0        2  2  0
                1        2  0  2
        """
        counts, sizes = self.label_counts(labels), self.sizes
        classes = [str(label) for label in np.unique(np.asarray(labels)).tolist()]
        shown = range(min(self.n_agents, _ROWS_DESCRIBED))
        rows = [
            {"agent": i, "samples": int(sizes[i]), **dict(zip(classes, counts[i].tolist(), strict=True))}
            for i in shown
        ]
        first = (
            f"{self.scheme}: {sizes.sum()} samples, {self.n_agents} agents of {sizes.min()} to {sizes.max()}"
            f", total variation {self.total_variation(labels):.3f}"
        )
        more = [f"... and {self.n_agents - len(rows)} more agents"] if self.n_agents > len(rows) else []
        return "\n".join([first, str(Table(tuple(rows))), *more])


def partition(
    labels: npt.ArrayLike,
    agents: int,
    *,
    scheme: str = "sorted",
    seed: int = 0,
    alpha: float | None = None,
    shards_per_agent: int | None = None,
    min_size: int = 1,
) -> Partition:
    r"""Partition samples among agents by their labels; the same arguments always give the same partition.

    - ``iid``: shuffled, then cut into equal parts.
    - ``stratified``: every agent has each label in the same proportion (counts differ by at most one).
    - ``sorted``: sorted by label, then cut into equal consecutive parts: the extreme of heterogeneity.
    - ``shards``: sorted by label, cut into ``agents * shards_per_agent`` shards, dealt at random.
    - ``dirichlet``: each class is partitioned in proportions drawn from :math:`\mathrm{Dir}(\alpha 1_N)` over the
      agents; small ``alpha`` is heterogeneous, large is even. Sizes are unequal.

    Args:
        labels: ``[m]``.
        agents: How many; at most m.
        scheme: One of the above.
        seed: Random seed of the random schemes.
        alpha: Concentration of ``dirichlet``.
        shards_per_agent: Shards per agent of ``shards``; 2 by default.
        min_size: The fewest samples an agent may have; ``dirichlet`` draws again until that holds. It warns where
            an agent is left with a single sample.

    Raises:
        ArgumentError: When an argument is out of range or does not belong to the scheme.
        DataError: When the samples cannot be partitioned as asked.

    Example:
        >>> partition([1, 0, 1, 0], agents=2).indices
        (array([1, 3]), array([0, 2]))
    """
    codes = np.unique(_checked_labels(labels, "partition"), return_inverse=True)[1]
    agents = count(agents, "agents", "partition")
    min_size = count(min_size, "min_size", "partition")
    choice(scheme, "scheme", "partition", SCHEMES)
    alpha, shards = _scheme_options(scheme, alpha, shards_per_agent)
    if agents * min_size > codes.size:
        raise DataError(
            f"`agents` of partition: {codes.size} samples cannot give {agents} agents {min_size} or more."
            f" Use fewer agents."
        )
    if agents == 1:
        return Partition((np.arange(codes.size),), scheme)
    rng = np.random.Generator(np.random.Philox(key=_key(seed)))
    schemes: dict[str, Callable[[], list[Indices]]] = {
        "iid": lambda: np.array_split(rng.permutation(codes.size), agents),
        "stratified": lambda: _stratified(codes, agents, rng),
        "sorted": lambda: np.array_split(np.argsort(codes, kind="stable"), agents),
        "shards": lambda: _shards(codes, agents, shards, rng),
        "dirichlet": lambda: _dirichlet(codes, agents, alpha, min_size, rng),
    }
    found = Partition(tuple(schemes[scheme]()), scheme)
    if found.sizes.min() == 1 and codes.size >= _MANY * agents:
        alone = np.flatnonzero(found.sizes == 1)
        warn_user(
            f"scheme {scheme!r} of partition leaves agent {alone[0]} a single sample"
            f"{f', and {len(alone) - 1} others too' if len(alone) > 1 else ''}, of {codes.size // agents} on average; "
            "agents weigh equally in F, whatever their samples. Raise `min_size`, or alpha."
        )
    return found


def _stratified(codes: Indices, agents: int, rng: np.random.Generator) -> list[Indices]:
    # Dealing the samples in the order of their labels, one to each agent in turn, keeps counts within one.
    order = _shuffled_by_label(codes, rng)
    return [order[agent::agents] for agent in range(agents)]


def _shards(codes: Indices, agents: int, per_agent: int, rng: np.random.Generator) -> list[Indices]:
    if agents * per_agent > codes.size:
        raise DataError(
            f"`shards_per_agent` of partition: {codes.size} samples cannot be cut into {agents} x {per_agent}"
            f" shards. Use fewer shards or agents."
        )
    shards = np.array_split(np.argsort(codes, kind="stable"), agents * per_agent)
    dealt = rng.permutation(len(shards)).reshape(agents, per_agent)
    return [np.concatenate([shards[shard] for shard in hand]) for hand in dealt]


def _dirichlet(
    codes: Indices, agents: int, alpha: float, min_size: int, rng: np.random.Generator
) -> list[Indices]:
    order = _shuffled_by_label(codes, rng)
    class_sizes = np.bincount(codes)
    for _ in range(_DIRICHLET_ATTEMPTS):
        proportions = rng.dirichlet(np.full(agents, alpha), size=class_sizes.size)  # [classes, n]
        cuts = np.floor(np.cumsum(proportions, axis=1)[:, :-1] * class_sizes[:, None]).astype(np.int64)
        sizes = np.diff(cuts, axis=1, prepend=0, append=class_sizes[:, None])
        if sizes.sum(axis=0).min() >= min_size:
            return _cut_classes(order, class_sizes, cuts)
    raise DataError(
        f"`alpha` = {alpha:g} of partition: in {_DIRICHLET_ATTEMPTS} draws some of the {agents} agents had "
        f"fewer than {min_size} of the {codes.size} samples. Raise alpha, or use fewer agents."
    )


def _cut_classes(order: Indices, class_sizes: Indices, cuts: Indices) -> list[Indices]:
    classes = np.split(order, np.cumsum(class_sizes)[:-1])
    pieces = [np.split(members, cut) for members, cut in zip(classes, cuts, strict=True)]  # [classes][n]
    return [np.concatenate(hand) for hand in zip(*pieces, strict=True)]


def _shuffled_by_label(codes: Indices, rng: np.random.Generator) -> Indices:
    shuffled = rng.permutation(codes.size)
    return shuffled[np.argsort(codes[shuffled], kind="stable")]


def _scheme_options(scheme: str, alpha: float | None, shards_per_agent: int | None) -> tuple[float, int]:
    for name, value, owner in (
        ("alpha", alpha, "dirichlet"),
        ("shards_per_agent", shards_per_agent, "shards"),
    ):
        if value is not None and scheme != owner:
            raise ArgumentError(
                f"`{name}` of partition is for scheme {owner!r}, but the scheme is {scheme!r}."
            )
    if scheme == "dirichlet":
        if alpha is None:
            raise ArgumentError(
                "`alpha` of partition must be given for scheme 'dirichlet': "
                'dg.data.partition(labels, n, scheme="dirichlet", alpha=0.5), '
                'or in a spec partition = {scheme = "dirichlet", alpha = 0.5}.'
            )
        positive(alpha, "alpha", "partition")
    shards = _SHARDS_PER_AGENT if shards_per_agent is None else shards_per_agent
    return alpha or 1.0, count(shards, "shards_per_agent", "partition")


def _key(seed: int) -> npt.NDArray[np.uint64]:
    seed = count(seed, "seed", "partition", minimum=0)
    if seed >= 2**64:
        raise ArgumentError(f"`seed` of partition must be below 2**64, but got {seed}.")
    return np.array([seed, _STREAM], dtype=np.uint64)


def _checked_labels(labels: npt.ArrayLike, owner: str) -> npt.NDArray[Any]:
    array = np.asarray(labels)
    if array.ndim != 1 or not array.size:
        raise DataError(f"`labels` of {owner} must be a non-empty list, but its shape is {array.shape}.")
    if array.dtype.kind == "f" and np.isnan(array).any():
        raise DataError(f"`labels` of {owner} must be numbers, but some are NaN. Remove those samples first.")
    return array
