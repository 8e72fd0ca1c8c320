"""The loop is compiled once per code and shape, whatever the numbers, the objects and the length of a run."""

import inspect
import time
from functools import partial

import jax
import numpy as np
import pytest

import digrad as dg
from digrad.problems.code import code_of
from digrad.simulation.advance import advance
from digrad.simulation.prepare import prepare


def run(step_size=0.05, steps=40, record_every=1, seed=0, scale=1.0):
    """Run on new objects of the same shapes."""
    rng = np.random.default_rng(seed)
    problem = dg.problems.quadratic(
        curvature=1 + rng.random((6, 3)), linear=scale * rng.standard_normal((6, 3))
    )
    network = dg.Network(dg.graphs.random_digraph(6, 0.2, seed=seed))
    return dg.simulate(
        dg.CGT(step_size=step_size, threshold=1.0), problem, network, steps=steps, record_every=record_every
    )


def test_equal_shapes_compile_once():
    run()
    before = advance._cache_size()
    for options in ({"step_size": 0.01}, {"steps": 77}, {"record_every": 9}, {"seed": 4}, {"scale": 2.0}):
        run(**options)
    assert advance._cache_size() == before


def test_a_second_run_with_new_objects_starts_at_once():
    run()
    began = time.process_time()
    run(seed=1, steps=30)
    assert time.process_time() - began < 0.5  # 0.03 s on an idle core; compiling takes more than a second


def loss_with(factor):
    return lambda w, batch: factor * ((w - batch) ** 2).mean()


def user_problem(loss, value):
    return dg.Problem.from_loss(loss, [np.full(3, value), np.full(3, -value)], np.array([value]))


def test_losses_are_compared_by_what_they_compute():
    first = user_problem(loss_with(1.0), 1.0)
    assert code_of(first.local) == code_of(user_problem(loss_with(1.0), 2.0).local)
    assert code_of(first.local) != code_of(user_problem(loss_with(2.0), 1.0).local)
    assert hash(first.code) == hash(user_problem(loss_with(1.0), 5.0).code)


def test_the_code_of_losses_keeps_no_data_alive():
    problem = dg.problems.logistic(data="digits", agents=5)
    assert sum(block.strides != (0, 0) for block in problem.code.local.features) == 0
    assert [block.shape for block in problem.code.local.features] == [b.shape for b in problem.local.features]


@pytest.mark.parametrize(
    ("method", "many", "arrays"),
    [(dg.CGT(0.1, 1.0), 4, 3), (dg.CGT(0.1, 1.0), 5, 4), (dg.DGDClip(0.1, 1.0), 4, 2)],
    ids=["CGT of many", "CGT of few", "DGDClip of many"],
)
def test_the_loop_of_many_agents_carries_the_gradient_only_where_a_metric_reads_it(
    method, many, arrays, monkeypatch
):
    monkeypatch.setattr("digrad.simulation.advance.MANY_AGENTS", many)
    problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
    with jax.enable_x64(True):
        run = prepare(method, problem, network, np.ones((5, 2)), name="a", length=3)
        traced = jax.make_jaxpr(partial(inspect.unwrap(advance), code=run.code))
        equations = traced(run.fixed, run.start, 3, run.inputs(0, 3)).eqns
    (loop,) = [each for each in equations if each.primitive.name == "while"]
    assert sum(carried.aval.shape == (5, 2) for carried in loop.outvars) == arrays
