"""What one step of a method sends, measured in a dry run with NumPy: a method does not state it."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from digrad.core.hyperparameters import at_iteration
from digrad.core.net import Verbs
from digrad.methods.fields import numeric_fields, with_fields

_DIMENSION = 7  # of the dry run; unlike the number of agents, so that vectors are told from other numbers
_WARM_STEPS = 2  # before the step that is measured, so that it is not the first


class Communication(NamedTuple):
    """What each edge carries in a step, and in which order.

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


def measure_communication(method: Any, n: int = 3) -> Communication:
    """Return what a step of a method sends among n agents.

    >>> from digrad.methods import CGT, PushDIGing
    >>> measure_communication(CGT(step_size=0.1, threshold=1.0))
    Communication(vectors=2, numbers=0, all_reduces=0, rounds=1, early=(('push', 'y'), ('pull', 'x')))
    >>> measure_communication(PushDIGing(step_size=0.1))[:4]
    (2, 1, 0, 2)
    """
    state, net = _warm(method, _dated(np.ones((n, _DIMENSION))), np.eye(n))
    state = type(state)(*(_dated(leaf) for leaf in state))
    after = _of_one_agent(method).step(state, _dated(np.ones((n, _DIMENSION))), net)
    widths = [(verb, part.shape[1]) for verb, parts in net.calls for part in parts]
    on_edges = [width for verb, width in widths if verb != "mean"]
    return Communication(
        vectors=on_edges.count(_DIMENSION),
        numbers=sum(width for width in on_edges if width != _DIMENSION),
        all_reduces=widths.count(("mean", _DIMENSION)),
        rounds=_depth(after),
        early=_fields_sent(state, net),
    )


def early_messages(method: Any, x0: Any, one_hot: Any) -> tuple[tuple[str, str], ...]:
    """Return :attr:`Communication.early` alone, found with the arrays of any library.

    Args:
        method: Which may know one library only, as an optimizer of torch does.
        x0: A start of the dry run, ``[n, d]``, small.
        one_hot: The identity, ``[n, n]``.
    """
    state, net = _warm(method, x0, one_hot)
    _of_one_agent(method).step(state, 0 * x0 + 1, net)
    return _fields_sent(state, net)


def _warm(method: Any, x0: Any, one_hot: Any) -> tuple[Any, "_DryNet"]:
    method, net = _of_one_agent(method), _DryNet(one_hot)
    state = method.init(x0, net)
    for _ in range(_WARM_STEPS):
        state = method.step(state, 0 * x0 + 1, net)
    net.calls.clear()
    return state, net


def _fields_sent(state: Any, net: "_DryNet") -> tuple[tuple[str, str], ...]:
    """Return the fields of a state that were sent as they are, alone or in a tuple of such fields."""
    fields = {id(leaf): name for name, leaf in state._asdict().items()}
    whole = [
        (verb, parts) for verb, parts in net.calls if verb != "mean" and all(id(p) in fields for p in parts)
    ]
    return tuple((verb, fields[id(part)]) for verb, parts in whole for part in parts)


def _of_one_agent(method: Any) -> Any:
    """Return a method with the hyper-parameters of iteration 0 and of the first agent."""
    method = at_iteration(method, 0)
    values = {name: getattr(method, name) for name in numeric_fields(type(method))}
    per_agent = {name: value for name, value in values.items() if np.ndim(value)}
    return with_fields(method, {name: float(np.ravel(value)[0]) for name, value in per_agent.items()})


class _DryNet(Verbs):
    """Returns what is sent, one round of communication later, and records every call."""

    def __init__(self, one_hot: Any) -> None:
        self.one_hot = one_hot
        self.calls: list[tuple[str, tuple[Any, ...]]] = []

    def mean(self, x: Any) -> Any:
        """Return the average in every row."""
        return self._exchange("mean", x)

    def _exchange(self, verb: str, x: Any) -> Any:
        parts = x if isinstance(x, tuple) else (x,)
        self.calls.append((verb, parts))
        mixed = tuple(_later(part) for part in parts)
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
