"""The compiled loop: steps of one method, with what must be looked at inside the loop and nothing else.

Loss and gradient of the average are not evaluated here: the loop stores the average iterate, and the recorder
evaluates many of them in one product, which is several times cheaper. There is exactly one compiled copy of
``step``, so that the numbers do not depend on how a run is cut into chunks.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from digrad import metrics
from digrad.algorithms.fields import with_fields
from digrad.problems import LocalLosses
from digrad.simulation.executor import Operator, SimulatedNet


class Setting(NamedTuple):
    """What stays fixed during a run, as arguments of the loop: another value does not compile again."""

    method: Any
    operators: dict[str, Operator]
    arrays: Any  # of the problem
    u: jax.Array  # [n] weights of the average of x
    v: jax.Array  # [n] weights of the trackers
    limit: jax.Array  # an entry of x above this has diverged
    record_every: int


class Rows(NamedTuple):
    """What the loop stores at recorded iterations; the last row is scratch, for all other iterations."""

    point: jax.Array  # [rows + 1, d] average, weighted as the method conserves it
    mean: jax.Array  # [rows + 1, d] plain average
    consensus_error: jax.Array  # [rows + 1]
    tracking_error: jax.Array  # [rows + 1]
    fraction_clipped: jax.Array  # [rows + 1]


class _Inner(NamedTuple):
    k: jax.Array
    state: Any
    grad: jax.Array  # [n, d] of the last step
    diverged: jax.Array


@partial(jax.jit, static_argnames=("local", "rows"))
def run_chunk(
    setting: Setting,
    state: Any,
    first: int,
    end: int,
    inputs: dict[str, Any],
    *,
    local: LocalLosses,
    rows: int,
) -> tuple[Any, jax.Array, jax.Array, Rows]:
    """Run the steps k = first, ..., end - 1, or until an iterate diverges.

    Args:
        setting: What stays fixed.
        state: Of the method, at k = first.
        first: The first iteration.
        end: Where to stop; at most as many iterations as ``inputs`` holds.
        inputs: ``index`` ``[length, n, batch]`` if the problem is sampled, and ``schedules``, a table
            ``[length]`` by field.
        local: The losses.
        rows: How many recorded iterations the result has room for.

    Returns:
        The state reached, its k, whether it has diverged, and the stored rows.
    """
    net = SimulatedNet(setting.operators, setting.u.shape[0])
    every = setting.record_every

    def step(carry: _Inner) -> _Inner:
        method, index = at_iteration(setting.method, inputs, carry.k - first)
        state, grad = one_step(method, carry.state, net, local, setting.arrays, index)
        is_within = jnp.all(jnp.abs(setting.method.estimate(state)) <= setting.limit)  # false for NaN
        return _Inner(carry.k + 1, state, grad, ~is_within)

    def record(carry: tuple[_Inner, Rows]) -> tuple[_Inner, Rows]:
        """Measure x at k, run one step to measure y at k, or else run on to the next recorded iteration."""
        inner, table = carry
        is_recorded = inner.k % every == 0
        row = jnp.where(is_recorded, inner.k // every - (first + every - 1) // every, rows)
        weights = metrics.average_weights(setting.method, inner.state, setting.u)
        table = _write_estimates(table, row, setting.method.estimate(inner.state), weights)
        target = jnp.minimum(jnp.where(is_recorded, inner.k + 1, (inner.k // every + 1) * every), end)
        inner = lax.while_loop(lambda c: (c.k < target) & ~c.diverged, step, inner)
        method, _ = at_iteration(setting.method, inputs, inner.k - 1 - first)
        return inner, _write_trackers(table, row, method, setting.v, inner, net)

    start = _Inner(jnp.asarray(first), state, jnp.zeros_like(setting.method.query(state)), jnp.asarray(False))
    inner, table = lax.while_loop(
        lambda carry: (carry[0].k < end) & ~carry[0].diverged, record, (start, _empty(start.grad, rows))
    )
    return inner.state, inner.k, inner.diverged, table


def at_iteration(method: Any, inputs: dict[str, Any], i: Any) -> tuple[Any, jax.Array | None]:
    """Return the method of an iteration, its schedules evaluated, and its samples; ``i`` counts in the chunk."""
    index = inputs["index"][i] if "index" in inputs else None
    return with_fields(method, {name: table[i] for name, table in inputs["schedules"].items()}), index


def one_step(
    method: Any, state: Any, net: SimulatedNet, local: LocalLosses, arrays: Any, index: jax.Array | None
) -> tuple[Any, jax.Array]:
    """Return the state after one step and the gradient it used."""
    grad = local.gradients(arrays, method.query(state), index)
    return _like(method.step(state, grad, net), state), grad


def start_state(method: Any, x0: jax.Array, net: SimulatedNet) -> Any:
    """Return the state before the first step, with arrays in the dtype of x0 (whole numbers stay whole)."""

    def strong(leaf: Any) -> jax.Array:
        array = jnp.asarray(leaf)
        return array.astype(x0.dtype) if jnp.issubdtype(array.dtype, jnp.floating) else array

    return jax.tree.map(strong, method.init(x0, net))


def _like(new: Any, old: Any) -> Any:
    return jax.tree.map(lambda leaf, template: jnp.asarray(leaf, template.dtype), new, old)


def _empty(grad: jax.Array, rows: int) -> Rows:
    d, dtype = grad.shape[1], grad.dtype
    column = jnp.full(rows + 1, jnp.nan, dtype)
    return Rows(jnp.zeros((rows + 1, d), dtype), jnp.zeros((rows + 1, d), dtype), column, column, column)


def _write_estimates(table: Rows, row: jax.Array, x: jax.Array, u: jax.Array) -> Rows:
    return table._replace(
        point=table.point.at[row].set(metrics.perron_average(x, u)),
        mean=table.mean.at[row].set(x.mean(axis=0)),
        consensus_error=table.consensus_error.at[row].set(metrics.consensus_error(x, u)),
    )


def _write_trackers(
    table: Rows, row: jax.Array, method: Any, v: jax.Array, inner: _Inner, net: SimulatedNet
) -> Rows:
    if hasattr(inner.state, "y"):
        error = metrics.tracking_error(inner.state.y, v)
        table = table._replace(tracking_error=table.tracking_error.at[row].set(error))
    if hasattr(method, "diagnostics"):
        ratios = method.diagnostics(inner.state, inner.grad, net)["clip_ratio"]
        fraction = metrics.fraction_clipped(ratios).astype(ratios.dtype)
        table = table._replace(fraction_clipped=table.fraction_clipped.at[row].set(fraction))
    return table
