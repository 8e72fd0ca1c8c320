import numpy as np
import pytest

from digrad import graphs, problems
from digrad.arrays import clip_rows
from digrad.errors import ArgumentError
from digrad.methods import CGT
from digrad.network import Network
from digrad.simulation import simulate
from digrad.theory import run


def test_trajectory_is_the_paper_s_recursion_and_the_simulator_s_run():
    problem, network = problems.example_quartic(), Network(graphs.example5())
    x0 = np.random.default_rng(0).normal(size=(5, 2)) * 3
    path = run(problem, network, step_size=0.05, threshold=2.0, x0=x0, steps=40)
    R, C = network.R.toarray(), network.C.toarray()
    x, y = x0, problem.local_gradients(x0)
    for k in range(40):
        assert np.allclose(path.x[k], x, atol=1e-11)
        assert np.allclose(path.y[k], y, atol=1e-10)
        following = R @ x - 0.05 * clip_rows(y, 2.0)
        y = C @ y + problem.local_gradients(following) - problem.local_gradients(x)
        x = following
    trace = simulate(CGT(step_size=0.05, threshold=2.0), problem, network, steps=40, x0=x0)
    assert np.allclose(trace.final_x, path.x[-1], atol=1e-11)


def test_trajectory_evaluates_f_at_the_weighted_average():
    problem, network = problems.example_quartic(), Network(graphs.example5())
    path = run(problem, network, step_size=0.05, threshold=2.0, x0=np.eye(5, 2), steps=7)
    assert np.allclose(path.average, np.einsum("i,kid->kd", network.u / 5, path.x))
    assert np.allclose(path.loss, [problem.loss(point) for point in path.average])
    assert np.allclose(path.grad_F, [problem.gradient(point) for point in path.average])
    assert np.allclose(path.grad[3], problem.local_gradients(path.x[3]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"steps": 0}, "steps"),
        (
            {"steps": 10**12},
            "must be at most 26843545 for 5 agents in dimension 2, because every iterate is kept",
        ),
        ({"step_size": 0.0}, "step_size"),
        ({"threshold": -1.0}, "threshold"),
    ],
)
def test_malformed_arguments_are_refused(change, message):
    options = {"step_size": 0.1, "threshold": 1.0, "steps": 3, **change}
    with pytest.raises(ArgumentError, match=message):
        run(problems.example_quadratic(), Network(graphs.example5()), **options)


def test_network_of_another_size_is_refused():
    with pytest.raises(ArgumentError, match="4 agents, but `problem` has 5"):
        run(problems.example_quadratic(), Network(graphs.ring(4)), step_size=0.1, threshold=1.0, steps=3)
