"""Tests of `dg.minimize`."""

import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

import digrad as dg
from digrad.errors import ArgumentError

LOSSES = [lambda x, i=i: ((x - i) ** 2).sum() + (x**4).sum() for i in range(3)]
RING = dg.graphs.ring(3)


@pytest.fixture(scope="module")
def from_afar():
    return dg.minimize(LOSSES, [5.0, -5.0], RING)


def test_list_of_functions_is_minimised_from_a_far_start(from_afar):
    found = from_afar
    root = 0.58975  # of 4 x^3 + 2 (x - 1) = 0
    assert found.success
    np.testing.assert_allclose(found.x, [root, root], atol=1e-4)
    assert np.linalg.norm(found.jac) < 1e-5
    assert found.x_agents.shape == (3, 2)
    assert isinstance(found.method, dg.CGT)


def test_a_constant_in_the_losses_changes_nothing(from_afar):
    found = dg.minimize([lambda x, f=f: f(x) + 1000.0 for f in LOSSES], [5.0, -5.0], RING)
    assert found.success
    assert found.method.step_size == pytest.approx(from_afar.method.step_size, rel=0.01)
    np.testing.assert_allclose(found.x, from_afar.x, atol=1e-5)


def test_one_loss_with_data_on_a_networkx_graph_ends_where_least_squares_does():
    rng = np.random.default_rng(0)
    data = [(rng.normal(size=(20, 2)), rng.normal(size=20)) for _ in range(3)]
    found = dg.minimize(
        lambda w, batch: jnp.mean((batch[0] @ w - batch[1]) ** 2),
        np.zeros(2),
        nx.DiGraph([(0, 1), (1, 2), (2, 0)]),
        data=data,
    )
    expected = np.linalg.lstsq(
        np.vstack([a for a, _ in data]), np.concatenate([b for _, b in data]), rcond=None
    )[0]
    assert found.success
    np.testing.assert_allclose(found.x, expected, atol=1e-5)


def test_too_few_steps_are_no_success_and_said_so():
    found = dg.minimize(LOSSES, [5.0, 5.0], RING, method=dg.CGT(1e-4, 1.0), steps=3)
    assert not found.success
    assert found.message == "Not within 1e-06 after 3 steps; give more of them."


def test_a_start_at_the_minimum_of_every_agent_is_the_answer():
    found = dg.minimize([lambda x: (x**2).sum()] * 3, [0.0, 0.0], RING)
    assert (found.success, found.nit, found.x.tolist()) == (True, 0, [0.0, 0.0])


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ((LOSSES[:2], [0.0], RING), "one function per agent, 3 of them, but it holds 2"),
        ((LOSSES[0], [0.0], RING), "`data` must hold one batch per agent"),
        ((3, [0.0], RING), "must be a function with `data`, a list of functions, or a Problem"),
        ((LOSSES, [[0.0]], RING), r"`x0` of minimize must be a vector \[d\], but has shape \[1, 1\]"),
        ((LOSSES, [], RING), r"`x0` of minimize must be a vector \[d\], but has shape \[0\]"),
        ((LOSSES, "abc", RING), "`x0` of minimize must be a vector of numbers, but got 'abc'"),
        ((LOSSES, [1j], RING), r"`x0` of minimize must be a vector of numbers, but got \[1j\]"),
        (
            ([lambda x: jnp.nan * x.sum()] * 3, [0.0], RING),
            "`fun` of minimize must have a finite gradient at `x0`, but its norm is nan",
        ),
    ],
)
def test_what_does_not_fit_is_one_line(arguments, line):
    with pytest.raises(ArgumentError, match=line):
        dg.minimize(*arguments)
