"""The compiled loop: steps of one method, with what must be looked at inside the loop and nothing else.

Loss and gradient of the average are not evaluated here: the loop stores the average iterate, and the recorder
evaluates many of them in one product, which is several times cheaper. Of a run there is exactly one compiled copy of
``step``, so that the numbers do not depend on how it is cut into chunks. Everything else (one run, a comparison,
a sweep, the theory's checks, benchmarks) is a caller of :func:`advance`.
"""

import inspect
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from digrad import metrics
from digrad.core.divergence import DIVERGED
from digrad.core.packets import PACKET_COLUMNS
from digrad.links.validation import LinkCode
from digrad.methods.fields import with_fields
from digrad.problems import LossCode
from digrad.simulation.net import SimulatedNet
from digrad.simulation.operators import MANY_AGENTS, Operator, count, pick
from digrad.simulation.unreliable import Call, Fate, FatedNet, Wire, outstanding

PLAIN = {
    "xla_cpu_experimental_ynn_fusion_type": "",
    "xla_disable_hlo_passes": "tree_reduction_rewriter",
}
SHORT_ROW = 1024  # numbers that may be added up one by one: in float32 that costs at most a digit or two


class Fixed(NamedTuple):
    """What stays fixed during a run, as arguments of the loop: another value does not compile again.

    With ``lanes`` the numbers of the method have an axis ``[lanes]`` in front.
    """

    method: Any
    operators: dict[str, Operator]  # of a constant network, by verb
    turns: dict[str, Operator]  # of a periodic network: one operator per turn
    arrays: Any  # of the problem
    u: jax.Array  # [n] weights of the average of x
    v: jax.Array  # [n] weights of the trackers
    record_every: int
    present: jax.Array | None = None  # [n] whose estimates count, where agents go and come


class Carry(NamedTuple):
    """What a run carries from one step to the next; with lanes all but ``k`` have an axis ``[lanes]`` in front."""

    k: jax.Array
    reached: jax.Array  # the iteration of ``state``: k, unless it has diverged before
    alive: jax.Array  # whether it has not diverged
    limit: (
        jax.Array
    )  # an entry of x above this has diverged; 0 until an estimate that is not zero gives the scale
    state: Any
    links: tuple[Any, ...]  # the state of every array on its way
    grad: Any  # [n, d] of the last step, or of an earlier one where no metric looks at it


class Inputs(NamedTuple):
    """What the iterations of one chunk are given, ``[length, ...]`` each."""

    schedules: dict[str, jax.Array]  # hyper-parameters that change, by field; with lanes [length, lanes]
    samples: (
        jax.Array | None
    )  # [length, n, batch] their places; with lanes of their own [length, lanes, n, batch]
    operators: dict[str, Operator]  # of a network that never repeats
    fates: Fate | None = None  # of packets


class Rows(NamedTuple):
    """What the loop stores at recorded iterations; the last row is scratch, for all other iterations."""

    point: jax.Array  # [rows + 1, d] average of the agents
    consensus_error: jax.Array  # [rows + 1]
    tracking_error: jax.Array  # [rows + 1]
    fraction_clipped: jax.Array  # [rows + 1]
    wire: Any  # of packets with fates: columns by name, [rows + 1] each
    kept: Any  # what ``keep`` returns, [rows + 1, ...]


class Code(NamedTuple):
    """What is compiled in: two runs with equal code and equal shapes share one compiled loop."""

    losses: LossCode
    link: LinkCode | None
    wire: Wire | None  # where packets have fates
    rows: int  # how many recorded iterations the result has room for
    is_weighted: bool = False  # whether the average of the agents is weighted as the method conserves it
    lanes: bool = False  # whether several runs advance side by side
    shared_index: bool = True  # whether all lanes use the same samples
    keep: Callable[..., Any] | None = (
        None  # (method, state before, state after, gradient, arrays) -> arrays to store
    )


@partial(jax.jit, static_argnames=("code",))
def advance(fixed: Fixed, carry: Carry, end: int, inputs: Inputs, *, code: Code) -> tuple[Carry, Rows]:
    """Run the steps k = carry.k, ..., end - 1, or until all runs have diverged.

    Args:
        fixed: What stays fixed.
        carry: Where the run is.
        end: Where to stop; at most as many iterations as ``inputs`` hold and ``code.rows`` record.
        inputs: Of these iterations.
        code: What is compiled in.

    Returns:
        Where the run is then, and the stored rows.
    """
    first, every = carry.k, fixed.record_every
    one = partial(_one_step, fixed=fixed, code=code)
    measure_x, measure_y = (
        partial(estimates, u=fixed.u, present=fixed.present, is_weighted=code.is_weighted),
        partial(trackers, v=fixed.v),
    )
    measure_wire = _packets
    if code.lanes:
        samples = None if inputs.samples is None or code.shared_index else 0
        one = jax.vmap(one, in_axes=(0, 0, 0, None, samples, None, None, 0))
        measure_x, measure_y = jax.vmap(measure_x), jax.vmap(measure_y)
        measure_wire = jax.vmap(measure_wire)

    # Of many agents, a gradient that no metric looks at is not carried on: that takes a pass over memory.
    measured = (fixed.method, carry.state, carry.grad)
    is_small = carry.grad.shape[-2] <= MANY_AGENTS
    keeps_grad = is_small or code.keep is not None or _reads_last(measure_y, *measured)
    start, unread = (carry if keeps_grad else carry._replace(grad=None)), carry.grad

    def step(carry: Carry) -> Carry:
        method, index = at(fixed, inputs, carry.k - first)
        operators = _operators(fixed, inputs, carry.k, first)
        fate = jax.tree.map(lambda table: table[carry.k - first], inputs.fates)
        state, links, grad, limit, within = one(
            method, carry.state, carry.links, operators, index, carry.k, fate, carry.limit
        )
        if not keeps_grad:
            grad = None
        if code.lanes:  # a run that has diverged stays where it is, while the others go on
            old = (carry.state, carry.links, carry.grad)
            state, links, grad = jax.tree.map(partial(_where_alive, carry.alive), (state, links, grad), old)
        reached = jnp.where(carry.alive, carry.k + 1, carry.reached)
        return Carry(carry.k + 1, reached, carry.alive & within, limit, state, links, grad)

    def record(both: tuple[Carry, Rows]) -> tuple[Carry, Rows]:
        """Measure x at k, run one step to measure y at k, or else run on to the next recorded iteration."""
        before, table = both
        is_recorded = before.k % every == 0
        row = jnp.where(is_recorded, before.k // every - (first + every - 1) // every, code.rows)
        table = _write(table, row, _only_if(is_recorded, measure_x, fixed.method, before.state))
        target = jnp.minimum(jnp.where(is_recorded, before.k + 1, (before.k // every + 1) * every), end)
        after = lax.while_loop(lambda c: (c.k < target) & jnp.any(c.alive), step, before)
        method, _ = at(fixed, inputs, after.k - 1 - first)
        grad = after.grad if keeps_grad else unread
        table = _write(table, row, _only_if(is_recorded, measure_y, method, after.state, grad))
        if code.wire:
            found = _only_if(is_recorded, measure_wire, after.state, after.links)
            table = _write(table, row, {"wire": {**dict.fromkeys(PACKET_COLUMNS, jnp.nan), **found}})
        if code.keep:
            operands = (method, before.state, after.state, grad, fixed.arrays)
            table = _write(table, row, {"kept": _only_if(is_recorded, code.keep, *operands)})
        return after, table

    def goes_on(both: tuple[Carry, Rows]) -> jax.Array:
        return (both[0].k < end) & jnp.any(both[0].alive)

    last, table = lax.while_loop(goes_on, record, (start, empty(fixed, carry, code)))
    return (last if keeps_grad else last._replace(grad=unread)), table


def advance_of(code: Code, n: int, d: int) -> Callable[..., tuple[Carry, Rows]]:
    """Return :func:`advance` compiled as is best for n agents in dimension d.

    Where all sums are short, two things that XLA does are left out. Its library of fused elementwise operations stores
    what single neighbours send as arrays of their own, and takes a microsecond per call. Its rewriting of sums as trees
    makes two passes of each; long sums need it to keep their digits. Of many agents it stores all terms before it adds
    them up, and is left out whatever the losses: metrics add up row by row.
    """
    is_short = d <= SHORT_ROW and code.losses.has_short_sums and code.keep is None
    return _compiled(is_plain=n > MANY_AGENTS or is_short)


@cache
def _compiled(*, is_plain: bool) -> Callable[..., tuple[Carry, Rows]]:
    if not is_plain or not _is_known(PLAIN):
        return advance
    return jax.jit(inspect.unwrap(advance), static_argnames=("code",), compiler_options=PLAIN)


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
    fate: Fate | None,
    limit: jax.Array,
    *,
    fixed: Fixed,
    code: Code,
) -> tuple[Any, tuple[Any, ...], jax.Array, jax.Array, jax.Array]:
    """Return the state after one step, that of the links, the gradient used, the limit, and whether x is within it."""
    point = method.query(state)
    net: SimulatedNet | FatedNet
    if code.wire is None or fate is None:
        net = SimulatedNet(
            operators,
            len(point),
            dimension=point.shape[1],
            link=code.link and code.link.link,
            states=links,
            is_first=k == 0,
        )
    else:
        net = FatedNet(code.wire, operators, fate, links, k, len(point))  # pyright: ignore[reportArgumentType]
    grad = code.losses.gradients(fixed.arrays, point, index)
    after = _like(method.step(state, grad, net), state)
    if fate is not None and fate.awake is not None:
        after = jax.tree.map(partial(_where_awake, fate.awake), after, state)
    largest = jnp.max(jnp.abs(method.estimate(after)))
    beyond = jnp.minimum(DIVERGED * largest, jnp.finfo(largest.dtype).max)
    limit = jnp.where(limit > 0, limit, beyond)
    return after, tuple(net.links), grad, limit, largest <= limit  # false for NaN


def at(fixed: Fixed, inputs: Inputs, i: jax.Array | int) -> tuple[Any, jax.Array | None]:
    """Return the method of an iteration, its schedules evaluated, and its samples; ``i`` counts in the chunk."""
    scheduled = {name: table[i] for name, table in inputs.schedules.items()}
    method = with_fields(fixed.method, scheduled) if scheduled else fixed.method
    return method, None if inputs.samples is None else inputs.samples[i]


def _operators(fixed: Fixed, inputs: Inputs, k: jax.Array, first: jax.Array) -> dict[str, Operator]:
    periodic = {verb: pick(one, k % count(one)) for verb, one in fixed.turns.items()}
    fresh = {verb: pick(one, k - first) for verb, one in inputs.operators.items()}
    return {**fixed.operators, **periodic, **fresh}


def _only_if(is_recorded: jax.Array, measure: Callable[..., Any], *operands: Any) -> Any:
    """Return what is measured, or zeros where nobody will look: a metric reads all states several times."""
    shapes = jax.eval_shape(measure, *operands)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return lax.cond(is_recorded, measure, lambda *_: nothing, *operands)


def _reads_last(measure: Callable[..., Any], *operands: Any) -> bool:
    """Return whether what is measured depends on the last operand, which is one array."""
    jaxpr = jax.make_jaxpr(measure)(*operands).jaxpr
    return any(jaxpr.invars[-1] in read for read in (jaxpr.outvars, *(each.invars for each in jaxpr.eqns)))


def _where_alive(alive: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    return jnp.where(alive.reshape(-1, *[1] * (new.ndim - 1)), new, old)


def _where_awake(awake: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    """Return what a step has changed, of the agents that took part in it."""
    if new.ndim == 0 or len(new) != len(awake):
        return new
    return jnp.where(awake.reshape(-1, *[1] * (new.ndim - 1)), new, old)


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


def _packets(state: Any, links: tuple[Call, ...]) -> dict[str, jax.Array]:
    owed = [part for part in map(outstanding, links) if part is not None]
    found = metrics.packet_figures(state, owed)
    return {name: jnp.asarray(value, state.x.dtype) for name, value in found.items()}


def empty(fixed: Fixed, carry: Carry, code: Code) -> Rows:
    """Return a table in which nothing is recorded yet."""
    lead, d, dtype = (code.rows + 1, *carry.alive.shape), carry.grad.shape[-1], carry.grad.dtype
    kept = None
    if code.keep:
        shapes = jax.eval_shape(code.keep, fixed.method, carry.state, carry.state, carry.grad, fixed.arrays)
        kept = jax.tree.map(lambda leaf: jnp.zeros((code.rows + 1, *leaf.shape), leaf.dtype), shapes)
    column = jnp.full(lead, jnp.nan, dtype)
    wire = dict.fromkeys(PACKET_COLUMNS, column) if code.wire else None
    return Rows(
        point=jnp.zeros((*lead, d), dtype),
        consensus_error=column,
        tracking_error=column,
        fraction_clipped=column,
        wire=wire,
        kept=kept,
    )


def _write(table: Rows, row: jax.Array, found: dict[str, Any]) -> Rows:
    new = {
        name: jax.tree.map(lambda column, value: column.at[row].set(value), getattr(table, name), values)
        for name, values in found.items()
    }
    return table._replace(**new)
