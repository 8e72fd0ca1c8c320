"""The links of a network as one value: loss, delay, sleep, compression and noise."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Annotated, Any, Literal

from digrad import checks
from digrad._internal.fingerprints import fingerprint
from digrad.errors import ArgumentError
from digrad.links.churn import Event
from digrad.links.clock import Clock
from digrad.links.compressors import Compressor, random_k
from digrad.sampling import seed_of_run
from digrad.schedules import SCHEDULES
from digrad.types import OneFraction, OnePositive, Seed

LONGEST_DELAY = 126  # ages are stored in one byte
NAIVE = {
    "push": ("drop", "renormalise", "last"),
    "pull": ("drop",),
}  # which lose mass or weight, and so are biased
_steps = partial(checks.count, minimum=0, maximum=LONGEST_DELAY)


@dataclass(frozen=True)
class Bursts:
    """Packets are lost in a row: an edge is good or bad, and while it is bad it delivers nothing.

    Args:
        loss: The fraction of packets lost in the long run.
        length: Average length of a burst, in steps.
    """

    loss: OneFraction
    length: OnePositive

    def __post_init__(self) -> None:
        """Check that such a chain exists."""
        checks.fields(self)
        if self.length < 1 or self.enter + self.leave > 1:
            raise ArgumentError(
                f"`length` of Bursts must be at least {max(1.0, 1 / (1 - self.loss)):g} steps for a loss of "
                f"{self.loss:g}, but got {self.length!r}."
            )

    @property
    def leave(self) -> float:
        """The probability that a bad edge turns good at a step."""
        return 1 / self.length

    @property
    def enter(self) -> float:
        """The probability that a good edge turns bad at a step."""
        return self.leave * self.loss / (1 - self.loss)


@dataclass(frozen=True)
class FixedDelay:
    """Every packet is late by ``steps``."""

    steps: Annotated[int, _steps]

    __post_init__ = checks.fields


def _loss(value: Any, name: str, owner: str) -> Any:
    return value if isinstance(value, Bursts) else checks.one_number(checks.fraction, value, name, owner)


def _delay(value: Any, name: str, owner: str) -> Any:
    return value if isinstance(value, FixedDelay) else _steps(value, name, owner)


def _rates(value: Any, name: str, owner: str) -> float | tuple[float, ...]:
    many = isinstance(value, list | tuple) or getattr(value, "ndim", 0) > 0
    rates = [
        float(checks.one_number(checks.positive, rate, name, owner)) for rate in (value if many else [value])
    ]
    if max(rates, default=0.0) > 1:
        raise ArgumentError(
            f"`{name}` of {owner} must be a probability of at most 1, but got {max(rates)!r}."
        )
    return tuple(rates) if many else rates[0]


def _compressor(value: Any, name: str, owner: str) -> None:
    if not isinstance(value, Compressor | None):
        raise ArgumentError(
            f"`{name}` of {owner} must be one of digrad.compressors, such as compressors.top_k(3) or "
            f"compressors.sign(), but got {value!r}; call it if it is a class."
        )


def _noise(value: Any, name: str, owner: str) -> Any:
    if callable(value):
        return checks.function_of_k(value, name, owner)
    return checks.one_number(checks.not_negative, value, name, owner)


def _clock(value: Any, name: str, owner: str) -> None:
    if not isinstance(value, Clock | None):
        raise ArgumentError(f"`{name}` of {owner} must be a digrad.links.Clock, but got {value!r}.")


def _events(value: Any, name: str, owner: str) -> tuple[Event, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(each, Event) for each in value):
        raise ArgumentError(
            f"`{name}` of {owner} must be a list of Leave, Crash and Join of digrad.links, but got {value!r}."
        )
    return tuple(value)


@dataclass(frozen=True, repr=False)
class Links:
    r"""Links that lose, delay, compress or disturb messages, decided by ``seed`` and the iteration alone.

    A packet is everything that an agent sends to another one during a step. It is lost or late as a whole. Two rules
    keep methods exact: of what is pushed, undelivered mass is added to the next packet, never forgotten; of what is
    pulled, the part that was not received is replaced by the receiver's own value.

    Args:
        loss: The fraction of packets lost, independently, or :class:`Bursts`.
        delay: D: packets are late by 0, ..., D steps, each with the same probability, and may overtake one another;
            or :class:`FixedDelay`.
        awake: The probability that an agent acts at a step, for all or for each; one that sleeps sends nothing,
            computes nothing, and finds what has arrived when it wakes up.
        two_way: Packets from i to j and from j to i are lost and late together, as methods that ``mix`` need it.
        compressor: How messages are shortened, see ``digrad.compressors``. With nothing else every packet arrives,
            also between real processes, where what is shortened travels short.
        damping: The factor of what push-sum pairs send when they are compressed; by default that of the compressor.
        noise: The standard deviation of what is added to every number sent, or a function of k.
        push: Policy for undelivered mass: ``"sum"`` adds it to the next packet; ``"keep"`` returns it to a
            sender that knows at once; the naive ``"drop"`` forgets it, ``"renormalise"`` divides by the weights
            that have arrived and ``"last"`` uses what came before: all three are biased.
        pull: Replacement of an estimate that was not received: ``"self"`` the receiver's own, ``"last"`` the last one
            received, ``"renormalise"`` the average of those received; the naive ``"drop"`` takes it as zero.
        seed: Random seed of everything drawn. Runs with other seeds than 0 mix it with their own, see
            :meth:`digrad.Network.with_seed`.
        churn: Agents that join and leave: a list of :class:`Leave`, :class:`Crash` and :class:`Join`. Averages and
            losses are those of the agents that are present.
        clock: How long computing and sending take, instead of ``delay``; a run then records ``seconds_simulated``.
            With a deadline it decides which packets are late.

    Raises:
        ArgumentError: A value is out of its range, or two exclude each other.

    Example:
        >>> import digrad as dg
        >>> network = dg.Network(dg.graphs.example5(), links=Links(loss=0.3, delay=2))
        >>> method, problem = dg.CGT(step_size=0.05, threshold=2.0), dg.problems.example_quadratic()
        >>> dg.simulate(method, problem, network, steps=800).verdict
        'converged'
    """

    loss: Annotated[float | Bursts, _loss] = 0.0
    delay: Annotated[int | FixedDelay, _delay] = 0
    awake: Annotated[float | Sequence[float], _rates] = 1.0
    two_way: Annotated[bool, checks.flag] = False
    compressor: Annotated[Compressor | None, _compressor] = None
    damping: OnePositive | None = None
    noise: Annotated[float | Callable[[int], float], _noise] = 0.0
    push: Literal["sum", "keep", "drop", "renormalise", "last"] = "sum"
    pull: Literal["self", "renormalise", "last", "drop"] = "self"
    seed: Seed = 0
    clock: Annotated[Clock | None, _clock] = None
    churn: Annotated[Sequence[Event], _events] = ()

    def __post_init__(self) -> None:
        """Check every field, and what excludes each other."""
        checks.fields(self)
        if self.damping is not None:
            self._check_damping(self.damping)
        if self.clock is not None and self.longest_delay:
            raise ArgumentError(
                "`delay` of Links says in steps when packets arrive, and `clock` in seconds; leave out `delay` (a "
                "deadline of the clock makes slow packets late), or `clock`."
            )
        if self.is_timed and self.two_way:
            raise ArgumentError(
                "`clock` of Links has a deadline, which makes every packet late by its own seconds; leave out "
                "`two_way`."
            )
        if self.push == "keep" and self.is_late:
            raise ArgumentError(
                '`push` of Links is "keep", for senders that know at once what did not arrive, but packets may be '
                'late; use "sum".'
            )

    def _check_damping(self, damping: float) -> None:
        if self.compressor is None:
            raise ArgumentError(
                "`damping` of Links is for compressed messages; leave it out, or give a compressor."
            )
        if damping > 1:
            raise ArgumentError(
                f"`damping` of Links must be at most 1, with which all shares are sent, but got {damping!r}."
            )

    def __repr__(self) -> str:
        """Return the fields that differ from their defaults, so that equal links read alike in every process."""
        shown = ((f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default)
        return f"Links({', '.join(f'{name}={_readable(value)}' for name, value in shown)})"

    @property
    def pair_damping(self) -> float:
        """The factor of what push-sum pairs send."""
        return 1.0 if self.compressor is None else self.damping or self.compressor.damping

    @property
    def is_reliable(self) -> bool:
        """Return whether every packet arrives in its own step, compressed or not, without noise."""
        others = (f for f in fields(self) if f.name not in ("compressor", "damping", "seed"))
        return all(getattr(self, f.name) == f.default for f in others) and not isinstance(
            self.compressor, random_k
        )

    @property
    def is_timed(self) -> bool:
        """Return whether the seconds of a clock decide what is late."""
        return self.clock is not None and self.clock.deadline is not None

    @property
    def is_late(self) -> bool:
        """Return whether a packet may be late."""
        return self.longest_delay > 0 or self.is_timed

    @property
    def longest_delay(self) -> int:
        """Largest number of steps by which a packet is late, where delays are given in steps."""
        return self.delay.steps if isinstance(self.delay, FixedDelay) else int(self.delay)

    @property
    def mean_loss(self) -> float:
        """The fraction of packets lost in the long run."""
        return self.loss.loss if isinstance(self.loss, Bursts) else float(self.loss)

    @property
    def sleeps(self) -> bool:
        """Return whether an agent ever sleeps, or computes for longer than a step."""
        if self.clock is not None and self.clock.overruns:
            return True
        return any(rate < 1 for rate in (self.awake if isinstance(self.awake, tuple) else (self.awake,)))  # pyright: ignore[reportOperatorIssue]

    @property
    def is_noisy(self) -> bool:
        """Return whether noise is added."""
        return callable(self.noise) or self.noise > 0

    @property
    def is_random(self) -> bool:
        """Return whether anything is drawn."""
        is_timed_at_random = self.clock is not None and self.clock.is_random
        is_late_at_random = self.longest_delay > 0 and not isinstance(self.delay, FixedDelay)
        return (
            self.mean_loss > 0 or min(self.rates(1)) < 1 or is_late_at_random or is_timed_at_random or self.is_noisy
            or isinstance(self.compressor, random_k)
        )  # fmt: skip

    def with_seed(self, seed: int) -> "Links":
        """Return the links of a run with this seed; see :meth:`digrad.Network.with_seed`."""
        clock = self.clock and self.clock.with_seed(seed)
        return replace(self, seed=seed_of_run(self.seed, seed), clock=clock)

    @property
    def is_naive(self) -> bool:
        """Return whether what was lost is forgotten, so that methods are biased."""
        return self.push in NAIVE["push"] or self.pull in NAIVE["pull"]

    def rates(self, n: int) -> list[float]:
        """Return the probability of each of ``n`` agents to be awake."""
        return list(self.awake) if isinstance(self.awake, tuple) else [float(self.awake)] * n  # pyright: ignore[reportArgumentType]

    def noise_at(self, k: int) -> float:
        """Return the standard deviation of the noise of iteration k."""
        if not callable(self.noise):
            return float(self.noise)
        return float(checks.one_number(checks.not_negative, self.noise(k), f"noise({k})", "Links"))

    def check_agents(self, n: int) -> None:
        """Raise unless what is given one by one, rates and seconds, is of ``n`` agents."""
        if isinstance(self.awake, tuple) and len(self.awake) != n:
            raise ArgumentError(
                f"`awake` of Links has {len(self.awake)} rates, but the network has {n} agents; give one for each."
            )
        if self.clock is not None:
            self.clock.check_agents(n)


def check_links(links: Any, n: int, owner: str) -> None:
    """Raise unless a network of ``n`` agents can have these links.

    Raises:
        ArgumentError: They are neither :class:`Links` for n agents nor None, with which messages arrive as sent.
    """
    if links is None:
        return
    if not isinstance(links, Links):
        got = repr(links) if isinstance(links, str | int | float | type) else type(links).__name__
        raise ArgumentError(
            f"`links` of {owner} must be digrad.Links(...), or None if messages arrive as sent, but got {got}."
        )
    links.check_agents(n)


def _readable(value: Any) -> str:
    if callable(value) and type(value) not in SCHEDULES.values():
        return f"{getattr(value, '__qualname__', type(value).__qualname__)}:{fingerprint(value)[:12]}"
    return repr(value)
