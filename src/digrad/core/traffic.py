"""Traffic: the messages of a method, measured in a dry run, and the bytes and packets of a network that carries them.

A method states nothing of this. The dry run tells rounds, sizes and which messages are known before the gradient; with
the edges of every iteration they give the bytes of a run, and with its links what became of packets.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from digrad.core.hyperparameters import at_iteration, numeric_fields, with_fields
from digrad.core.net import Primitives, Sent, arrays_sent, bindings
from digrad.core.step_times import StepTimes
from digrad.links import DeliverySchedule
from digrad.links.compressors import Compressor, random_k
from digrad.network import Network, step_weights
from digrad.types import Shapes

_DIMENSION = 7  # of the dry run; unlike the number of agents, so that vectors are told from other numbers
_WARM_STEPS = 2  # after which the fields of a state are arrays of their own
STEPS_OF_EDGES = 1000  # iterations whose edges are looked at in one go
STEPS_OF_PACKETS = 256  # and whose packets


class Communication(NamedTuple):
    """Messages that each edge carries in a step, in their order.

    Args:
        vectors: Vectors of length d.
        numbers: Further numbers.
        all_reduces: Vectors of length d that are averaged over all agents; they are on no edge.
        rounds: Dependent rounds of communication.
        early: Primitive and state field of each message that is known before the gradient, because the field travels
            as it is, alone or in a tuple of such fields.
    """

    vectors: int
    numbers: int
    all_reduces: int
    rounds: int
    early: tuple[tuple[str, str], ...]


class Charge(NamedTuple):
    """One array that every edge of a primitive carries, in bytes; of ``mean``, one that all agents average."""

    primitive: str
    short: int  # as it is compressed
    full: int
    starts_in_full: bool = False  # whether a receiver that has no reference yet is sent all of it
    numbers: int = 0  # of its row


class DryRun(NamedTuple):
    """Messages of a method on a network that returns what is sent.

    Args:
        opening: Primitive and argument, an array or a tuple, of every call before the first step, in order.
        before: The state before the step that is measured.
        after: The state after it.
        calls: Its calls, as of ``opening``.
    """

    opening: list[tuple[str, Any]]
    before: Any
    after: Any
    calls: list[tuple[str, Any]]


def dry_run(
    method: Any, x0: Any, one_hot: Any, *, warm_steps: int = 0, shapes: Shapes | None = None
) -> DryRun:
    """Start and take a step on a network that returns what is sent, and record what that is.

    Args:
        method: With hyper-parameters of any iteration and agent: those of iteration 0 and of one agent are used.
        x0: Estimates ``[rows, d]`` of any library; only shapes matter, so that they need not hold numbers.
        one_hot: The rows of the identity of these agents, likewise.
        warm_steps: How many steps to take before the one that is measured.
        shapes: The shapes of the parameters in a row, if they are known.
    """
    method, net = _of_one_agent(method), _DryNet(one_hot)
    net.shapes = shapes
    state, opening = method.init(x0, net), net.taken()
    for _ in range(warm_steps):
        state = method.step(state, 0 * x0 + 1, net)
    net.taken()
    state = type(state)(*(_dated(leaf) if isinstance(leaf, np.ndarray) else leaf for leaf in state))
    after = method.step(state, 0 * x0 + 1, net)
    return DryRun(opening, state, after, net.taken())


def measure_communication(method: Any, n: int = 3) -> Communication:
    """Return what a step of a method sends among n agents.

    >>> from digrad.methods import CGT, PushDIGing
    >>> measure_communication(CGT(step_size=0.1, threshold=1.0))
    Communication(vectors=2, numbers=0, all_reduces=0, rounds=1, early=(('push', 'y'), ('pull', 'x')))
    >>> measure_communication(PushDIGing(step_size=0.1))[:4]
    (2, 1, 0, 2)
    """
    found = dry_run(method, _dated(np.ones((n, _DIMENSION))), np.eye(n), warm_steps=_WARM_STEPS)
    widths = [(primitive, part.shape[1]) for primitive, x in found.calls for part in _parts(x)]
    on_edges = [width for primitive, width in widths if primitive != "mean"]
    return Communication(
        vectors=on_edges.count(_DIMENSION),
        numbers=sum(width for width in on_edges if width != _DIMENSION),
        all_reduces=widths.count(("mean", _DIMENSION)),
        rounds=_depth(found.after),
        early=_fields_sent(found),
    )


def early_messages(method: Any, x0: Any, one_hot: Any) -> tuple[tuple[str, str], ...]:
    """Return :attr:`Communication.early` alone, found with the arrays of any library; see :func:`dry_run`."""
    return _fields_sent(dry_run(method, x0, one_hot, warm_steps=_WARM_STEPS))


def charges_of(
    method: Any, compressor: Compressor | None, x0: Any, one_hot: Any, shapes: Shapes | None = None
) -> tuple[list[Charge], list[Charge]]:
    """Return the messages before the first step, which are never compressed, and those of a step; see `dry_run`."""
    found, dimension = dry_run(method, x0, one_hot, shapes=shapes), x0.shape[1]
    matrices = {"mean": "", **bindings(method)}
    opening, step = (
        [
            _charge(primitive, matrices[primitive], used, sent, dimension)
            for primitive, x in calls
            for sent in arrays_sent(primitive, x)
        ]
        for calls, used in ((found.opening, None), (found.calls, compressor))
    )
    return opening, step


def _charge(primitive: str, matrix: str, compressor: Compressor | None, sent: Sent, dimension: int) -> Charge:
    numbers, itemsize = sent.numbers, sent.array.dtype.itemsize
    full = numbers * itemsize
    if compressor is None or primitive == "mean" or not sent.is_compressible(dimension):
        return Charge(primitive, full, full, numbers=numbers)
    refers = sent.keeps_reference(primitive) and not (isinstance(compressor, random_k) and matrix == "R")
    return Charge(primitive, min(full, compressor.wire_bytes(numbers, itemsize)), full, refers, numbers)


def _fields_sent(found: DryRun) -> tuple[tuple[str, str], ...]:
    """Return the fields of a state that were sent as they are, alone or in a tuple of such fields."""
    fields = {id(leaf): name for name, leaf in found.before._asdict().items()}
    whole = [
        (primitive, _parts(x))
        for primitive, x in found.calls
        if primitive != "mean" and all(id(p) in fields for p in _parts(x))
    ]
    return tuple((primitive, fields[id(part)]) for primitive, parts in whole for part in parts)


def _of_one_agent(method: Any) -> Any:
    """Return a method with the hyper-parameters of iteration 0 and of the first agent."""
    method = at_iteration(method, 0)
    values = {name: getattr(method, name) for name in numeric_fields(type(method))}
    per_agent = {name: value for name, value in values.items() if np.ndim(value)}
    return with_fields(method, {name: float(np.ravel(value)[0]) for name, value in per_agent.items()})


class _DryNet(Primitives):
    """Returns what is sent, one round of communication later, and records every call."""

    def __init__(self, one_hot: Any) -> None:
        self.one_hot = one_hot
        self._calls: list[tuple[str, Any]] = []

    def taken(self) -> list[tuple[str, Any]]:
        """Return the calls since the last time."""
        calls, self._calls = self._calls, []
        return calls

    def mean(self, x: Any) -> Any:
        """Return the average in every row."""
        return self._exchange("mean", x)

    def _exchange(self, primitive: str, x: Any) -> Any:
        self._calls.append((primitive, x))
        mixed = tuple(_later(part) for part in _parts(x))
        return mixed if isinstance(x, tuple) else mixed[0]


class _Dated(np.ndarray):
    """An array that knows how many dependent rounds of communication it took to compute it."""

    depth: int = 0

    def __array_finalize__(self, source: Any) -> None:
        self.depth = getattr(source, "depth", 0)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        plain = [np.asarray(value) if isinstance(value, _Dated) else value for value in inputs]
        return _dated(getattr(ufunc, method)(*plain, **options), _depth(inputs))

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        plain = [np.asarray(value) if isinstance(value, _Dated) else value for value in args]
        return _dated(function(*plain, **options), _depth(args))


def _dated(x: Any, rounds: int = 0) -> _Dated:
    """Return ``x`` as the result of so many rounds."""
    result = np.asarray(x).view(_Dated)
    result.depth = rounds
    return result


def _later(part: Any) -> Any:
    return _dated(np.array(part), _depth([part]) + 1) if isinstance(part, np.ndarray) else 1 * part


def _depth(values: Iterable[Any]) -> int:
    return max((getattr(value, "depth", 0) for value in values), default=0)


def _parts(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


def all_reduce_messages(n: int) -> int:
    """Return how many messages of the size of a row a ring all-reduce of n agents sends."""
    return 2 * (n - 1)


class Traffic:
    """Bytes that all agents together have sent before iteration k.

    Args:
        network: Whose edges carry the messages.
        matrices: The matrix of each primitive.
        opening: What is sent before the first step.
        step: What every step sends.
    """

    def __init__(
        self, network: Network, matrices: Mapping[str, str], opening: Sequence[Charge], step: Sequence[Charge]
    ) -> None:
        self._network, self._matrices = network, matrices
        self._in_means = self._averaged(step)
        self._short: dict[str, int] = {}  # bytes along each edge of a primitive
        self._full: dict[str, int] = {}  # those to a receiver that did not get the message before
        for one in step:
            if one.primitive != "mean":
                in_full = one.full if one.starts_in_full else one.short
                self._short[one.primitive] = self._short.get(one.primitive, 0) + one.short
                self._full[one.primitive] = self._full.get(one.primitive, 0) + in_full
        self._period = network.period if self._short == self._full else None
        self._received: dict[
            str, npt.NDArray[np.bool_]
        ] = {}  # by primitive, [A]: whether the receiver has the last message of its sender
        on_edges = [one for one in opening if one.primitive != "mean"]
        sent = sum(one.full * int(self._edges(one.primitive, 0, 1)[0]) for one in on_edges)
        self._done = [self._averaged(opening) + sent]

    def before(self, ks: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the bytes sent before each of the iterations ``ks``."""
        ks = np.asarray(ks, np.int64)
        span = int(ks.max(initial=0)) if self._period is None else self._period
        while len(self._done) <= span:
            self._extend(min(len(self._done) - 1 + STEPS_OF_EDGES, span))
        table = np.array(self._done, np.int64)
        if self._period is None:
            return table[ks]
        rounds, rest = np.divmod(ks, self._period)
        return rounds * (table[span] - table[0]) + table[rest]

    def columns(self, ks: npt.ArrayLike) -> dict[str, npt.NDArray[np.float64]]:
        """Return what else is known of the messages before each of the iterations: nothing, all arrive in time."""
        return {}

    def facts(self, k: int) -> dict[str, Any]:
        """Return what is known of the messages of the first k steps together: nothing."""
        return {}

    def _averaged(self, charges: Sequence[Charge]) -> int:
        sizes = [one.full for one in charges if one.primitive == "mean"]
        return all_reduce_messages(self._network.n) * sum(sizes)

    def _extend(self, last: int) -> None:
        first = len(self._done) - 1
        sent = np.full(last - first, self._in_means, np.int64)
        for primitive in self._short:
            sent += self._sent(primitive, first, last - first)
        self._done.extend((self._done[-1] + np.cumsum(sent)).tolist())

    def _sent(self, primitive: str, first: int, length: int) -> npt.NDArray[np.int64]:
        size, in_full = self._short[primitive], self._full[primitive]
        if size == in_full:
            return size * self._edges(primitive, first, length)
        weights = step_weights(self._network, self._matrices[primitive], first, length)
        sender = weights.edges[:, 0]
        received = self._received.get(primitive, np.zeros(len(sender), bool))
        sent = np.zeros(length, np.int64)
        for row, there in enumerate(weights.weight != 0):
            sent[row] = size * (there & received).sum() + in_full * (there & ~received).sum()
            sends = np.zeros(self._network.n, bool)
            sends[sender[there]] = True
            received = np.where(sends[sender], there, received)
        self._received[primitive] = received
        return sent

    def _edges(self, primitive: str, first: int, length: int) -> npt.NDArray[np.int64]:
        """Return how many edges carry a message at each of the iterations, ``[length]``."""
        network, name = self._network, self._matrices[primitive]
        if network.period == 1:
            matrix = getattr(network.at(0), name).matrix
            return np.full(length, matrix.nnz - np.count_nonzero(matrix.diagonal()))
        return (step_weights(network, name, first, length).weight != 0).sum(axis=1)


class PacketTraffic:
    """Bytes that all agents together have sent before iteration k, and what became of the packets.

    Args:
        start: Bytes sent before the first step.
        delivery: What becomes of the packets.
    """

    def __init__(self, start: int, delivery: DeliverySchedule) -> None:
        self._delivery = delivery
        self._bytes, self._arrived, self._lost, self._used = [start], [0], [0], [0]
        self._times = None if delivery.links.clock is None else StepTimes(delivery)

    def before(self, ks: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the bytes sent before each of the iterations ``ks``, in packets that are lost too."""
        ks = self._reach(ks)
        return np.array(self._bytes, np.int64)[ks]

    def columns(self, ks: npt.ArrayLike) -> dict[str, npt.NDArray[np.float64]]:
        """Return, before each of the iterations: which share of the packets not under way any more was ``delivered``.

        And which share of these was ``overtaken``: a newer one had arrived, so that they were not used. With a clock
        also the time, ``seconds_simulated``.
        """
        ks = self._reach(ks)
        arrived, lost, used = (np.array(count)[ks] for count in (self._arrived, self._lost, self._used))
        delivered = np.where(arrived + lost > 0, arrived / np.maximum(arrived + lost, 1), 1.0)
        seconds = {"seconds_simulated": self._times.before(ks)} if self._times else {}
        return {"delivered": delivered, "overtaken": (arrived - used) / np.maximum(arrived, 1), **seconds}

    def facts(self, k: int) -> dict[str, Any]:
        """Return, with a clock, whom the first k steps waited for."""
        return {"slowest": self._times.slowest(k)} if self._times else {}

    def _reach(self, ks: npt.ArrayLike) -> npt.NDArray[np.int64]:
        ks = np.asarray(ks, np.int64)
        last = int(ks.max(initial=0))
        while (first := len(self._bytes) - 1) < last:
            self._extend(first, min(STEPS_OF_PACKETS, last - first))
        return ks

    def _extend(self, first: int, length: int) -> None:
        delivery = self._delivery
        sizes = zip(delivery.sizes(first, length), delivery.sent(first, length), strict=True)
        arrived, lost = delivery.outcomes(first, length)
        used = (delivery.ages(first, length) >= 0).sum(axis=1)
        for counts, new in (
            (self._bytes, [int(size[now].sum()) for size, now in sizes]),
            (self._arrived, arrived),
            (self._lost, lost),
            (self._used, used),
        ):
            counts.extend((counts[-1] + np.cumsum(new)).tolist())
