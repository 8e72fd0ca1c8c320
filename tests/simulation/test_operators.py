import jax
import numpy as np
import pytest

import digrad as dg
from digrad.engine.traffic import Meter, Traffic
from digrad.simulation.net import SimulatedNet
from digrad.simulation.operators import Dense, Slots, apply, constant

GRAPHS = {
    "ring": lambda: dg.graphs.ring(80),
    "star: one agent hears all": lambda: dg.graphs.star(90),
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


def test_traffic_is_counted_per_arc_and_number():
    network = dg.Network(dg.graphs.example5())
    net = SimulatedNet({"pull": constant(network.R, np.float64)}, 5)
    x = jax.numpy.ones((5, 3), np.float32)
    net.pull((x, x[:, :1]))
    traffic = Traffic(network, {"pull": "R"}, start=Meter(), step=net.meter)
    assert traffic.before([0, 1, 10]).tolist() == [0, 7 * (3 + 1) * 4, 70 * (3 + 1) * 4]
    net.mean(x)
    assert Traffic(network, {"pull": "R"}, Meter(), net.meter).before(1) == 7 * 4 * 4 + 2 * 4 * 3 * 4
