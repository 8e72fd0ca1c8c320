"""Networks that misbehave, in replicas: the equations and their invariants, whatever the network and the policy."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

import digrad as dg
from digrad.engine.fates import make_fates
from digrad.links import Bursts, Clock, FixedDelay, Links, Uniform, coders
from digrad.torch import Replicas
from link_transcription import PlainNet, run
from torch_models import Point

STEPS = 12
METHODS: dict[str, Any] = {
    "CGT": dg.CGT(step_size=0.05, threshold=2.0),
    "AB": dg.AB(step_size=0.05),
    "PushPull": dg.PushPull(step_size=0.05),
    "PushDIGing": dg.PushDIGing(step_size=0.01),
}
LATE = Clock(compute=Uniform(0.0, 1.5), latency=Uniform(0.0, 2.0), bandwidth=100.0, deadline=1.0)

links_of = st.fixed_dictionaries(
    {
        "loss": st.sampled_from([0.0, 0.4, Bursts(0.3, 3)]),
        "delay": st.sampled_from([0, 2, FixedDelay(1)]),
        "awake": st.sampled_from([1.0, 0.6]),
        "clock": st.sampled_from([None, None, LATE]),
        "pull": st.sampled_from(["self", "last", "renormalise"]),
        "push": st.sampled_from(["sum", "sum", "keep"]),
        "seed": st.integers(0, 2**63 - 1),
    }
)
graphs = st.builds(
    lambda n, seed, turns: (
        dg.graphs.split(graph, turns) if turns > 1 else graph
        for graph in [dg.graphs.random_digraph(n, 0.3, seed=seed)]
    ),
    st.integers(2, 6),
    st.integers(0, 99),
    st.integers(1, 2),
).map(next)


class Rows(nn.Module):
    """The point of one agent."""

    def __init__(self, x: torch.Tensor) -> None:
        super().__init__()
        self.x = nn.Parameter(x.clone())


def losses(n: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed % 1000)
    return 1 + rng.random((n, d)), rng.standard_normal((n, d)), rng.standard_normal((n, d))


def built(described: dict[str, Any]) -> Links:
    """Return links, without the combinations that are refused."""
    is_late = described["delay"] != 0 or described["clock"] is not None
    assume(not (described["clock"] and described["delay"]))
    assume(not (described["push"] == "keep" and is_late))
    return Links(**described)


def replicas_of(method: Any, network: Any, x0: np.ndarray) -> Replicas:
    return Replicas([Rows(torch.tensor(row)) for row in x0], method, network)


def advance(replicas: Replicas, curvature: Any, linear: Any) -> None:
    for agent, model in enumerate(replicas.models):
        x: Any = model.x
        grad = torch.tensor(curvature[agent]) * x.detach() - torch.tensor(linear[agent])
        x.grad.copy_(grad)
    replicas.step()


def owed(replicas: Replicas, call: int) -> Any:
    """Return the sum of what is pushed as array number ``call`` of a step and not yet received."""
    books = replicas.state_dict()["state"].get("links", {})
    return sum((book.sum(0) for name, book in books.items() if name.startswith(f"owed {call} of ")), 0.0)


@settings(max_examples=20, deadline=None)
@given(
    graph=graphs, method=st.sampled_from(["CGT", "AB", "PushPull"]), described=links_of, d=st.integers(1, 4)
)
def test_trackers_and_what_is_owed_sum_to_the_gradients_at_every_step(graph, method, described, d):
    curvature, linear, x0 = losses(graph.n, d, described["seed"])
    replicas = replicas_of(METHODS[method], dg.Network(graph, links=built(described)), x0)
    for _ in range(STEPS):
        advance(replicas, curvature, linear)
        state: Any = replicas.state_fields
        error = (state.y.sum(0) + owed(replicas, 0) - state.g.sum(0)).abs().max()
        assert error <= 1e-12 * (1 + state.g.abs().sum())


@settings(max_examples=20, deadline=None)
@pytest.mark.filterwarnings("ignore:.*divides by a weight")
@given(graph=graphs, described=links_of, d=st.integers(1, 4))
def test_push_sum_keeps_its_weights_and_moves_by_the_steps_taken(graph, described, d):
    network = dg.Network(graph, links=built({**described, "pull": "self"}))
    curvature, linear, x0 = losses(graph.n, d, described["seed"])
    method, table = METHODS["PushDIGing"], make_fates(network, packet=8 * (2 * d + 1))
    replicas = replicas_of(method, network, x0)
    assert table is not None
    for awake in torch.tensor(table.awake(0, STEPS)):
        before: Any = type(replicas.state_fields)(*(one.clone() for one in replicas.state_fields))
        mass = before.x.sum(0) + owed(replicas, 1)
        advance(replicas, curvature, linear)
        after: Any = replicas.state_fields
        taken = method.step_size * (after.y * awake[:, None]).sum(0)
        size = 1 + before.x.abs().sum() + before.y.abs().sum()
        assert (after.w.sum() + owed(replicas, 2) - graph.n).abs().max() <= 1e-12 * graph.n
        assert (after.x.sum(0) + owed(replicas, 1) - (mass - taken)).abs().max() <= 1e-12 * size


@settings(max_examples=20, deadline=None)
@given(
    graph=graphs, method=st.sampled_from(["CGT", "AB", "PushPull"]), described=links_of, d=st.integers(1, 4)
)
def test_replicas_compute_the_equations(graph, method, described, d):
    links = built({**described, "push": "sum", "pull": "self"})
    network = dg.Network(graph, links=links)
    curvature, linear, x0 = losses(graph.n, d, described["seed"])
    table = make_fates(network, packet=16 * d)
    assert table is not None
    R, C = (np.stack([getattr(network.at(k), m).toarray() for k in range(STEPS)]) for m in "RC")
    net = PlainNet(table.arcs, R, C, table.ages(0, STEPS), table.awake(0, STEPS))
    states = run(METHODS[method], lambda x: curvature * x - linear, x0, net, STEPS)
    replicas = replicas_of(METHODS[method], network, x0)
    for _ in range(STEPS):
        advance(replicas, curvature, linear)
    np.testing.assert_allclose(replicas.estimate().numpy(), METHODS[method].estimate(states[-1]), atol=1e-11)


@settings(max_examples=20, deadline=None)
@given(graph=graphs, described=links_of, d=st.integers(1, 4))
def test_agents_that_agree_go_on_agreeing_whatever_arrives(graph, described, d):
    links = built({**described, "push": "sum"})
    at = np.tile(np.linspace(-2.0, 3.0, d), (graph.n, 1))
    method = dg.DGD(step_size=1e-300, mixing="row")
    replicas = replicas_of(method, dg.Network(graph, links=links), at)
    for _ in range(STEPS):
        advance(replicas, np.ones((graph.n, d)), np.zeros((graph.n, d)))
    np.testing.assert_allclose(replicas.estimate().numpy(), at, rtol=1e-13, atol=1e-13)


def test_replicas_without_links_know_of_no_packets():
    replicas = Replicas(Point(), METHODS["CGT"], dg.graphs.example5())
    assert replicas.link_metrics() == {}
    assert replicas.slowest() is None


@settings(max_examples=15, deadline=None)
@given(
    graph=graphs,
    method=st.sampled_from(sorted(METHODS)),
    pull=st.sampled_from(["self", "last", "renormalise"]),
    push=st.sampled_from(["sum", "keep"]),
    clock=st.sampled_from([None, Clock(compute=0.1), Clock(compute=0.1, latency=0.2, deadline=1.0)]),
    d=st.integers(1, 4),
)
def test_links_that_do_nothing_change_nothing(graph, method, pull, push, clock, d):
    assume(not (push == "keep" and clock and clock.deadline))
    links = Links(pull=pull, push=push, clock=clock)
    curvature, linear, x0 = losses(graph.n, d, d)
    pair = [replicas_of(METHODS[method], dg.Network(graph, links=one), x0) for one in (links, None)]
    for _ in range(STEPS):
        for replicas in pair:
            advance(replicas, curvature, linear)
    fated, plain = (replicas.estimate() for replicas in pair)
    assert (fated - plain).abs().max() <= 1e-13 * (1 + plain.abs().max())


@settings(max_examples=15, deadline=None)
@given(
    graph=graphs,
    coder=st.sampled_from(
        [coders.top_k(1), coders.random_k(1), coders.sign(), coders.quantize(2), coders.bfloat16]
    ),
    described=links_of,
    d=st.integers(1, 4),
)
def test_coded_and_noisy_trackers_keep_their_sum(graph, coder, described, d):
    links = built({**described, "coder": coder, "noise": 0.1})
    curvature, linear, x0 = losses(graph.n, d, described["seed"])
    replicas = replicas_of(METHODS["CGT"], dg.Network(graph, links=links), x0)
    for _ in range(STEPS):
        advance(replicas, curvature, linear)
    state: Any = replicas.state_fields
    error = (state.y.sum(0) + owed(replicas, 0) - state.g.sum(0)).abs().max()
    assert error <= 1e-11 * (1 + state.g.abs().sum())
