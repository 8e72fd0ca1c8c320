"""Optimizers as local directions: what they agree with, what they conserve, where they end."""

import numpy as np
import optax
import pytest
import torch

import digrad as dg
from digrad.directions import DirectedCGT, from_optax, from_torch
from digrad.errors import ArgumentError
from digrad.torch import Checkpoints, Replicas
from method_problems import Q5, Q5_GRAPH, Q5_START

PROBLEM, NETWORK = dg.problems.example_quadratic(), dg.Network(Q5_GRAPH)
STEPS = 60


def adam(x0, steps, rate, threshold):
    """Adam on clipped trackers, written down from its equations."""
    R, C = NETWORK.R.toarray(), NETWORK.C.toarray()
    x, y, g, m, v = x0.copy(), 0 * x0, 0 * x0, 0 * x0, 0 * x0
    for k in range(1, steps + 1):
        grad = Q5.gradient(x)
        y, g = C @ y + grad - g, grad
        t = y * np.minimum(1, threshold / np.linalg.norm(y, axis=1, keepdims=True))
        m, v = 0.9 * m + 0.1 * t, 0.999 * v + 0.001 * t**2
        x = R @ x - rate * (m / (1 - 0.9**k)) / (np.sqrt(v / (1 - 0.999**k)) + 1e-8)
    return x


def simulate(direction, **options):
    return dg.simulate(
        DirectedCGT(direction, 2.0), PROBLEM, NETWORK, x0=Q5_START, **({"steps": STEPS} | options)
    )


def replicas(direction):
    models = [torch.nn.ParameterList([torch.tensor(row)]) for row in Q5_START]
    return Replicas(models, DirectedCGT(direction, 2.0), NETWORK)


def train(agents, steps):
    a, b = torch.tensor(Q5.a), torch.tensor(Q5.b)
    for _ in range(steps):
        agents.zero_grad()
        for i, model in enumerate(agents.models):
            (x,) = model.parameters()
            (0.5 * a[i] @ x**2 - b[i] @ x).backward()
        agents.step()
    return agents.estimate().numpy()


def test_gradient_descent_as_direction_is_cgt():
    expected = dg.simulate(dg.CGT(0.05, 2.0), PROBLEM, NETWORK, steps=STEPS, x0=Q5_START).final_x
    np.testing.assert_allclose(simulate(from_optax(optax.sgd(0.05))).final_x, expected, atol=1e-12)
    trained = train(replicas(from_torch(lambda p: torch.optim.SGD(p, lr=0.05))), STEPS)
    np.testing.assert_allclose(trained, expected, atol=1e-12)


def test_adam_as_direction_is_its_equations_in_both_engines():
    expected = adam(Q5_START, STEPS, 0.1, 2.0)
    np.testing.assert_allclose(simulate(from_optax(optax.adam(0.1))).final_x, expected, atol=1e-9)
    trained = train(replicas(from_torch(lambda p: torch.optim.Adam(p, lr=0.1))), STEPS)
    np.testing.assert_allclose(trained, expected, atol=1e-9)


def test_trackers_sum_to_the_gradients_whatever_the_direction():
    agents = replicas(from_torch(lambda p: torch.optim.Adam(p, lr=0.1)))
    for _ in range(20):
        train(agents, 1)
        state = agents.state_fields
        torch.testing.assert_close(state.y.sum(0), state.g.sum(0), rtol=0, atol=1e-11)


def test_without_noise_momentum_and_adam_end_at_the_minimum():
    ends = {
        "momentum": simulate(from_optax(optax.sgd(0.02, momentum=0.5)), steps=2000),
        "adam": simulate(from_optax(optax.adam(0.01)), steps=5000),
    }
    errors = {name: abs(trace.final_x - Q5.minimum).max() for name, trace in ends.items()}
    assert errors["momentum"] < 1e-9
    assert errors["adam"] < 1e-11


def test_memory_is_part_of_checkpoints(tmp_path):
    direction = from_torch(lambda p: torch.optim.Adam(p, lr=0.1))
    whole = train(replicas(direction), 30)
    first = replicas(direction)
    train(first, 12)
    Checkpoints(tmp_path, first).save()
    second = replicas(direction)
    Checkpoints(tmp_path, second).resume()
    np.testing.assert_array_equal(train(second, 18), whole)


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: from_optax(3), "`transform` of from_optax must be an optax transformation"),
        (lambda: from_torch(3), "`make` of from_torch must be a function"),
        (lambda: DirectedCGT(optax.adam, 1.0), "`direction` of DirectedCGT must be made by"),
        (lambda: simulate(from_torch(lambda p: torch.optim.SGD(p, lr=0.1))), "is for the torch engines"),
        (lambda: replicas(from_optax(optax.sgd(0.1))), "is for the simulator"),
        (lambda: simulate(from_optax(optax.add_noise(0.1, 0.9, 0))), "the key of random noise"),
    ],
)
def test_what_is_no_direction_is_one_line(make, line):
    with pytest.raises(ArgumentError, match=line):
        make()
