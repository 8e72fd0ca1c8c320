"""The low level of the simulator: a method on a problem over a network, advanced as far as the caller says."""

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, Unpack

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from digrad import checks
from digrad.core import hyperparameters
from digrad.core.divergence import STEEP, largest_gradient, limit_of
from digrad.core.net import bindings, perron_weights
from digrad.core.network_delivery import make_delivery
from digrad.core.state_repair import network_of, repair, void_edges
from digrad.core.traffic import Charge, PacketTraffic, Traffic, charges_of
from digrad.errors import ArgumentError
from digrad.links import ChurnSchedule, DeliverySchedule, Event
from digrad.network import Network
from digrad.privacy import Private
from digrad.problems import Problem
from digrad.simulation.gradient_sources import make_source, noise_of, samples_of
from digrad.simulation.loop import Buffer, Params, State, Static, Xs, advance_of, numbers_only, row_number
from digrad.simulation.mixing import (
    Operator,
    SimulatedNet,
    builder,
    compression_of,
    first_operators,
    known_operators,
    linked_steps,
    of_steps,
    operators_of,
)
from digrad.simulation.record import (
    Rows,
    end_of_room,
    evaluate_many,
    first_rows,
    joined,
    observer,
    recorded,
    rows_of,
)
from digrad.simulation.run_options import (
    SimulatorOptions,
    Start,
    check_parts,
    complete,
    lists_options,
    make_sampler,
    make_start,
)
from digrad.simulation.unreliable_net import (
    Edges,
    LinkRules,
    UnreliableNet,
    deliveries,
    delivery_bytes,
    edges_only,
    rules_of,
)
from digrad.types import Method, Shapes

STEPS_PER_CALL = 1000  # at most
BYTES_PER_CALL = 64 << 20  # what the inputs, or the stored averages, of one call take at most, about
# Of a call with many agents, however long: it begins and ends with as much memory as three steps.
LEAST_STEPS = 20
STATES_PER_CALL = 4  # how many stacked states the inputs of these steps may be as large as, if that is more


class Simulator:
    """A method on a problem over a network, to be run step by step, from any state, as often as one likes.

    :func:`digrad.simulate` runs one from its start to its end; use this one to look at states on the way, or to change
    them. The numbers are the same, however a run is cut into calls.

    Args:
        method: For example ``CGT(step_size=0.05, threshold=5.0)``; step sizes and thresholds may be functions of k.
        problem: The private losses.
        network: The communication graph and its weights.
        name: Name of the method in messages; its class by default.
        keep: A function of the method, its state before and after a step and the gradient between them, whose arrays,
            a dictionary, are recorded instead of the usual columns. The loop is compiled once per function.
        options: See :class:`digrad.SimulatorOptions`.

    Attributes:
        name: Name of the method in messages.
        method: With its schedules.
        problem: The private losses.
        network: The network of a run with the seed.
        options: All of them, in their one form.
        traffic: What is sent before each iteration.

    Example:
        >>> import digrad as dg
        >>> network, problem = dg.Network(dg.graphs.example5()), dg.problems.example_quadratic()
        >>> sim = Simulator(dg.CGT(step_size=0.05, threshold=5.0), problem, network, record_every=100)
        >>> state = sim.init([10.0, -10.0])
        >>> state, rows = sim.run(state, 300)
        >>> int(state.k), rows["k"].tolist(), bool(rows["loss"][-1] < rows["loss"][0])
        (300, [0, 100, 200], True)
        >>> sim.estimate(state).shape
        (5, 2)
    """

    params: tuple[Params, ...]  # before the first event of churn, and after each: mostly one
    static: Static
    length: int  # iterations of one call at most

    @lists_options(SimulatorOptions)
    def __init__(
        self,
        method: Method,
        problem: Problem,
        network: Network,
        *,
        name: str | None = None,
        keep: Callable[..., Mapping[str, Any]] | None = None,
        **options: Unpack[SimulatorOptions],
    ) -> None:
        label = type(method).__name__ if name is None else name
        if not isinstance(label, str) or not label:
            raise ArgumentError(f"`name` of Simulator must be a non-empty string, but got {name!r}.")
        check_parts(method, problem, network, label, "Simulator")
        self._set_up(method, problem, network, complete(options, "Simulator", SimulatorOptions), label, keep)

    @classmethod
    def of(
        cls,
        method: Method,
        problem: Problem,
        network: Network,
        options: Mapping[str, Any],
        name: str | None = None,
    ) -> "Simulator":
        """Return the simulator of a run, from arguments that have been checked and all its options."""
        simulator = object.__new__(cls)
        own = {key: options[key] for key in SimulatorOptions.__annotations__}
        simulator._set_up(method, problem, network, own, name or type(method).__name__, None)
        return simulator

    def _set_up(
        self,
        method: Any,
        problem: Problem,
        network: Network,
        options: Mapping[str, Any],
        name: str,
        keep: Callable[..., Any] | None,
    ) -> None:
        """Prepare everything that does not depend on the start."""
        network, record, dtype = network.with_seed(options["seed"]), options["record"], options["dtype"]
        self.name, self.problem, self.network = name, problem, network
        self._start_gradients: dict[int, float] = {}  # the largest by start, of all runs that diverge
        n, d, matrices = problem.n_agents, problem.dim, bindings(method)
        with jax.enable_x64(True):
            numeric = self._take_numbers(method, options)
            operators, periodic, fresh_bytes = known_operators(network, matrices, dtype, BYTES_PER_CALL)
            charges, self.traffic, delivery = _communication(
                numeric, (n, d), dtype, network, problem.code.shapes
            )
            self._delivery, self._widths = delivery, tuple(one.numbers for one in charges)
            # Through these the messages of `init` arrive as they are.
            given = operators if delivery is None else None
            self._opening = given or first_operators(of_steps, network, matrices, dtype)
            rules = None if delivery is None else rules_of(network, matrices, dtype, delivery)
            self._links = _link_states(
                numeric, (n, d), dtype, self._opening, network, delivery, rules, problem.code.shapes
            )
            u, v = perron_weights(method, network)
            params = Params(
                method=numeric,
                operators=operators,
                periodic=periodic,
                arrays=problem.arrays(dtype),
                u=jnp.asarray(u if record.average == "weighted" else np.ones(n), dtype),
                v=jnp.asarray(v, dtype),
            )
            churn = delivery and delivery.churn
            self.params = _phases(params, network, churn, dtype) if churn else (params,)
        state_bytes, self._keeps = n * d * dtype.itemsize, keep is not None
        keep = keep or observer(paths=record.paths, invariant=record.invariant)
        kept = 1 if keep is None else 4 * n  # a caller that keeps states keeps about four
        self.static = Static(
            losses=problem.code,
            source=make_source(problem, options),
            compression=compression_of(network) if delivery is None else None,
            rules=rules,
            rows=max(1, min(STEPS_PER_CALL, BYTES_PER_CALL // (d * dtype.itemsize * kept))),
            is_weighted=record.average == "weighted",
            keep=keep,
        )
        is_noisy = options["gradient_noise"] or isinstance(options["sampling"], Private)
        per_step = fresh_bytes + (4 * n * self.sampler.batch_size if self.sampler else 0)
        per_step += (state_bytes if is_noisy else 0) + (
            delivery_bytes(delivery, self._widths) if delivery else 0
        )
        per_step = per_step or 1
        most, least = BYTES_PER_CALL // per_step, STATES_PER_CALL * state_bytes // per_step
        self.length = max(1, min(STEPS_PER_CALL, most), min(LEAST_STEPS, least))

    def _take_numbers(self, method: Any, options: Mapping[str, Any]) -> Any:
        """Take over a method and options, and return the method as the loop takes it."""
        hyperparameters.check_schedules(method)
        self.method, self.options, self.sampler = method, options, make_sampler(self.problem, options)
        return numbers_only(method, options["dtype"])

    def with_numbers(self, method: Method, seed: int, name: str) -> "Simulator":
        """Return a simulator that shares all but the name, the numbers of the method and the seed of the samples.

        Args:
            method: A method of the same class, with the same strings and schedules in the same places.
            seed: Random seed of the samples; the network must draw nothing, or have this seed.
            name: Name of the method in messages.
        """
        other = copy(self)
        other.name = name
        numeric = other._take_numbers(method, {**self.options, "seed": seed})
        other.params = tuple(params._replace(method=numeric) for params in self.params)
        return other

    def init(self, x0: Start | None = None) -> State:
        """Return the state before the first step.

        Args:
            x0: The start, as in :class:`digrad.RunOptions`.
        """
        dtype, method = self.options["dtype"], self.params[0].method
        begin = make_start(x0, self.problem, self.options["seed"]).astype(dtype)
        with jax.enable_x64(True):
            net = SimulatedNet(self._opening, len(begin))
            net.shapes = self.static.losses.shapes
            state = _strong(method.init(jnp.asarray(begin), net), dtype)
            return State(
                k=jnp.asarray(0),
                reached=jnp.asarray(0),
                alive=jnp.asarray(True),
                limit=jnp.asarray(limit_of(begin), dtype),
                method_state=state,
                links=self._links,
                grad=jnp.zeros_like(method.query(state)),
                memory=self.static.source.init(jnp.asarray(begin)),
                x0=begin,
            )

    def run(self, state: State, steps: int) -> tuple[State, Rows]:
        """Take ``steps`` steps, fewer if the run diverges: ``state.alive`` tells, and ``state.k`` where.

        Args:
            state: State from :meth:`init`, or from an earlier call.
            steps: How many.

        Returns:
            The state then, and what was recorded before each step whose k is a multiple of ``record_every``: columns by
            name, ``k`` among them. A run that had diverged before records nothing.
        """
        end, parts = int(state.k) + checks.count(steps, "steps", "Simulator.run"), []
        with jax.enable_x64(True):
            while int(state.k) < end and bool(state.alive):
                state, rows = self._call(state, end)
                parts.append(rows)
        return state, joined(parts)

    def measure(self, state: State, last: int | None = None) -> Rows:
        """Return the row of a state, whatever its k; what it shows of the trackers is seen in one step more.

        Args:
            state: State from :meth:`init` or :meth:`run`; it may have diverged.
            last: The number of iterations that schedules know: none is asked for a later value.
        """
        k = int(state.k)
        params, present = self._phase(k - 1)  # an event at k has not happened yet
        with jax.enable_x64(True):
            alive = state._replace(alive=jnp.asarray(True), reached=state.k)
            _, buffer = self._advance(params, alive, k + 1, every=1, last=last)
            return self._rows(np.array([k]), buffer, present)

    def estimate(self, state: State) -> npt.NDArray[np.floating]:
        """Return the estimates of all agents, ``[n, d]``."""
        return np.asarray(self.params[0].method.estimate(state.method_state))

    def inputs(self, first: int, end: int, last: int | None = None) -> Xs:
        """Return the inputs of the iterations first, ..., end - 1: schedules, samples, weights that change.

        Args:
            first: First iteration.
            end: The one after the last.
            last: The number of iterations that schedules know.
        """
        params, delivery, dtype = self.params[0], self._delivery, self.options["dtype"]
        matrices, fresh, arriving = bindings(params.method), {}, None
        if matrices and not (params.operators or params.periodic):
            fresh = operators_of(self.network, matrices, first, self.length, dtype)
        if delivery:
            arriving = deliveries(delivery, first, max(1, end - first), self.length, self._widths)
        samples = samples_of(self.sampler, first, end, self.length)
        noise = noise_of(self.problem, self.options, first, end, self.length)
        return Xs(self.schedules(first, end, last), samples, fresh, arriving, noise)  # pyright: ignore[reportArgumentType]

    def schedules(self, first: int, end: int, last: int | None = None) -> dict[str, Any]:
        """Return the hyper-parameters that change, by field; what is measured after the last step has its values."""
        ks = [min(k, (end if last is None else last) - 1) for k in range(first, end)]
        return hyperparameters.tables(self.method, self.name, ks, self.length, self.options["dtype"])

    def limit_beyond(self, state: State) -> jax.Array | None:
        """Return the limit with which a run that ended beyond its own goes on; None if it has diverged.

        That is decided here, and not in the loop, because it takes gradients that hardly any run has to be asked for.
        """
        method = self.params[0].method
        x, here = np.asarray(method.estimate(state.method_state)), method.query(state.method_state)
        if not np.isfinite(x).all():
            return None
        start, known = hash(state.x0.tobytes()), self._start_gradients
        if start not in known:
            known[start] = largest_gradient(self.problem, state.x0)
        is_steep = not largest_gradient(self.problem, here) <= STEEP * known[start]
        return None if is_steep else jnp.asarray(limit_of(x), x.dtype)

    def _call(self, state: State, end: int) -> tuple[State, Rows]:
        """Take as many steps as one call of the loop may, up to ``end``, or up to where agents join or leave."""
        k, every = int(state.k), self.options["record_every"]
        params, present = self._phase(k)
        churn = self._delivery and self._delivery.churn
        if churn:
            end = min([end, *(event.at for event in churn.events if event.at > k)])
            if (event := churn.event(k)) is not None:
                state = _repaired(event, state, params)
        end = min(end, k + self.length, end_of_room(k, every, self.static.rows))
        after, buffer = self._advance(params, state, end, every=every)
        if not after.alive and (limit := self.limit_beyond(after)) is not None:
            after = after._replace(limit=limit, alive=jnp.asarray(True))
        return after, self._rows(recorded(k, int(after.k), every), buffer, present)

    def _advance(
        self, params: Params, state: State, end: int, *, every: int, last: int | None = None
    ) -> tuple[State, Buffer]:
        static, xs = self.static, self.inputs(int(state.k), end, last)
        advance = advance_of(static, *state.grad.shape)
        done = advance(params, state._replace(x0=None), end, every, xs, static=static)
        after, buffer = jax.block_until_ready(done)
        return after._replace(x0=state.x0), buffer

    def _phase(self, k: int) -> tuple[Params, npt.NDArray[np.bool_] | None]:
        """Return the parameters of iteration k, and the agents that are present if not all are."""
        churn = self._delivery and self._delivery.churn
        phase = churn.phase(k) if churn else 0
        return self.params[phase], churn.present[phase] if churn else None

    def _rows(self, ks: Any, buffer: Buffer, present: Any) -> Rows:
        host = first_rows(buffer, len(ks))
        points: Any = host.point
        if self._keeps:
            return {"k": ks, **host.kept}
        row = row_number(int(ks[0]), self.options["record_every"]) if len(ks) else 0
        arrays = self.params[0].arrays
        loss, grad_norm = evaluate_many(self.static.losses, arrays, points, row, present)
        return rows_of(ks, host, loss, grad_norm, self.traffic)


def _communication(
    method: Any, shape: tuple[int, int], dtype: np.dtype[Any], network: Network, shapes: Shapes | None
) -> tuple[list[Charge], Traffic | PacketTraffic, DeliverySchedule | None]:
    """Return the messages of a step, what is sent, and when packets arrive on links that are unreliable."""
    (n, d), found = shape, []
    compressor = network.links and network.links.compressor

    def dry(x: Any, one_hot: Any) -> None:
        found.extend(charges_of(method, compressor, x, one_hot, shapes))

    jax.eval_shape(dry, jax.ShapeDtypeStruct((n, d), dtype), jax.ShapeDtypeStruct((n, n), dtype))
    (opening, step), matrices = found, bindings(method)
    if not network.is_unreliable:
        return step, Traffic(network, matrices, opening, step), None
    delivery = make_delivery(network, step, matrices)
    before = int(Traffic(network, matrices, opening, ()).before([0])[0])
    return step, PacketTraffic(before, delivery), delivery


def _link_states(
    method: Any,
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    opening: dict[str, Operator],
    network: Network,
    delivery: DeliverySchedule | None,
    rules: LinkRules | None,
    shapes: Shapes | None,
) -> tuple[Any, ...]:
    """Return the state of the links before the first step: that which a step would leave, with zeros."""
    n, matrices, compression = shape[0], bindings(method), compression_of(network)
    if delivery is None and compression is None:
        return ()
    if delivery is None or rules is None:
        operators = first_operators(linked_steps, network, matrices, dtype)
        net = SimulatedNet(operators, n, dimension=shape[1], links=compression)
    else:
        first = jax.tree.map(lambda table: jnp.asarray(table[0]), deliveries(delivery, 0, 1, 1, ()))
        net = UnreliableNet(rules, first_operators(edges_only, network, matrices, dtype), first, None, 0, n)
    start_net = SimulatedNet(opening, n)
    start_net.shapes = net.shapes = shapes

    def dry(x: Any) -> tuple[Any, ...]:
        state = _strong(method.init(x, start_net), dtype)
        method.step(state, method.query(state), net)
        return tuple(net.links)

    opened = jax.eval_shape(dry, jax.ShapeDtypeStruct(shape, dtype))
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), opened)


def _repaired(event: Event, state: State, params: Params) -> State:
    """Return where a run is after an event.

    Args:
        event: What happens.
        state: Where the run was.
        params: Those after the event, with the agents that are present then.
    """
    links, edges = state.links, params.periodic["push"]  # uniform weights: all primitives use the same edges
    assert isinstance(edges, Edges)
    ends = np.stack([edges.sender, edges.receiver], axis=1)
    pushed = next(link for link in links if link.pushed is not None)
    after = jax.tree.map(np.array, state.method_state)
    lifetime = None if pushed.lifetime is None else np.asarray(pushed.lifetime)
    repair(event, after, ends, np.asarray(params.present), np.asarray(pushed.undelivered), lifetime)
    void = void_edges(event, ends)
    return state._replace(
        method_state=jax.tree.map(jnp.asarray, after), links=tuple(link.without(void) for link in links)
    )


def _phases(
    params: Params, network: Network, churn: ChurnSchedule, dtype: np.dtype[Any]
) -> tuple[Params, ...]:
    """Return the parameters before the first agent joins or leaves, and those after each event."""
    found = []
    for phase, present in enumerate(churn.present):
        weights = jnp.asarray(churn.weights(phase), dtype)
        now, build = network_of(network, present), builder(network)
        periodic = {name: build(now, matrix, 0, 1, dtype) for name, matrix in bindings(params.method).items()}
        found.append(params._replace(periodic=periodic, u=weights, v=weights, present=jnp.asarray(present)))
    return tuple(found)


def _strong(state: Any, dtype: np.dtype[Any]) -> Any:
    """Return the state with arrays in the dtype of the run; whole numbers stay whole."""

    def strong(leaf: Any) -> jax.Array:
        array = jnp.asarray(leaf)
        return array.astype(dtype) if jnp.issubdtype(array.dtype, jnp.floating) else array

    return jax.tree.map(strong, state)
