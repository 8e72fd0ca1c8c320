"""R and C on spanning trees with a common root: who converges there, how fast, and what is refused."""

import numpy as np
import pytest
import torch

import digrad as dg
from digrad import graphs
from digrad.errors import MixingError
from digrad.network import column_stochastic, row_stochastic
from digrad.testing.numpy_net import NumPyNet, final, run
from digrad.torch import Replicas
from method_problems import Q5, Q5_START, Quadratic, error

TREES = graphs.spanning_trees(graphs.example5())
LOOPS = {"R": row_stochastic(TREES.outward), "C": column_stochastic(TREES.inward)}
# The parent alone counts, and the root keeps what it has: as BTPP and STPP are published.
BARE = {
    "R": np.array(
        [[1, 0, 0, 0, 0], [1, 0, 0, 0, 0], [1, 0, 0, 0, 0], [0, 0, 1, 0, 0], [0, 1, 0, 0, 0]], float
    ),
    "C": np.array(
        [[1, 0, 0, 0, 1], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0], [0, 0, 1, 0, 0], [0, 1, 0, 1, 0]], float
    ),
}
NETWORKS = {
    name: dg.Network(graphs.example5(), **weights) for name, weights in (("loops", LOOPS), ("bare", BARE))
}
METHODS = {
    "AB": (dg.AB(0.01), 1200),
    "PushPull": (dg.PushPull(0.01), 1200),
    "AugPushPull": (dg.AugPushPull(0.01), 1200),
    "CGT": (dg.CGT(0.01, 5.0), 1600),
    "SoftCGT": (dg.SoftCGT(0.01, 5.0), 2400),
    "momentum": (dg.Tracking(0.005, estimator=dg.estimators.momentum(0.5)), 1600),
}


def dense(network):
    return NumPyNet(network.n, R=network.R.toarray(), C=network.C.toarray())


@pytest.mark.parametrize("weights", NETWORKS)
@pytest.mark.parametrize("name", METHODS)
def test_methods_with_two_matrices_are_exact_on_trees(name, weights):
    method, steps = METHODS[name]
    assert error(final(method, dense(NETWORKS[weights]), Q5.gradient, Q5_START, steps), Q5.minimum)[1] < 1e-12


def test_normalized_method_ends_in_a_band_of_the_step_size_on_trees():
    net = dense(NETWORKS["loops"])
    errors = [
        error(final(dg.NormalizedAB(s), net, Q5.gradient, Q5_START, int(50 / s)), Q5.minimum)[1]
        for s in (0.1, 0.01)
    ]
    assert errors[0] < 0.5
    assert errors[1] < errors[0] / 3


@pytest.mark.parametrize(("name", "weights"), [("AB", "bare"), ("CGT", "loops")])
def test_trees_converge_in_the_simulator_and_torch_takes_the_same_steps(name, weights):
    method, steps = METHODS[name]
    network = NETWORKS[weights]
    trace = dg.simulate(
        method, dg.problems.example_quadratic(), network, x0=Q5_START, steps=steps, record_every=steps // 4,
        record=dg.Record(average="weighted"),
    )  # fmt: skip
    assert trace.verdict == "converged"
    assert error(trace.final_x, Q5.minimum)[1] < 1e-9
    assert trace.bytes_sent[-1] == steps * 8 * 8 * 2  # 4 edges of each tree, 2 numbers of 8 bytes

    steps = 60
    agents = Replicas([torch.nn.ParameterList([torch.tensor(row)]) for row in Q5_START], method, network)
    a, b = torch.tensor(Q5.a), torch.tensor(Q5.b)
    for _ in range(steps):
        agents.zero_grad()
        for i, model in enumerate(agents.models):
            (x,) = model.parameters()
            x.grad.copy_(a[i] * x.detach() - b[i])
        agents.step()
    found = agents.estimate().numpy()
    np.testing.assert_allclose(found, final(method, dense(network), Q5.gradient, Q5_START, steps), atol=1e-11)


def test_first_steps_on_three_agents_are_those_of_the_specification():
    problem = Quadratic(a=np.ones((3, 1)), b=np.array([[0.0], [3.0], [6.0]]))
    R = np.array([[1, 0, 0], [0.5, 0.5, 0], [0.5, 0, 0.5]])
    C = np.array([[1, 0.5, 0.5], [0, 0.5, 0], [0, 0, 0.5]])
    states = run(dg.AB(0.1), NumPyNet(3, R=R, C=C), problem.gradient, np.zeros((3, 1)), 3)
    np.testing.assert_allclose(np.array([s.x[:, 0] for s in states[1:]]),
                               [[0, 0.3, 0.6], [0.45, 0.27, 0.54], [1.035, 0.423, 0.621]], atol=1e-15)  # fmt: skip
    assert final(dg.AB(0.1), NumPyNet(3, R=R, C=C), problem.gradient, np.zeros((3, 1)), 500) == pytest.approx(
        3.0
    )
    server = np.array([[1.0, 0, 0]] * 3)
    x = final(dg.PushPull(0.1), NumPyNet(3, R=server, C=server.T), problem.gradient, np.zeros((3, 1)), 3)
    np.testing.assert_allclose(x, 1.71, rtol=1e-14)
    network = dg.Network(graphs.star(3), R=server, C=server.T)  # accepted: the root keeps its value
    assert network.gain == 3.0


def test_perron_vectors_and_figures_of_trees():
    network = NETWORKS["loops"]
    np.testing.assert_array_equal(network.u, [5, 0, 0, 0, 0])
    np.testing.assert_array_equal(network.v, [5, 0, 0, 0, 0])
    assert network.gain == 5.0
    np.testing.assert_array_equal(network.common_roots, [0])
    described = network.describe()
    assert (described.sinks, described.gain, described.rho_C, described.kappa_v) == ((0,), 5.0, 0.5, 1.0)
    assert "gain u.v/n          5.000000" in str(described)
    assert "sinks               1 (0)" in str(described)


PATH = graphs.from_edges(5, [(0, 1), (1, 2), (2, 3), (3, 4)])


@pytest.mark.parametrize("method", [dg.AB(0.01), dg.CGT(0.01, 5.0), dg.PushPull(0.01), dg.Tracking(0.01)])
def test_pair_without_a_common_root_is_refused_with_the_reason(method):
    network = dg.Network(graphs.example5(), R=row_stochastic(TREES.outward), C=column_stochastic(PATH))
    assert network.gain == 0.0
    reason = (
        "reaches all others along R and that all others reach along C, but the former are 0 and the latter 4"
    )
    with pytest.raises(MixingError, match=reason):
        dg.simulate(method, dg.problems.example_quadratic(), network, steps=1)
    with pytest.raises(MixingError, match=reason):
        Replicas(torch.nn.Linear(1, 1), method, network)
    with pytest.raises(MixingError, match=reason):  # the union of all edges counts where they change
        dg.simulate(
            method,
            dg.problems.example_quadratic(),
            dg.Network([dg.Network(PATH, partial=True)]),
            steps=1,
        )


@pytest.mark.parametrize(
    "method", [dg.SGP(0.01), dg.PushDIGing(0.01), dg.ADDOPT(0.01), dg.SONATA(0.01), dg.FROST(0.01)]
)
def test_method_that_divides_by_a_weight_that_vanishes_is_refused_on_trees(method):
    with pytest.raises(
        MixingError, match=f"`{type(method).__name__}` needs .* that connect all agents strongly"
    ):
        dg.simulate(method, dg.problems.example_quadratic(), NETWORKS["loops"], steps=1)


def test_certificates_say_that_trees_are_not_covered():
    certificate = dg.theory.certify(
        dg.problems.example_quadratic(), NETWORKS["loops"], step_size=0.01, threshold=5.0, x0=Q5_START[0]
    )
    assert certificate.verdict == "not covered"
    assert "not strongly connected" in str(certificate)
