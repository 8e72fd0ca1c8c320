"""The compiled loop: steps of one method, with what must be looked at inside the loop and nothing else.

Loss and gradient of the average are not evaluated here: the loop stores the average iterate, and the recorder
evaluates many of them in one product, which is several times cheaper. Of a run there is exactly one compiled copy of
``step``, so that the numbers do not depend on how it is cut into chunks. Everything else (one run, a comparison,
a sweep, the theory's checks, benchmarks) calls :func:`advance`.
"""

import dataclasses
import inspect
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

from digrad import metrics
from digrad.core.divergence import far_away
from digrad.core.hyperparameters import numeric_fields, with_fields
from digrad.core.link_state import LinkState
from digrad.links import Links
from digrad.problems import LossCode
from digrad.simulation.gradient_sources import Source
from digrad.simulation.mixing import MANY_AGENTS, Operator, SimulatedNet, count, pick
from digrad.simulation.unreliable_net import Delivery, LinkRules, UnreliableNet, only_if

PLAIN = {
    "xla_cpu_experimental_ynn_fusion_type": "",
    "xla_disable_hlo_passes": "tree_reduction_rewriter",
}
SHORT_ROW = 1024  # numbers that may be added up one by one: in float32 that costs at most a digit or two


class Params(NamedTuple):
    """Arrays that stay the same during a run; another value does not compile again.

    Of batched runs the numbers of the method have an axis ``[runs]`` in front.
    """

    method: Any
    operators: dict[str, Operator]  # mixing matrices of a constant network, by primitive
    periodic: dict[str, Operator]  # of a periodic network: the operators of its phases
    arrays: Any  # of the problem
    u: jax.Array  # [n] weights of the average of x
    v: jax.Array  # [n] weights of the trackers
    present: jax.Array | None = None  # [n] agents whose estimates count, where agents join and leave


class State(NamedTuple):
    """A run between two steps. Of batched runs all but ``k`` have an axis ``[runs]`` in front."""

    k: jax.Array
    reached: jax.Array  # iteration of ``method_state``: k, unless the run has diverged before
    alive: jax.Array  # whether it has not diverged
    # An entry of x above the limit is far away; 0 until an estimate that is not zero gives the scale.
    limit: jax.Array
    method_state: Any
    links: tuple[Any, ...]  # link state of every array that a step sends
    grad: Any  # [n, d] of the last step, or of an earlier one where no metric looks at it
    memory: Any = ()  # of the gradient source
    x0: Any = None  # [n, d] the start, by which divergence is judged; outside of the loop only


class Xs(NamedTuple):
    """Inputs of the iterations of one call, ``[length, ...]`` each."""

    schedules: dict[str, jax.Array]  # hyper-parameters that change, by field; batched [length, runs]
    samples: (
        jax.Array | None
    )  # [length, n, batch] their places; batched, unless shared, [length, runs, n, batch]
    operators: dict[str, Operator]  # of a network that never repeats
    deliveries: Delivery | None = None  # of packets
    noise: jax.Array | None = None  # [length, n, d] added to gradients; batched [length, runs, n, d]


class Buffer(NamedTuple):
    """Rows recorded by one call; the last one is scratch, for all other iterations."""

    point: jax.Array  # [rows + 1, d] average of the agents
    consensus_error: jax.Array  # [rows + 1]
    tracking_error: jax.Array  # [rows + 1]
    fraction_clipped: jax.Array  # [rows + 1]
    packets: Any  # where links are unreliable: columns by name, [rows + 1] each
    kept: Any  # what ``keep`` returns, [rows + 1, ...]


class Static(NamedTuple):
    """Code that is compiled in: two runs with equal code and equal shapes share one compiled loop."""

    losses: LossCode
    source: Source
    compression: Links | None  # where messages are compressed and nothing else happens to them
    rules: LinkRules | None  # where links are unreliable
    rows: int  # recorded iterations that a buffer has room for
    is_weighted: bool = False  # whether the average of the agents is weighted as the method conserves it
    is_batched: bool = False  # whether several runs advance together
    shares_samples: bool = True  # whether batched runs use the same samples
    # (method, state before, state after, gradient) -> arrays to store, by name
    keep: Callable[..., Any] | None = None


def row_number(k: Any, every: Any) -> Any:
    """Return the number of the first row that is recorded at iteration k or later."""
    return (k + every - 1) // every


@partial(jax.jit, static_argnames=("static",))
def advance(
    params: Params, carry: State, end: int, every: int, xs: Xs, *, static: Static
) -> tuple[State, Buffer]:
    """Run the steps k = carry.k, ..., end - 1, or until all runs have diverged.

    Args:
        params: Arrays that stay the same.
        carry: Where the run is.
        end: Where to stop; at most as many iterations as ``xs`` hold and ``static.rows`` record.
        every: Iterations between two recorded rows.
        xs: Inputs of these iterations.
        static: Code that is compiled in.

    Returns:
        Where the run is then, and the recorded rows.
    """
    first = carry.k
    one = partial(_one_step, params=params, static=static)
    measure_x, measure_y = (
        partial(estimates, u=params.u, present=params.present, is_weighted=static.is_weighted),
        partial(trackers, v=params.v),
    )
    measure_packets = _packets
    if static.is_batched:
        samples = None if xs.samples is None or static.shares_samples else 0
        noise = None if xs.noise is None else 0
        one = jax.vmap(one, in_axes=(0, 0, 0, None, samples, None, None, 0, noise, 0))
        measure_x, measure_y = jax.vmap(measure_x), jax.vmap(measure_y)
        measure_packets = jax.vmap(measure_packets)

    # Of many agents, a gradient that no metric looks at is not carried on: that takes a pass over memory.
    measured = (params.method, carry.method_state, carry.grad)
    is_small = carry.grad.shape[-2] <= MANY_AGENTS
    keeps_grad = is_small or static.keep is not None or _reads_last(measure_y, *measured)
    start, unread = (carry if keeps_grad else carry._replace(grad=None)), carry.grad

    def step(carry: State) -> State:
        method, index = at(params, xs, carry.k - first)
        operators = _operators(params, xs, carry.k, first)
        delivery = jax.tree.map(lambda table: table[carry.k - first], xs.deliveries)
        noise = None if xs.noise is None else xs.noise[carry.k - first]
        new = one(
            method, carry.method_state, carry.links, operators, index, carry.k, delivery, carry.limit, noise,
            carry.memory,
        )  # fmt: skip
        state, links, grad, limit, within, memory = new
        if not keeps_grad:
            grad = None
        if static.is_batched:  # a run that has diverged stays where it is, while the others go on
            old = (carry.method_state, carry.links, carry.grad, carry.memory)
            state, links, grad, memory = jax.tree.map(
                partial(_where_rows, carry.alive), (state, links, grad, memory), old
            )
        reached = jnp.where(carry.alive, carry.k + 1, carry.reached)
        return State(carry.k + 1, reached, carry.alive & within, limit, state, links, grad, memory)

    def record(both: tuple[State, Buffer]) -> tuple[State, Buffer]:
        """Measure x at k, run one step to measure y at k, or else run on to the next recorded iteration."""
        before, table = both
        is_recorded = before.k % every == 0
        row = jnp.where(is_recorded, before.k // every - row_number(first, every), static.rows)
        table = _write(table, row, only_if(is_recorded, measure_x, params.method, before.method_state))
        target = jnp.minimum(jnp.where(is_recorded, before.k + 1, (before.k // every + 1) * every), end)
        after = lax.while_loop(lambda c: (c.k < target) & jnp.any(c.alive), step, before)
        method, _ = at(params, xs, after.k - 1 - first)
        grad = after.grad if keeps_grad else unread
        table = _write(table, row, only_if(is_recorded, measure_y, method, after.method_state, grad))
        if static.rules:
            found = only_if(is_recorded, measure_packets, after.method_state, after.links)
            table = _write(
                table, row, {"packets": {**dict.fromkeys(metrics.PACKET_COLUMNS, jnp.nan), **found}}
            )
        if static.keep:
            operands = (method, before.method_state, after.method_state, grad)
            table = _write(table, row, {"kept": only_if(is_recorded, static.keep, *operands)})
        return after, table

    def goes_on(both: tuple[State, Buffer]) -> jax.Array:
        return (both[0].k < end) & jnp.any(both[0].alive)

    last, table = lax.while_loop(goes_on, record, (start, empty(params, carry, static)))
    return (last if keeps_grad else last._replace(grad=unread)), table


def advance_of(static: Static, n: int, d: int) -> Callable[..., tuple[State, Buffer]]:
    """Return :func:`advance` compiled as is best for n agents in dimension d.

    Where all sums are short, two things that XLA does are left out. Its library of fused elementwise operations stores
    what single neighbours send as arrays of their own, and takes a microsecond per call. Its rewriting of sums as trees
    makes two passes of each; long sums need it to keep their digits. Of many agents it stores all terms before it adds
    them up, and is left out whatever the losses: metrics add up row by row.
    """
    is_short = d <= SHORT_ROW and static.losses.has_short_sums and static.keep is None
    return _compiled(is_plain=n > MANY_AGENTS or is_short)


@cache
def _compiled(*, is_plain: bool) -> Callable[..., tuple[State, Buffer]]:
    if not is_plain or not _is_known(PLAIN):
        return advance
    return jax.jit(inspect.unwrap(advance), static_argnames=("static",), compiler_options=PLAIN)


def _is_known(options: dict[str, Any]) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options=options)()
    except jax.errors.JaxRuntimeError:  # of another version of XLA, or not on a processor
        return False
    return True


def _one_step(
    method: Any,
    state: Any,
    links: tuple[Any, ...],
    operators: dict[str, Operator],
    index: jax.Array | None,
    k: jax.Array,
    delivery: Delivery | None,
    limit: jax.Array,
    noise: jax.Array | None,
    memory: Any,
    *,
    params: Params,
    static: Static,
) -> tuple[Any, tuple[Any, ...], jax.Array, jax.Array, jax.Array, Any]:
    """Return the states of method and links, the gradient, the limit, whether x is within it, and the memory."""
    point = method.query(state)
    net: SimulatedNet | UnreliableNet
    if static.rules is None or delivery is None:
        net = SimulatedNet(
            operators,
            len(point),
            dimension=point.shape[1],
            links=static.compression,
            references=links,
            is_first=k == 0,
        )
    else:
        net = UnreliableNet(static.rules, operators, delivery, links, k, len(point))  # pyright: ignore[reportArgumentType]
    net.shapes = static.losses.shapes
    grad, known = static.source.gradients(static.losses, params.arrays, point, index, memory)
    grad = grad if noise is None else grad + noise
    after = _like(method.step(state, grad, net), state)
    if delivery is not None and delivery.awake is not None:
        after = jax.tree.map(partial(_where_rows, delivery.awake), after, state)
        known = jax.tree.map(partial(_where_rows, delivery.awake), known, memory)
    largest = jnp.max(jnp.abs(method.estimate(after)))
    limit = jnp.where(limit > 0, limit, far_away(largest, jnp.finfo(largest.dtype).max, jnp.minimum))
    return after, tuple(net.links), grad, limit, largest <= limit, known  # false for NaN


def at(params: Params, xs: Xs, i: jax.Array | int) -> tuple[Any, jax.Array | None]:
    """Return the method of an iteration, its schedules evaluated, and its samples; ``i`` counts in the chunk."""
    scheduled = {name: table[i] for name, table in xs.schedules.items()}
    method = with_fields(params.method, scheduled) if scheduled else params.method
    return method, None if xs.samples is None else xs.samples[i]


def _operators(params: Params, xs: Xs, k: jax.Array, first: jax.Array) -> dict[str, Operator]:
    periodic = {primitive: pick(one, k % count(one)) for primitive, one in params.periodic.items()}
    fresh = {primitive: pick(one, k - first) for primitive, one in xs.operators.items()}
    return {**params.operators, **periodic, **fresh}


def _reads_last(measure: Callable[..., Any], *operands: Any) -> bool:
    """Return whether what is measured depends on the last operand, which is one array."""
    jaxpr = jax.make_jaxpr(measure)(*operands).jaxpr
    return any(jaxpr.invars[-1] in read for read in (jaxpr.outvars, *(each.invars for each in jaxpr.eqns)))


def _where_rows(mask: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    """Return what a step has changed of the runs, or agents, that took part in it."""
    if new.ndim == 0 or len(new) != len(mask):
        return new
    return jnp.where(mask.reshape(-1, *[1] * (new.ndim - 1)), new, old)


def _like(new: Any, old: Any) -> Any:
    return jax.tree.map(lambda leaf, template: jnp.asarray(leaf, template.dtype), new, old)


def estimates(
    method: Any, state: Any, *, u: jax.Array, present: jax.Array | None, is_weighted: bool
) -> dict[str, jax.Array]:
    """Return what is recorded of the estimates before a step."""
    x = method.estimate(state)
    if is_weighted:
        u = metrics.average_weights(method, state, u)
    if present is not None:
        x = jnp.where(present[:, None], x, metrics.perron_average(x, u))
    return {
        "point": metrics.perron_average(x, u),
        "consensus_error": metrics.consensus_error(x, u),
    }


def trackers(method: Any, state: Any, grad: jax.Array, *, v: jax.Array) -> dict[str, jax.Array]:
    """Return what is recorded of the trackers after a step."""
    found = {}
    if hasattr(state, "y"):
        found["tracking_error"] = metrics.tracking_error(state.y, v)
    if hasattr(method, "diagnostics"):
        net = SimulatedNet({}, len(grad))  # for the average that a centralized method clips
        ratios = method.diagnostics(state, grad, net)["clip_ratio"]
        found["fraction_clipped"] = metrics.fraction_clipped(ratios).astype(ratios.dtype)
    return found


def _packets(state: Any, links: tuple[LinkState, ...]) -> dict[str, jax.Array]:
    pushed = [link.undelivered for link in links if link.pushed is not None]
    found = metrics.packet_figures(state, pushed)
    return {name: jnp.asarray(value, state.x.dtype) for name, value in found.items()}


def empty(params: Params, carry: State, static: Static) -> Buffer:
    """Return a table in which nothing is recorded yet."""
    lead, d, dtype = (static.rows + 1, *carry.alive.shape), carry.grad.shape[-1], carry.grad.dtype
    kept = None
    if static.keep:
        shapes = jax.eval_shape(
            static.keep, params.method, carry.method_state, carry.method_state, carry.grad
        )
        kept = jax.tree.map(lambda leaf: jnp.zeros((static.rows + 1, *leaf.shape), leaf.dtype), shapes)
    column = jnp.full(lead, jnp.nan, dtype)
    packets = dict.fromkeys(metrics.PACKET_COLUMNS, column) if static.rules else None
    return Buffer(
        point=jnp.zeros((*lead, d), dtype),
        consensus_error=column,
        tracking_error=column,
        fraction_clipped=column,
        packets=packets,
        kept=kept,
    )


def _write(table: Buffer, row: jax.Array, found: dict[str, Any]) -> Buffer:
    new = {
        name: jax.tree.map(lambda column, value: column.at[row].set(value), getattr(table, name), values)
        for name, values in found.items()
    }
    return table._replace(**new)


def numbers_only(method: Any, dtype: npt.DTypeLike) -> Any:
    """Return the method as a pytree of floats and columns of them, with zero in place of a schedule.

    A field annotated with ``float`` is a leaf, so that a new step size does not compile again, and so is one of a part
    that a method is composed of; every other field (a name, a flag, a count) is static.
    """
    if isinstance(method, tuple):
        return tuple(numbers_only(part, dtype) for part in method)
    _register(type(method))
    values: dict[str, Any] = {name: getattr(method, name) for name in numeric_fields(type(method))}
    scheduled = {name: 0.0 for name, value in values.items() if callable(value)}
    columns = {
        name: np.asarray(value, dtype)
        for name, value in values.items()
        if np.ndim(value) and not callable(value)
    }
    whole = {name: float(value) for name, value in values.items() if isinstance(value, int)}
    parts = {name: numbers_only(getattr(method, name), dtype) for name in _parts(method)}
    return with_fields(method, {**columns, **scheduled, **whole, **parts})


def _parts(method: Any) -> tuple[str, ...]:
    """Return the fields that hold numbers of their own: a data class, or several."""
    numeric = numeric_fields(type(method))
    others = [field.name for field in dataclasses.fields(method) if field.name not in numeric]
    return tuple(name for name in others if _is_part(getattr(method, name)))


def _is_part(value: Any) -> bool:
    if isinstance(value, tuple) and value:
        return all(map(_is_part, value))
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


@cache
def _register(method_type: type) -> None:
    """Make a method class a pytree whose leaves are its numbers; unflattening skips the checks of its constructor."""
    numeric = numeric_fields(method_type)
    others = tuple(field.name for field in dataclasses.fields(method_type) if field.name not in numeric)

    def flatten(method: Any) -> tuple[list[Any], tuple[Any, ...]]:
        parts = _parts(method)
        static = tuple((name, getattr(method, name)) for name in others if name not in parts)
        return [getattr(method, name) for name in (*numeric, *parts)], (parts, static)

    def unflatten(form: tuple[Any, ...], leaves: Any) -> Any:
        parts, static = form
        method = object.__new__(method_type)
        method.__dict__.update(static)
        method.__dict__.update(zip((*numeric, *parts), leaves, strict=True))
        return method

    jax.tree_util.register_pytree_node(method_type, flatten, unflatten)
