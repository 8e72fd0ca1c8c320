"""The loop is compiled once per code and shape, whatever the numbers, the objects and the length of a run."""

import inspect
import time
from functools import partial

import jax
import numpy as np
import pytest

import digrad as dg
from digrad import metrics
from digrad.problems.compiled_loss import code_of
from digrad.simulation.loop import MANY_AGENTS, PLAIN, SHORT_ROW, _compiled, advance, advance_of


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


def compiled_loops():
    return sum(_compiled(is_plain=is_plain)._cache_size() for is_plain in (False, True))


def test_equal_shapes_compile_once():
    before = compiled_loops()
    run()
    assert compiled_loops() == before + 1
    for options in ({"step_size": 0.01}, {"steps": 77}, {"record_every": 9}, {"seed": 4}, {"scale": 2.0}):
        run(**options)
    assert compiled_loops() == before + 1


def test_a_second_run_with_new_objects_starts_at_once():
    run()
    began = time.process_time()
    run(seed=1, steps=30)
    assert time.process_time() - began < 0.5  # 0.03 s on an idle core; compiling takes more than a second


def loss_with(factor):
    return lambda w, batch: factor * ((w - batch) ** 2).mean()


def user_problem(loss, value):
    return dg.problems.from_loss(loss, [np.full(3, value), np.full(3, -value)], np.array([value]))


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
    monkeypatch.setattr("digrad.simulation.loop.MANY_AGENTS", many)
    problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
    with jax.enable_x64(True):
        simulator = dg.Simulator(method, problem, network)
        start = simulator.init([1.0, 1.0])._replace(x0=None)
        traced = jax.make_jaxpr(partial(inspect.unwrap(advance), static=simulator.static))
        equations = traced(simulator.params[0], start, 3, 1, simulator.inputs(0, 3)).eqns
    (loop,) = [each for each in equations if each.primitive.name == "while"]
    assert sum(carried.aval.shape == (5, 2) for carried in loop.outvars) == arrays


def test_sums_are_trees_where_they_may_be_long():
    built_in, loss = dg.problems.example_quadratic(), loss_with(1.0)
    simulator, users = (
        dg.Simulator(
            dg.CGT(0.1, 1.0), problem, dg.Network(dg.graphs.random_digraph(problem.n_agents, 0.5, seed=0))
        )
        for problem in (built_in, user_problem(loss, 1.0))
    )
    static, of_users = simulator.static, users.static
    plain = advance_of(static, 5, SHORT_ROW)
    assert plain is not advance
    assert advance_of(static, 5, SHORT_ROW + 1) is advance
    assert advance_of(static._replace(keep=lambda *_: {}), 5, 2) is advance
    assert advance_of(of_users, 5, 2) is advance  # whose loss may be the mean of a million samples
    assert advance_of(of_users, MANY_AGENTS + 1, 2) is plain
    start = simulator.init([1.0, 1.0])._replace(x0=None)
    with jax.enable_x64(True):
        given = (simulator.params[0], start, 3, 1, simulator.inputs(0, 3))
        ends = [each(*given, static=static)[0].method_state.x for each in (plain, advance)]
    np.testing.assert_allclose(*ends, rtol=1e-14)


def test_metrics_of_many_agents_keep_their_digits_in_float32_where_sums_are_no_trees():
    x = 3 + np.random.default_rng(0).standard_normal((4096, 1024)).astype(np.float32)
    u = np.ones(4096, np.float32)
    for metric in (metrics.consensus_error, lambda x, u: metrics.packet_figures((), [x])["in_transit"]):
        found = jax.jit(metric, compiler_options=PLAIN)(x, u)
        exact = metric(x.astype(np.float64), u.astype(np.float64))
        np.testing.assert_allclose(found, exact, rtol=2e-6)  # 0.002 and 0.00001 in one long sum
