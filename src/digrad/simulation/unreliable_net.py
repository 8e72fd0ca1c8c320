"""The executor that methods see in the simulator where packets are lost, late, shortened or noisy: edge by edge.

Every array that a step sends has a state of its own: what its edges have not delivered, and what they remember. The
order is fixed: noise, compressor, weights and shares, transport, the rule of the receiver.

Edges are ordered so that the sum over an agent's in-edges is a sum of slices: agents by falling in-degree, first the
first in-edge of each, then the second of those that have one, and so on. What an edge remembers then takes exactly one
row; no agent's rows are widened to those of a hub.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import lax

from digrad.core.link_state import LinkState
from digrad.core.net import Primitives, Sent, arrays_sent
from digrad.core.network_delivery import all_edges, numbers_among
from digrad.links import DeliverySchedule, Links
from digrad.links.compressors import Compressor, decoded, random_k
from digrad.network import Network, step_weights

MOST_SLICES = 64  # further in-edges of a hub are added one by one


class Edges(NamedTuple):
    """A mixing matrix by edges; of several iterations ``weight``, ``own`` and ``given`` have ``[steps]`` in front."""

    sender: jax.Array  # [E]
    receiver: jax.Array  # [E]
    number: jax.Array  # [E] place of the edge in the table of deliveries
    place: jax.Array  # [n] of each agent in the order by falling in-degree
    weight: jax.Array  # [E]
    own: jax.Array  # [n] the diagonal
    given: jax.Array  # [n] what each agent gives away: the sum of its weights as a sender

    def at(self, i: jax.Array | int) -> "Edges":
        """Return the edges of iteration number i of several."""
        return self._replace(weight=self.weight[i], own=self.own[i], given=self.given[i])


Slices = tuple[int, ...]  # where each slice of the edges ends


def edges_of_steps(
    network: Network, matrix: str, first: int, length: int, dtype: npt.DTypeLike
) -> tuple[Edges, Slices]:
    """Return the matrices ``matrix`` of the iterations first, ..., first + length - 1, edge by edge."""
    weights = step_weights(network, matrix, first, length)
    sender, receiver = weights.edges.T
    degree = np.bincount(receiver, minlength=network.n)
    by_degree = np.argsort(-degree, kind="stable")
    place = np.argsort(by_degree)
    rank = np.arange(len(receiver)) - np.repeat(
        np.cumsum(degree) - degree, degree
    )  # edges are sorted by receiver
    order = np.lexsort((place[receiver], rank))
    numbers = numbers_among(weights.edges, all_edges(network))
    given = np.stack([np.bincount(sender, row, network.n) for row in weights.weight])
    ends = np.cumsum(np.bincount(rank, minlength=1)).tolist() if len(rank) else []
    arrays = (
        sender[order].astype(np.int32),
        receiver[order].astype(np.int32),
        numbers[order].astype(np.int32),
        place.astype(np.int32),
        weights.weight[:, order].astype(dtype),
        weights.own.astype(dtype),
        given.astype(dtype),
    )
    return Edges(*jax.device_put(arrays)), tuple(ends[:MOST_SLICES])


def edges_only(network: Network, matrix: str, first: int, length: int, dtype: npt.DTypeLike) -> Edges:
    """Return the matrices of several iterations edge by edge."""
    return edges_of_steps(network, matrix, first, length, dtype)[0]


def only_if(condition: jax.Array | bool, make: Callable[..., Any], *operands: Any) -> Any:
    """Return ``make(*operands)``, or zeros where the condition is false, and it is not computed then."""
    make = jax.jit(make, inline=True)  # traced once, for its shapes and for its code
    shapes = jax.eval_shape(make, *operands)
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return lax.cond(condition, make, lambda *_: nothing, *operands)


def add_up(edges: Edges, slices: Slices, values: jax.Array, weight: jax.Array | None = None) -> jax.Array:
    """Return the sum over the in-edges of each agent of ``weight`` ``[E]`` times ``values`` ``[E, d]``, ``[n, d]``."""
    weights = jnp.ones(len(values), values.dtype) if weight is None else weight.astype(values.dtype)
    return _summed(edges, slices, weights, lambda piece: values[piece])


def add_up_sent(edges: Edges, slices: Slices, sent: jax.Array, weight: jax.Array) -> jax.Array:
    """Return the sum over the in-edges of each agent of ``weight`` ``[E]`` times what its sender sent, ``[n, d]``."""

    def taken(piece: slice) -> jax.Array:
        return sent.at[edges.sender[piece]].get(mode="promise_in_bounds")

    return _summed(edges, slices, weight.astype(sent.dtype), taken)


def add_up_weights(edges: Edges, slices: Slices, weight: jax.Array) -> jax.Array:
    """Return the sum over the in-edges of each agent of ``weight`` ``[E]``, ``[n, 1]``."""
    return _summed(edges, slices, weight, lambda piece: jnp.ones((1, 1), weight.dtype))


def _summed(
    edges: Edges, slices: Slices, weight: jax.Array, values: Callable[[slice], jax.Array]
) -> jax.Array:
    n, begin = len(edges.place), 0
    total: jax.Array = jnp.zeros((n, values(slice(0, 0)).shape[1]), weight.dtype)
    for end in slices:
        piece = slice(begin, end)
        added = total[: end - begin] + weight[piece, None] * values(piece)
        total = added if end - begin == n else lax.dynamic_update_slice(total, added, (0, 0))
        begin = end
    total = total.at[edges.place].get(mode="promise_in_bounds", unique_indices=True)
    if begin < len(weight):
        rest = slice(begin, None)
        added = weight[rest, None] * values(rest)
        total = total.at[edges.receiver[rest]].add(added, mode="promise_in_bounds")
    return total


class LinkRules(NamedTuple):
    """Rules of links that are compiled in; everything random about them comes as a :class:`Delivery`."""

    matrices: tuple[tuple[str, str], ...]  # the matrix behind each primitive
    slices: tuple[tuple[str, Slices], ...]  # of the edges of each primitive
    push: str
    pull: str
    compressor: Compressor | None
    damping: float
    longest_delay: int
    sleeps: bool
    constant: bool  # whether weights never change
    keeps_totals: bool


class Delivery(NamedTuple):
    """Events of one iteration; of several, with an axis ``[length]`` in front."""

    age: jax.Array  # [E] int8
    awake: jax.Array | None  # [n]; None if nobody ever sleeps
    chosen: tuple[jax.Array, ...] | None  # [n, width] for each array: entries drawn at random
    noise: tuple[jax.Array, ...] | None  # [n, width] for each array


def rules_of(
    network: Network, matrices: Mapping[str, str], dtype: npt.DTypeLike, delivery: DeliverySchedule
) -> LinkRules:
    """Return what is compiled in of the links of a network."""
    links, churn = network.links, delivery.churn
    assert isinstance(links, Links)
    slices = {name: edges_of_steps(network, matrix, 0, 1, dtype)[1] for name, matrix in matrices.items()}
    return LinkRules(
        matrices=tuple(matrices.items()),
        slices=tuple(slices.items()),
        push=links.push,
        pull=links.pull,
        compressor=links.compressor,
        damping=links.pair_damping,
        longest_delay=delivery.longest_delay,
        sleeps=links.sleeps,
        constant=network.period == 1 and churn is None,
        keeps_totals=churn is not None and churn.keeps_lifetime,
    )


def deliveries(
    delivery: DeliverySchedule, first: int, length: int, room: int, widths: tuple[int, ...]
) -> Delivery:
    """Return what happens at the iterations first, ..., first + length - 1, with rows for ``room``."""
    links = delivery.links

    def padded(table: npt.NDArray[Any]) -> Any:
        return np.pad(table, [(0, room - length)] + [(0, 0)] * (table.ndim - 1))

    def drawn(make: Callable[..., Any]) -> tuple[Any, ...]:
        return tuple(padded(make(first, length, number, width)) for number, width in enumerate(widths))

    return Delivery(
        age=padded(delivery.ages(first, length)),
        awake=padded(delivery.awake(first, length)) if links.sleeps or delivery.churn else None,
        chosen=drawn(delivery.chosen) if isinstance(links.compressor, random_k) and widths else None,
        noise=drawn(delivery.noise) if links.is_noisy and widths else None,
    )


def delivery_bytes(delivery: DeliverySchedule, widths: tuple[int, ...]) -> int:
    """Return about how much memory the deliveries of one iteration take, while they are made."""
    drawn = (
        delivery.n * sum(widths) * (isinstance(delivery.links.compressor, random_k) + delivery.links.is_noisy)
    )
    return 10 * len(delivery.edges) + 16 * drawn


class UnreliableNet(Primitives):
    """The network of one iteration.

    Args:
        rules: Code that is compiled in.
        edges: The matrices that the method needs, by primitive.
        delivery: What happens at this iteration.
        states: Of each array that a step sends, in the order of sending; None opens them.
        k: The iteration.
        n: The number of agents.
    """

    def __init__(
        self,
        rules: LinkRules,
        edges: Mapping[str, Edges],
        delivery: Delivery,
        states: tuple[LinkState, ...] | None,
        k: Any,
        n: int,
    ) -> None:
        self._rules, self._edges, self._delivery, self._states = rules, edges, delivery, states
        self._matrices, self._slices = dict(rules.matrices), dict(rules.slices)
        self._k, self._n = k, n
        self.links: list[LinkState] = []  # the states after this step

    @property
    def one_hot(self) -> jax.Array:
        """The identity: row i is agent i."""
        return jnp.eye(self._n)

    def mean(self, x: Any) -> Any:
        """Refuse: validation has refused every method that averages over all agents."""
        raise AssertionError("a network with links has no mean")

    def _exchange(self, primitive: str, x: Any) -> Any:
        mixed = tuple(
            self._send(primitive, sent).reshape(sent.array.shape) for sent in arrays_sent(primitive, x)
        )
        return mixed if isinstance(x, tuple) else mixed[0]

    def _send(self, primitive: str, array: Sent) -> jax.Array:
        number, x = len(self.links), array.array.reshape(len(array.array), -1)
        state = LinkState() if self._states is None else self._states[number]
        refers = array.keeps_reference(primitive)
        state, sent = (state, x) if array.is_weight else self._compressed(state, x, primitive, refers=refers)
        edges, slices = self._edges[primitive], self._slices[primitive]
        transport = {"R": self._pulled, "C": self._pushed, "W": self._mixed}[self._matrices[primitive]]
        if array.is_pair and self._rules.damping != 1:
            edges = edges._replace(
                weight=self._rules.damping * edges.weight, given=self._rules.damping * edges.given
            )
        state, mixed = transport(state, x, sent, edges, slices)
        self.links.append(state)
        return mixed

    def _compressed(
        self, state: LinkState, x: jax.Array, primitive: str, *, refers: bool
    ) -> tuple[LinkState, jax.Array]:
        """Return what receivers would decode of x if it reached all of them; NaN where nothing is sent."""
        compressor, delivery, number = self._rules.compressor, self._delivery, len(self.links)
        value = x if delivery.noise is None else x + delivery.noise[number].astype(x.dtype)
        if compressor is None:
            return state, value
        chosen = jnp.ones(x.shape, bool) if delivery.chosen is None else delivery.chosen[number]
        if not refers:
            return state, decoded(compressor, value, None, chosen)
        if isinstance(compressor, random_k) and self._matrices[primitive] == "R":
            return state, jnp.where(chosen, value, jnp.nan)
        known = jnp.zeros_like(x) if state.reference is None else state.reference
        after = jnp.where(self._k == 0, value, decoded(compressor, value, known, chosen))
        if delivery.awake is not None:
            after = jnp.where(delivery.awake[:, None] | (self._k == 0), after, known)
        return state._replace(reference=after), after

    def _pulled(
        self, state: LinkState, x: jax.Array, sent: jax.Array, edges: Edges, slices: Slices
    ) -> tuple[LinkState, jax.Array]:
        """Return R x, with what did not arrive replaced as the policy says."""
        state, use, seen = self._received(state, sent, edges)
        weight = self._stored(_where, use, edges.weight)
        if seen is None:
            terms = add_up_sent(edges, slices, sent, weight)
        elif isinstance(self._rules.compressor, random_k):
            own = _at(x, edges.receiver)
            terms = add_up(edges, slices, jnp.where(jnp.isnan(seen), own, seen), weight)
        else:
            terms = add_up(edges, slices, seen, weight)
        own = edges.own[:, None] * x
        if self._rules.pull == "drop":
            return state, own + terms
        received = add_up_weights(edges, slices, weight)
        if self._rules.pull == "renormalise":
            return state, (own + terms) / (edges.own[:, None] + received)
        return state, (1 - received) * x + terms

    def _received(
        self, state: LinkState, sent: jax.Array, edges: Edges
    ) -> tuple[LinkState, jax.Array, jax.Array | None]:
        """Return which edges bring an estimate ``[E]``, and which ``[E, d]``; None for the one just sent."""
        rules, age = self._rules, self._ages(edges)
        if rules.pull == "drop":
            return state, (age == 0) & self._receives(edges), None
        arrives = age >= 0
        if rules.longest_delay:
            shape = (rules.longest_delay + 1, *sent.shape)
            past = jnp.zeros(shape, sent.dtype) if state.sent is None else state.sent
            past = past.at[self._k % len(past)].set(sent)
            state = state._replace(sent=past)
            now = _at(past.reshape(-1, sent.shape[1]), self._places(age, self._n, edges.sender))
        elif rules.pull != "last" and not rules.sleeps and not isinstance(rules.compressor, random_k):
            return state, arrives, None
        else:
            now = _at(sent, edges.sender)
        if rules.pull != "last" and not rules.sleeps:
            return state, arrives, now
        seen = jnp.zeros_like(now) if state.seen is None else state.seen
        new = jnp.zeros_like(arrives) if state.new is None else state.new
        seen, use = jnp.where(arrives[:, None], now, seen), new | arrives
        stays = use if rules.pull == "last" else use & ~self._receives(edges)
        return state._replace(seen=seen, new=stays), use, seen

    def _pushed(
        self, state: LinkState, x: jax.Array, sent: jax.Array, edges: Edges, slices: Slices
    ) -> tuple[LinkState, jax.Array]:
        """Return C x, with what was not delivered treated as the policy says."""
        if self._delivery.awake is not None:
            sent = jnp.where(self._delivery.awake[:, None], sent, 0)
        share = edges.weight[:, None] * _at(sent, edges.sender)
        age, awake = self._ages(edges), self._receives(edges)
        kept = x - edges.given[:, None] * sent
        in_time = ((age == 0) & awake)[:, None]
        policy = self._rules.push
        if policy == "sum":
            state, taken = self._summed(state, sent, share, age, awake, edges, slices)
            return state, kept + taken
        if policy == "last":
            seen = jnp.zeros_like(share) if state.seen is None else state.seen
            seen = jnp.where(in_time, share, seen)
            return state._replace(seen=seen), kept + add_up(edges, slices, seen)
        weight = jnp.where(in_time[:, 0], edges.weight, 0)
        received = add_up_sent(edges, slices, sent, weight)
        if policy == "drop":
            return state, kept + received
        if policy == "keep":
            given = jnp.zeros_like(edges.given).at[edges.sender].add(weight, mode="promise_in_bounds")
            return state, x - given[:, None] * sent + received
        whole = edges.own[:, None] + add_up_weights(edges, slices, edges.weight)
        arrived = edges.own[:, None] + add_up_weights(edges, slices, weight)
        return state, (kept + received) * (whole / arrived)

    def _summed(
        self,
        state: LinkState,
        sent: jax.Array,
        share: jax.Array,
        age: jax.Array,
        awake: jax.Array,
        edges: Edges,
        slices: Slices,
    ) -> tuple[LinkState, jax.Array]:
        """Return what each agent receives, ``[n, d]``: everything pushed when the newest packet was sent."""
        rules, arrives = self._rules, (age >= 0)[:, None]
        if rules.keeps_totals:
            state = state._replace(lifetime=share if state.lifetime is None else state.lifetime + share)
        # One pass over the edges: as operands of their own, both would be written and read again.
        pushed = self._stored(_add_share, state.pushed, state.delivered, sent, edges.sender, edges.weight)
        if not (rules.longest_delay or rules.sleeps):
            return state._replace(pushed=pushed, delivered=age >= 0), add_up(edges, slices, pushed, age >= 0)
        reach = pushed
        if rules.longest_delay:
            # What was pushed after a packet is not in it. With constant weights one sum per sender tells it.
            added = sent if rules.constant else share
            total = added if state.total is None else state.total + added
            shape = (rules.longest_delay + 1, *added.shape)
            totals = jnp.zeros(shape, added.dtype) if state.totals is None else state.totals
            totals = totals.at[self._k % len(totals)].set(total)
            state = state._replace(total=total, totals=totals)
            place = edges.sender if rules.constant else jnp.arange(len(share))
            places = self._places(age, len(added), place)
            reach = self._stored(
                partial(_reach, is_constant=rules.constant),
                pushed,
                total,
                totals,
                place,
                places,
                edges.weight,
            )
        if rules.sleeps:
            before = jnp.zeros_like(share) if state.inbox is None else state.inbox
            inbox = jnp.where(arrives, reach, before)
            taken = jnp.where(awake[:, None], inbox, 0)
            state = state._replace(inbox=inbox - taken)
        else:
            taken = jnp.where(arrives, reach, 0)
        return state._replace(pushed=pushed - taken), add_up(edges, slices, taken)

    def _mixed(
        self, state: LinkState, x: jax.Array, sent: jax.Array, edges: Edges, slices: Slices
    ) -> tuple[LinkState, jax.Array]:
        """Return W x, without the pairs of edges that did not deliver: both ends keep what the pair would exchange."""
        arrives = (self._ages(edges) == 0) & self._receives(edges)
        weight = jnp.where(arrives, edges.weight, 0)
        given = add_up_weights(edges, slices, weight)
        return state, x - given * sent + add_up_sent(edges, slices, sent, weight)

    def _ages(self, edges: Edges) -> jax.Array:
        # A byte would wrap when it is taken off k.
        return self._stored(
            lambda age, number: _at(age, number).astype(jnp.int32), self._delivery.age, edges.number
        )

    def _receives(self, edges: Edges) -> jax.Array:
        """Return which receivers are awake, ``[E]``."""
        if self._delivery.awake is None:
            return jnp.ones(edges.receiver.shape, bool)
        return self._stored(_at, self._delivery.awake, edges.receiver)

    def _places(self, age: jax.Array, rows: int, place: jax.Array) -> jax.Array:
        """Return where the packets that arrive are among the last ones of ``rows`` senders, ``[E]``."""
        slots = self._rules.longest_delay + 1
        return self._stored(
            lambda age, place, k: ((k - jnp.maximum(age, 0)) % slots) * rows + place, age, place, self._k
        )

    def _stored(self, make: Callable[..., Any], *operands: Any) -> Any:
        """Return ``make(*operands)`` as arrays that what follows reads.

        XLA would compute the index or the mask of a row anew for every number in it, which took ten times as long on
        1000 agents, and it drops optimization barriers before it fuses; through a branch that is always taken it does
        not look.
        """
        return only_if(self._k >= 0, make, *operands)


def _reach(
    pushed: jax.Array,
    total: jax.Array,
    totals: jax.Array,
    place: jax.Array,
    places: jax.Array,
    weight: jax.Array,
    *,
    is_constant: bool,
) -> jax.Array:
    later = (_at(total, place) if is_constant else total) - _at(totals.reshape(-1, total.shape[1]), places)
    return pushed - (weight[:, None] * later if is_constant else later)


def _add_share(
    pushed: jax.Array | None,
    delivered: jax.Array | None,
    sent: jax.Array,
    sender: jax.Array,
    weight: jax.Array,
) -> jax.Array:
    before = LinkState(pushed=pushed, delivered=delivered).undelivered
    share = weight[:, None] * _at(sent, sender)
    return share if before is None else before + share


def _where(mask: jax.Array, values: jax.Array) -> jax.Array:
    return jnp.where(mask, values, 0)


def _at(values: jax.Array, rows: jax.Array) -> jax.Array:
    return values.at[rows].get(mode="promise_in_bounds")
