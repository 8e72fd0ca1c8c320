"""Communication of a method, measured in a dry run: which messages it sends, how long they are, and when."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from digrad.core.hyperparameters import at_iteration
from digrad.core.net import Primitives, bindings
from digrad.links.compressors import Compressor, random_k
from digrad.methods.numeric_fields import numeric_fields, with_fields

_DIMENSION = 7  # of the dry run; unlike the number of agents, so that vectors are told from other numbers
_WARM_STEPS = 2  # after which the fields of a state are arrays of their own


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


class Sent(NamedTuple):
    """One array that a primitive sends, and how it is compressed."""

    array: Any
    is_pair: bool  # whether it is pushed together with its push-sum weight
    is_weight: bool  # whether it is that weight, which is neither compressed nor noisy

    @property
    def numbers(self) -> int:
        """Numbers that each agent sends."""
        return int(np.prod(self.array.shape[1:]))

    def is_compressible(self, dimension: int) -> bool:
        """Return whether it is an estimate or a tracker, of ``dimension`` numbers; all else travels as it is."""
        return not self.is_weight and self.numbers == dimension

    def keeps_reference(self, primitive: str) -> bool:
        """Return whether both ends keep a reference: so for all but a tracker, which is pushed alone and vanishes."""
        return primitive != "push" or self.is_pair


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


def dry_run(method: Any, x0: Any, one_hot: Any, *, warm_steps: int = 0) -> DryRun:
    """Start and take a step on a network that returns what is sent, and record what that is.

    Args:
        method: With hyper-parameters of any iteration and agent: those of iteration 0 and of one agent are used.
        x0: Estimates ``[rows, d]`` of any library; only shapes matter, so that they need not hold numbers.
        one_hot: The rows of the identity of these agents, likewise.
        warm_steps: How many steps to take before the one that is measured.
    """
    method, net = _of_one_agent(method), _DryNet(one_hot)
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
    method: Any, compressor: Compressor | None, x0: Any, one_hot: Any
) -> tuple[list[Charge], list[Charge]]:
    """Return the messages before the first step, which are never compressed, and those of a step; see `dry_run`."""
    found, dimension = dry_run(method, x0, one_hot), x0.shape[1]
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


def arrays_sent(primitive: str, x: Any) -> Iterator[Sent]:
    """Yield the arrays of ``x``, one or a tuple, that a primitive sends."""
    parts = _parts(x)
    is_pair = isinstance(x, tuple) and primitive == "push"
    for place, part in enumerate(parts):
        # The last of a pushed tuple is its weight if it is a column.
        yield Sent(part, is_pair, is_pair and place == len(parts) - 1 and part.shape[-1] == 1)


def _parts(x: Any) -> tuple[Any, ...]:
    return x if isinstance(x, tuple) else (x,)


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
