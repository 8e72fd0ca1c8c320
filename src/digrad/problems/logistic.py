"""Regularised logistic regression: the experiment of the CGT paper's Section V-A, with its loss put right."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import scipy.sparse

from digrad import checks, data
from digrad.data import Dataset, Partition
from digrad.data.nan_check import not_finite_row
from digrad.errors import ArgumentError, DataError
from digrad.problems.compiled_loss import average_at
from digrad.problems.problem import Floats, Problem, per_agent
from digrad.problems.weighted import weighted

LARGEST_DENSE_COPY = (
    1 << 30
)  # bytes of a dense copy; a larger sparse data set is kept as index lists throughout
ENTRY_BYTES = 40  # of a dense sample are read while one entry of a list is looked up: measured on a9a
MOST_SLOTS = 64  # that are added up in one expression
LARGEST_BATCH = 1 << 20  # bytes of a mini-batch of all agents that are taken at once
BLOCK = 1 << 15  # bytes of a larger one that are taken at a time: they are read twice, then from the cache
COLUMN_SEGMENT = 16  # entries of a column that are added up before they meet


class Lists(NamedTuple):
    """Sparse samples of all agents for sums over all of them, where no entry waits for another.

    By rows for margins, slot after slot, and by columns for gradients, in segments whose sums alone are scattered.
    """

    entries: Any  # [slots, n * m]
    places: Any  # [slots, n * m] in the stacked x [n * d]
    column_entries: Any  # [COLUMN_SEGMENT, segments]
    column_samples: Any  # [COLUMN_SEGMENT, segments] in the stacked residuals [n * m]
    column_places: Any  # [segments] in the stacked x


@dataclass(frozen=True, eq=False)
class Logistic:
    """The losses of :func:`logistic`: arrays, and pure functions of them.

    Computed as the mean of log(1 + exp(-s h^T x)), with the sign s = 2t - 1 folded into the stored samples.
    These are padded to the largest agent; a padded sample has weight zero. Two layouts are kept, because that
    is worth a factor of two: rows for mini-batches (one table of all agents), columns for sums over all
    samples. Rows of sparse data are index lists, whose places point into the stacked x ``[n * d]``; sums over all
    samples use :class:`Lists` where these are faster than columns.
    """

    features: tuple[Any, ...]  # per agent [m_i, d], dense or CSR, float64
    targets: tuple[Floats, ...]  # per agent [m_i], 0 or 1
    reg_weight: Floats  # [n] lambda
    reg_power: Floats  # [n] p

    has_short_sums: ClassVar = True

    @property
    def n_agents(self) -> int:
        """The number n of losses."""
        return len(self.features)

    @property
    def dim(self) -> int:
        """The dimension d."""
        return self.features[0].shape[1]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples per agent."""
        return tuple(block.shape[0] for block in self.features)

    @property
    def is_dense(self) -> bool:
        """Return whether samples are rows, not lists of their entries."""
        return not scipy.sparse.issparse(self.features[0])

    def arrays(self, dtype: npt.DTypeLike) -> dict[str, Any]:
        """Return signed samples by rows and by columns, and their weights, padded and stacked over agents."""
        n, m, d = self.n_agents, max(self.sizes), self.dim
        weights = np.zeros((n, m), dtype)
        for i, size in enumerate(self.sizes):
            weights[i, :size] = 1 / size
        arrays: dict[str, Any] = {
            "weights": weights,
            "reg": (self.reg_weight.astype(dtype), self.reg_power.astype(dtype)),
        }
        signed = [_signed(block, target) for block, target in zip(self.features, self.targets, strict=True)]
        is_sparse = not self.is_dense
        if is_sparse:
            arrays["entries"], arrays["places"] = _index_lists(signed, m, dtype)
        else:
            arrays["rows"] = _rows(signed, m, dtype)
        row_bytes = d * np.dtype(dtype).itemsize
        if not is_sparse or n * m * row_bytes <= LARGEST_DENSE_COPY:
            arrays["columns"] = _columns(signed, m, dtype)
        if is_sparse:
            slots = arrays["entries"].shape[1]
            is_faster = "columns" not in arrays or slots * ENTRY_BYTES < row_bytes
            if is_faster and slots <= MOST_SLOTS:
                arrays["lists"] = _lists(arrays["entries"], arrays["places"], n * d)
        return arrays

    def batched_arrays(self, arrays: dict[str, Any]) -> dict[str, Any]:
        """Return what several runs at once use: columns where there are some, because their products become one."""
        return {key: value for key, value in arrays.items() if key != "lists" or "columns" not in arrays}

    def losses(self, arrays: Any, x: jax.Array, index: jax.Array | None) -> jax.Array:
        """Return f_i(x_i), ``[n]``."""
        batch = _select(arrays, index)
        data_loss = jnp.sum(batch["weights"] * _logistic_loss(_margins(batch, x))[0], axis=-1)
        return data_loss + _regulariser(arrays["reg"], x)[0]

    def gradients(self, arrays: Any, x: jax.Array, index: jax.Array | None) -> jax.Array:
        """Return the gradients, ``[n, d]``."""
        return _of_samples(arrays, x, index) + _regulariser(arrays["reg"], x)[1]

    def regulariser_gradients(self, arrays: Any, x: jax.Array) -> jax.Array:
        """Return the gradients of the regularisers alone, ``[n, d]``."""
        return _regulariser(arrays["reg"], x)[1]

    def objective(self, arrays: Any, points: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return F and its gradient at ``points``, agent after agent with one product for all points."""
        if "columns" not in arrays:
            return jax.lax.map(lambda point: average_at(self, arrays, point), points)

        def of_agent(block: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            columns, weights = block
            loss, slope = _logistic_loss(points @ columns)  # [K, m]
            return loss @ weights, (columns @ (weights * slope).T).T  # this order is fast for K = 1 too

        loss, gradient = jax.lax.map(of_agent, (arrays["columns"], arrays["weights"]))
        reg_loss, reg_gradient = jax.vmap(lambda point: _mean_regulariser(arrays["reg"], point))(points)
        return loss.mean(axis=0) + reg_loss, gradient.mean(axis=0) + reg_gradient

    def fingerprint(self) -> str:
        """Return a hash of samples, labels and regularisers."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        digest = hashlib.sha256(self.reg_weight.tobytes() + self.reg_power.tobytes())
        for block, target in zip(self.features, self.targets, strict=True):
            parts = (block.data, block.indices, block.indptr) if scipy.sparse.issparse(block) else (block,)
            for part in (*parts, target):
                digest.update(np.ascontiguousarray(part).tobytes())
        return digest.hexdigest()


def logistic(
    *,
    data: str | Dataset,
    agents: int,
    partition: str | Partition | Sequence[npt.ArrayLike] = "sorted",
    reg_weight: npt.ArrayLike = 0.0,
    reg_power: npt.ArrayLike = 2.0,
    agent_weights: npt.ArrayLike | None = None,
    seed: int = 0,
) -> Problem:
    r"""Return regularised logistic regression on a data set partitioned among agents.

    .. math::
        f_i(x) = \frac{1}{m_i} \sum_s \left[ \log(1 + e^{h_s^T x}) - t_s\, h_s^T x \right]
                 + \lambda_i \|x\|^{p_i}

    The loss printed in the CGT paper has a sign error in its second term, which makes it unbounded below;
    this is the corrected loss. With p > 2 its gradient grows faster than linearly: (L0, L1)-smooth, but not
    smooth.

    Args:
        data: A data set, the name of one (``digrad data list``), or the path of a LIBSVM file; it must have
            two labels, the larger of which becomes t = 1, the other t = 0.
        agents: The number of agents.
        partition: How samples are partitioned: ``iid``, ``stratified``, ``sorted``, ``shards``, ``dirichlet``, or
            a :class:`~digrad.data.Partition`, or one array of sample numbers per agent.
        reg_weight: lambda, a number or one per agent, at least 0.
        reg_power: p, a number or one per agent, at least 2.
        agent_weights: How much each agent counts in F: ``"samples"`` (by its number of samples, so that the minimiser
            is that of the pooled data), or one number per agent. By default every agent has one vote, whatever its
            number of samples.
        seed: Random seed of the partition.

    Example:
        >>> problem = logistic(data="digits", agents=5, reg_weight=1e-3, reg_power=4)
        >>> problem.n_agents, problem.dim, problem.sizes
        (5, 64, (360, 360, 359, 359, 359))
    """
    agents = checks.count(agents, "agents", "logistic")
    dataset = _dataset(data)
    targets = _binary(dataset)
    split = _partition(partition, targets, agents, seed)
    weight = per_agent(reg_weight, agents, "reg_weight", "logistic")
    power = per_agent(reg_power, agents, "reg_power", "logistic", least=2.0)
    samples = _float_features(dataset)
    features = tuple(samples[index] for index in split.indices)
    _check_finite(features, split, dataset.name)
    local = Logistic(
        features=features,
        targets=tuple(targets[index] for index in split.indices),
        reg_weight=weight,
        reg_power=power,
    )
    return Problem(
        name=f"logistic regression on {dataset.name}",
        local=weighted(local, agent_weights, "logistic"),
        start=np.zeros(local.dim),
        partition=split,
    )


def _dataset(source: str | Dataset) -> Dataset:
    if isinstance(source, Dataset):
        return source
    if not isinstance(source, str | PathLike):
        raise ArgumentError(
            f"`data` of logistic must be a name, a path or a Dataset(name, features, labels), but got a "
            f"{type(source).__name__}."
        )
    return data.load(source)


def _float_features(dataset: Dataset) -> Any:
    """Return the features in float64: products of small integers wrap, those of half precision overflow."""
    with np.errstate(over="ignore"):
        features: Any = dataset.features.astype(np.float64, copy=False)
    is_wider = dataset.features.dtype.itemsize > features.dtype.itemsize
    if is_wider and not np.isfinite(features.data if dataset.is_sparse else features).all():
        raise DataError(
            f"`data` of logistic must have features within double precision, but {dataset.name!r} of "
            f"{dataset.features.dtype} has larger ones; scale them."
        )
    return features


def _binary(dataset: Dataset) -> Floats:
    return data.binary_labels(dataset).astype(np.float64)


def _partition(
    partition: str | Partition | Sequence[npt.ArrayLike], targets: Floats, agents: int, seed: int
) -> Partition:
    if isinstance(partition, Sequence) and not isinstance(partition, str):
        partition = Partition(tuple(np.asarray(own, np.int64) for own in partition))
    if isinstance(partition, Partition):
        if len(partition.indices) != agents:
            raise ArgumentError(
                f"`partition` of logistic divides among {len(partition.indices)} agents, "
                f"but `agents` is {agents}."
            )
        if sum(len(index) for index in partition.indices) != len(targets):
            raise DataError(
                f"`partition` of logistic divides {sum(map(len, partition.indices))} samples, but the data set has "
                f"{len(targets)}; make it with data.partition(labels, agents) from the labels of the same data."
            )
        return partition
    return data.partition(targets, agents, scheme=partition, seed=seed)


def _check_finite(features: tuple[Any, ...], split: Partition, name: str) -> None:
    # A Dataset is finite when it is made, but its arrays may have been written to since.
    for agent, block in enumerate(features):
        row = not_finite_row(block)
        if row is not None:
            raise DataError(
                f"`data` of logistic must be finite, but sample {row} of agent {agent} (row "
                f"{split.indices[agent][row]} of {name}) is not; replace missing values first."
            )


def _signed(block: Any, target: Floats) -> Any:
    """Return the samples of one agent, those with t = 0 negated."""
    sign = 2 * target - 1
    if scipy.sparse.issparse(block):
        return scipy.sparse.csr_array(block.multiply(sign[:, None]))
    return sign[:, None] * block


def _rows(blocks: list[Any], m: int, dtype: npt.DTypeLike) -> Floats:
    table = np.zeros((len(blocks), m, blocks[0].shape[1]), dtype)
    for i, block in enumerate(blocks):
        table[i, : block.shape[0]] = block
    return table.reshape(-1, table.shape[-1])


def _columns(blocks: list[Any], m: int, dtype: npt.DTypeLike) -> Floats:
    table = np.zeros((len(blocks), blocks[0].shape[1], m), dtype)
    for i, block in enumerate(blocks):
        table[i, :, : block.shape[0]] = (block.toarray() if scipy.sparse.issparse(block) else block).T
    return table


def _index_lists(blocks: list[Any], m: int, dtype: npt.DTypeLike) -> tuple[Floats, npt.NDArray[np.int32]]:
    counts = [np.diff(block.indptr) for block in blocks]
    width = max(int(count.max(initial=1)) for count in counts)
    entries = np.zeros((len(blocks), m, width), dtype)
    places = np.zeros((len(blocks), m, width), np.int32)
    for i, (block, count) in enumerate(zip(blocks, counts, strict=True)):
        row = np.repeat(np.arange(block.shape[0]), count)
        slot = np.arange(block.nnz) - np.repeat(block.indptr[:-1], count)
        entries[i, row, slot], places[i, row, slot] = block.data, block.indices
        places[i] += i * block.shape[1]
    return entries.reshape(-1, width), places.reshape(-1, width)


def _lists(entries: Floats, places: npt.NDArray[np.int32], size: int) -> Lists:
    """Return index lists ``[samples, slots]`` into an x of ``size`` numbers, by slots and by segments of columns."""
    sample, slot = np.nonzero(entries)
    order = np.argsort(places[sample, slot], kind="stable")
    sample, slot = sample[order], slot[order]
    place = places[sample, slot]
    count = np.bincount(place, minlength=size)
    segments = -(-count // COLUMN_SEGMENT)
    rank = np.arange(len(place)) - np.repeat(np.cumsum(count) - count, count)
    segment = (np.cumsum(segments) - segments)[place] + rank // COLUMN_SEGMENT
    column_entries = np.zeros((COLUMN_SEGMENT, segments.sum()), entries.dtype)
    column_samples = np.zeros(column_entries.shape, np.int32)
    column_entries[rank % COLUMN_SEGMENT, segment] = entries[sample, slot]
    column_samples[rank % COLUMN_SEGMENT, segment] = sample
    return Lists(
        entries=np.ascontiguousarray(entries.T),
        places=np.ascontiguousarray(places.T),
        column_entries=column_entries,
        column_samples=column_samples,
        column_places=np.repeat(np.arange(size, dtype=np.int32), segments),
    )


def _added_up(entries: jax.Array, places: jax.Array, values: jax.Array) -> jax.Array:
    """Return the sum over slots s of entries[s] values[places[s]]."""
    total = jnp.zeros(entries.shape[1], values.dtype)
    for entry, place in zip(entries, places, strict=True):
        total = total + entry * values.at[place].get(mode="promise_in_bounds")
    return total


def _select(arrays: Any, index: jax.Array | None) -> Any:
    """Return what the gradient needs: all samples by columns where possible, or the rows of a mini-batch."""
    n, m = arrays["weights"].shape
    whole = next((key for key in ("lists", "columns") if key in arrays), None)
    if index is None and whole:
        return {key: arrays[key] for key in (whole, "weights")}
    kept = [key for key in ("entries", "places", "rows") if key in arrays]
    if index is None:
        return {**{key: arrays[key].reshape(n, m, -1) for key in kept}, "weights": arrays["weights"]}
    return _batch({key: arrays[key] for key in kept}, _places(index, m))


def _places(index: jax.Array, m: int) -> jax.Array:
    """Return where the samples of a mini-batch stand in the tables of all agents, ``[n, batch]``."""
    return index + m * jnp.arange(len(index), dtype=index.dtype)[:, None]


def _batch(tables: dict[str, Any], places: jax.Array) -> Any:
    batch = {key: table.at[places].get(mode="promise_in_bounds") for key, table in tables.items()}
    return {**batch, "weights": 1 / places.shape[1]}


def _of_samples(arrays: Any, x: jax.Array, index: jax.Array | None) -> jax.Array:
    """Return the data's part of the gradients, of a mini-batch for as many agents at a time as stay in the cache."""
    n, row_bytes = len(x), x.shape[1] * x.dtype.itemsize
    if index is None or "rows" not in arrays or index.size * row_bytes <= LARGEST_BATCH:
        batch = _select(arrays, index)
        return _combine(batch, _residual(batch, x), x)
    agents = min(n, max(1, BLOCK // (index.shape[1] * row_bytes)))
    places = _places(index, arrays["weights"].shape[1])

    def of_some(i: jax.Array, total: jax.Array) -> jax.Array:
        first = jnp.minimum(i * agents, n - agents)  # the last agents may have two turns, with equal results
        some, of_batch = (jax.lax.dynamic_slice_in_dim(one, first, agents) for one in (x, places))
        batch = _batch({"rows": arrays["rows"]}, of_batch)
        return jax.lax.dynamic_update_slice_in_dim(
            total, _combine(batch, _residual(batch, some), some), first, 0
        )

    return jax.lax.fori_loop(0, -(-n // agents), of_some, jnp.zeros_like(x))


def _residual(batch: Any, x: jax.Array) -> jax.Array:
    """Return the derivative of the mean loss by every margin, ``[n, batch]``."""
    return -batch["weights"] * jax.nn.sigmoid(-_margins(batch, x))


def _margins(batch: Any, x: jax.Array) -> jax.Array:
    """Return s h_s^T x_i for every selected sample, ``[n, batch]``."""
    if "lists" in batch:
        lists: Lists = batch["lists"]
        return _added_up(lists.entries, lists.places, x.reshape(-1)).reshape(batch["weights"].shape)
    if "columns" in batch:
        return jnp.einsum("nd,ndm->nm", x, batch["columns"])
    if "rows" in batch:
        return jnp.einsum("nd,nbd->nb", x, batch["rows"])
    values = x.reshape(-1).at[batch["places"]].get(mode="promise_in_bounds")
    return jnp.sum(batch["entries"] * values, axis=-1)


def _combine(batch: Any, residual: jax.Array, x: jax.Array) -> jax.Array:
    """Return the sum of residual_s s h_s over the selected samples, in the shape of x."""
    if "lists" in batch:
        lists: Lists = batch["lists"]
        sums = _added_up(lists.column_entries, lists.column_samples, residual.reshape(-1))
        total = jnp.zeros(x.size, x.dtype).at[lists.column_places].add(sums, mode="promise_in_bounds")
        return total.reshape(x.shape)
    if "columns" in batch:
        return jnp.einsum("nm,ndm->nd", residual, batch["columns"])
    if "rows" in batch:
        return jnp.einsum("nb,nbd->nd", residual, batch["rows"])
    terms = residual[..., None] * batch["entries"]
    total = jnp.zeros(x.size, x.dtype).at[batch["places"]].add(terms, mode="promise_in_bounds")
    return total.reshape(x.shape)


def _logistic_loss(z: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return log(1 + exp(-z)) and its derivative, which share an exponential that cannot overflow."""
    small = jnp.exp(-jnp.abs(z))
    return jnp.maximum(-z, 0) + jnp.log1p(small), -jnp.where(z >= 0, small, 1) / (1 + small)


def _regulariser(reg: tuple[jax.Array, jax.Array], x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return lambda_i ||x_i||^p_i ``[n]`` and its gradient lambda_i p_i ||x_i||^(p_i - 2) x_i."""
    weight, power = reg
    x = jnp.where((weight > 0)[..., None], x, 0)  # 0 ||x||^p is not a number once ||x||^p overflows
    square = jnp.sum(x**2, axis=-1)
    # The derivative of square^(p/2 - 1) is infinite or not a number at 0, that of the gradient is neither.
    nonzero = jnp.where(square > 0, square, 1)
    scale = jnp.where(square > 0, nonzero ** (power / 2 - 1), power == 2)
    factor = (weight * power * scale)[..., None]
    return weight * square ** (power / 2), jnp.where(jnp.isinf(factor) & (x == 0), 0, factor * x)


def _mean_regulariser(reg: tuple[jax.Array, jax.Array], point: jax.Array) -> tuple[jax.Array, jax.Array]:
    value, gradient = _regulariser(reg, jnp.broadcast_to(point, (reg[0].shape[0], point.shape[0])))
    return value.mean(), gradient.mean(axis=0)
