"""Agents that do not wait for late neighbours, as threads: whatever is late or rounded, nothing is lost."""

import math
import struct
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from digrad import AB, ADDOPT, CGT, DSGT, SGP, Network, PushDIGing, PushPull
from digrad.core.net import bindings
from digrad.core.traffic import measure_communication
from digrad.errors import ArgumentError, CommunicationError
from digrad.graphs import every, example5, from_edges, ring
from digrad.links import Links, compressors
from digrad.torch.engines.asynchronous import AsynchronousEngine
from digrad.torch.engines.undelivered import Arrived, Item, Outgoing
from digrad.torch.transport.coordination import Coordination
from digrad.torch.transport.transports import Transports
from digrad.torch.transport.zeromq import ZeroMQ

N, D = 5, 3
TRACKER = 1 << 20  # the number under which CGT and AB send it, ahead of the gradient
CURVATURE = torch.linspace(1.0, 5.0, N * D, dtype=torch.float64).reshape(N, D)
LINEAR = torch.linspace(-3.0, 4.0, N * D, dtype=torch.float64).reshape(D, N).T
SOLUTION = LINEAR.sum(0) / CURVATURE.sum(0)


class Together:
    """State shared by the threads of a run: facts are exchanged in the order of the calls."""

    def __init__(self, network: Network, deadline: float) -> None:
        self.network, self.deadline = network, deadline
        self.barrier = threading.Barrier(N, timeout=30)
        self._facts: list[Any] = [None] * N
        self.transports: list[Transports] = []
        self.store = dist.HashStore()

    def member(self, agent: int) -> Any:
        def exchange(facts: Any, purpose: str) -> list[Any]:
            self._facts[agent] = facts
            self.barrier.wait()
            everyone = list(self._facts)
            self.barrier.wait()
            return everyone

        made = Transports([ZeroMQ(agent, "127.0.0.1", None, lambda facts: exchange(facts, "transports"))])
        self.transports.append(made)
        return SimpleNamespace(
            agent=agent,
            n=N,
            network=self.network,
            deadline=self.deadline,
            max_lag=None,
            timeout=30.0,
            exchange=exchange,
            transports=made,
            coordination=Coordination(self.store, agent, N, "test"),
        )


def train(
    method: Any,
    network: Network,
    steps: int,
    *,
    deadline: float = 5.0,
    delay: Callable[[int, int], float] = lambda agent, k: 0.0,
) -> list[dict[str, Any]]:
    """Run a quadratic, one thread per agent; return the state of each and what is with it beyond its state."""
    early = measure_communication(method).early
    together, found, errors = Together(network, deadline), [{} for _ in range(N)], []

    def work(agent: int) -> None:
        try:
            member = together.member(agent)
            net = AsynchronousEngine(member, bindings(method), D, torch.float64)
            state = method.init(torch.full((1, D), 4.0, dtype=torch.float64), net)
            for k in range(steps):
                net.k = k
                net.start_early([(primitive, getattr(state, name)) for primitive, name in early])
                time.sleep(delay(agent, k))
                grad = CURVATURE[agent] * method.query(state) - LINEAR[agent]
                net.begin_step()
                state = method.step(state, grad, net)
                net.end_step()
            together.barrier.wait()
            net.pause()
            assert net.is_drained(30.0)
            together.barrier.wait()
            stored = net.stored_links()
            found[agent] = {
                "x": state.x,
                "state": state,
                "stored": stored,
                "grad": grad,
                "bytes": net.bytes_sent,
                "late": net.late,
                "beyond": any(values.any() for values in stored.values()),
            }
        except Exception as error:
            errors.append(error)
            together.barrier.abort()

    threads = [threading.Thread(target=work, args=(agent,)) for agent in range(N)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for transports in together.transports:
        transports.close()
    assert not errors, errors
    return found


def excess(found: list[dict[str, Any]]) -> float:
    """Return by how much trackers and what is on the edges differ from the gradients."""
    masses = [
        one["state"].y + sum(v for key, v in one["stored"].items() if key.place == TRACKER) - one["grad"]
        for one in found
    ]
    return largest([sum(masses)])


def largest(values: list[torch.Tensor]) -> float:
    return float(torch.cat(values).abs().max())


@pytest.mark.parametrize(("period", "steps"), [(2, 150), pytest.param(4, 500, marks=pytest.mark.slow)])
def test_short_and_rare_messages_lead_to_the_solution(period: int, steps: int) -> None:
    """Messages of four bits per number; rounding alone would leave errors of several percent."""
    network = Network(every(period, example5()), links=Links(compressor=compressors.quantize(4)))
    found = train(CGT(step_size=0.05, threshold=2.0), network, steps)
    assert largest([one["x"] - SOLUTION for one in found]) < 1e-3
    assert excess(found) < 1e-12


@pytest.mark.parametrize("method", [CGT(step_size=0.05, threshold=2.0), AB(step_size=0.05)], ids=repr)
def test_nothing_is_lost_when_short_messages_are_late(method: Any) -> None:
    """Checked where agents stop midway: trackers, undelivered mass and what has arrived add up to the gradients."""
    network = Network(example5(), links=Links(compressor=compressors.quantize(4)))
    found = train(method, network, 40, deadline=1e-4, delay=lambda agent, k: 0.004 * (agent == 2))
    assert sum(one["late"] for one in found) > 0
    assert any(one["beyond"] for one in found)
    assert excess(found) < 1e-12


@pytest.mark.parametrize(
    ("method", "late"), [(PushDIGing(0.05), False), (ADDOPT(0.05), False), (PushDIGing(0.03), True)], ids=repr
)
def test_what_is_sent_with_a_push_sum_weight_is_short_too_and_leads_to_the_solution(
    method: Any, late: bool
) -> None:
    """Compressed as it is, instead of divided by its weight, four bits would leave errors of several percent."""
    links = Links(compressor=compressors.quantize(4))
    wait: dict[str, Any] = {"deadline": 0.1, "delay": lambda agent, k: 0.15 * (agent == 2 and k % 40 == 9)}
    found = train(method, Network(example5(), links=links), 300, **wait if late else {})
    assert (sum(one["late"] for one in found) > 0) == late
    weights = [one["state"].w + sum(v for v in one["stored"].values() if len(v) == 1) for one in found]
    assert abs(float(sum(weights)) - N) < 1e-12
    assert excess(found) < 1e-12
    assert largest([one["state"].x / one["state"].w - SOLUTION for one in found]) < 1e-8
    full = 300 * example5().n_edges * (2 * D + 1) * 8
    assert sum(one["bytes"] for one in found) < 0.51 * full


@pytest.mark.parametrize("bits", [2, 4])
def test_sum_of_what_is_sent_with_a_push_sum_weight_is_conserved(bits: int) -> None:
    network = Network(example5(), links=Links(compressor=compressors.quantize(bits)))
    found = train(
        SGP(step_size=1e-30), network, 40, deadline=1e-4, delay=lambda agent, k: 0.004 * (agent == 2)
    )
    there = [one["state"].x + sum(v for v in one["stored"].values() if len(v) == D) for one in found]
    assert sum(one["late"] for one in found) > 0
    assert largest([sum(there) - 4.0 * N]) < 1e-12
    assert any(v.any() for one in found for v in one["stored"].values() if len(v) == D)


def in_one_process(method: Any, network: Network, steps: int) -> torch.Tensor:
    """Return the estimates of a run on the complete digraph in which no message is late."""
    push, pull = (torch.tensor(mixing.matrix.toarray()) for mixing in (network.C, network.R))

    def mixed(matrix: torch.Tensor, x: Any) -> Any:
        return tuple(matrix @ part for part in x) if isinstance(x, tuple) else matrix @ x

    net: Any = SimpleNamespace(push=lambda x: mixed(push, x), pull=lambda x: mixed(pull, x))
    state = method.init(torch.full((N, D), 4.0, dtype=torch.float64), net)
    for _ in range(steps):
        state = method.step(state, CURVATURE * method.query(state) - LINEAR, net)
    return state.x


@pytest.mark.parametrize("method", [CGT(0.05, 2.0), PushPull(0.05), PushDIGing(0.02), ADDOPT(0.02)], ids=repr)
def test_agents_that_are_all_in_time_compute_what_synchronous_ones_do(method: Any) -> None:
    """Also where a step sends a second time, once the gradient is known: that packet is waited for as well."""
    network = Network(example5())
    found = train(method, network, 15, delay=lambda agent, k: 0.002 * (agent == k % N))
    assert [one["late"] for one in found] == [0] * N
    expected = in_one_process(method, network, 15)
    assert torch.allclose(torch.cat([one["x"] for one in found]), expected, rtol=1e-12, atol=1e-12)


def test_what_is_sent_at_the_same_moment_is_one_packet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pair whose weight came without its numerator would be wrong for good."""
    offered: list[tuple[int, int]] = []
    offer = Outgoing.offer

    def noted(link: Outgoing, step: int, items: dict[int, Item]) -> None:
        offered.append((step, len(items)))
        offer(link, step, items)

    monkeypatch.setattr(Outgoing, "offer", noted)
    train(ADDOPT(0.02), Network(example5()), 3)
    edges = example5().n_edges
    assert sorted(offered) == [(k, 3) for k in range(3) for _ in range(edges)]


def test_neighbour_that_is_rarely_spoken_to_is_waited_for() -> None:
    """One that sent something the last time is not late, however many steps ago that was."""
    found = train(
        CGT(step_size=0.05, threshold=2.0),
        Network(every(7, example5())),
        36,
        delay=lambda agent, k: 0.02 * (agent == 1 and k % 7 == 0),
    )
    assert [one["late"] for one in found] == [0] * N


@pytest.mark.parametrize("delay", [0.0, 0.2], ids=["together", "uneven"])
@pytest.mark.parametrize("method", [CGT(0.05, 2.0), PushPull(0.05)], ids=repr)
def test_meeting_makes_nobody_late(method: Any, delay: float) -> None:
    """What was sent ahead to the step at which agents meet is not waited for a second time."""
    early = measure_communication(method).early
    together = Together(Network(example5()), deadline := 5.0)
    seconds, late = [0.0] * N, [-1] * N

    def work(agent: int) -> None:
        net = AsynchronousEngine(together.member(agent), bindings(method), D, torch.float64)
        began = method.init(torch.full((1, D), 4.0, dtype=torch.float64), net)
        state = type(began)(*(value.clone() for value in began))
        fields = [(primitive, getattr(state, name)) for primitive, name in early]
        net.publish(0, fields)
        for k in range(9):
            if k % 3 == 2:
                time.sleep(delay * (agent == 1))
                net.gather("average")
                net.release()
            start = time.monotonic()
            net.advance(method, state, CURVATURE[agent] * method.query(state) - LINEAR[agent])
            seconds[agent] = max(seconds[agent], time.monotonic() - start)
            net.publish(k + 1, fields)
        net.gather("close")
        late[agent] = net.late

    threads = [threading.Thread(target=work, args=(agent,), daemon=True) for agent in range(N)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for transports in together.transports:
        transports.close()
    assert late == [0] * N
    assert max(seconds) < deadline / 2


def test_store_that_has_gone_ends_a_meeting(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not count as agents that have not come yet, with whom one would mix on for ever."""

    class Gone(dist.HashStore):
        def check(self, keys: list[str]) -> bool:
            raise dist.DistNetworkError("Broken pipe")

    net = lone_engine(Network(ring(2)))
    net.network.coordination = Coordination(Gone(), 0, 2, "test")
    with pytest.raises(CommunicationError, match=r"the store of the process group has gone \(Broken pipe\)"):
        net.gather("save")


@pytest.mark.parametrize("comes", [True, False])
def test_wait_for_what_is_posted_leaves_no_waits_in_the_store(comes: bool) -> None:
    """torch logs each that ends in vain."""

    class Asked(dist.HashStore):
        def wait(self, *_: Any) -> None:
            raise AssertionError("a wait")

    store = Asked()
    first, second = (Coordination(store, agent, 2, "test") for agent in range(2))
    first.post("name", {})
    if comes:
        threading.Timer(0.03, second.post, ("name", {})).start()
    assert first.wait_posted("name", 5.0 if comes else 0.05) is comes


class Silent:
    """A channel on which nothing comes; what is sent is kept."""

    bytes_sent = 0

    def __init__(self) -> None:
        self.moved: dict[int, float] = {}
        self.sent: list[tuple[int, bytes, Any]] = []

    def channel(self) -> "Silent":
        return self

    def open(self, receiver: Any) -> None:
        """Open nothing."""

    def send(self, receiver: int, header: bytes, segments: Any, on_taken: Any) -> None:
        self.sent.append((receiver, header, segments))

    def last_progress(self, peer: int) -> float:
        return self.moved.get(peer, -math.inf)


def lone_engine(network: Network, agent: int = 0) -> AsynchronousEngine:
    """Return an agent that hears nothing."""
    member: Any = SimpleNamespace(
        agent=agent,
        n=network.n,
        network=network,
        deadline=1e-3,
        max_lag=None,
        timeout=30.0,
        transports=Silent(),
        exchange=lambda facts, _: [facts] * (network.n if agent else 1),
    )
    return AsynchronousEngine(member, bindings(CGT(step_size=0.1, threshold=1.0)), D, torch.float64)


def test_neighbour_whose_packet_makes_progress_is_not_silent() -> None:
    net = lone_engine(Network(ring(2)))
    now, channel = time.monotonic(), net._channel
    net.inbox.arrived[1] = Arrived({}, now - 100.0, {})
    channel.moved[1] = now  # pyright: ignore[reportAttributeAccessIssue]
    net.check_timeouts()
    channel.moved[1] = now - 100.0  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(CommunicationError, match=r"nothing was heard from agent 1 within 30\.0 s"):
        net.check_timeouts()


def test_loss_is_noticed_however_much_was_pushed_before_the_last_check() -> None:
    net = lone_engine(Network(ring(2)))
    net.scale = 1e15  # of a long run
    net._check_mass("save")
    net.balance += 1e-3
    with pytest.raises(CommunicationError, match=r"the sum of all trackers is wrong by 0\.001"):
        net._check_mass("save")


def test_mass_of_an_earlier_step_is_not_taken_for_a_later_one() -> None:
    """Else who goes back to a checkpoint is not waited for until it has come as far again."""
    net = lone_engine(Network(ring(2)))
    channel: Any = net._channel
    edge = Outgoing(1, channel, net.inbox, None)
    undelivered = {0: Item(torch.ones(D), adds=True)}
    edge.pause()
    edge.offer(500, undelivered)
    edge.replace(undelivered)
    edge.go_on(500)
    ((receiver, header, segments),) = channel.sent
    assert (receiver, struct.unpack_from("<qq", header)) == (1, (-1, 0))
    assert torch.equal(segments[0], torch.ones(D))


def test_late_estimate_waits_for_the_next_step_at_which_its_edge_is_there() -> None:
    """Else agents whose steps do not meet would never receive from one another."""
    network = Network(every(3, from_edges(2, [(1, 0)])))
    net = lone_engine(network)
    net.inbox.arrived[1] = Arrived(
        {1: 0}, time.monotonic(), {1: Item(torch.ones(D, dtype=torch.float64), adds=False)}
    )
    mixed = []
    for k in range(1, 7):
        net.k = k
        net.begin_step()
        mixed.append(float(net.pull(torch.zeros(1, D, dtype=torch.float64)).sum()))
        net.end_step()
    weight = next(float(network.at(k).R.matrix[0, 1]) for k in range(3) if network.at(k).R.matrix[0, 1])
    assert sorted(mixed) == [0.0] * 5 + [D * weight]


@pytest.mark.parametrize("closed", [True, False])
def test_who_was_late_is_said_even_if_nobody_closes(
    closed: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = lone_engine(Network(ring(3)), agent=1)
    engine.lags |= {0: 2, 2: 20}
    monkeypatch.setattr(AsynchronousEngine, "gather", lambda *_: None)
    if closed:
        engine.close()  # then agent 0 says it
    del engine
    said = "digrad: late: agent 2 was up to 20 steps behind, as agent 1 has seen it\n"
    assert capsys.readouterr().err == ("" if closed else said)


def test_method_whose_messages_may_not_be_late_is_refused() -> None:
    network: Any = SimpleNamespace(network=Network(example5()))
    with pytest.raises(ArgumentError, match="needs a method that pulls or pushes"):
        AsynchronousEngine(network, bindings(DSGT(step_size=0.1)), D, torch.float64)
