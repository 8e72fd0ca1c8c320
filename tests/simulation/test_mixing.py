import jax
import numpy as np
import pytest

import digrad as dg
from digrad.core.traffic import Charge, Traffic
from digrad.simulation.mixing import Dense, Rolls, Slots, apply, constant

GRAPHS = {
    "ring": lambda: dg.graphs.ring(80),
    "star: one agent receives from all": lambda: dg.graphs.star(90),
    "random": lambda: dg.graphs.random_digraph(70, p=0.1, seed=0),
    "few": lambda: dg.graphs.example5(),
}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("shape", [(3,), (), (2, 2)])
def test_operator_is_the_matrix(name, shape):
    network = dg.Network(GRAPHS[name]())
    x = np.random.default_rng(0).standard_normal((network.n, *shape))
    with jax.enable_x64(True):
        for mixing in (network.R, network.C, network.W):
            form = constant(mixing, np.float64)
            assert isinstance(form, Dense if network.n <= 64 else Slots)
            mixed = np.asarray(apply(form, jax.numpy.asarray(x)))
            np.testing.assert_allclose(mixed, np.tensordot(mixing.toarray(), x, 1), atol=1e-14)


def test_a_hub_does_not_widen_the_slots_of_everybody():
    form = constant(dg.Network(dg.graphs.star(2000)).R, np.float64)
    assert isinstance(form, Slots)
    assert form.sender.shape[0] <= 4
    assert form.tail_sender.size >= 1990


def test_traffic_is_counted_per_edge_and_number():
    network = dg.Network(dg.graphs.example5())
    step = [Charge("pull", size, size) for size in (3 * 4, 4)]
    traffic = Traffic(network, {"pull": "R"}, [], step)
    assert traffic.before([0, 1, 10]).tolist() == [0, 7 * (3 + 1) * 4, 70 * (3 + 1) * 4]
    mean = Charge("mean", 3 * 4, 3 * 4)
    assert Traffic(network, {"pull": "R"}, [], [*step, mean]).before(1) == 7 * 4 * 4 + 2 * 4 * 3 * 4


@pytest.mark.parametrize(
    "graph", [dg.graphs.ring(5000), dg.graphs.exponential(5000)], ids=["ring", "exponential"]
)
def test_many_agents_that_listen_alike_are_mixed_by_rolls(graph):
    network = dg.Network(graph)
    x = np.random.default_rng(0).standard_normal((network.n, 3))
    with jax.enable_x64(True):
        for mixing in (network.R, network.C):
            form = constant(mixing, np.float64)
            assert isinstance(form, Rolls)
            mixed = np.asarray(apply(form, jax.numpy.asarray(x)))
            np.testing.assert_allclose(mixed, mixing.matrix @ x, atol=1e-14)


def test_a_large_network_follows_the_trajectory_of_scipy():
    n, d, steps = 5000, 3, 10
    generator = np.random.default_rng(0)
    a, b = generator.uniform(1, 2, (n, d)), generator.standard_normal((n, d))
    problem = dg.problems.quadratic(curvature=a, linear=b)
    for graph in (dg.graphs.k_out(n, 3, seed=0), dg.graphs.exponential(n)):
        network = dg.Network(graph)
        R, C = network.R.matrix, network.C.matrix
        x, y, g = np.zeros((n, d)), np.zeros((n, d)), np.zeros((n, d))
        for _ in range(steps):
            grad = a * x - b
            y = C @ y + grad - g
            norm = np.linalg.norm(y, axis=1, keepdims=True)
            x, g = R @ x - 0.1 * y / np.maximum(norm / 2.0, 1), grad
        trace = dg.simulate(dg.CGT(step_size=0.1, threshold=2.0), problem, network, steps=steps)
        np.testing.assert_allclose(trace.final_x, x, atol=1e-12)
