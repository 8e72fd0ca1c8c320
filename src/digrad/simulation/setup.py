"""Setup of the loop from arguments: code to compile in, parameters, a state to start from, inputs of each call."""

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from digrad._internal.fingerprints import fingerprint
from digrad.core import hyperparameters
from digrad.core.divergence import STEEP, far_away
from digrad.core.hyperparameters import numeric_fields, with_fields
from digrad.core.net import bindings, perron_weights
from digrad.core.network_delivery import make_delivery
from digrad.core.repair import network_of
from digrad.core.traffic import Charge, PacketTraffic, Traffic, charges_of
from digrad.errors import ArgumentError
from digrad.links import DeliverySchedule, Links
from digrad.network import Network
from digrad.noise import Gaussian, draws
from digrad.privacy import Private
from digrad.problems import Problem
from digrad.sampling import PRIVACY
from digrad.simulation.loop import Params, State, Static, Xs
from digrad.simulation.mixing import DENSE_AGENTS, Operator, constant, linked_steps, of_steps, pick
from digrad.simulation.record import observer
from digrad.simulation.run_options import Sampler, make_sampler, make_source
from digrad.simulation.simulated_net import SimulatedNet
from digrad.simulation.unreliable_net import (
    LinkRules,
    UnreliableNet,
    deliveries,
    delivery_bytes,
    edges_only,
    rules_of,
)
from digrad.types import Shapes

STEPS_PER_CALL = 1000  # at most
BYTES_PER_CALL = 64 << 20  # what the inputs, or the stored averages, of one call take at most, about
LEAST_STEPS = (
    20  # of a call with many agents, however long: it begins and ends with as much memory as three steps
)
STATES_PER_CALL = 4  # how many stacked states the inputs of these steps may be as large as, if that is more


class Setup(NamedTuple):
    """A method on a problem over a network, ready to run from any start."""

    name: str
    method: Any  # with its schedules
    problem: Problem
    network: Network
    options: Mapping[str, Any]  # SimulatorOptions, complete
    sampler: Sampler | None
    params: tuple[Params, ...]  # before the first event of churn, and after each: mostly one
    static: Static
    length: int  # iterations of one call at most
    opening: dict[str, Operator]  # through which the messages of `init` arrive as they are
    links: tuple[Any, ...]  # state of the links before the first step
    traffic: Traffic | PacketTraffic
    delivery: DeliverySchedule | None  # of packets, where links are unreliable
    widths: tuple[int, ...]  # numbers per agent of each array that a step sends through such links
    keeps: bool  # whether a function of the caller's, and not the usual columns, is recorded
    steep: dict[
        str, float
    ]  # what counts as a steep gradient, by the hash of the start; filled when first asked for


def set_up(
    method: Any,
    problem: Problem,
    network: Network,
    options: Mapping[str, Any],
    *,
    name: str,
    keep: Callable[..., Any] | None = None,
) -> Setup:
    """Prepare everything that does not depend on the start; call it inside ``jax.enable_x64(True)``.

    Args:
        method: With its schedules.
        problem: The losses.
        network: The communication graph and its weights.
        options: Complete, of :class:`~digrad.simulation.run_options.SimulatorOptions`.
        name: Label of the method.
        keep: What to store at recorded iterations; see :class:`~digrad.simulation.loop.Static`.

    Raises:
        ArgumentError: A schedule is not a function of k, or mini-batches do not fit the problem.
    """
    hyperparameters.check_schedules(method)
    network, record, dtype = network.with_seed(options["seed"]), options["record"], options["dtype"]
    sampler = make_sampler(problem, options)
    numeric, matrices = numbers_only(method, dtype), bindings(method)
    operators, periodic, fresh_bytes = _known_operators(network, matrices, dtype)
    n, d = problem.n_agents, problem.dim
    charges, traffic, delivery = _communication(numeric, (n, d), dtype, network)
    opening = operators if delivery is None and operators else _first(of_steps, network, matrices, dtype)
    widths = tuple(one.numbers for one in charges)
    rules = None if delivery is None else rules_of(network, matrices, dtype, delivery)
    links = _link_states(numeric, (n, d), dtype, opening, network, delivery, rules, problem.code.shapes)
    per_step = (
        fresh_bytes
        + (4 * n * sampler.batch_size if sampler else 0)
        + (
            n * d * dtype.itemsize
            if options["gradient_noise"] or isinstance(options["sampling"], Private)
            else 0
        )
        + (delivery_bytes(delivery, widths) if delivery else 0)
        or 1
    )
    u, v = perron_weights(method, network)
    keeps, keep = keep is not None, keep or observer(paths=record.paths, invariant=record.invariant)
    kept = 1 if keep is None else 4 * n  # a caller that keeps states keeps about four
    params = Params(
        method=numeric,
        operators=operators,
        periodic=periodic,
        arrays=problem.arrays(dtype),
        u=jnp.asarray(u if record.average == "weighted" else np.ones(n), dtype),
        v=jnp.asarray(v, dtype),
    )
    return Setup(
        name=name,
        method=method,
        problem=problem,
        network=network,
        options=options,
        sampler=sampler,
        params=_phases(params, network, delivery, dtype),
        static=Static(
            losses=problem.code,
            source=make_source(problem, options),
            compression=_compression(network) if delivery is None else None,
            rules=rules,
            rows=max(1, min(STEPS_PER_CALL, BYTES_PER_CALL // (d * dtype.itemsize * kept))),
            is_weighted=record.average == "weighted",
            keep=keep,
        ),
        length=max(
            1,
            min(STEPS_PER_CALL, BYTES_PER_CALL // per_step),
            min(LEAST_STEPS, STATES_PER_CALL * n * d * dtype.itemsize // per_step),
        ),
        opening=opening,
        links=links,
        traffic=traffic,
        delivery=delivery,
        widths=widths,
        keeps=keeps,
        steep={},
    )


def with_numbers(setup: Setup, method: Any, seed: int) -> Setup:
    """Return the same setup with other numbers, without looking at problem and network again.

    Args:
        setup: Of the same class of method, with the same strings, shapes and schedules, on a network that draws nothing
            or with the same seed.
        method: With its schedules.
        seed: Random seed of the samples.
    """
    hyperparameters.check_schedules(method)
    options = {**setup.options, "seed": seed}
    numeric = numbers_only(method, options["dtype"])
    return setup._replace(
        method=method,
        options=options,
        sampler=make_sampler(setup.problem, options),
        params=tuple(params._replace(method=numeric) for params in setup.params),
    )


def start(setup: Setup, x0: npt.NDArray[np.floating]) -> State:
    """Return the state before the first step, from ``x0`` ``[n, d]`` in the dtype of the run."""
    method = setup.params[0].method
    net = SimulatedNet(setup.opening, len(x0))
    net.shapes = setup.static.losses.shapes
    state = _strong(method.init(jnp.asarray(x0), net), x0.dtype)
    return State(
        k=jnp.asarray(0),
        reached=jnp.asarray(0),
        alive=jnp.asarray(True),
        limit=_limit(x0),
        method_state=state,
        links=setup.links,
        grad=jnp.zeros_like(method.query(state)),
        memory=setup.static.source.init(jnp.asarray(x0)),
        x0=x0,
    )


def inputs(setup: Setup, first: int, end: int, steps: int | None = None) -> Xs:
    """Return the inputs of the iterations first, ..., end - 1: schedules, samples, weights that change."""
    params, network, dtype = setup.params[0], setup.network, setup.options["dtype"]
    matrices, fresh = bindings(params.method), {}
    if matrices and not (params.operators or params.periodic):
        fresh = _operators(network, matrices, first, setup.length, dtype)
    arriving = None
    if setup.delivery:
        arriving = deliveries(setup.delivery, first, max(1, end - first), setup.length, setup.widths)
    samples: Any = samples_of(setup, first, end)
    return Xs(schedules_of(setup, first, end, steps), samples, fresh, arriving, noise_of(setup, first, end))  # pyright: ignore[reportArgumentType]


def schedules_of(setup: Setup, first: int, end: int, steps: int | None = None) -> dict[str, Any]:
    """Return the hyper-parameters that change at the iterations first, ..., end - 1, by field.

    A schedule is asked for the ``steps`` of the run only: what is measured after the last one has its values.
    """
    last = end if steps is None else steps
    ks = [min(k, last - 1) for k in range(first, end)]
    return hyperparameters.tables(setup.method, setup.name, ks, setup.length, setup.options["dtype"])


def samples_of(setup: Setup, first: int, end: int) -> npt.NDArray[np.int32] | None:
    """Return the places of the samples of the iterations first, ..., end - 1; None where all are used."""
    if setup.sampler is None:
        return None
    drawn = setup.sampler.batches(first, max(1, end - first))
    return np.pad(drawn, ((0, setup.length - len(drawn)), (0, 0), (0, 0)))


def noise_of(setup: Setup, first: int, end: int) -> npt.NDArray[np.floating] | None:
    """Return the noise of the gradients of the iterations first, ..., end - 1; None where there is none."""
    options, problem, length = setup.options, setup.problem, max(1, end - first)
    noise, sampling, shape = options["gradient_noise"], options["sampling"], (problem.n_agents, problem.dim)
    drawn: Any = [] if noise is None else [draws(noise, options["seed"], first, length, *shape)]
    if isinstance(sampling, Private):
        scale = sampling.clip * sampling.noise_multiplier / (sampling.rate * np.array(problem.sizes))
        scale *= problem.agent_scale  # which is no part of what was clipped
        normal = draws(Gaussian(1.0), options["seed"], first, length, *shape, stream=PRIVACY)
        drawn.append(scale[:, None] * normal)
    if not drawn:
        return None
    return np.pad(
        np.sum(drawn, axis=0).astype(options["dtype"]), ((0, setup.length - length), (0, 0), (0, 0))
    )


def limit_beyond(setup: Setup, state: State) -> jax.Array | None:
    """Return the limit with which a run that ended beyond its own goes on; None if it has diverged.

    That is decided here, and not in the loop, because it takes gradients that hardly any run has to be asked for.
    """
    method = setup.params[0].method
    x, here = np.asarray(method.estimate(state.method_state)), method.query(state.method_state)
    if not np.isfinite(x).all():
        return None
    start = hash_of(state.x0)
    if start not in setup.steep:
        setup.steep[start] = STEEP * _largest_gradient(setup.problem, state.x0)
    return _limit(x) if _largest_gradient(setup.problem, here) <= setup.steep[start] else None


def facts_of(setup: Setup, x0: npt.NDArray[np.floating], *, is_stored: bool = False) -> dict[str, Any]:
    """Return what determines the numbers of a run, as a stored run is recognised by.

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
                f"`checkpoint` of simulate must be able to recognise its run, but {what} cannot be identified: {error}."
            ) from error

    method, problem, network = setup.method, setup.problem, setup.network
    apart = ("record", "dtype", "gradient_noise")
    options = {name: value for name, value in setup.options.items() if name not in apart}
    options["sampling"] = hyperparameters.plain(options["sampling"])
    if noise := setup.options["gradient_noise"]:
        options["gradient_noise"] = hyperparameters.plain(noise)
    record = setup.options["record"]
    return {
        **options,
        **{name: value for name, value in dataclasses.asdict(record).items() if value is not False},
        "dtype": setup.options["dtype"].name,
        "method": type(method).__name__,
        "method_hash": recognised(lambda: hash_of_class(type(method)), "the class of the method"),
        "hyper_parameters": recognised(lambda: hyperparameters.describe(method), "a hyper-parameter"),
        "problem": problem.name,
        "problem_hash": recognised(lambda: problem.content_hash, "the problem"),
        "network_hash": recognised(lambda: network.content_hash, "the network"),
        "start_hash": hash_of(x0),
    }


hash_of_class = lru_cache(maxsize=64)(fingerprint)


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


def _communication(
    method: Any, shape: tuple[int, int], dtype: np.dtype[Any], network: Network
) -> tuple[list[Charge], Traffic | PacketTraffic, DeliverySchedule | None]:
    """Return the messages of a step, what is sent, and when packets arrive on links that are unreliable."""
    (n, d), found = shape, []
    compressor = network.links and network.links.compressor

    def dry(x: Any, one_hot: Any) -> None:
        found.extend(charges_of(method, compressor, x, one_hot))

    jax.eval_shape(dry, jax.ShapeDtypeStruct((n, d), dtype), jax.ShapeDtypeStruct((n, n), dtype))
    (opening, step), matrices = found, bindings(method)
    delivery = make_delivery(network, step, matrices)
    if delivery is None:
        return step, Traffic(network, matrices, opening, step), None
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
    n, matrices, compression = shape[0], bindings(method), _compression(network)
    if delivery is None and compression is None:
        return ()
    if delivery is None or rules is None:
        operators = _first(linked_steps, network, matrices, dtype)
        net = SimulatedNet(operators, n, dimension=shape[1], links=compression)
    else:
        first = jax.tree.map(lambda table: jnp.asarray(table[0]), deliveries(delivery, 0, 1, 1, ()))
        net = UnreliableNet(rules, _first(edges_only, network, matrices, dtype), first, None, 0, n)
    start_net = SimulatedNet(opening, n)
    start_net.shapes = net.shapes = shapes

    def dry(x: Any) -> tuple[Any, ...]:
        state = _strong(method.init(x, start_net), dtype)
        method.step(state, method.query(state), net)
        return tuple(net.links)

    opened = jax.eval_shape(dry, jax.ShapeDtypeStruct(shape, dtype))
    return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), opened)


def _phases(
    params: Params, network: Network, delivery: DeliverySchedule | None, dtype: np.dtype[Any]
) -> tuple[Params, ...]:
    """Return the parameters before the first agent joins or leaves, and those after each event."""
    churn = delivery and delivery.churn
    if churn is None:
        return (params,)
    found = []
    for phase, present in enumerate(churn.present):
        weights = jnp.asarray(churn.weights(phase), dtype)
        now, build = network_of(network, present), _builder(network)
        periodic = {name: build(now, matrix, 0, 1, dtype) for name, matrix in bindings(params.method).items()}
        found.append(params._replace(periodic=periodic, u=weights, v=weights, present=jnp.asarray(present)))
    return tuple(found)


def _first(
    build: Callable[..., Operator], network: Network, matrices: dict[str, str], dtype: npt.DTypeLike
) -> dict[str, Any]:
    """Return the operators of the first iteration."""
    return {name: pick(build(network, matrix, 0, 1, dtype), 0) for name, matrix in matrices.items()}


def _strong(state: Any, dtype: np.dtype[Any]) -> Any:
    """Return the state with arrays in the dtype of the run; whole numbers stay whole."""

    def strong(leaf: Any) -> jax.Array:
        array = jnp.asarray(leaf)
        return array.astype(dtype) if jnp.issubdtype(array.dtype, jnp.floating) else array

    return jax.tree.map(strong, state)


def _known_operators(
    network: Network, matrices: dict[str, str], dtype: np.dtype[Any]
) -> tuple[dict[str, Operator], dict[str, Operator], int]:
    """Return the operators of a constant network, or those of all phases, and what a fresh one takes otherwise."""
    if network.period == 1 and _builder(network) is of_steps:
        at = network.at(0)
        return {name: constant(getattr(at, matrix), dtype) for name, matrix in matrices.items()}, {}, 0
    entries = network.n**2 if network.n <= DENSE_AGENTS else 2 * (network.n + network.union.n_edges)
    size = entries * dtype.itemsize * len(matrices)  # of one iteration, about
    if network.period is None or network.period * size > BYTES_PER_CALL:
        return {}, {}, size
    return {}, _operators(network, matrices, 0, network.period, dtype), 0


def _operators(
    network: Network, matrices: dict[str, str], first: int, length: int, dtype: npt.DTypeLike
) -> dict[str, Operator]:
    build = _builder(network)
    return {name: build(network, matrix, first, length, dtype) for name, matrix in matrices.items()}


def _builder(network: Network) -> Callable[..., Operator]:
    """Return what makes the operators of a network."""
    if network.is_unreliable:
        return edges_only
    return of_steps if _compression(network) is None else linked_steps


def _compression(network: Network) -> Links | None:
    """Return how messages are compressed, and nothing else of the links; None for not at all."""
    links = network.links
    if links is None or links.compressor is None:
        return None
    return Links(compressor=links.compressor, damping=links.damping)


def _limit(x: npt.NDArray[np.floating]) -> jax.Array:
    """Return the entry of x beyond which a run is looked at; 0 where x is no scale yet."""
    return jnp.asarray(far_away(float(np.abs(x).max()), float(np.finfo(x.dtype).max)), x.dtype)


def _largest_gradient(problem: Problem, x: Any) -> float:
    return float(np.abs(problem.local_gradients(np.asarray(x, np.float64))).max())


def hash_of(array: npt.NDArray[Any]) -> str:
    """Return the SHA-256 of the entries of an array, in hexadecimal."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()
