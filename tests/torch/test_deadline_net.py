"""Agents that do not wait for late neighbours, as threads: whatever is late or rounded, nothing is lost."""

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from digrad import AB, CGT, DSGT, Network
from digrad.engine.verbs import bindings
from digrad.errors import ArgumentError
from digrad.graphs import every, example5, from_edges
from digrad.links import Links, coders
from digrad.torch.agent_links import Place
from digrad.torch.deadline_net import DeadlineNet
from digrad.torch.late_links import Heard, Item

N, D = 5, 3
CURVATURE = torch.linspace(1.0, 5.0, N * D, dtype=torch.float64).reshape(N, D)
LINEAR = torch.linspace(-3.0, 4.0, N * D, dtype=torch.float64).reshape(D, N).T
SOLUTION = LINEAR.sum(0) / CURVATURE.sum(0)


class Together:
    """What the threads of a run share: facts are exchanged in the order of the calls."""

    def __init__(self, network: Network, deadline: float) -> None:
        self.network, self.deadline = network, deadline
        self.barrier = threading.Barrier(N, timeout=30)
        self._facts: list[Any] = [None] * N
        self.links: list[Any] = []

    def member(self, agent: int) -> Any:
        def exchange(facts: Any, purpose: str) -> list[Any]:
            self._facts[agent] = facts
            self.barrier.wait()
            everyone = list(self._facts)
            self.barrier.wait()
            return everyone

        return SimpleNamespace(
            agent=agent,
            n=N,
            network=self.network,
            deadline=self.deadline,
            max_lag=None,
            timeout=30.0,
            exchange=exchange,
            keep=self.links.append,
            place=lambda: Place(agent, "127.0.0.1", bytes(32), sealed=False),
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
    together, found, errors = Together(network, deadline), [{} for _ in range(N)], []

    def work(agent: int) -> None:
        try:
            member = together.member(agent)
            net = DeadlineNet(member, bindings(method), D, torch.float64)
            state = method.init(torch.full((1, D), 4.0, dtype=torch.float64), net)
            for k in range(steps):
                net.k = k
                net.start_early([(verb, getattr(state, name)) for verb, name in method.early])
                time.sleep(delay(agent, k))
                grad = CURVATURE[agent] * state.x - LINEAR[agent]
                net.begin_step()
                state = method.step(state, grad, net)
                net.end_step()
            together.barrier.wait()
            net.pause()
            together.barrier.wait()
            stored = net.stored_links()
            found[agent] = {
                "x": state.x,
                "mass": state.y + sum(values for values in stored.values()) - grad,
                "bytes": net.bytes_sent,
                "late": net.late,
                "owes": any(values.any() for values in stored.values()),
            }
        except Exception as error:
            errors.append(error)
            together.barrier.abort()

    threads = [threading.Thread(target=work, args=(agent,)) for agent in range(N)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for links in together.links:
        links.close()
    assert not errors, errors
    return found


def largest(values: list[torch.Tensor]) -> float:
    return float(torch.cat(values).abs().max())


CASES = {
    "in full": (Network(example5()), 300),
    "four bits": (Network(example5(), links=Links(coder=coders.quantize(4))), 300),
    "four bits, three local steps": (
        Network(every(4, example5()), links=Links(coder=coders.quantize(4))),
        800,
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_short_and_rare_messages_lead_to_the_solution(case: str) -> None:
    found = train(CGT(step_size=0.05, threshold=2.0), *CASES[case])
    assert largest([one["x"] - SOLUTION for one in found]) < 1e-5
    assert largest([sum(one["mass"] for one in found)]) < 1e-12


@pytest.mark.parametrize("method", [CGT(step_size=0.05, threshold=2.0), AB(step_size=0.05)], ids=repr)
def test_nothing_is_lost_when_short_messages_are_late(method: Any) -> None:
    """Checked where agents stop in the middle: trackers, what is owed and what has arrived add up to the gradients."""
    network = Network(example5(), links=Links(coder=coders.quantize(4)))
    found = train(method, network, 40, deadline=1e-4, delay=lambda agent, k: 0.004 * (agent == 2))
    assert sum(one["late"] for one in found) > 0
    assert any(one["owes"] for one in found)
    assert largest([sum(one["mass"] for one in found)]) < 1e-12


def test_neighbour_that_is_rarely_spoken_to_is_waited_for() -> None:
    """One that sent something the last time is not late, however many steps ago that was."""
    found = train(
        CGT(step_size=0.05, threshold=2.0),
        Network(every(7, example5())),
        36,
        delay=lambda agent, k: 0.02 * (agent == 1 and k % 7 == 0),
    )
    assert [one["late"] for one in found] == [0] * N


def test_late_estimate_waits_for_the_next_step_at_which_its_arc_is_there() -> None:
    """Else agents whose steps do not meet would never hear one another."""
    network = Network(every(3, from_edges(2, [(1, 0)])))
    member = Together(network, deadline=1e-3).member(0)
    member.exchange, member.n = lambda facts, purpose: [facts, facts], 2
    net = DeadlineNet(member, bindings(CGT(step_size=0.1, threshold=1.0)), D, torch.float64)
    net.inbox.heard[1] = Heard(0, time.monotonic(), {1: Item(torch.ones(D, dtype=torch.float64), adds=False)})
    mixed = []
    for k in range(1, 7):
        net.k = k
        net.begin_step()
        mixed.append(float(net.pull(torch.zeros(1, D, dtype=torch.float64)).sum()))
        net.end_step()
    net._links.close()
    weight = next(float(network.at(k).R.matrix[0, 1]) for k in range(3) if network.at(k).R.matrix[0, 1])
    assert sorted(mixed) == [0.0] * 5 + [D * weight]


def test_method_whose_messages_may_not_be_late_is_refused() -> None:
    network: Any = SimpleNamespace(network=Network(example5()))
    with pytest.raises(ArgumentError, match="needs a method that pulls or pushes"):
        DeadlineNet(network, bindings(DSGT(step_size=0.1)), D, torch.float64)
