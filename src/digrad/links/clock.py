"""Simulated seconds of computing and sending, so that curves can be drawn against time."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from digrad import checks
from digrad.errors import ArgumentError
from digrad.sampling import COMPUTING, SENDING, seed_of_run, uniforms
from digrad.types import NotNegative, OnePositive, Seed

Floats = npt.NDArray[np.float64]

LARGEST_DRAW = np.float64(1 - 2.0**-53)


@dataclass(frozen=True)
class Exponential:
    """Drawn anew at every step: ``shift`` plus an exponential time of this mean."""

    mean: OnePositive
    shift: NotNegative = 0.0

    __post_init__ = checks.fields

    def quantile(self, u: Floats) -> Floats:
        """Return the values below which a fraction ``u`` lies."""
        return self.shift - self.mean * np.log1p(-u)


@dataclass(frozen=True)
class Uniform:
    """Drawn anew at every step, between ``low`` and ``high``."""

    low: NotNegative
    high: NotNegative

    def __post_init__(self) -> None:
        """Check the fields."""
        checks.fields(self)
        if not self.low <= self.high:
            raise ArgumentError(
                f"`low` of Uniform must be from 0 to high = {self.high!r}, but got {self.low!r}."
            )

    def quantile(self, u: Floats) -> Floats:
        """Return the values below which a fraction ``u`` lies."""
        return self.low + (self.high - self.low) * u


DISTRIBUTIONS: dict[str, type[Exponential | Uniform]] = {"exponential": Exponential, "uniform": Uniform}


def _one_or_each(value: Any, name: str, owner: str) -> float | tuple[float, ...]:
    is_bandwidth = name == "bandwidth"
    try:
        array = np.asarray(value)
    except ValueError:  # rows of different lengths
        array = np.array(None)
    is_good = array.dtype.kind in "iuf" and array.ndim <= 1 and array.size > 0
    if not (is_good and ((array > 0) if is_bandwidth else (array >= 0) & (array < np.inf)).all()):
        kind = "positive" if is_bandwidth else "at least 0 and finite"
        drawn = "" if is_bandwidth else ", or Exponential or Uniform"
        raise ArgumentError(
            f"`{name}` of {owner} must be {kind}, one number or one for each{drawn}, but got {value!r}."
        )
    return tuple(array.astype(np.float64).tolist()) if array.ndim else float(array)


def _seconds(value: Any, name: str, owner: str) -> Any:
    return value if isinstance(value, Exponential | Uniform) else _one_or_each(value, name, owner)


Seconds: TypeAlias = Annotated[float | Sequence[float] | Exponential | Uniform, _seconds]


@dataclass(frozen=True)
class Clock:
    """Seconds that a step takes: every agent computes, sends, and waits for the slowest packet that it needs.

    Args:
        compute: Seconds of a gradient, for all agents, for each, or drawn from :class:`Exponential` or
            :class:`Uniform`.
        latency: Seconds until the first byte of a packet has arrived, likewise by edge (by receiver, then sender).
        bandwidth: Bytes per second of an edge, for all or for each. Packets do not queue: each has all of it.
        deadline: Seconds after which a step ends at the latest; by default it ends when everything has come. What an
            agent computes for longer it has at a later step, and acts then; until then it sleeps. A packet that is
            under way for longer is late by as many steps. A lost packet, and one of an agent that sleeps, are waited
            for until the deadline. With one, the steps of all agents begin together.
        seed: Random seed of random times.
    """

    compute: Seconds = 0.0
    latency: Seconds = 0.0
    bandwidth: Annotated[float | Sequence[float], _one_or_each] = float("inf")
    deadline: OnePositive | None = None
    seed: Seed = 0

    __post_init__ = checks.fields

    @property
    def is_random(self) -> bool:
        """Return whether seconds are drawn."""
        return any(isinstance(value, Exponential | Uniform) for value in (self.compute, self.latency))

    def with_seed(self, seed: int) -> "Clock":
        """Return the clock of a run with this seed."""
        return replace(self, seed=seed_of_run(self.seed, seed))

    def check_agents(self, n: int) -> None:
        """Raise unless seconds, if given one by one, are those of ``n`` agents."""
        _check_length(self.compute, "compute", n, "agents")

    def check_edges(self, n_edges: int) -> None:
        """Raise unless latencies and bandwidths, if given one by one, are those of so many edges."""
        _check_length(self.latency, "latency", n_edges, "edges")
        _check_length(self.bandwidth, "bandwidth", n_edges, "edges")

    @property
    def overruns(self) -> bool:
        """Return whether an agent may compute beyond the deadline."""
        return self.deadline is not None and _largest(self.compute) > self.deadline

    @property
    def is_narrow(self) -> bool:
        """Return whether the size of packets counts."""
        return bool(np.isfinite(self.bandwidth).any())

    def most_late(self, packets: npt.NDArray[np.int64]) -> int:
        """Return by how many steps packets of so many bytes, ``[n_edges]``, may miss the deadline."""
        assert self.deadline is not None
        ready = min(_largest(self.compute), self.deadline)
        slowest = float(np.max(packets * self.per_byte(len(packets)), initial=0.0))
        return int(self.steps_late(np.array(ready + _largest(self.latency) + slowest)))

    def steps_late(self, seconds: Floats) -> Floats:
        """Return by how many steps what takes so many seconds from the beginning of its step misses the deadline."""
        assert self.deadline is not None
        return np.maximum(np.ceil(seconds / self.deadline) - 1, 0)

    def computing(self, first: int, length: int, n: int) -> Floats:
        """Return the seconds of each agent at the iterations first, ..., ``[length, n]``."""
        return self._drawn(self.compute, COMPUTING, first, length, n)

    def sending(self, first: int, length: int, n_edges: int) -> Floats:
        """Return the latency of each edge at the iterations first, ..., ``[length, n_edges]``."""
        return self._drawn(self.latency, SENDING, first, length, n_edges)

    def per_byte(self, n_edges: int) -> Floats:
        """Return the seconds of a byte on each edge, ``[n_edges]``."""
        return 1 / np.broadcast_to(np.asarray(self.bandwidth, np.float64), (n_edges,))

    def _drawn(self, value: Any, stream: int, first: int, length: int, numbers: int) -> Floats:
        if isinstance(value, Exponential | Uniform):
            return value.quantile(uniforms(self.seed, stream, first, length, numbers))
        return np.broadcast_to(np.asarray(value, np.float64), (length, numbers))


def _largest(value: Any) -> float:
    if isinstance(value, Exponential | Uniform):
        return float(value.quantile(LARGEST_DRAW))  # pyright: ignore[reportArgumentType]
    return float(np.max(value))


def _check_length(value: Any, name: str, count: int, what: str) -> None:
    if isinstance(value, tuple) and len(value) != count:
        raise ArgumentError(
            f"`{name}` of Clock has {len(value)} values, but the network has {count} {what}; give one for each."
        )
