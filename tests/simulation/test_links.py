"""Networks that misbehave, in the simulator: oracles of the specification, invariants, refusals, bits."""

import inspect
import re
import signal
import subprocess
import sys
import textwrap
from functools import cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import digrad as dg
from digrad.core.divergence import DIVERGED
from digrad.core.network_delivery import make_delivery
from digrad.errors import ArgumentError
from digrad.links import Bursts, FixedDelay, Links
from digrad.simulation import loop
from digrad.simulation.mixing import SimulatedNet
from link_runs import EXAMPLE, METHODS, QUADRATIC
from link_transcription import PlainNet, run
from property_settings import examples

AWAKE = [1.0, 0.8, 0.5, 0.3, 0.1]
SPLIT = dg.graphs.split(EXAMPLE, 2)


def test_mass_of_a_lost_packet_is_kept_and_then_delivered():
    net = PlainNet(
        np.array([[1, 0], [0, 1]]),
        np.eye(2),
        np.full((2, 2), 0.5),
        np.array([[0, -1], [0, 0]]),
        np.ones((2, 2), bool),
    )
    y = net.push(np.array([[1.0], [0.0]]))
    np.testing.assert_array_equal(y, [[0.5], [0.0]])
    np.testing.assert_array_equal(net.undelivered(0), [0.5])
    net.begin(1)
    np.testing.assert_array_equal(net.push(y), [[0.25], [0.75]])
    np.testing.assert_array_equal(net.undelivered(0), [0.0])


GRAPHS = (
    SPLIT,
    EXAMPLE,
    dg.graphs.random_digraph(7, 0.3, seed=1),
    dg.graphs.ring(4),
    dg.graphs.one_peer_exponential(6),
)


@examples(gate=1, explored=20)  # the first of everything; others are in test_link_invariants.py
@given(
    graph=st.sampled_from(GRAPHS),
    method=st.sampled_from(["AugPushPull", "SGP"]),
    loss=st.sampled_from([Bursts(0.3, 3), 0.1, 0.3]),
    delay=st.sampled_from([2, 0, FixedDelay(1)]),
    sleeps=st.sampled_from([True, False]),
    d=st.sampled_from([3, 1]),
    seed=st.integers(0, 1000),
)
@pytest.mark.filterwarnings("ignore:.*divides by a weight")
def test_the_simulator_computes_the_equations_and_conserves_mass(graph, method, loss, delay, sleeps, d, seed):
    methods = {"AugPushPull": dg.AugPushPull(step_size=0.05), "SGP": dg.SGP(step_size=0.05)}
    rng = np.random.default_rng(seed)
    n, steps = graph.n, 25
    curvature, linear = 1 + rng.random((n, d)), rng.standard_normal((n, d))
    problem = dg.problems.quadratic(curvature=curvature, linear=linear)
    links = Links(loss=loss, delay=delay, awake=rng.uniform(0.5, 1, n) if sleeps else 1.0, seed=seed)
    network = dg.Network(graph, links=links)
    trace = dg.simulate(methods[method], problem, network, steps=steps, x0=np.ones(d))
    table = make_delivery(network)
    R, C = (np.stack([getattr(network.at(k), m).toarray() for k in range(steps)]) for m in "RC")
    net = PlainNet(table.edges, R, C, table.ages(0, steps), table.awake(0, steps))
    states = run(methods[method], lambda x: curvature * x - linear, np.ones((n, d)), net, steps)
    np.testing.assert_allclose(trace.final_x, methods[method].estimate(states[-1]), rtol=0, atol=1e-10)
    assert (
        trace.columns["mass_error"].max(initial=0) <= 1e-12 * (1 + 10 * n * d)
        or np.isnan(trace.columns["mass_error"]).all()
    )


HARD = Links(
    loss=Bursts(0.3, 4), delay=2, awake=0.8, compressor=dg.compressors.random_k(1), noise=1e-3, seed=3
)


@cache
def whole_run(steps):
    return dg.simulate(METHODS["CGT"], QUADRATIC, dg.Network(SPLIT, links=HARD), steps=steps)


@pytest.mark.parametrize("chunk", [7, 1000])
def test_chunks_do_not_change_a_bit(chunk, chunks_of):
    whole, network = whole_run(150), dg.Network(SPLIT, links=HARD)
    chunks_of(chunk)
    cut = dg.simulate(METHODS["CGT"], QUADRATIC, network, steps=150)
    for name, column in whole.columns.items():
        np.testing.assert_array_equal(cut.columns[name], column)
    np.testing.assert_array_equal(cut.final_x, whole.final_x)


def test_a_resumed_run_is_the_same_to_the_last_bit(tmp_path):
    network, file, whole = dg.Network(SPLIT, links=HARD), tmp_path / "run.npz", whole_run(60)
    dg.simulate(METHODS["CGT"], QUADRATIC, network, steps=23, checkpoint=dg.Checkpoint(file, every=23))
    resumed = dg.simulate(
        METHODS["CGT"], QUADRATIC, network, steps=60, checkpoint=dg.Checkpoint(file, every=23, resume=True)
    )
    for name, column in whole.columns.items():
        np.testing.assert_array_equal(resumed.columns[name], column)
    np.testing.assert_array_equal(resumed.final_x, whole.final_x)


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_bits(tmp_path):
    folder, file = Path(__file__).parent, tmp_path / "run.npz"
    script = textwrap.dedent(f"""
        import os, signal, sys
        sys.path[:0] = [{str(folder)!r}, {str(folder.parent)!r}]
        import digrad as dg
        from test_links import HARD, METHODS, QUADRATIC, SPLIT

        def kill(progress):
            if progress.k >= 46:
                os.kill(os.getpid(), signal.SIGKILL)

        checkpoint = dg.Checkpoint({str(file)!r}, every=23)
        network = dg.Network(SPLIT, links=HARD)
        dg.simulate(METHODS["CGT"], QUADRATIC, network, steps=60, checkpoint=checkpoint, callback=kill)
    """)
    assert subprocess.run([sys.executable, "-c", script]).returncode == -signal.SIGKILL
    network, whole = dg.Network(SPLIT, links=HARD), whole_run(60)
    resumed = dg.simulate(
        METHODS["CGT"], QUADRATIC, network, steps=60, checkpoint=dg.Checkpoint(file, every=23, resume=True)
    )
    for name, column in whole.columns.items():
        np.testing.assert_array_equal(resumed.columns[name], column)
    np.testing.assert_array_equal(resumed.final_x, whole.final_x)


def test_the_trace_records_undelivered_mass_and_deliveries():
    network = dg.Network(EXAMPLE, links=Links(loss=0.3))
    trace = dg.simulate(METHODS["CGT"], QUADRATIC, network, steps=1000, x0=[10.0, -10.0], record_every=100)
    assert trace.verdict == "converged"
    assert trace.columns["delivered"][-1] == pytest.approx(1 - 2091 / 7000, abs=1e-12)
    assert trace.columns["in_transit"][1] > 1e-3 > 1e-9 > trace.columns["in_transit"][-1]
    assert trace.columns["mass_error"].max() < 1e-12
    assert np.isnan(trace.columns["min_weight"]).all()


def test_a_run_whose_mass_is_under_way_has_not_converged():
    network = dg.Network(EXAMPLE, links=Links(delay=FixedDelay(3)))
    trace = dg.simulate(METHODS["PushDIGing"], QUADRATIC, network, steps=3, x0=[1.0, 1.0], tolerance=4.0)
    assert max(trace.grad_norm[-1], trace.consensus_error[-1]) < 4.0 < trace.columns["in_transit"][-1]
    assert trace.verdict != "converged"


def test_noise_that_is_kept_leaves_the_sum_exact():
    links = Links(noise=0.01)
    trace = dg.simulate(
        METHODS["CGT"], QUADRATIC, dg.Network(EXAMPLE, links=links), steps=1000, record_every=1000
    )
    assert trace.columns["mass_error"][-1] < 1e-12
    assert 1e-3 < np.abs(trace.final_x - 1 / 3).max() < 0.1


def test_noise_that_decays_leaves_no_error():
    links = Links(noise=dg.schedules.Geometric(scale=0.1, ratio=0.99))
    trace = dg.simulate(
        METHODS["CGT"], QUADRATIC, dg.Network(EXAMPLE, links=links), steps=4000, record_every=1000
    )
    np.testing.assert_allclose(trace.final_x, 1 / 3, rtol=0, atol=1e-13)


def test_a_naive_policy_warns_once():
    network = dg.Network(EXAMPLE, links=Links(loss=0.3, push="drop"))
    with pytest.warns(UserWarning, match="forget what is lost") as caught:
        dg.Simulator(METHODS["CGT"], QUADRATIC, network)
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize("links", [Links(loss=0.3), Links(awake=0.5)], ids=repr)
def test_push_sum_is_warned_of_loss_and_sleep(links):
    with pytest.warns(UserWarning, match="divides by a weight that loss and sleep drain") as caught:
        dg.Simulator(METHODS["PushDIGing"], QUADRATIC, dg.Network(EXAMPLE, links=links))
    assert [warning.filename for warning in caught] == [__file__]


def test_compare_warns_once_of_a_method():
    network = dg.Network(EXAMPLE, links=Links(loss=0.3, delay=3))
    with pytest.warns(UserWarning, match="divides by a weight") as caught:
        dg.compare([METHODS["PushDIGing"]], QUADRATIC, network, steps=5)
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.parametrize(
    "method",
    [dg.PushDIGing, *(pytest.param(method, marks=pytest.mark.slow) for method in (dg.ADDOPT, dg.SONATA))],
    ids=lambda method: method.__name__,
)
def test_average_of_push_sum_is_where_the_agents_are_though_weights_are_under_way(method):
    network = dg.Network(EXAMPLE, links=Links(delay=3))
    trace = dg.simulate(method(step_size=0.02), QUADRATIC, network, steps=2500)
    assert abs(trace.final_x - 1 / 3).max() < 1e-9
    assert trace.verdict == "converged"
    assert max(trace.grad_norm[-1], trace.consensus_error[-1]) < 1e-9


@pytest.mark.parametrize(
    ("method", "links", "words"),
    [
        (dg.GD(step_size=0.1), Links(loss=0.1), "averages over all agents"),
        (dg.DSGT(step_size=0.05), Links(loss=0.1), "one-way loss breaks"),
        (dg.DSGT(step_size=0.05), Links(loss=0.1, two_way=True), "W is not symmetric"),
        (dg.DSGT(step_size=0.05), Links(delay=1, two_way=True), "late packets break"),
        (dg.FROST(step_size=0.02), Links(loss=0.1), "Perron vector of R, which does not settle"),
        (
            dg.SGP(step_size=0.05),
            Links(loss=0.1, compressor=dg.compressors.sign()),
            "neither does what is compressed",
        ),
    ],
)
def test_links_that_do_not_suit_a_method_are_refused(method, links, words):
    with pytest.raises(ArgumentError, match=words):
        dg.simulate(method, QUADRATIC, dg.Network(EXAMPLE, links=links), steps=5)


def test_doubly_stochastic_methods_are_exact_when_links_fail_both_ways():
    graph = dg.graphs.from_edges(5, [edge for s, r in EXAMPLE.edges for edge in ((s, r), (r, s))])
    network = dg.Network(
        graph, W=dg.network.metropolis(graph), links=Links(loss=0.3, two_way=True, awake=0.8)
    )
    trace = dg.simulate(dg.DSGT(step_size=0.05), QUADRATIC, network, steps=1500, record_every=1500)
    np.testing.assert_allclose(trace.final_x, 1 / 3, rtol=0, atol=1e-10)


def test_traffic_counts_lost_packets_and_what_a_missed_one_left_out():
    links = Links(loss=0.3, compressor=dg.compressors.bfloat16())
    network = dg.Network(EXAMPLE, links=links)
    sent = dg.Simulator(METHODS["CGT"], QUADRATIC, network).traffic.before(np.arange(31))
    ages, missed, fresh = make_delivery(network).ages(0, 30), np.ones(7), np.ones(7, bool)
    for k, row in enumerate(ages):
        y, x = np.minimum(4 * missed, 16), np.where(fresh, 16, np.minimum(4 * missed, 16))
        assert sent[k + 1] - sent[k] == (x + y).sum()
        missed, fresh = np.where(row >= 0, 1, missed + 1), fresh & (row < 0)


def step_without_links(
    method, state, links, operators, index, k, delivery, limit, noise, memory, *, params, static
):
    """Return what :func:`digrad.simulation.loop._one_step` does, written as if there were no links."""
    point = method.query(state)
    grad = static.losses.gradients(params.arrays, point, index)
    after = method.step(state, grad, SimulatedNet(operators, len(point)))
    after = jax.tree.map(lambda new, old: jnp.asarray(new, old.dtype), after, state)
    largest = jnp.max(jnp.abs(method.estimate(after)))
    beyond = jnp.minimum(DIVERGED * largest, jnp.finfo(largest.dtype).max)
    limit = jnp.where(limit > 0, limit, beyond)
    return after, (), grad, limit, largest <= limit, memory


def instructions(program):
    """Return the lines of a compiled program, whose names are numbered, without where they come from."""
    text = re.sub(r", metadata=\{[^}]*\}", "", program.as_text())
    names = {name: f"%{i}" for i, name in enumerate(dict.fromkeys(re.findall(r"%[\w.-]+", text)))}
    named = re.sub(r"%[\w.-]+", lambda found: names[found[0]], text)
    return [line for line in named.splitlines() if "%" in line]


@pytest.mark.parametrize(
    "graph",
    [EXAMPLE, pytest.param(dg.graphs.ring(300), marks=pytest.mark.slow)],
    ids=["5 agents", "300 agents"],
)
def test_a_network_without_links_compiles_to_a_loop_that_knows_of_none(graph, monkeypatch):
    problem = dg.problems.quadratic(curvature=np.ones((graph.n, 2)), linear=np.ones((graph.n, 2)))

    def compiled():
        with jax.enable_x64(True):
            simulator = dg.Simulator(METHODS["CGT"], problem, dg.Network(graph))
            start = simulator.init("zeros")._replace(x0=None)
            steps = partial(
                inspect.unwrap(loop.advance), static=simulator.static
            )  # anew: JAX remembers what it traced
            given = (simulator.params[0], start, 10, 1, simulator.inputs(0, 10))
            return instructions(jax.jit(steps).lower(*given).compile())

    ours = compiled()
    assert len(ours) > 100
    monkeypatch.setattr(loop, "_one_step", step_without_links)
    assert ours == compiled()


def test_float32_state_takes_one_row_per_edge_of_the_tracker():
    network = dg.Network(EXAMPLE, links=Links(loss=0.3))
    start = dg.Simulator(METHODS["CGT"], QUADRATIC, network, dtype="float32").init()
    leaves = [leaf for leaf in jax.tree.leaves(start.links) if leaf.dtype == np.float32]
    assert [leaf.shape for leaf in leaves] == [(7, 2)]


@pytest.mark.slow
def test_a_hundred_thousand_agents_converge_under_loss():
    n = 100_000
    rng = np.random.default_rng(0)
    problem = dg.problems.quadratic(curvature=1 + rng.random((n, 2)), linear=rng.standard_normal((n, 2)))
    network = dg.Network(dg.graphs.k_out(n, 5, seed=0), links=Links(loss=0.1))
    trace = dg.simulate(dg.CGT(step_size=0.1, threshold=2.0), problem, network, steps=600, record_every=100)
    assert trace.verdict == "converged"
    assert trace.columns["mass_error"][-1] < 1e-7
