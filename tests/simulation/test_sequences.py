"""Networks that change with the iteration: the figures of the specification, exactness, traffic, and every method."""

import numpy as np
import pytest

import digrad as dg
from digrad.core.net import bindings
from method_cases import CASES, of_each_kind

EXAMPLE = dg.graphs.example5()
QUADRATIC = dg.problems.example_quadratic()
MINIMUM = np.full(2, 1 / 3)
CGT, AB = dg.CGT(step_size=0.05, threshold=2.0), dg.AB(step_size=0.05)
PUSH_PULL, PUSH_DIGING = dg.PushPull(step_size=0.05), dg.PushDIGing(step_size=0.05)


def eight_agents():
    """The quadratic of the example, repeated for eight agents."""
    local = QUADRATIC.local
    agents = np.arange(8) % 5
    return dg.problems.quadratic(curvature=local.curvature[agents], linear=local.linear[agents])


def errors(method, network, steps, problem=QUADRATIC):
    """Return max_i ||x_i - x*|| at k = 0, ..., steps."""
    start = np.tile([10.0, -10.0], (problem.n_agents, 1))
    minimum = problem.solve().x
    simulator = dg.Simulator(method, problem, network, keep=_keep)
    _, rows = simulator.run(simulator.init(start), steps + 1)
    return np.linalg.norm(rows["x"] - minimum, axis=-1).max(axis=1)


def _keep(method, before, after, grad):
    return {"x": method.estimate(before)}


def settles(found):
    """Return the first k from which the error stays within 1e-8."""
    return int(np.flatnonzero(found > 1e-8)[-1]) + 1


SPLIT_2, SPLIT_7 = dg.graphs.split(EXAMPLE, 2), dg.graphs.split(EXAMPLE, 7)
ONE_PEER = dg.graphs.one_peer_exponential(8)

# Measured with a NumPy reference: k8 of each method, and the errors of CGT at k = 100 and 200.
ORACLES = {
    "perfect": (EXAMPLE, (247, 130, 130, 131), (4.167279, 1.923222e-5)),
    "split 2": (SPLIT_2, (341, 257, 217, 286), (4.180000, 3.641691e-4)),
    "split 7": (SPLIT_7, (467, 367, 363, 376), (4.234280, 4.543926e-2)),
    "one-peer": (ONE_PEER, (263, 146, 147, 147), (4.344398, 8.101580e-5)),
}


@pytest.mark.parametrize(
    "label",
    [
        "split 2",
        *(pytest.param(label, marks=pytest.mark.slow) for label in ("perfect", "split 7", "one-peer")),
    ],
)
def test_periodic_networks_give_the_figures_of_the_specification(label):
    graph, settled, (at_100, at_200) = ORACLES[label]
    problem = eight_agents() if graph.n == 8 else QUADRATIC
    found = [errors(method, dg.Network(graph), 600, problem) for method in (CGT, AB, PUSH_PULL, PUSH_DIGING)]
    assert tuple(settles(one) for one in found) == settled
    np.testing.assert_allclose(found[0][[100, 200]], [at_100, at_200], rtol=1e-6)


EXACT = {
    "split": (dg.graphs.split(EXAMPLE, 3), 0.02),
    "random edges": (dg.graphs.random_edges(EXAMPLE, 0.5, seed=0), 0.01),
    "local steps": (dg.graphs.every(5, EXAMPLE), 0.01),
    "one-peer": (ONE_PEER, 0.02),
}


@pytest.mark.parametrize(
    ("name", "label"),
    [
        pytest.param(name, label, marks=[] if name == "CGT" or label == "split" else [pytest.mark.slow])
        for name in ("CGT", "AB", "PushDIGing")
        for label in EXACT
    ],
)
def test_tracking_is_exact_on_networks_that_are_never_connected(label, name):
    graph, step_size = EXACT[label]
    problem = eight_agents() if graph.n == 8 else QUADRATIC
    method = dg.METHODS[name](step_size=step_size, **({"threshold": 2.0} if name == "CGT" else {}))
    trace = dg.simulate(method, problem, dg.Network(graph), steps=6000, x0=[10.0, -10.0], record_every=1000)
    assert np.linalg.norm(trace.final_x - problem.solve().x, axis=1).max() < 1e-9


@pytest.mark.parametrize("case", of_each_kind(CASES, "FROST"))
def test_every_method_mixes_with_the_matrices_of_the_iteration(case):
    graph = dg.graphs.sequence([dg.graphs.ring(5), dg.graphs.ring(5).reversed(), dg.graphs.complete(5)])
    networks = [dg.Network(graph.at(k)) for k in range(3)]
    x0 = np.random.default_rng(1).standard_normal((5, 2))
    state, matrices = None, bindings(case.method)
    for k in range(7):
        net = _NumPy(
            {primitive: getattr(networks[k % 3], matrix).toarray() for primitive, matrix in matrices.items()}
        )
        state = case.method.init(x0, net) if state is None else state
        state = case.method.step(state, QUADRATIC.local_gradients(case.method.query(state)), net)
    if hasattr(case.method, "learns"):
        with pytest.raises(
            dg.DigradError, match="does not settle when the network changes with the iteration"
        ):
            dg.simulate(case.method, QUADRATIC, dg.Network(graph), steps=7)
        return
    trace = dg.simulate(case.method, QUADRATIC, dg.Network(graph), steps=7, x0=x0, record_every=7)
    np.testing.assert_allclose(trace.final_x, case.method.estimate(state), rtol=0, atol=1e-12)


class _NumPy:
    def __init__(self, matrices):
        self.matrices, self.one_hot = matrices, np.eye(5)

    def __getattr__(self, primitive):
        return lambda x: self.apply(primitive, x)

    def apply(self, primitive, x):
        if isinstance(x, tuple):
            return tuple(self.apply(primitive, part) for part in x)
        return np.broadcast_to(x.mean(0), x.shape) if primitive == "mean" else self.matrices[primitive] @ x


def test_iterations_without_edges_send_nothing_and_mix_with_the_identity():
    trace = dg.simulate(CGT, QUADRATIC, dg.Network(dg.graphs.every(5, EXAMPLE)), steps=11)
    full = 7 * 2 * 2 * 8  # edges, arrays, dimension, bytes of a number
    assert np.diff(trace.bytes_sent).tolist() == [full, 0, 0, 0, 0] * 2 + [full]


@pytest.mark.parametrize(
    "graph", [dg.graphs.split(EXAMPLE, 3), dg.graphs.random_edges(EXAMPLE, 0.4, seed=3), ONE_PEER], ids=repr
)
def test_bytes_are_those_of_the_edges_of_each_iteration(graph):
    problem = eight_agents() if graph.n == 8 else QUADRATIC
    trace = dg.simulate(CGT, problem, dg.Network(graph), steps=20)
    assert np.diff(trace.bytes_sent).tolist() == [graph.at(k).n_edges * 2 * 2 * 8 for k in range(20)]


@pytest.mark.parametrize("chunk", [7, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "graph", [dg.graphs.split(EXAMPLE, 3), dg.graphs.random_edges(EXAMPLE, 0.5)], ids=repr
)
def test_chunks_do_not_change_a_bit(graph, chunk, chunks_of):
    network = dg.Network(graph)
    whole = dg.simulate(CGT, QUADRATIC, network, steps=60)
    chunks_of(chunk)
    np.testing.assert_array_equal(dg.simulate(CGT, QUADRATIC, network, steps=60).final_x, whole.final_x)


def test_many_agents_use_sparse_weights_of_the_iteration():
    graph = dg.graphs.random_digraph(90, 0.03, seed=0)
    rng = np.random.default_rng(0)
    problem = dg.problems.quadratic(curvature=1 + rng.random((90, 3)), linear=rng.standard_normal((90, 3)))
    for changing in (dg.graphs.split(graph, 3), dg.graphs.random_edges(graph, 0.5)):
        x, y, g = np.zeros((90, 3)), 0.0, 0.0
        for k in range(12):
            now, grad = dg.Network(changing.at(k), partial=True), problem.local_gradients(x)
            y, g = (now.C.matrix @ y if k else 0) + grad - g, grad
            x = now.R.matrix @ x - 0.05 * y
        trace = dg.simulate(AB, problem, dg.Network(changing), steps=12, record_every=12)
        np.testing.assert_allclose(trace.final_x, x, rtol=0, atol=1e-12)


def test_own_matrices_in_turn_equal_their_product_with_numpy():
    R0, R1 = np.eye(2), np.array([[0.25, 0.75], [0.5, 0.5]])
    both = dg.graphs.complete(2)
    network = dg.Network([dg.Network(both, R=R0, C=R0.T, partial=True), dg.Network(both, R=R1, C=R1.T)])
    problem = dg.problems.quadratic(curvature=np.ones((2, 1)), linear=np.array([[0.0], [2.0]]))
    trace = dg.simulate(dg.DGD(step_size=0.1, mixing="row"), problem, network, steps=2, x0=[[1.0], [3.0]])
    x = np.array([[1.0], [3.0]])
    for R in (R0, R1):
        x = R @ x - 0.1 * problem.local_gradients(x)
    np.testing.assert_allclose(trace.final_x, x, rtol=0, atol=1e-14)


def test_averages_on_a_changing_network_are_plain_means():
    plain, weighted = (
        dg.simulate(CGT, QUADRATIC, dg.Network(SPLIT_2), steps=30, record=dg.Record(average=average))
        for average in ("plain", "weighted")
    )
    np.testing.assert_array_equal(plain.loss, weighted.loss)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        (
            dg.graphs.split(EXAMPLE, 2),
            "needs doubly stochastic weights for `mix` at every iteration, but at k = ",
        ),
        (dg.graphs.random_edges(EXAMPLE, 0.5), "which randomly thinned digraphs do not have"),
    ],
)
def test_methods_that_need_balanced_weights_are_refused_where_there_are_none(graph, message):
    with pytest.raises(dg.DigradError, match=message):
        dg.simulate(dg.DGD(step_size=0.1), QUADRATIC, dg.Network(graph), steps=3)


def test_a_method_that_pulls_only_runs_on_a_graph_with_one_root():
    network = dg.Network(dg.graphs.out_star(5))
    trace = dg.simulate(dg.DGD(step_size=0.01, mixing="row"), QUADRATIC, network, steps=10)
    assert trace.verdict == "not converged"
    with pytest.raises(dg.DigradError, match="`CGT` needs column-stochastic weights for `push`"):
        dg.simulate(CGT, QUADRATIC, network, steps=10)


def test_one_step_of_a_sequence_is_refused_alone():
    with pytest.raises(dg.DigradError, match="one step of a sequence"):
        dg.simulate(CGT, QUADRATIC, dg.Network(EXAMPLE, partial=True), steps=3)


def test_a_sequence_of_one_network_takes_the_steps_of_that_network():
    alone = dg.Network(EXAMPLE)
    one = dg.simulate(CGT, QUADRATIC, dg.Network([alone]), steps=60)
    np.testing.assert_array_equal(one.final_x, dg.simulate(CGT, QUADRATIC, alone, steps=60).final_x)
