"""Problems made of a user's own JAX loss, with any pytree of parameters and data."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from numbers import Integral
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from digrad import checks
from digrad._internal.fingerprints import fingerprint
from digrad.arrays import split_columns
from digrad.data.nan_check import not_finite_row
from digrad.errors import ArgumentError, DataError
from digrad.problems.compiled_loss import LossCode, average_at, code_of
from digrad.problems.problem import Floats, Problem, as_floats
from digrad.problems.weighted import weighted
from digrad.types import Shapes

DISTINCT_SIZES = 4  # up to this many the loss is traced once per size; each costs about a second
LARGEST_PADDING = 2  # samples of a padded group, repeated ones included, relative to those that count
PROBED = 64  # samples at a time on which a loss is asked whether it is their mean
PROBE_TOLERANCE = 1e-10  # rounding of that mean, relative
NO_MEAN = 0.01  # relative difference from the mean that no rounding explains, not even that of half precision


@dataclass(frozen=True, eq=False)
class UserLosses:
    """f_i(x) = loss(unravel(x), data of agent i), differentiated by JAX.

    The agents of a group are stacked, so that the loss is traced once per group. Where their sizes differ, the
    last sample of the smaller ones is repeated with weight zero, and the loss is evaluated sample by sample.
    """

    loss: Callable[[Any, Any], jax.Array]
    data: tuple[Any, ...]  # per agent a pytree whose leaves share the sample axis
    sizes: tuple[int, ...]
    dim: int
    unravel: Callable[[Any], Any]
    groups: tuple[tuple[int, ...], ...]  # which agents are stacked together
    made_of: str | None  # fingerprint of the loss when the problem was made; None: it has none

    @property
    def n_agents(self) -> int:
        """The number n of losses."""
        return len(self.data)

    @property
    def shapes(self) -> Shapes:
        """The shapes of the leaves of the parameters, in the order of x."""
        params = jax.eval_shape(self.unravel, jax.ShapeDtypeStruct((self.dim,), np.float32))
        return tuple(leaf.shape for leaf in jax.tree.leaves(params))

    def arrays(self, dtype: npt.DTypeLike) -> dict[str, Any]:
        """Return the data stacked by group, and padded to one stack for mini-batches."""
        cast = [jax.tree.map(lambda leaf: _cast(leaf, dtype), block) for block in self.data]
        longest = max(self.sizes)
        padded = [jax.tree.map(lambda leaf: np.pad(leaf, _to_length(leaf, longest)), block) for block in cast]
        return {
            "groups": [self._stacked(cast, group, dtype) for group in self.groups],
            "rows": _stack(padded),
        }

    def losses(self, arrays: Any, x: jax.Array, index: jax.Array | None) -> jax.Array:
        """Return f_i(x_i), ``[n]``."""
        return self._mapped(lambda function: function, arrays, x, index)

    def gradients(self, arrays: Any, x: jax.Array, index: jax.Array | None) -> jax.Array:
        """Return the gradients, ``[n, d]``, by automatic differentiation."""
        return self._mapped(jax.grad, arrays, x, index)

    def objective(self, arrays: Any, points: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return F and its gradient, point after point: the loss of a whole data set may be large."""
        return jax.lax.map(lambda point: average_at(self, arrays, point), points)

    def fingerprint(self) -> str:
        """Return a hash of the data and of what the loss computes.

        Raises:
            ArgumentError: The loss holds something that has no fingerprint, or is not what it was: what is compiled
                may then hold the old values.
        """
        now = fingerprint(self.loss)
        if now != self.made_of:
            raise ArgumentError(
                "the loss, or something that it names, changed after the problem was made; make the problem again"
            )
        return f"{now}{self._data_fingerprint}"

    @cached_property
    def _data_fingerprint(self) -> str:
        params = jax.eval_shape(self.unravel, jax.ShapeDtypeStruct((self.dim,), np.float32))
        return fingerprint((str(params), str(jax.tree.structure(self.data)), *jax.tree.leaves(self.data)))

    def is_estimated_by_batches(self, start: Floats) -> bool:
        """Return whether the loss of a few samples is about the mean of their losses, as it is not for a sum."""
        largest = self.data[int(np.argmax(self.sizes))]
        return not next(_gaps(self, start, _take(largest, slice(PROBED)))) > NO_MEAN

    def _flat_loss(self, x: jax.Array, batch: Any) -> jax.Array:
        return self.loss(self.unravel(x), batch)

    def _weighted_loss(self, x: jax.Array, batch: tuple[Any, jax.Array]) -> jax.Array:
        samples, weights = batch
        return weights @ _sample_losses(lambda sample: self._flat_loss(x, sample), samples)

    def _stacked(self, cast: list[Any], group: tuple[int, ...], dtype: npt.DTypeLike) -> Any:
        sizes = [self.sizes[i] for i in group]
        if len(set(sizes)) == 1:
            return _stack([cast[i] for i in group])
        sample = np.arange(max(sizes))
        weights = np.array([(sample < size) / size for size in sizes], dtype)
        return _stack([_take(cast[i], np.minimum(sample, self.sizes[i] - 1)) for i in group]), weights

    def _mapped(
        self, transform: Callable[[Any], Any], arrays: Any, x: jax.Array, index: jax.Array | None
    ) -> jax.Array:
        if index is not None:
            agent = jnp.arange(self.n_agents)[:, None]
            batches = jax.tree.map(lambda leaf: leaf[agent, index], arrays["rows"])
            return jax.vmap(transform(self._flat_loss))(x, batches)
        parts, order = [], []
        for group, stacked in zip(self.groups, arrays["groups"], strict=True):
            is_padded = len({self.sizes[i] for i in group}) > 1
            function = transform(self._weighted_loss if is_padded else self._flat_loss)
            parts.append(jax.vmap(function)(x[np.array(group)], stacked))
            order.extend(group)
        return jnp.concatenate(parts)[np.argsort(order)]


def from_loss(
    loss: Callable[[Any, Any], Any],
    data: Sequence[Any],
    params: Any,
    *,
    agent_weights: npt.ArrayLike | None = None,
    name: str = "",
) -> Problem:
    """Return the problem f_i(params) = loss(params, data[i]) for a JAX loss.

    Args:
        loss: ``loss(params, batch)`` returns a scalar, written in jax.numpy; for mini-batches it must be the mean
            over the samples of the batch.
        data: One batch per agent: a pytree of arrays that share their first axis, the samples. They are copied.
        params: A pytree of arrays with the shapes of the parameters, from which runs start; or the dimension
            d of a parameter vector, which then starts at zero.
        agent_weights: How much each agent counts in F: ``"samples"`` (by its number of samples), or one number per
            agent. By default every agent has one vote.
        name: Name of the problem in reports; the name of the function by default.

    Returns:
        A problem on R^d; ``problem.unravel(x)`` gives the parameters back.

    Example:
        >>> def loss(params, batch):
        ...     features, targets = batch
        ...     return ((features @ params["w"] + params["b"] - targets) ** 2).mean()
        >>> data = [(np.eye(2), np.array([1.0, 2.0])), (np.ones((1, 2)), np.array([3.0]))]
        >>> problem = from_loss(loss, data, {"w": np.zeros(2), "b": np.array(0.0)})
        >>> problem.dim, problem.sizes, problem.check_gradient() < 1e-8
        (3, (2, 1), True)
    """
    if not callable(loss):
        raise ArgumentError(f"`loss` of from_loss must be a function loss(params, batch), but got {loss!r}.")
    blocks = tuple(jax.tree.map(_frozen_copy, block) for block in _batches(data))
    if not blocks:
        raise ArgumentError("`data` of from_loss must hold one batch per agent, but it is empty.")
    sizes = tuple(_size(block, i) for i, block in enumerate(blocks))
    _check_alike(blocks)
    template = _template(params)
    made_of = _fingerprint_or_none(loss)
    _check_scalar(loss, template, blocks[0])
    _check_finite(loss, template, blocks)

    shapes = jax.tree.map(lambda leaf: np.broadcast_to(0.0, leaf.shape), template)

    def unravel(x: Any) -> Any:
        return _unravel(x, shapes)

    start = np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(template)])
    local = UserLosses(
        loss=loss, data=blocks, sizes=sizes, dim=start.size, unravel=unravel, made_of=made_of, groups=()
    )
    local = dataclasses.replace(local, groups=_groups(sizes, lambda: _is_mean(local, start)))
    return Problem(
        name=name or getattr(loss, "__name__", "user loss"),
        local=weighted(local, agent_weights, "from_loss"),
        start=start,
        unravel=unravel,
    )


def _batches(data: Any) -> list[Any]:
    if not isinstance(data, Iterable) or isinstance(data, str | bytes | Mapping):
        raise ArgumentError(
            f"`data` of from_loss must be a list with one batch per agent, but got {type(data).__name__} {data!r:.60}."
        )
    return list(data)


def _frozen_copy(leaf: Any) -> npt.NDArray[Any]:
    copy = np.array(leaf)
    copy.flags.writeable = False
    return copy


def _fingerprint_or_none(loss: Callable[[Any, Any], Any]) -> str | None:
    try:
        return fingerprint(loss)
    except ArgumentError:
        return None


def _template(params: Any) -> Any:
    if isinstance(params, Integral) and not isinstance(params, bool):
        return np.zeros(checks.count(params, "params", "from_loss"))
    template = jax.tree.map(lambda leaf: as_floats(leaf, "params", "from_loss"), params)
    if not jax.tree.leaves(template):
        raise ArgumentError(
            f"`params` of from_loss must be a pytree of arrays or a dimension, but got {params!r}."
        )
    return template


def _check_scalar(loss: Callable[[Any, Any], Any], template: Any, batch: Any) -> None:
    try:
        with jax.enable_x64(True):
            result = jax.eval_shape(loss, template, batch)
    except (AttributeError, TypeError, ValueError, jax.errors.JAXTypeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ArgumentError(
            f"`loss` of from_loss must be a JAX function of (params, batch), but on agent 0 it fails: {reason}"
        ) from error
    if getattr(result, "shape", None) != ():
        raise ArgumentError(
            f"`loss` of from_loss must return a scalar, but on agent 0 it returns {result}; take the mean."
        )
    if not np.issubdtype(result.dtype, np.floating):
        raise ArgumentError(
            f"`loss` of from_loss must return a real number with a gradient, but on agent 0 it returns {result.dtype}; "
            "return a float."
        )


def _check_finite(loss: Callable[[Any, Any], Any], template: Any, blocks: tuple[Any, ...]) -> None:
    """Raise if a sample that is not finite makes the loss of its agent so: a loss may also expect such samples."""
    for agent, block in enumerate(blocks):
        rows = [row for leaf in jax.tree.leaves(block) if (row := not_finite_row(leaf)) is not None]
        if not rows:
            continue
        with jax.enable_x64(True):
            values = jax.tree.leaves(jax.value_and_grad(loss)(jax.tree.map(jnp.asarray, template), block))
        if not all(np.isfinite(value).all() for value in map(np.asarray, values)):
            raise DataError(
                f"`data` of from_loss must be finite, but row {min(rows)} of agent {agent} is not, and so the loss "
                "of this agent at `params` is not either; replace missing values first."
            )


def _groups(sizes: tuple[int, ...], is_mean: Callable[[], bool]) -> tuple[tuple[int, ...], ...]:
    """Return the agents that are stacked together: of one size each, or of many sizes if the loss is a mean."""
    by_size = {size: [i for i, s in enumerate(sizes) if s == size] for size in sorted(set(sizes))}
    if len(by_size) <= DISTINCT_SIZES or not is_mean():
        return tuple(map(tuple, by_size.values()))
    groups: list[list[int]] = []
    longest = samples = 0
    for size, agents in reversed(by_size.items()):
        total = samples + size * len(agents)
        if groups and longest * (len(groups[-1]) + len(agents)) <= LARGEST_PADDING * total:
            groups[-1].extend(agents)
            samples = total
        else:
            groups.append(list(agents))
            longest, samples = size, size * len(agents)
    return tuple(map(tuple, groups))


def _is_mean(local: UserLosses, start: Floats) -> bool:
    """Return whether the loss of samples is the mean of the losses of each, as it should be.

    Every sample is asked: a loss may treat a few of them differently, such as those without a label.
    """
    samples = jax.tree.map(lambda *leaves: np.concatenate(leaves), *local.data)
    return all(gap <= PROBE_TOLERANCE for gap in _gaps(local, start, samples))


def _gaps(local: UserLosses, start: Floats, samples: Any) -> Iterator[float]:
    """Yield how far the loss of a few samples is from the mean of their losses, relative to these; or not a number."""
    code = code_of(dataclasses.replace(local, data=(), sizes=(), groups=()))
    point = start + np.random.default_rng(0).standard_normal(start.shape)
    total = len(jax.tree.leaves(samples)[0])
    for first in range(0, total, PROBED):
        few = _take(samples, np.arange(first, first + min(PROBED, total)) % total)
        try:
            with jax.enable_x64(True):
                together, apart = map(np.asarray, _together_and_apart(point, few, code=code))
        except (TypeError, ValueError, jax.errors.JAXTypeError):  # it cannot take a single sample
            yield np.nan
            return
        with np.errstate(invalid="ignore"):
            yield float(abs(apart.mean() - together) / (abs(apart).mean() or 1.0))


@partial(jax.jit, static_argnames="code")
def _together_and_apart(x: jax.Array, few: Any, *, code: LossCode) -> tuple[jax.Array, jax.Array]:
    def loss(batch: Any) -> jax.Array:
        return code.local.loss(code.local.unravel(x), batch)

    return loss(few), _sample_losses(loss, few)


def _sample_losses(loss: Callable[[Any], jax.Array], samples: Any) -> jax.Array:
    return jax.vmap(lambda sample: loss(jax.tree.map(lambda leaf: leaf[None], sample)))(samples)


def _check_alike(blocks: tuple[Any, ...]) -> None:
    def form(block: Any) -> Any:
        return jax.tree.structure(block), [
            (leaf.shape[1:], leaf.dtype.kind) for leaf in jax.tree.leaves(block)
        ]

    for agent, block in enumerate(blocks):
        if form(block) != form(blocks[0]):
            raise ArgumentError(
                f"`data` of from_loss: agent {agent} has {form(block)}, but agent 0 has {form(blocks[0])}; "
                "samples of all agents must have the same form."
            )


def _unravel(x: Any, template: Any) -> Any:
    """Return the pytree of ``template`` filled from the vector x, in the dtype of x."""
    leaves, structure = jax.tree.flatten(template)
    return jax.tree.unflatten(structure, split_columns(x, tuple(leaf.shape for leaf in leaves)))


def _size(block: Any, agent: int) -> int:
    lengths = {leaf.shape[0] if leaf.ndim else 0 for leaf in jax.tree.leaves(block)}
    if len(lengths) != 1 or 0 in lengths:
        raise ArgumentError(
            f"`data` of from_loss: the arrays of agent {agent} must share a first axis of at least one sample, "
            f"but their first axes are {sorted(lengths)}."
        )
    return lengths.pop()


def _cast(leaf: Any, dtype: npt.DTypeLike) -> Any:
    return leaf.astype(dtype) if np.issubdtype(leaf.dtype, np.floating) else leaf


def _take(block: Any, index: npt.NDArray[np.int64] | slice) -> Any:
    return jax.tree.map(lambda leaf: leaf[index], block)


def _stack(blocks: list[Any]) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *blocks)


def _to_length(leaf: Any, length: int) -> list[tuple[int, int]]:
    return [(0, length - leaf.shape[0]), *[(0, 0)] * (leaf.ndim - 1)]
