"""The executors of torch engines where packets have fates: all agents in this process, or one of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from digrad.core.charges import Charge, arrays_sent, charges_of
from digrad.core.churn import network_of, repair, void_arcs
from digrad.core.delivery import make_fates
from digrad.core.net import Verbs, bindings
from digrad.core.packets import PacketTraffic
from digrad.links import Fates, Links
from digrad.network import AnyNetwork, Network
from digrad.torch.agent_net import AgentNet
from digrad.torch.exchange import Part
from digrad.torch.fated_agent import FatedAgent, FateTable
from digrad.torch.flat import FlatParameters
from digrad.torch.mixing_order import Share, Turns
from digrad.torch.process_network import ProcessNetwork
from digrad.torch.replica_net import ReplicaNet
from digrad.types import Method

Packets = dict[int, torch.Tensor]


class FatedNet(Verbs):
    """What methods see of a network whose packets have fates.

    Args:
        network: Graph and weights, constant or not, with links.
        letters: The matrix behind each verb of the method.
        agents: Whose rows these are.
        plain: The executor of the same agents on which everything arrives, for messages outside of a step.
        carry: Takes the packets of each of these agents, by receiver, and what it waits for, by sender, and returns
            what it received.
        fates: What becomes of packets.
        charges: What the arrays of a step take.
        is_real: Whether packets travel between processes, in full, so that ``plain`` counts them; else they are charged
            as their coder says, lost ones too.
    """

    def __init__(
        self,
        network: AnyNetwork,
        letters: Mapping[str, str],
        agents: Sequence[int],
        plain: ReplicaNet | AgentNet,
        carry: Callable[[list[Packets], list[Packets]], list[Packets]],
        fates: Fates,
        charges: Sequence[Charge],
        *,
        is_real: bool,
    ) -> None:
        self._letters, self._plain, self._carry, self._is_real = letters, plain, carry, is_real
        self._phases = [Turns(one, letters) for one in _networks(network, fates)]
        self.links, self.timeline = fates.links, fates.timeline
        self._books: dict[str, torch.Tensor] = {}
        self._table = FateTable(fates)
        self._agents = [FatedAgent(agent, self._table, self._books) for agent in agents]
        self._bytes, self._charges = 0, charges
        self.packets = PacketTraffic(0, fates)  # what all agents send in their steps, and when these end
        self._call: int | None = None  # the number of the next array of a step; none outside
        self.k = 0

    @property
    def one_hot(self) -> torch.Tensor:
        """Which agents these rows are, ``[rows, n]``."""
        return self._plain.one_hot

    @property
    def bytes_sent(self) -> int:
        """Bytes that these agents have sent: as they travelled, or else as they would, in packets that are lost too."""
        return self._bytes + self._plain.bytes_sent

    @property
    def owed(self) -> list[torch.Tensor]:
        """What these agents have pushed and nobody has received yet, ``[arcs, width]`` for each array."""
        found: dict[int, list[torch.Tensor]] = {}
        for name, book in self._books.items():
            if name.startswith("owed "):
                found.setdefault(int(name.split()[1]), []).append(book)
        return [torch.cat(found[call]) for call in sorted(found)]

    def stored_links(self) -> dict[str, torch.Tensor]:
        """Return the books of all arcs, by name."""
        return dict(self._books)

    def load_links(self, stored: Mapping[str, torch.Tensor]) -> None:
        """Go on from other books."""
        self._books.clear()
        self._books.update({name: value.clone() for name, value in stored.items()})

    def begin_step(self) -> None:
        """Count the arrays of a step from the first."""
        self._call = 0

    def end_step(self) -> None:
        """Leave the step."""
        self._call = None

    def awake(self) -> list[bool]:
        """Return which of these agents act at this iteration."""
        return [agent.is_awake(self.k) for agent in self._agents]

    def let_go_and_come(self, k: int, state: Any) -> None:
        """Let happen what happens before iteration k, to a state of all agents, in place."""
        event = self.timeline.event(k) if self.timeline else None
        if self.timeline is None or event is None:
            return
        arcs = self._table.fates.arcs
        owed, lifetime = self._of_arcs("owed", state.y), self._of_arcs("lifetime", state.y)
        repair(event, state, arcs, self.timeline.present[self.timeline.phase(k)], owed, lifetime)
        for agent in self._agents:
            agent.forget(void_arcs(event, arcs).tolist())

    def _of_arcs(self, what: str, like: torch.Tensor) -> torch.Tensor:
        """Return a book of what is pushed first, ``[A, d]``."""
        rows = like.new_zeros(len(self._table.fates.arcs), like.shape[1])
        names = [name.split() for name in self._books if name.startswith(f"{what} ")]
        call = min((int(name[1]) for name in names), default=0)
        for agent in self._agents:
            if (book := self._books.get(f"{what} {call} of {agent.agent}")) is not None:
                rows[agent.outgoing] = book
        return rows

    def mean(self, x: Any) -> Any:
        """Average over all agents; only outside of a step, where it belongs to the plain executor."""
        return self._plain.mean(x)

    def _exchange(self, verb: str, x: Any) -> Any:
        self._plain.k = self.k
        if self._call is None:
            return getattr(self._plain, verb)(x)
        mixed = tuple(
            self._send(verb, part, is_pair=is_pair, is_weight=is_weight)
            for part, is_pair, is_weight in arrays_sent(self._letters[verb], x)
        )
        return mixed if isinstance(x, tuple) else mixed[0]

    def _send(self, verb: str, x: torch.Tensor, *, is_pair: bool, is_weight: bool) -> torch.Tensor:
        assert self._call is not None
        call, k, letter = self._call, self.k, self._letters[verb]
        self._call += 1
        turns = self._phases[self.timeline.phase(k) if self.timeline else 0]
        shares, refers = turns.at(k)[verb], letter != "C" or is_pair
        coder = self.links.coder
        damping = (self.links.damping or coder.damping) if coder is not None and is_pair else 1.0
        rows, sent, kept, outgoing, expected = [], [], [], [], []
        for place, agent in enumerate(self._agents):
            row = x[place : place + 1].contiguous()
            said = row if is_weight else agent.code(row, call, k, letter=letter, refers=refers)
            share = shares[agent.agent]
            keeps, packets = agent.send(share, row, said, call, k, letter=letter, damping=damping)
            charged = agent.bytes_of(self._charges[call], call, k)
            self._bytes += 0 if self._is_real else charged
            rows.append(row)
            sent.append(said)
            kept.append(keeps)
            outgoing.append(packets)
            expected.append({s: row for s, arc in agent.incoming if self._table.is_used(k, arc)})
        received = self._carry(outgoing, expected)
        return torch.cat(
            [
                agent.receive(
                    shares[agent.agent], rows[i], sent[i], kept[i], received[i], call, k, letter=letter
                )
                for i, agent in enumerate(self._agents)
            ]
        )


def _networks(network: AnyNetwork, fates: Fates) -> list[AnyNetwork]:
    """Return the network of those who are there, before the first event and after each."""
    if fates.timeline is None or not isinstance(network, Network):
        return [network]
    return [network_of(network, present) for present in fates.timeline.present]


def keep_sleepers(state: Any, after: Any, net: FatedNet) -> Any:
    """Return the state after a step, in which agents that sleep have not taken part."""
    awake = net.awake()
    if all(awake):
        return after
    rows = torch.tensor(awake)[:, None]
    return type(state)(
        *(torch.where(rows.to(old.device), new, old) for new, old in zip(after, state, strict=True))
    )


def replica_carry(outgoing: list[Packets], expected: list[Packets]) -> list[Packets]:
    """Hand packets over between agents of one process."""
    return [{sender: outgoing[sender][agent] for sender in waited} for agent, waited in enumerate(expected)]


def process_carry(plain: AgentNet) -> Callable[[list[Packets], list[Packets]], list[Packets]]:
    """Return what carries the packets of the one agent of this process."""

    def carry(outgoing: list[Packets], expected: list[Packets]) -> list[Packets]:
        (sends,), (waits,) = outgoing, expected
        me = plain.network.agent
        parts = {}
        for peer in sorted(sends.keys() | waits.keys()):
            share = Share(
                me, ((peer, 1.0),) if peer in waits else (), ((peer, 1.0),) if peer in sends else (), False
            )
            parts[peer] = Part(share, sends[peer].contiguous() if peer in sends else waits[peer])
        plain.carry(list(parts.values()))
        return [{peer: parts[peer].received[peer].clone() for peer in waits}]

    return carry


def fated_replica_net(method: Method, network: AnyNetwork, flat: FlatParameters) -> FatedNet:
    """Return the executor of all agents in this process, some of which may join and leave."""
    plain = ReplicaNet(network, bindings(method), flat.dimension, flat.device)
    return _fated_net(method, network, range(network.n), plain, replica_carry, flat)


def fated_agent_net(
    method: Method, network: ProcessNetwork, flat: FlatParameters, plain: AgentNet
) -> FatedNet:
    """Return the executor of the agent of this process."""
    return _fated_net(method, network.network, (network.agent,), plain, process_carry(plain), flat)


def _fated_net(
    method: Method,
    network: AnyNetwork,
    agents: Sequence[int],
    plain: ReplicaNet | AgentNet,
    carry: Callable[[list[Packets], list[Packets]], list[Packets]],
    flat: FlatParameters,
) -> FatedNet:
    assert isinstance(network.links, Links)
    x0 = torch.empty(len(agents), flat.dimension, dtype=flat.dtype, device="meta")  # without numbers
    one_hot = x0.new_empty(len(agents), network.n)
    letters, charges = bindings(method), charges_of(method, network.links.coder, x0, one_hot)
    fates = make_fates(network, charges, letters)
    assert fates is not None
    is_real = isinstance(plain, AgentNet)
    return FatedNet(network, letters, agents, plain, carry, fates, charges, is_real=is_real)
