"""From arguments to a run that is ready to advance: what the loop is given, and where it starts."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from digrad._internal.fingerprints import fingerprint
from digrad.core import hyperparameters
from digrad.core.averages import perron_weights
from digrad.core.charges import Charge, charges_of
from digrad.core.delivery import make_fates
from digrad.core.divergence import STEEP, largest_entry
from digrad.core.net import bindings
from digrad.core.packets import PacketTraffic
from digrad.core.traffic import Meter, Traffic
from digrad.errors import ArgumentError
from digrad.links import Event, Fates, Links
from digrad.links.coders import RandomK
from digrad.links.validation import code_of_link
from digrad.network import AnyNetwork
from digrad.problems import Problem
from digrad.sampling import EpochPermutations, WithReplacement
from digrad.simulation.arcs import arcs_of_steps
from digrad.simulation.churn import phases as churn_phases
from digrad.simulation.loop import Carry, Code, Fixed, Inputs, Rows, advance_of
from digrad.simulation.net import SimulatedNet
from digrad.simulation.operators import DENSE_AGENTS, Operator, constant, linked_steps, of_steps, pick
from digrad.simulation.pytree import numbers_only
from digrad.simulation.unreliable import Fate, FatedNet, Wire

STEPS_PER_CALL = 1000  # at most
BYTES_PER_CALL = 64 << 20  # what the inputs, or the stored averages, of one call take at most, about
LEAST_STEPS = (
    20  # of a call with many agents, however long: it begins and ends with as much memory as three steps
)
STATES_PER_CALL = 4  # how many stacked states the inputs of these steps may be as large as, if that is more

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
        fates: What becomes of packets; None if all arrive as sent.
        widths: Numbers per agent of each array that a step sends, where packets have fates.
        steep: Returns the entry of a gradient beyond which losses are steep; runs from one start share it.
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
    traffic: Traffic | PacketTraffic
    fates: Fates | None
    widths: tuple[int, ...]
    steep: Callable[[], float]
    facts: dict[str, Any]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of all numbers of the run."""
        return self.start.grad.dtype

    def last_end(self, k: int, record_every: int) -> int:
        """Return how far a call that begins at k may go: as far as its inputs and its room for rows reach."""
        first_row = -(-k // record_every)
        return min(k + self.length, (first_row + self.code.rows) * record_every)

    def phases(self) -> "list[Prepared]":
        """Return a run for the time before the first agent goes or comes, and one for the time after each."""
        if self.fates is None or self.fates.timeline is None:
            return [self]
        letters = bindings(self.fixed.method)
        return churn_phases(self, self.network, lambda n: _operators(n, letters, 0, 1, self.dtype))  # pyright: ignore[reportArgumentType]

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
        run = advance_of(self.code, *self.start.grad.shape)
        return jax.block_until_ready(run(fixed, carry, end, inputs, code=self.code))

    def limit_beyond(self, carry: Carry) -> jax.Array | None:
        """Return the limit with which a run that ended beyond its own goes on; None if it has diverged.

        That is decided here, and not in the loop, because it takes gradients that hardly any run has to be asked for.
        """
        method = self.fixed.method
        x, here = np.asarray(method.estimate(carry.state)), method.query(carry.state)
        if not np.isfinite(x).all():
            return None
        return _limit(x) if _largest_gradient(self.problem, here) <= self.steep() else None

    def schedules(self, first: int, end: int, steps: int | None = None) -> dict[str, npt.NDArray[Any]]:
        """Return the hyper-parameters that change at the iterations first, ..., end - 1, by field.

        A schedule is asked for the steps of the run only: what is measured after the last one has its values.
        """
        last = end if steps is None else steps
        ks = [min(k, last - 1) for k in range(first, end)]
        return hyperparameters.tables(self.method, self.name, ks, self.length, self.dtype)

    def samples(self, first: int, end: int) -> npt.NDArray[np.int32] | None:
        """Return the places of the samples of the iterations first, ..., end - 1; None where all are used."""
        if self.sampler is None:
            return None
        drawn = self.sampler.batches(first, max(1, end - first))
        return np.pad(drawn, ((0, self.length - len(drawn)), (0, 0), (0, 0)))

    def inputs(self, first: int, end: int, steps: int | None = None) -> Inputs:
        """Return what the iterations first, ..., end - 1 are given: schedules, samples, weights that change."""
        fresh: dict[str, Operator] = {}
        if bindings(self.fixed.method) and not (self.fixed.operators or self.fixed.turns):
            letters = bindings(self.fixed.method)
            fresh = _operators(self.network, letters, first, self.length, self.dtype)
        fates = None
        if self.fates:
            fates = _fate_tables(self.fates, first, max(1, end - first), self.length, self.widths)
        schedules, samples = self.schedules(first, end, steps), self.samples(first, end)
        return Inputs(schedules, samples, fresh, fates)  # pyright: ignore[reportArgumentType]


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
    average: str = "plain",
    facts: dict[str, Any] | None = None,
    is_stored: bool = False,
    churn: Sequence[Event] = (),
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
        keep: What else to store at recorded iterations; see :class:`~digrad.simulation.loop.Code`.
        average: Where metrics are evaluated: the ``plain`` mean of the agents, or the ``weighted`` one.
        facts: What else determines the numbers; stored with the trace.
        is_stored: Whether the run must be recognised when it goes on in another process.
        churn: Which agents go and come; :meth:`Prepared.phases` then has a run for each time in between.

    Raises:
        ArgumentError: A schedule is not a function of k, or a run that is stored cannot be recognised.
    """
    hyperparameters.check_schedules(method)
    dtype, (n, d) = x0.dtype, x0.shape
    numeric, letters = numbers_only(method, dtype), bindings(method)
    operators, turns, fresh_bytes = _known_operators(network, letters, dtype)
    charges = _charges(method, network, x0)
    fates = make_fates(network, churn, charges, letters)
    state, links, traffic, wire, widths = _open(numeric, x0, operators, network, fates)
    per_step = fresh_bytes + (4 * n * sampler.batch_size if sampler else 0) + _fate_bytes(fates, widths)
    longest = max(
        1,
        min(STEPS_PER_CALL, BYTES_PER_CALL // max(1, per_step)),
        min(LEAST_STEPS, STATES_PER_CALL * x0.nbytes // max(1, per_step)),
    )
    u, v = perron_weights(method, network)
    fixed = Fixed(
        method=numeric,
        operators=operators,
        turns=turns,
        arrays=problem.arrays(dtype),
        u=jnp.asarray(u if average == "weighted" else np.ones(n), dtype),
        v=jnp.asarray(v, dtype),
        record_every=1,
    )
    kept = 1 if keep is None else 4 * n  # a caller that keeps states keeps about four
    row_bytes = d * dtype.itemsize * kept
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
            limit=_limit(x0),
            state=state,
            links=links,
            grad=jnp.zeros_like(numeric.query(state)),
        ),
        code=Code(
            losses=problem.code,
            link=None if isinstance(network.links, Links | None) else code_of_link(network.links),
            wire=wire,
            rows=rows,
            is_weighted=average == "weighted",
            keep=keep,
        ),
        length=longest if length is None else length,
        traffic=traffic,
        fates=fates,
        widths=widths,
        steep=cache(lambda: STEEP * _largest_gradient(problem, x0)),
        facts={
            **(facts or {}),
            "average": average,
            **({"churn": [repr(event) for event in churn]} if churn else {}),
            **_facts_of(method, problem, network, x0, is_stored=is_stored),
        },
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
    hyperparameters.check_schedules(method)
    numeric = numbers_only(method, x0.dtype)
    first = _first(of_steps, run.network, bindings(method), x0.dtype)
    state = _strong(numeric.init(jnp.asarray(x0), SimulatedNet(first, len(x0))), x0.dtype)
    described = {"hyper_parameters": _described(method), "start_hash": _hash(x0)}
    problem, is_same = run.problem, described["start_hash"] == run.facts["start_hash"]
    return replace(
        run,
        method=method,
        sampler=sampler,
        fixed=run.fixed._replace(method=numeric),
        start=run.start._replace(limit=_limit(x0), state=state),
        steep=run.steep if is_same else cache(lambda: STEEP * _largest_gradient(problem, x0)),
        facts={**run.facts, **described, **facts},
    )


def _open(
    method: Any,
    x0: npt.NDArray[np.floating],
    operators: dict[str, Operator],
    network: AnyNetwork,
    fates: Fates | None,
) -> tuple[Any, tuple[Any, ...], Traffic | PacketTraffic, Wire | None, tuple[int, ...]]:
    """Return the state before the first step, that of the links, and what is sent, counted in a dry run."""
    (n, d), letters = x0.shape, bindings(method)
    perfect = operators if fates is None and operators else _first(of_steps, network, letters, x0.dtype)
    start_net = SimulatedNet(perfect, n)  # messages of `init` arrive as they are
    state = _strong(method.init(jnp.asarray(x0), start_net), x0.dtype)
    wire, widths = None, ()
    if not (fates and isinstance(network.links, Links)):
        assert not isinstance(network.links, Links)
        operators = perfect if network.links is None else _first(linked_steps, network, letters, x0.dtype)
        net = SimulatedNet(operators, n, dimension=d, link=network.links)
    else:
        wire = _wire(network, letters, x0.dtype, fates)
        fate = jax.tree.map(lambda table: jnp.asarray(table[0]), _fate_tables(fates, 0, 1, 1, ()))
        net = FatedNet(wire, _first(_arcs, network, letters, x0.dtype), fate, None, 0, n)

    def dry(state: Any, grad: Any) -> tuple[Any, ...]:
        method.step(state, grad, net)
        return tuple(net.links)

    opened = jax.eval_shape(dry, state, jax.eval_shape(method.query, state))
    links = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), opened)
    if isinstance(net, SimulatedNet):
        return state, links, Traffic(network, letters, start_net.meter, net.meter), wire, widths
    assert fates is not None
    start = int(Traffic(network, letters, start_net.meter, Meter()).before([0])[0])
    return state, links, PacketTraffic(start, fates), wire, tuple(net.widths)


def _charges(method: Any, network: AnyNetwork, x0: npt.NDArray[np.floating]) -> list[Charge]:
    """Return what the arrays of a step take where packets have fates."""
    if not isinstance(network.links, Links):
        return []
    coder, found = network.links.coder, []

    def dry(x: Any) -> Any:
        found.extend(charges_of(method, coder, x, jnp.eye(len(x))))
        return x

    jax.eval_shape(dry, jax.ShapeDtypeStruct(x0.shape, x0.dtype))
    return found


def _first(
    build: Callable[..., Operator], network: AnyNetwork, letters: dict[str, str], dtype: npt.DTypeLike
) -> dict[str, Any]:
    """Return the operators of the first iteration."""
    return {verb: pick(build(network, letter, 0, 1, dtype), 0) for verb, letter in letters.items()}


def _arcs(network: AnyNetwork, letter: str, first: int, length: int, dtype: npt.DTypeLike) -> Operator:
    return arcs_of_steps(network, letter, first, length, dtype)[0]


def _wire(network: AnyNetwork, letters: dict[str, str], dtype: npt.DTypeLike, fates: Fates) -> Wire:
    links = network.links
    assert isinstance(links, Links)
    slices = {verb: arcs_of_steps(network, letter, 0, 1, dtype)[1] for verb, letter in letters.items()}
    return Wire(
        letters=tuple(letters.items()),
        slices=tuple(slices.items()),
        push=links.push,
        pull=links.pull,
        coder=links.coder,
        damping=links.damping or (links.coder.damping if links.coder else 1.0),
        longest_delay=fates.longest_delay,
        sleeps=links.sleeps,
        constant=network.period == 1 and fates.timeline is None,
        keeps_ledger=fates.timeline is not None and fates.timeline.keeps_ledger,
    )


def _fate_tables(fates: Fates, first: int, length: int, room: int, widths: tuple[int, ...]) -> Fate:
    """Return what happens at the iterations first, ..., first + length - 1, with rows for ``room``."""
    links = fates.links

    def padded(table: npt.NDArray[Any]) -> Any:
        return np.pad(table, [(0, room - length)] + [(0, 0)] * (table.ndim - 1))

    def drawn(make: Callable[..., Any]) -> tuple[Any, ...]:
        return tuple(padded(make(first, length, call, width)) for call, width in enumerate(widths))

    return Fate(
        age=padded(fates.ages(first, length)),
        awake=padded(fates.awake(first, length)) if links.sleeps or fates.timeline else None,
        chosen=drawn(fates.chosen) if isinstance(links.coder, RandomK) and widths else None,
        noise=drawn(fates.noise) if links.is_noisy and widths else None,
    )


def _fate_bytes(fates: Fates | None, widths: tuple[int, ...]) -> int:
    """Return about how much memory the fates of one iteration take, while they are made."""
    if fates is None:
        return 0
    drawn = fates.n * sum(widths) * (isinstance(fates.links.coder, RandomK) + fates.links.is_noisy)
    return 10 * len(fates.arcs) + 16 * drawn


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
        return (
            {verb: constant(getattr(network.at(0), letter), dtype) for verb, letter in letters.items()},
            {},
            0,
        )
    size = _bytes_per_step(network, letters, dtype)
    if network.period is None or network.period * size > BYTES_PER_CALL:
        return {}, {}, size
    return {}, _operators(network, letters, 0, network.period, dtype), 0


def _operators(
    network: AnyNetwork, letters: dict[str, str], first: int, length: int, dtype: npt.DTypeLike
) -> dict[str, Operator]:
    build = of_steps if network.links is None else linked_steps
    build = _arcs if isinstance(network.links, Links) else build
    return {verb: build(network, letter, first, length, dtype) for verb, letter in letters.items()}


def _limit(x: npt.NDArray[np.floating]) -> jax.Array:
    """Return the entry of x beyond which a run is looked at; 0 where x is no scale yet."""
    return jnp.asarray(largest_entry(float(np.abs(x).max()), float(np.finfo(x.dtype).max)), x.dtype)


def _largest_gradient(problem: Problem, x: Any) -> float:
    return float(np.abs(problem.local_gradients(np.asarray(x, np.float64))).max())


def _described(method: Any) -> dict[str, Any] | None:
    try:
        return hyperparameters.describe(method)
    except ArgumentError:  # a schedule that no other process could recognise
        return None


def _hash(x0: npt.NDArray[np.floating]) -> str:
    return hashlib.sha256(np.ascontiguousarray(x0).data).hexdigest()


def _bytes_per_step(network: AnyNetwork, letters: dict[str, str], dtype: np.dtype[Any]) -> int:
    """Return about how much memory the weights of one iteration of a network that changes take."""
    entries = network.n**2 if network.n <= DENSE_AGENTS else 2 * (network.n + network.union.n_arcs)
    return entries * dtype.itemsize * len(letters)


def _facts_of(
    method: Any, problem: Problem, network: AnyNetwork, x0: npt.NDArray[np.floating], *, is_stored: bool
) -> dict[str, Any]:
    """Return what a method, a problem, a network and a start are, as a stored run knows them again.

    Raises:
        ArgumentError: The run is to be stored, and one of them cannot be recognised in another process.
    """

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
        "hyper_parameters": recognised(lambda: hyperparameters.describe(method), "a hyper-parameter"),
        "problem": problem.name,
        "problem_hash": recognised(lambda: problem.content_hash, "the problem"),
        "network_hash": recognised(lambda: network.content_hash, "the network"),
        "start_hash": _hash(x0),
        "dtype": x0.dtype.name,
    }
