"""The executor that methods see in the simulator where packets are lost, late, shortened or noisy.

Every array that a step sends has a state of its own, which names what its arcs owe or remember. The order is fixed:
noise, coder, weights and shares, transport, the rule of the receiver.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from digrad.core.charges import arrays_sent
from digrad.core.net import Verbs
from digrad.links.coders import AnyCoder, RandomK
from digrad.simulation.arcs import Arcs, Slices, add_up, add_up_sent, add_up_weights, stored


class Wire(NamedTuple):
    """What is compiled in of links; everything random about them comes as a :class:`Fate`."""

    letters: tuple[tuple[str, str], ...]  # the matrix behind each verb
    slices: tuple[tuple[str, Slices], ...]  # of the arcs of each verb
    push: str
    pull: str
    coder: AnyCoder | None
    damping: float
    longest_delay: int
    sleeps: bool
    constant: bool  # whether weights never change
    keeps_ledger: bool


class Fate(NamedTuple):
    """What happens at one iteration; of several, with an axis ``[length]`` in front."""

    age: jax.Array  # [A] int8
    awake: jax.Array | None  # [n]; None if nobody ever sleeps
    chosen: tuple[jax.Array, ...] | None  # [n, width] for each array: entries drawn at random
    noise: tuple[jax.Array, ...] | None  # [n, width] for each array


class Call(NamedTuple):
    """What is remembered of one array of a step; None where nothing need be."""

    known: jax.Array | None = None  # [n, d] the reference of a coded estimate
    owed: jax.Array | None = None  # [A, d] pushed and not yet received, if not
    settled: jax.Array | None = None  # [A], which takes a pass over ``owed`` less than setting it to zero
    total: jax.Array | None = None  # [n or A, d] everything pushed, where packets are late
    totals: jax.Array | None = None  # [D+1, n or A, d] the same when each of the last packets was sent
    lifetime: jax.Array | None = (
        None  # [A, d] everything ever pushed, for the neighbours of an agent that crashes
    )
    inbox: jax.Array | None = None  # [A, d] arrived while the receiver slept
    past: jax.Array | None = None  # [D+1, n, d] the last estimates sent
    seen: jax.Array | None = None  # [A, d] the last one that arrived
    new: jax.Array | None = None  # [A] whether it still is to be used


def outstanding(call: Call) -> jax.Array | None:
    """Return what has been pushed and not yet received, ``[A, d]``; None if the array is not owed."""
    if call.owed is None or call.settled is None:
        return call.owed
    return jnp.where(call.settled[:, None], 0, call.owed)


class FatedNet(Verbs):
    """The network of one iteration.

    Args:
        wire: What is compiled in.
        arcs: The matrices that the method needs, by verb.
        fate: What happens at this iteration.
        states: Of each array that a step sends, in the order of sending; None opens them.
        k: The iteration.
        n: The number of agents.
    """

    def __init__(
        self,
        wire: Wire,
        arcs: Mapping[str, Arcs],
        fate: Fate,
        states: tuple[Call, ...] | None,
        k: Any,
        n: int,
    ) -> None:
        self._wire, self._arcs, self._fate, self._states = wire, arcs, fate, states
        self._letters, self._slices = dict(wire.letters), dict(wire.slices)
        self._k, self._n = k, n
        self.links: list[Call] = []  # the states after this step
        self.widths: list[int] = []  # of the arrays sent

    @property
    def one_hot(self) -> jax.Array:
        """The identity: row i is agent i."""
        return jnp.eye(self._n)

    def mean(self, x: Any) -> Any:
        """Refuse: validation has refused every method that averages over all agents."""
        raise AssertionError("a network with links has no mean")

    def _exchange(self, verb: str, x: Any) -> Any:
        mixed = tuple(
            self._send(verb, part.reshape(len(part), -1), is_pair=is_pair, is_weight=is_weight).reshape(
                part.shape
            )
            for part, is_pair, is_weight in arrays_sent(self._letters[verb], x)
        )
        return mixed if isinstance(x, tuple) else mixed[0]

    def _send(self, verb: str, x: jax.Array, *, is_pair: bool, is_weight: bool) -> jax.Array:
        number, letter = len(self.links), self._letters[verb]
        state = Call() if self._states is None else self._states[number]
        refers = letter != "C" or is_pair
        state, sent = (state, x) if is_weight else self._coded(state, x, letter, refers=refers)
        arcs, slices = self._arcs[verb], self._slices[verb]
        transport = {"R": self._pulled, "C": self._pushed, "W": self._mixed}[letter]
        if is_pair and self._wire.coder is not None:
            arcs = arcs._replace(
                weight=self._wire.damping * arcs.weight, given=self._wire.damping * arcs.given
            )
        state, mixed = transport(state, x, sent, arcs, slices)
        self.links.append(state)
        self.widths.append(x.shape[1])
        return mixed

    def _coded(self, state: Call, x: jax.Array, letter: str, *, refers: bool) -> tuple[Call, jax.Array]:
        """Return what receivers would understand of x if all heard it; NaN where they hear nothing."""
        coder, fate, number = self._wire.coder, self._fate, len(self.links)
        value = x if fate.noise is None else x + fate.noise[number].astype(x.dtype)
        if coder is None:
            return state, value
        chosen = jnp.ones(x.shape, bool) if fate.chosen is None else fate.chosen[number]
        if not refers:
            return state, coder.code(value, chosen)
        if isinstance(coder, RandomK) and letter == "R":
            return state, jnp.where(chosen, value, jnp.nan)
        known = jnp.zeros_like(x) if state.known is None else state.known
        after = jnp.where(self._k == 0, value, known + coder.code(value - known, chosen))
        if fate.awake is not None:
            after = jnp.where(fate.awake[:, None] | (self._k == 0), after, known)
        return state._replace(known=after), after

    def _pulled(
        self, state: Call, x: jax.Array, sent: jax.Array, arcs: Arcs, slices: Slices
    ) -> tuple[Call, jax.Array]:
        """Return R x, with what was not heard replaced as the policy says."""
        state, use, seen = self._heard(state, sent, arcs)
        weight = self._stored(_where, use, arcs.weight)
        if seen is None:
            terms = add_up_sent(arcs, slices, sent, weight)
        elif isinstance(self._wire.coder, RandomK):
            own = _at(x, arcs.receiver)
            terms = add_up(arcs, slices, jnp.where(jnp.isnan(seen), own, seen), weight)
        else:
            terms = add_up(arcs, slices, seen, weight)
        own = arcs.own[:, None] * x
        if self._wire.pull == "drop":
            return state, own + terms
        heard = add_up_weights(arcs, slices, weight)
        if self._wire.pull == "renormalise":
            return state, (own + terms) / (arcs.own[:, None] + heard)
        return state, (1 - heard) * x + terms

    def _heard(self, state: Call, sent: jax.Array, arcs: Arcs) -> tuple[Call, jax.Array, jax.Array | None]:
        """Return which arcs bring an estimate ``[A]``, and which ``[A, d]``; None for the one just sent."""
        wire, age = self._wire, self._ages(arcs)
        if wire.pull == "drop":
            return state, (age == 0) & self._receives(arcs), None
        arrives = age >= 0
        if wire.longest_delay:
            shape = (wire.longest_delay + 1, *sent.shape)
            past = jnp.zeros(shape, sent.dtype) if state.past is None else state.past
            past = past.at[self._k % len(past)].set(sent)
            state = state._replace(past=past)
            now = _at(past.reshape(-1, sent.shape[1]), self._places(age, self._n, arcs.sender))
        elif wire.pull != "last" and not wire.sleeps and not isinstance(wire.coder, RandomK):
            return state, arrives, None
        else:
            now = _at(sent, arcs.sender)
        if wire.pull != "last" and not wire.sleeps:
            return state, arrives, now
        seen = jnp.zeros_like(now) if state.seen is None else state.seen
        new = jnp.zeros_like(arrives) if state.new is None else state.new
        seen, use = jnp.where(arrives[:, None], now, seen), new | arrives
        stays = use if wire.pull == "last" else use & ~self._receives(arcs)
        return state._replace(seen=seen, new=stays), use, seen

    def _pushed(
        self, state: Call, x: jax.Array, sent: jax.Array, arcs: Arcs, slices: Slices
    ) -> tuple[Call, jax.Array]:
        """Return C x, with what was not delivered treated as the policy says."""
        if self._fate.awake is not None:
            sent = jnp.where(self._fate.awake[:, None], sent, 0)
        share = arcs.weight[:, None] * _at(sent, arcs.sender)
        age, awake = self._ages(arcs), self._receives(arcs)
        kept = x - arcs.given[:, None] * sent
        in_time = ((age == 0) & awake)[:, None]
        policy = self._wire.push
        if policy == "sum":
            state, taken = self._owed(state, sent, share, age, awake, arcs, slices)
            return state, kept + taken
        if policy == "last":
            seen = jnp.zeros_like(share) if state.seen is None else state.seen
            seen = jnp.where(in_time, share, seen)
            return state._replace(seen=seen), kept + add_up(arcs, slices, seen)
        weight = jnp.where(in_time[:, 0], arcs.weight, 0)
        received = add_up_sent(arcs, slices, sent, weight)
        if policy == "drop":
            return state, kept + received
        if policy == "keep":
            given = jnp.zeros_like(arcs.given).at[arcs.sender].add(weight, mode="promise_in_bounds")
            return state, x - given[:, None] * sent + received
        whole = arcs.own[:, None] + add_up_weights(arcs, slices, arcs.weight)
        arrived = arcs.own[:, None] + add_up_weights(arcs, slices, weight)
        return state, (kept + received) * (whole / arrived)

    def _owed(
        self,
        state: Call,
        sent: jax.Array,
        share: jax.Array,
        age: jax.Array,
        awake: jax.Array,
        arcs: Arcs,
        slices: Slices,
    ) -> tuple[Call, jax.Array]:
        """Return what each agent receives, ``[n, d]``: everything owed when the newest packet was sent."""
        wire, arrives = self._wire, (age >= 0)[:, None]
        if wire.keeps_ledger:
            state = state._replace(lifetime=share if state.lifetime is None else state.lifetime + share)
        # One pass over the arcs: as operands of their own, what was owed and the share would be written and read again.
        owed = self._stored(_add_share, state.owed, state.settled, sent, arcs.sender, arcs.weight)
        if not (wire.longest_delay or wire.sleeps):
            return state._replace(owed=owed, settled=age >= 0), add_up(arcs, slices, owed, age >= 0)
        reach = owed
        if wire.longest_delay:
            # What was pushed after a packet is not in it. With constant weights one sum per sender tells it.
            added = sent if wire.constant else share
            total = added if state.total is None else state.total + added
            shape = (wire.longest_delay + 1, *added.shape)
            totals = jnp.zeros(shape, added.dtype) if state.totals is None else state.totals
            totals = totals.at[self._k % len(totals)].set(total)
            state = state._replace(total=total, totals=totals)
            place = arcs.sender if wire.constant else jnp.arange(len(share))
            places = self._places(age, len(added), place)
            reach = self._stored(
                partial(_reach, is_constant=wire.constant), owed, total, totals, place, places, arcs.weight
            )
        if wire.sleeps:
            before = jnp.zeros_like(share) if state.inbox is None else state.inbox
            inbox = jnp.where(arrives, reach, before)
            taken = jnp.where(awake[:, None], inbox, 0)
            state = state._replace(inbox=inbox - taken)
        else:
            taken = jnp.where(arrives, reach, 0)
        return state._replace(owed=owed - taken), add_up(arcs, slices, taken)

    def _mixed(
        self, state: Call, x: jax.Array, sent: jax.Array, arcs: Arcs, slices: Slices
    ) -> tuple[Call, jax.Array]:
        """Return W x, without the pairs of arcs that did not deliver: both ends keep what the pair would exchange."""
        arrives = (self._ages(arcs) == 0) & self._receives(arcs)
        weight = jnp.where(arrives, arcs.weight, 0)
        given = add_up_weights(arcs, slices, weight)
        return state, x - given * sent + add_up_sent(arcs, slices, sent, weight)

    def _ages(self, arcs: Arcs) -> jax.Array:
        # A byte would wrap when it is taken off k.
        return self._stored(lambda age, fate: _at(age, fate).astype(jnp.int32), self._fate.age, arcs.fate)

    def _receives(self, arcs: Arcs) -> jax.Array:
        """Return which receivers are awake, ``[A]``."""
        if self._fate.awake is None:
            return jnp.ones(arcs.receiver.shape, bool)
        return self._stored(_at, self._fate.awake, arcs.receiver)

    def _places(self, age: jax.Array, rows: int, place: jax.Array) -> jax.Array:
        """Return where the packets that arrive are among the last ones of ``rows`` senders, ``[A]``."""
        slots = self._wire.longest_delay + 1
        return self._stored(
            lambda age, place, k: ((k - jnp.maximum(age, 0)) % slots) * rows + place, age, place, self._k
        )

    def _stored(self, make: Callable[..., Any], *operands: Any) -> Any:
        return stored(self._k, make, *operands)


def _reach(
    owed: jax.Array,
    total: jax.Array,
    totals: jax.Array,
    place: jax.Array,
    places: jax.Array,
    weight: jax.Array,
    *,
    is_constant: bool,
) -> jax.Array:
    later = (_at(total, place) if is_constant else total) - _at(totals.reshape(-1, total.shape[1]), places)
    return owed - (weight[:, None] * later if is_constant else later)


def _add_share(
    owed: jax.Array | None, settled: jax.Array | None, sent: jax.Array, sender: jax.Array, weight: jax.Array
) -> jax.Array:
    before = outstanding(Call(owed=owed, settled=settled))
    share = weight[:, None] * _at(sent, sender)
    return share if before is None else before + share


def _where(mask: jax.Array, values: jax.Array) -> jax.Array:
    return jnp.where(mask, values, 0)


def _at(values: jax.Array, rows: jax.Array) -> jax.Array:
    return values.at[rows].get(mode="promise_in_bounds")
