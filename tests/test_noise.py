"""Gradient noise: the numbers of the specification, its distributions, and that any step can be drawn alone."""

import numpy as np
import pytest

from digrad import noise
from digrad.errors import ArgumentError
from digrad.noise import AlphaStable, Gaussian, StudentT, draws, tail_index

MANY = {"first": 0, "length": 500, "n": 10, "d": 200}  # a million


def test_first_draws_are_those_of_the_specification():
    first = draws(StudentT(3.0, 1.0), 0, 0, 1, 5, 2)[0, 0]
    np.testing.assert_allclose(first, [-2.1337100049955877, -0.40450565906554625], rtol=1e-14)
    first = draws(AlphaStable(1.5, 1.0), 0, 0, 1, 5, 2)[0, 0]
    np.testing.assert_allclose(first, [-1.0530486922987885, 1.231562106566429], rtol=1e-14)


def test_distributions_are_those_that_they_are_called_after():
    t = draws(StudentT(3.0, 2.0), 1, **MANY)
    assert (abs(t) > 2 * 3.182446).mean() == pytest.approx(
        0.05, abs=1e-3
    )  # two-sided 5 % of t with 3 degrees
    stable = draws(AlphaStable(1.5, 1.0), 1, **MANY)
    assert np.cos(stable).mean() == pytest.approx(np.exp(-1), abs=2e-3)
    assert np.cos(2 * stable).mean() == pytest.approx(np.exp(-(2**1.5)), abs=2e-3)
    normal = draws(Gaussian(3.0), 1, **MANY)
    assert (normal.std(), abs(normal.mean())) == pytest.approx((3.0, 0.0), abs=0.01)
    assert draws(AlphaStable(2.0, 1.0), 1, **MANY).var() == pytest.approx(2.0, rel=0.01)


def test_any_step_and_any_agent_can_be_drawn_alone():
    model = StudentT(1.5, 0.1)
    whole = draws(model, 7, 0, 12, 5, 3)
    np.testing.assert_array_equal(draws(model, 7, 4, 3, 5, 3), whole[4:7])
    for agent in range(5):
        np.testing.assert_array_equal(
            draws(model, 7, 4, 3, 5, 3, slice(agent, agent + 1)), whole[4:7, agent : agent + 1]
        )
    assert not np.isin(draws(model, 8, 0, 12, 5, 3), whole).any()
    assert len(np.unique(whole)) == whole.size


@pytest.mark.parametrize("df", [1.2, 1.5, 3.0])
def test_tail_index_is_found_again(df):
    assert tail_index(draws(StudentT(df, 0.1), 3, **MANY), 0.001) == pytest.approx(df, rel=0.1)


def test_bad_values_are_one_line():
    for make, line in (
        (lambda: StudentT(1.0, 0.1), "`df` of StudentT must be above 1"),
        (lambda: AlphaStable(2.1, 0.1), "`alpha` of AlphaStable must be above 1 and at most 2"),
        (lambda: Gaussian(0.0), "`scale` of Gaussian must be positive"),
        (lambda: tail_index(np.ones(30)), "at least 20 count as the tail"),
        (lambda: tail_index([np.nan] * 1000), "must be finite numbers"),
        (
            lambda: noise.check_noise(StudentT, "gradient_noise", "simulate"),
            "`gradient_noise` of simulate must be",
        ),
        (
            lambda: noise.check_noise(0.1, "gradient_noise", "simulate"),
            "`gradient_noise` of simulate must be",
        ),
    ):
        with pytest.raises(ArgumentError, match=line):
            make()


def test_simulator_numpy_and_torch_add_the_same_noise():
    torch = pytest.importorskip("torch")

    import digrad as dg
    from digrad.testing.numpy_net import network
    from digrad.torch import Replicas
    from method_problems import Q5, Q5_GRAPH, Q5_START

    model, method, steps = StudentT(1.5, 0.1), dg.CGT(0.02, 5.0), 30
    options = {"steps": steps, "x0": Q5_START, "gradient_noise": model, "record_every": 10}
    problem, graph = dg.problems.example_quadratic(), dg.Network(Q5_GRAPH)
    found = dg.simulate(method, problem, graph, seed=3, **options)

    net, drawn = network(Q5_GRAPH), draws(model, 3, 0, steps, 5, 2)
    state = method.init(Q5_START, net)
    replicas = Replicas([torch.nn.ParameterList([torch.tensor(row)]) for row in Q5_START], method, graph)
    a, b = torch.tensor(Q5.a), torch.tensor(Q5.b)
    for k in range(steps):
        state = method.step(state, Q5.gradient(state.x) + drawn[k], net)
        for i, module in enumerate(replicas.models):
            (x,) = module.parameters()
            own = torch.tensor(draws(model, 3, k, 1, 5, 2, slice(i, i + 1))[0, 0])
            x.grad.copy_(a[i] * x.detach() - b[i] + own)
        replicas.step()
    np.testing.assert_allclose(found.final_x, state.x, rtol=0, atol=1e-12)
    np.testing.assert_allclose(replicas.estimate(), state.x, rtol=0, atol=1e-12)
    assert found.facts["gradient_noise"] == "StudentT(df=1.5, scale=0.1)"
    alone = dg.simulate(method, problem, graph, seed=1, **options)
    assert abs(found.final_x - alone.final_x).max() > 1e-3
    together = dg.compare({"CGT": method}, problem, graph, seeds=2, **options)["CGT"]
    np.testing.assert_allclose(together.traces[1].final_x, alone.final_x, rtol=0, atol=1e-12)
    with pytest.raises(ArgumentError, match="`gradient_noise` of simulate must be a model"):
        dg.simulate(method, problem, graph, **{**options, "gradient_noise": 0.1})
