"""Problems are compiled once per code, whatever their data, and no compiled program keeps data alive."""

import gc
import weakref
from contextlib import contextmanager

import jax
import numpy as np
import pytest

import digrad as dg
from digrad.theory import empirical_smoothness

LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"


@contextmanager
def count_compilations():
    programs = []

    def listen(event, duration_secs, **_):
        if event == LOWERED:
            programs.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield programs
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)


def quadratic(generator):
    return dg.problems.quadratic(
        curvature=1 + generator.random((3, 4)), linear=generator.standard_normal((3, 4))
    )


def logistic(generator):
    dataset = dg.data.Dataset("random", generator.standard_normal((12, 4)), np.arange(12.0) % 2)
    return dg.problems.logistic(data=dataset, agents=3, reg_weight=0.1)


def weighted(generator):
    data = [generator.standard_normal((m, 4)) for m in (3, 4)]
    return dg.problems.from_loss(
        lambda w, rows: ((rows @ w - 1) ** 2).mean(), data, 4, agent_weights="samples"
    )


def users(generator):
    """Return a problem whose agents have so many sizes that the loss is asked whether it is a mean."""
    data = [generator.standard_normal((m, 4)) for m in (3, 4, 5, 6, 7)]
    return dg.problems.from_loss(lambda w, rows: ((rows @ w - 1) ** 2).mean(), data, 4)


def use(problem):
    """Ask everything that is compiled for a problem, and return the minimum."""
    point = np.ones(problem.dim)
    problem.loss(point)
    problem.local_losses(point)
    problem.local_gradients(point)
    empirical_smoothness(problem, point[None], iterations=2)
    return problem.solve().x


@pytest.mark.parametrize("make", [pytest.param(quadratic, marks=pytest.mark.slow), logistic, users, weighted])
def test_problems_of_one_code_are_compiled_once_and_free_their_data(make):
    with count_compilations() as programs:
        first = use(make(np.random.default_rng(0)))
    assert programs
    with count_compilations() as programs:
        problem = make(np.random.default_rng(1))
        second = use(problem)
    assert not programs
    assert np.linalg.norm(problem.gradient(second)) < 1e-10  # with its own data, not the first one's
    assert np.abs(first - second).max() > 1e-3
    data = weakref.ref(getattr(problem.local, "local", problem.local))  # the losses that others wrap
    del problem
    gc.collect()
    assert data() is None


def test_products_with_a_large_hessian_are_compiled_once_too(monkeypatch):
    monkeypatch.setattr("digrad.problems.exact_minimum.DENSE_HESSIAN_LIMIT", 3)
    use(quadratic(np.random.default_rng(0)))
    with count_compilations() as programs:
        use(quadratic(np.random.default_rng(1)))
    assert not programs
