"""The net of replicas where packets are lost, late, compressed or noisy, or agents join and leave.

The numbers are those of the simulator, which has the same rules: the order is noise, compressor, weights and shares,
transport, the rule of the receiver.
"""

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch

from digrad.core.link_state import LinkState
from digrad.core.net import Primitives, Sent, arrays_sent, bindings
from digrad.core.network_delivery import make_delivery, numbers_of_edges
from digrad.core.state_repair import network_of, repair, void_edges
from digrad.core.traffic import PacketTraffic, charges_of
from digrad.links import DeliverySchedule
from digrad.links.compressors import decoded, random_k
from digrad.network import Network, step_weights
from digrad.torch.engines.compression import LinkArrays, LinkKey
from digrad.torch.engines.engine import InOneProcess, overwrite
from digrad.torch.engines.flat_parameters import FlatParameters
from digrad.types import Method

BLOCK = 256  # iterations whose delivery is drawn at once


class Delivered(NamedTuple):
    """Events of one iteration."""

    age: torch.Tensor  # [A] of the newest packet that arrives, or -1
    awake: torch.Tensor  # [n]


class Weights(NamedTuple):
    """One mixing matrix at one iteration."""

    edges: torch.Tensor  # [A]
    own: torch.Tensor  # [n, 1]


class UnreliableEngine(InOneProcess, Primitives):
    """Net of all agents, as methods see it, of a network whose packets may be lost or late.

    Args:
        method: Whose steps they take.
        network: Graph and weights, constant or not, with links.
        flat: The parameters.
        plain: The net of the same agents on which everything arrives, for messages outside of a step.
    """

    def __init__(self, method: Method, network: Network, flat: FlatParameters, plain: Any) -> None:
        assert network.links is not None
        x0 = torch.empty(network.n, flat.dimension, dtype=flat.dtype, device="meta")  # without numbers
        self._matrices = bindings(method)
        one_hot = x0.new_empty(network.n, network.n)
        _, charges = charges_of(method, network.links.compressor, x0, one_hot, flat.shapes)
        delivery = make_delivery(network, charges, self._matrices)
        self._plain, self._delivery, self._device = plain, delivery, flat.device
        self.links, self.churn = delivery.links, delivery.churn
        self._networks = _networks(network, delivery)
        self._sender, self._receiver = (
            torch.as_tensor(end.copy(), device=flat.device) for end in delivery.edges.T
        )
        self._slots = delivery.longest_delay + 1
        self._states: list[LinkState] = []
        self._call: int | None = None  # the number of the next array of a step; none outside
        self.packets = PacketTraffic(0, delivery)  # what all agents send in their steps, and when these end
        self._blocks = lru_cache(2)(lambda block: _block(delivery, block))
        self._weights = lru_cache(8)(self._weights_of)
        self.k = 0

    @property
    def one_hot(self) -> torch.Tensor:
        """The identity: row i is agent i."""
        return self._plain.one_hot

    @property
    def bytes_sent(self) -> int:
        """Bytes that the agents would have sent, in packets that are lost too."""
        return int(self.packets.before([self.k])[0]) + self._plain.bytes_sent

    @property
    def undelivered(self) -> list[torch.Tensor]:
        """The undelivered mass of each array that is pushed, ``[A, width]``."""
        return [state.pushed for state in self._states if state.pushed is not None]

    def stored_links(self) -> LinkArrays:
        """Return the link states."""
        return {
            LinkKey(name, call): value
            for call, state in enumerate(self._states)
            for name, value in state._asdict().items()
            if value is not None
        }

    def load_links(self, stored: LinkArrays) -> None:
        """Go on from other link states."""
        self._states = []
        for key, value in stored.items():
            self._keep(key.place, self._at(key.place)._replace(**{key.kind: value.clone()}))

    def advance(self, method: Any, state: Any, grad: torch.Tensor) -> None:
        """Overwrite a state with the one after a step, in which agents that sleep do not take part."""
        self._call = 0
        after, awake = method.step(state, grad, self), self.delivered().awake
        if not awake.all():
            rows = zip(after, state, strict=True)
            after = type(state)(*(torch.where(awake[:, None], new, old) for new, old in rows))
        overwrite(state, after)
        self.apply_churn(self.k + 1, state)
        self._call = None

    def delivered(self) -> Delivered:
        """Return what happens at this iteration."""
        ages, awake = self._blocks(self.k // BLOCK)
        row = self.k % BLOCK
        return Delivered(
            torch.as_tensor(ages[row], dtype=torch.int64, device=self._device),
            torch.as_tensor(awake[row], device=self._device),
        )

    def apply_churn(self, k: int, state: Any) -> None:
        """Let agents join and leave before iteration k: repair a state of all agents, in place."""
        event = self.churn.event(k) if self.churn else None
        if self.churn is None or event is None:
            return
        edges, like = self._delivery.edges, state.y
        pushed = next((one for one in self._states if one.pushed is not None), LinkState())
        nothing = like.new_zeros(len(edges), like.shape[1])
        undelivered, lifetime = (
            nothing if value is None else value for value in (pushed.pushed, pushed.lifetime)
        )
        repair(event, state, edges, self.churn.present[self.churn.phase(k)], undelivered, lifetime)
        void = torch.as_tensor(void_edges(event, edges), device=self._device)
        self._states = [one.without(void) for one in self._states]

    def mean(self, x: Any) -> Any:
        """Average over all agents; only outside of a step, where it belongs to the plain net."""
        return self._plain.mean(x)

    def _exchange(self, primitive: str, x: Any) -> Any:
        if self._call is None:
            self._plain.k = self.k
            return getattr(self._plain, primitive)(x)
        mixed = tuple(self._send(primitive, sent) for sent in arrays_sent(primitive, x))
        return mixed if isinstance(x, tuple) else mixed[0]

    def _send(self, primitive: str, array: Sent) -> torch.Tensor:
        assert self._call is not None
        state, x, now = self._at(self._call), array.array, self.delivered()
        value = x
        if not array.is_weight:
            state, value = self._compressed(state, array, primitive, now)
        weights = self._weights(self.k, self._matrices[primitive], x.dtype)
        if array.is_pair:
            weights = weights._replace(edges=self.links.pair_damping * weights.edges)
        transport = {"R": self._pulled, "C": self._pushed, "W": self._mixed}[self._matrices[primitive]]
        state, mixed = transport(state, x, value, weights, now)
        self._keep(self._call, state)
        self._call += 1
        return mixed

    def _compressed(
        self, state: LinkState, array: Sent, primitive: str, now: Delivered
    ) -> tuple[LinkState, torch.Tensor]:
        """Return what receivers would decode if it reached all of them; NaN where nothing is sent."""
        links, value, width = self.links, array.array, array.array.shape[1]
        if links.is_noisy:
            noise = self._delivery.noise(self.k, 1, self._call or 0, width)[0]
            value = value + torch.as_tensor(noise, dtype=value.dtype, device=value.device)
        if links.compressor is None:
            return state, value
        chosen = None
        if isinstance(links.compressor, random_k):
            drawn = self._delivery.chosen(self.k, 1, self._call or 0, width)[0]
            chosen = torch.as_tensor(drawn, device=value.device)
        if not array.keeps_reference(primitive):
            return state, decoded(links.compressor, value, None, chosen)
        if chosen is not None and self._matrices[primitive] == "R":
            return state, torch.where(chosen, value, torch.nan)
        if self.k == 0 or state.reference is None:
            reference = value.clone()
        else:
            after = decoded(links.compressor, value, state.reference, chosen)
            reference = torch.where(now.awake[:, None], after, state.reference)
        return state._replace(reference=reference), reference

    def _pulled(
        self, state: LinkState, x: torch.Tensor, value: torch.Tensor, weights: Weights, now: Delivered
    ) -> tuple[LinkState, torch.Tensor]:
        state, used, seen = self._seen(state, value, now)
        if isinstance(self.links.compressor, random_k):
            seen = torch.where(seen.isnan(), x[self._receiver], seen)
        if self.links.pull in ("self", "last"):
            received = weights.edges[:, None] * torch.where(used[:, None], seen, x[self._receiver])
            return state, weights.own * x + self._sum(received, x)
        weight = torch.where(used, weights.edges, 0.0)[:, None]
        total = weights.own * x + self._sum(weight * torch.where(used[:, None], seen, 0.0), x)
        return state, total if self.links.pull == "drop" else total * self._scale(weights, weight)

    def _seen(
        self, state: LinkState, value: torch.Tensor, now: Delivered
    ) -> tuple[LinkState, torch.Tensor, torch.Tensor]:
        """Return which edges bring an estimate ``[A]``, and which ``[A, d]``."""
        links, awake = self.links, now.awake[self._receiver]
        if links.pull == "drop":
            return state, (now.age == 0) & awake, value[self._sender]
        arrives = now.age >= 0
        if self._slots > 1:
            sent = value.new_zeros(self._slots, *value.shape) if state.sent is None else state.sent
            sent[self.k % self._slots] = value
            state = state._replace(sent=sent)
            seen = sent[(self.k - now.age.clamp(min=0)) % self._slots, self._sender]
        else:
            seen = value[self._sender]
        if links.pull != "last" and not links.sleeps:
            return state, arrives, seen
        before, new = torch.zeros_like(seen), torch.zeros_like(arrives)
        if state.seen is not None and state.new is not None:
            before, new = state.seen, state.new.bool()
        seen, used = torch.where(arrives[:, None], seen, before), new | arrives
        return state._replace(seen=seen, new=used if links.pull == "last" else used & ~awake), used, seen

    def _pushed(
        self, state: LinkState, x: torch.Tensor, value: torch.Tensor, weights: Weights, now: Delivered
    ) -> tuple[LinkState, torch.Tensor]:
        value = torch.where(now.awake[:, None], value, 0.0)
        share = weights.edges[:, None] * value[self._sender]
        in_time = ((now.age == 0) & now.awake[self._receiver])[:, None]
        policy = self.links.push
        given = torch.where(in_time, share, 0.0) if policy == "keep" else share
        kept = x.clone().index_add_(0, self._sender, given, alpha=-1)
        if policy == "sum":
            state, taken = self._taken(state, share, now)
            return state, kept + self._sum(taken, x)
        if policy == "last":
            seen = torch.where(in_time, share, torch.zeros_like(share) if state.seen is None else state.seen)
            return state._replace(seen=seen), kept + self._sum(seen, x)
        mixed = kept + self._sum(torch.where(in_time, share, 0.0), x)
        if policy == "renormalise":
            mixed = mixed * self._scale(weights, torch.where(in_time, weights.edges[:, None], 0.0))
        return state, mixed

    def _taken(self, state: LinkState, share: torch.Tensor, now: Delivered) -> tuple[LinkState, torch.Tensor]:
        """Return the mass that every edge delivers: all that was undelivered when its newest packet was sent."""
        arrives = (now.age >= 0)[:, None]
        before = torch.zeros_like(share) if state.pushed is None else state.pushed
        if self.churn is not None and self.churn.keeps_lifetime:
            state = state._replace(lifetime=share + (0 if state.lifetime is None else state.lifetime))
        pushed = packet = before + share
        packets = None
        if self._slots > 1:
            packets = share.new_zeros(self._slots, *share.shape) if state.packets is None else state.packets
            packets[self.k % self._slots] = pushed
            edges = torch.arange(len(share), device=share.device)
            packet = packets[(self.k - now.age.clamp(min=0)) % self._slots, edges]
        if self.links.sleeps:
            waiting = torch.zeros_like(share) if state.inbox is None else state.inbox
            waiting = torch.where(arrives, packet, waiting)
            taken = torch.where(now.awake[self._receiver][:, None], waiting, 0.0)
            state = state._replace(inbox=waiting - taken)
        else:
            taken = torch.where(arrives, packet, 0.0)
        if packets is not None:
            packets -= taken
        return state._replace(pushed=pushed - taken, packets=packets), taken

    def _mixed(
        self, state: LinkState, x: torch.Tensor, value: torch.Tensor, weights: Weights, now: Delivered
    ) -> tuple[LinkState, torch.Tensor]:
        arrives = (now.age == 0) & now.awake[self._receiver] & now.awake[self._sender]
        weight = torch.where(arrives, weights.edges, 0.0)[:, None]
        given = self._sum(weight.expand(-1, 1), x[:, :1])
        return state, x - given * value + self._sum(weight * value[self._sender], x)

    def _sum(self, terms: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """Return the sum over the in-edges of each agent, ``[n, d]``, in ascending order of the senders."""
        return torch.zeros_like(like).index_add_(0, self._receiver, terms)

    def _scale(self, weights: Weights, arrived: torch.Tensor) -> torch.Tensor:
        """Return by how much the weights of the terms that have arrived fall short of all, ``[n, 1]``."""
        whole = weights.own + self._sum(weights.edges[:, None], weights.own)
        return whole / (weights.own + self._sum(arrived, weights.own))

    def _at(self, call: int) -> LinkState:
        return self._states[call] if call < len(self._states) else LinkState()

    def _keep(self, call: int, state: LinkState) -> None:
        self._states += [LinkState()] * (call + 1 - len(self._states))
        self._states[call] = state

    def _weights_of(self, k: int, matrix: str, dtype: torch.dtype) -> Weights:
        network = self._networks[self.churn.phase(k) if self.churn else 0]
        found = step_weights(network, matrix, k, 1)
        edges = np.zeros(len(self._delivery.edges))
        edges[numbers_of_edges(found.edges, self._delivery.edges, self._delivery.n)] = found.weight[0]
        own = torch.as_tensor(found.own[0], dtype=dtype, device=self._device)[:, None]
        return Weights(torch.as_tensor(edges, dtype=dtype, device=self._device), own)


def _networks(network: Network, delivery: DeliverySchedule) -> list[Network]:
    """Return the network of those who are there, before the first event and after each."""
    if delivery.churn is None:
        return [network]
    return [network_of(network, present) for present in delivery.churn.present]


def _block(delivery: DeliverySchedule, block: int) -> tuple[np.ndarray, np.ndarray]:
    return delivery.ages(block * BLOCK, BLOCK), delivery.awake(block * BLOCK, BLOCK)
