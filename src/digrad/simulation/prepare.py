"""From arguments to a run that is ready to advance: what the loop is given, and where it starts."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from digrad.engine import hyper
from digrad.engine.averages import perron_weights
from digrad.engine.traffic import Traffic
from digrad.engine.verbs import bindings
from digrad.errors import ArgumentError
from digrad.fingerprints import fingerprint
from digrad.mixing import AnyNetwork
from digrad.problems import Problem
from digrad.sampling import EpochPermutations, WithReplacement
from digrad.simulation.advance import Carry, Code, Fixed, Inputs, Rows, advance_of
from digrad.simulation.memory import keep_freed_memory
from digrad.simulation.net import SimulatedNet
from digrad.simulation.operators import DENSE_AGENTS, Operator, constant, linked_steps, of_steps, pick
from digrad.simulation.pytree import numbers_only

DIVERGED = (
    1e12  # an entry of x beyond this, relative to 1 + max|x_0|, counts as diverged (the design's definition)
)
STEPS_PER_CALL = 1000  # at most
BYTES_PER_CALL = 64 << 20  # what the inputs, or the stored averages, of one call take at most, about

LARGE_STATE = 4 << 20  # bytes of x from which the C library would return what a call has used to the system

Sampler = WithReplacement | EpochPermutations


@dataclass(frozen=True, eq=False)
class Prepared:
    """A run that is ready to advance.

    Args:
        name: Of the trace.
        problem: The losses.
        network: Who hears whom.
        method: With its schedules.
        sampler: Of mini-batches, or None.
        fixed: What stays fixed, as the loop takes it.
        start: Where the run begins.
        code: What is compiled in.
        length: How many iterations one call may have.
        traffic: Bytes sent before each iteration.
        facts: What determines the numbers.
    """

    name: str
    problem: Problem
    network: AnyNetwork
    method: Any
    sampler: Sampler | None
    fixed: Fixed
    start: Carry
    code: Code
    length: int
    traffic: Traffic
    facts: dict[str, Any]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of all numbers of the run."""
        return self.start.grad.dtype

    def last_end(self, k: int, record_every: int) -> int:
        """Return how far a call that begins at k may go: as far as its inputs and its room for rows reach."""
        first_row = -(-k // record_every)
        return min(k + self.length, (first_row + self.code.rows) * record_every)

    def call(
        self,
        carry: Carry,
        end: int,
        *,
        record_every: int,
        steps: int | None = None,
        inputs: Inputs | None = None,
    ) -> tuple[Carry, Rows]:
        """Advance to iteration ``end`` and wait for the result.

        Args:
            carry: Where the run is.
            end: At most :meth:`last_end`.
            record_every: Iterations between two recorded rows.
            steps: Of the whole run; a schedule is not asked beyond.
            inputs: Of these iterations, if they were made beforehand.
        """
        fixed = self.fixed._replace(record_every=record_every)
        inputs = inputs or self.inputs(int(carry.k), end, steps)
        run = advance_of(self.network.n)
        return jax.block_until_ready(run(fixed, carry, end, inputs, code=self.code))

    def inputs(self, first: int, end: int, steps: int | None = None) -> Inputs:
        """Return what the iterations first, ..., end - 1 are given: schedules, samples, weights that change."""
        ks = range(first, min(end, end if steps is None else steps))
        schedules = hyper.tables(self.method, self.name, ks, self.length, self.dtype)
        index = None
        if self.sampler:
            drawn = self.sampler.batches(first, max(1, end - first))
            index = np.pad(drawn, ((0, self.length - len(drawn)), (0, 0), (0, 0)))
        fresh: dict[str, Operator] = {}
        if bindings(self.fixed.method) and not (self.fixed.operators or self.fixed.turns):
            letters = bindings(self.fixed.method)
            fresh = _operators(self.network, letters, first, self.length, self.dtype)
        return Inputs(schedules, index, fresh)  # pyright: ignore[reportArgumentType]


def prepare(
    method: Any,
    problem: Problem,
    network: AnyNetwork,
    x0: npt.NDArray[np.floating],
    *,
    name: str,
    sampler: Sampler | None = None,
    length: int | None = None,
    keep: Callable[..., Any] | None = None,
    facts: dict[str, Any] | None = None,
    is_stored: bool = False,
) -> Prepared:
    """Return a run of ``method`` from ``x0`` ``[n, d]``, in its dtype; call it inside ``jax.enable_x64(True)``.

    Args:
        method: With its schedules.
        problem: The losses.
        network: Who hears whom.
        x0: The start.
        name: Of the trace.
        sampler: Of mini-batches.
        length: Iterations of one call; chosen by memory if None.
        keep: What else to store at recorded iterations; see :class:`~digrad.simulation.advance.Code`.
        facts: What else determines the numbers; stored with the trace.
        is_stored: Whether the run must be recognised when it goes on in another process.

    Raises:
        ArgumentError: A schedule is not a function of k, or a run that is stored cannot be recognised.
    """
    hyper.check_schedules(method)
    dtype, (n, d) = x0.dtype, x0.shape
    if x0.nbytes >= LARGE_STATE:
        keep_freed_memory()
    numeric, letters = numbers_only(method, dtype), bindings(method)
    operators, turns, fresh_bytes = _known_operators(network, letters, dtype)
    per_step = fresh_bytes + (4 * n * sampler.batch_size if sampler else 0)
    longest = max(1, min(STEPS_PER_CALL, BYTES_PER_CALL // max(1, per_step)))
    u, v = perron_weights(method, network)
    fixed = Fixed(
        method=numeric,
        operators=operators,
        turns=turns,
        arrays=problem.arrays(dtype),
        u=jnp.asarray(u, dtype),
        v=jnp.asarray(v, dtype),
        limit=jnp.asarray(_limit(x0), dtype),
        record_every=1,
    )
    first = operators or _operators_at_0(network, letters, dtype)
    state, links, traffic = _open(numeric, x0, first, network)
    kept = 1 if keep is None else 2 * n  # a caller that keeps states keeps about four
    row_bytes = 2 * d * dtype.itemsize * kept
    rows = max(1, min(STEPS_PER_CALL, BYTES_PER_CALL // row_bytes))
    return Prepared(
        name=name,
        problem=problem,
        network=network,
        method=method,
        sampler=sampler,
        fixed=fixed,
        start=Carry(
            k=jnp.asarray(0),
            reached=jnp.asarray(0),
            alive=jnp.asarray(True),
            state=state,
            links=links,
            grad=jnp.zeros_like(numeric.query(state)),
        ),
        code=Code(losses=problem.code, link=network.links, rows=rows, keep=keep),
        length=longest if length is None else length,
        traffic=traffic,
        facts={**(facts or {}), **_facts(method, problem, network, x0, is_stored)},
    )


def prepare_another(
    run: Prepared,
    method: Any,
    x0: npt.NDArray[np.floating],
    *,
    sampler: Sampler | None,
    facts: dict[str, Any],
) -> Prepared:
    """Return a run like ``run`` with other numbers, without looking at problem and network again.

    Args:
        run: Of the same class of method, with the same strings, shapes and schedules.
        method: With its schedules.
        x0: The start, of the same shape and dtype.
        sampler: Of mini-batches.
        facts: What else determines the numbers.
    """
    hyper.check_schedules(method)
    numeric = numbers_only(method, x0.dtype)
    first = run.fixed.operators or _operators_at_0(run.network, bindings(method), x0.dtype)
    state = _strong(numeric.init(jnp.asarray(x0), SimulatedNet(first, len(x0))), x0.dtype)
    described = {"hyper_parameters": _described(method), "start_hash": _hash(x0)}
    return replace(
        run,
        method=method,
        sampler=sampler,
        fixed=run.fixed._replace(method=numeric, limit=jnp.asarray(_limit(x0), x0.dtype)),
        start=run.start._replace(state=state),
        facts={**run.facts, **described, **facts},
    )


def _open(
    method: Any, x0: npt.NDArray[np.floating], operators: dict[str, Operator], network: AnyNetwork
) -> tuple[Any, tuple[Any, ...], Traffic]:
    """Return the state before the first step, that of the links, and what is sent, counted in a dry run."""
    n, d = x0.shape
    start_net = SimulatedNet(operators, n)  # messages of `init` arrive as they are
    state = _strong(method.init(jnp.asarray(x0), start_net), x0.dtype)
    step_net = SimulatedNet(operators, n, dimension=d, link=network.links)

    def dry(state: Any, grad: Any) -> tuple[Any, ...]:
        method.step(state, grad, step_net)
        return tuple(step_net.links)

    opened = jax.eval_shape(dry, state, jax.eval_shape(method.query, state))
    links = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), opened)
    return state, links, Traffic(network, bindings(method), start_net.meter, step_net.meter)


def _strong(state: Any, dtype: np.dtype[Any]) -> Any:
    """Return the state with arrays in the dtype of the run; whole numbers stay whole."""

    def strong(leaf: Any) -> jax.Array:
        array = jnp.asarray(leaf)
        return array.astype(dtype) if jnp.issubdtype(array.dtype, jnp.floating) else array

    return jax.tree.map(strong, state)


def _known_operators(
    network: AnyNetwork, letters: dict[str, str], dtype: np.dtype[Any]
) -> tuple[dict[str, Operator], dict[str, Operator], int]:
    """Return the operators of a constant network, or those of all turns, and what a fresh one takes otherwise."""
    if network.period == 1 and network.links is None:
        return {verb: constant(getattr(network, letter), dtype) for verb, letter in letters.items()}, {}, 0
    size = _bytes_per_step(network, letters, dtype)
    if network.period is None or network.period * size > BYTES_PER_CALL:
        return {}, {}, size
    return {}, _operators(network, letters, 0, network.period, dtype), 0


def _operators(
    network: AnyNetwork, letters: dict[str, str], first: int, length: int, dtype: npt.DTypeLike
) -> dict[str, Operator]:
    build = of_steps if network.links is None else linked_steps
    return {verb: build(network, letter, first, length, dtype) for verb, letter in letters.items()}


def _operators_at_0(
    network: AnyNetwork, letters: dict[str, str], dtype: npt.DTypeLike
) -> dict[str, Operator]:
    return {verb: pick(one, 0) for verb, one in _operators(network, letters, 0, 1, dtype).items()}


def _limit(x0: npt.NDArray[np.floating]) -> float:
    """Return the entry of x beyond which a run has diverged."""
    return min(DIVERGED * (1 + float(np.abs(x0).max())), float(np.finfo(x0.dtype).max))


def _described(method: Any) -> dict[str, Any] | None:
    try:
        return hyper.describe(method)
    except ArgumentError:  # a schedule that no other process could recognise
        return None


def _hash(x0: npt.NDArray[np.floating]) -> str:
    return hashlib.sha256(x0.tobytes()).hexdigest()


def _bytes_per_step(network: AnyNetwork, letters: dict[str, str], dtype: np.dtype[Any]) -> int:
    """Return about how much memory the weights of one iteration of a network that changes take."""
    entries = network.n**2 if network.n <= DENSE_AGENTS else 2 * (network.n + network.union.n_arcs)
    return entries * dtype.itemsize * len(letters)


def _facts(
    method: Any, problem: Problem, network: AnyNetwork, x0: npt.NDArray[np.floating], is_stored: bool
) -> dict[str, Any]:
    def recognised(make: Callable[[], Any], what: str) -> Any:
        try:
            return make()
        except ArgumentError as error:
            if not is_stored:
                return None
            raise ArgumentError(
                f"`checkpoint` of simulate must know its run again, but {what} cannot be recognised: {error}."
            ) from error

    return {
        "method": type(method).__name__,
        "method_hash": recognised(lambda: fingerprint(type(method)), "the class of the method"),
        "hyper_parameters": recognised(lambda: hyper.describe(method), "a hyper-parameter"),
        "problem": problem.name,
        "problem_hash": recognised(lambda: problem.content_hash, "the problem"),
        "network_hash": network.content_hash,
        "start_hash": _hash(x0),
        "dtype": x0.dtype.name,
    }
