"""Steps that Numba compiles give the numbers of XLA's loop, to rounding, and are used where they should be."""

import faulthandler
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

import jax
import numpy as np
import pytest

import digrad as dg
from digrad import metrics
from digrad.data import Dataset
from digrad.errors import CheckpointError
from digrad.sampling import WithReplacement, normal_start
from digrad.simulation import Checkpoint, blockwise, compiled_steps
from digrad.simulation.prepare import prepare

CGT = dg.CGT(step_size=0.05, threshold=2.0)

needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch):
    """Let Numba's steps run the smallest problems, too."""
    for name in ("LEAST_AGENTS", "LEAST_SLAB", "LEAST_NUMBERS", "LEAST_ROW"):
        monkeypatch.setattr(compiled_steps, name, 1)


def polynomial(n, d, quartic=0.0):
    generator = np.random.default_rng(n)
    return dg.problems.quadratic(
        curvature=generator.uniform(1, 2, (n, d)), linear=generator.standard_normal((n, d)), quartic=quartic
    )


def classified(n, d=9, reg_power=None):
    generator, m = np.random.default_rng(0), 11 * n + 2  # two agents have one sample more
    data = Dataset("samples", generator.standard_normal((m, d)), generator.choice([-1.0, 1.0], m))
    powers = [3.0] * (n - 1) + [2.0] if reg_power is None else reg_power
    weights = [0.0, *[1e-2] * (n - 1)]
    return dg.problems.logistic(data=data, agents=n, partition="iid", reg_weight=weights, reg_power=powers)


def both(monkeypatch, method, problem, network, **options):
    """Return the run by Numba's steps and the one by XLA's."""
    options = {"steps": 25, "x0": "normal", "record_every": 4, **options}
    runs = []
    for wanted in "01":
        monkeypatch.setenv("DIGRAD_NUMBA", wanted)
        runs.insert(0, dg.simulate(method, problem, network, **options))
    assert [run.facts.get("compiled_by") for run in runs] == ["numba", None]
    return runs


def assert_close(ours, reference, tolerance=1e-12):
    assert ours.verdict == reference.verdict
    np.testing.assert_allclose(ours.final_x, reference.final_x, rtol=tolerance, atol=tolerance)
    assert list(ours.columns) == list(reference.columns)
    for name, column in reference.columns.items():
        np.testing.assert_allclose(ours.columns[name], column, rtol=tolerance, atol=tolerance, err_msg=name)


def is_used(method, problem, network, sampler=None):
    with jax.enable_x64(True):
        start = normal_start(problem.n_agents, problem.dim, 0)
        return prepare(method, problem, network, start, name="run", sampler=sampler).compiled is not None


@needs_numba
@pytest.mark.parametrize(
    ("graph", "d"),
    [
        (dg.graphs.from_edges(1, []), 1),
        (dg.graphs.ring(2), 3),
        (dg.graphs.complete(7), 32),
        (dg.graphs.random_digraph(23, p=0.2, seed=0), 33),
        (dg.graphs.star(300), 31),
        (dg.graphs.exponential(4099), 19),
        (dg.graphs.ring(4100), 1),
    ],
    ids=["one", "two", "complete", "random", "star", "exponential", "ring"],
)
def test_compiled_step_is_that_of_cgt(monkeypatch, graph, d):
    assert_close(*both(monkeypatch, CGT, polynomial(graph.n, d, quartic=0.5), dg.Network(graph)))


@needs_numba
@pytest.mark.parametrize(
    ("graph", "d"),
    [
        (dg.graphs.k_out(70, 3, seed=0), 9),
        (dg.graphs.k_out(70, 3, seed=0), 70),
        (dg.graphs.exponential(4103), 9),
    ],
)
def test_compiled_step_is_that_of_cgt_in_single_precision(monkeypatch, graph, d):
    network = dg.Network(graph)
    ours, reference = both(monkeypatch, CGT, polynomial(graph.n, d), network, dtype="float32")
    assert ours.final_x.dtype == np.float32
    assert_close(ours, reference, 2e-5)


@needs_numba
@pytest.mark.parametrize(
    ("d", "dtype", "tolerance"), [(9, "float64", 1e-12), (40, "float64", 1e-12), (70, "float32", 2e-5)]
)
@pytest.mark.parametrize(("batch_size", "sampling"), [(1, "replacement"), (4, "epoch"), (7, "replacement")])
def test_compiled_step_is_that_of_cgt_on_samples(monkeypatch, d, dtype, tolerance, batch_size, sampling):
    problem, network = classified(6, d), dg.Network(dg.graphs.ring(6))
    options = {"batch_size": batch_size, "seed": 1, "dtype": dtype, "sampling": sampling}
    assert_close(*both(monkeypatch, CGT, problem, network, **options), tolerance)


@needs_numba
def test_samples_too_large_for_a_copy_give_the_same_numbers(monkeypatch):
    monkeypatch.setattr(compiled_steps, "LARGEST_COPY", 1)
    problem, network = classified(6, 43), dg.Network(dg.graphs.ring(6))
    assert_close(*both(monkeypatch, CGT, problem, network, batch_size=3))


@needs_numba
@pytest.mark.parametrize("n", [70, 4099], ids=["rows", "columns"])
def test_compiled_step_takes_agents_without_a_quartic_term_and_numbers_of_their_own(monkeypatch, n):
    graph = dg.graphs.k_out(n, 3, seed=0) if n == 70 else dg.graphs.exponential(n)
    problem = polynomial(n, 5, quartic=np.arange(n) % 2)
    own = np.linspace(0.01, 0.05, n)[:, None]
    assert_close(*both(monkeypatch, dg.CGT(step_size=own, threshold=50 * own), problem, dg.Network(graph)))


@needs_numba
def test_runs_side_by_side_take_the_gradients_of_their_agents(monkeypatch):
    problem, network = polynomial(70, 9), dg.Network(dg.graphs.k_out(70, 3, seed=0))
    tables = []
    for wanted in "01":
        monkeypatch.setenv("DIGRAD_NUMBA", wanted)
        grid = {"step_size": [0.02, 0.05], "threshold": [2.0]}
        tables.append(dg.sweep(dg.CGT, problem, network, grid=grid, steps=20, x0="normal").table)
    np.testing.assert_allclose(tables[1]["final_loss"], tables[0]["final_loss"], rtol=1e-12)


@needs_numba
def test_compiled_step_takes_matrices_of_two_graphs(monkeypatch):
    graph, n = dg.graphs.complete(5), 5
    R, C = np.eye(n) / 2 + np.roll(np.eye(n), 1, 0) / 2, np.full((n, n), 1 / n)
    assert_close(*both(monkeypatch, CGT, polynomial(n, 3), dg.Network(graph, R=R, C=C)))


@needs_numba
def test_compiled_step_takes_two_graphs_on_which_all_agents_listen_alike(monkeypatch):
    graph = dg.graphs.exponential(4099)
    ring = dg.Network(dg.graphs.ring(4099))
    network = dg.Network(graph, R=ring.R.matrix, C=dg.Network(graph).C.matrix)
    assert_close(*both(monkeypatch, CGT, polynomial(4099, 9), network))


@needs_numba
def test_slopes_of_the_logistic_loss_are_exact_to_rounding():
    import numba

    from digrad.simulation import kernels

    @numba.njit(error_model="numpy")
    def four(a, b, c, d):
        found = kernels.slopes(a, b, c, d)
        return kernels.lane(found, 0), kernels.lane(found, 1), kernels.lane(found, 2), kernels.lane(found, 3)

    margins = np.concatenate([np.linspace(-760, 760, 1601), np.linspace(-3, 3, 601), [1e-9, -1e-300]])
    found = np.array([four(*group) for group in margins[: len(margins) // 4 * 4].reshape(-1, 4)]).reshape(-1)
    exact = -1 / (1 + np.exp(np.clip(margins, -700, 700)))
    np.testing.assert_allclose(found, exact[: len(found)], rtol=4e-16)
    assert np.isnan(four(np.nan, 0.0, 0.0, 0.0)[0])
    assert four(np.inf, -np.inf, 0.0, 0.0)[1:3] == (-1.0, -0.5)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e200])
def test_metrics_in_blocks_are_those_of_all_agents(monkeypatch, scale):
    monkeypatch.setattr(blockwise, "NUMBERS", 30)  # ten agents at a time
    generator = np.random.default_rng(0)
    x, y, u = (
        scale * generator.standard_normal((57, 3)),
        scale * generator.standard_normal((57, 3)),
        np.arange(57.0),
    )
    found = {
        **blockwise.estimates(lambda some: x[some], 3, u),
        **blockwise.trackers(lambda some: y[some], 3, u, scale),
    }
    expected = {
        "point": metrics.perron_average(x, u),
        "mean": x.mean(0),
        "consensus_error": metrics.consensus_error(x, u),
        "tracking_error": metrics.tracking_error(y, u),
        "fraction_clipped": np.mean(np.linalg.norm(y / scale, axis=1) > 1),
    }
    assert set(found) == set(expected)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-13, atol=1e-15 * scale, err_msg=name)
    y[31] = np.nan
    assert np.isnan(list(blockwise.trackers(lambda some: y[some], 3, u, scale).values())).all()


@needs_numba
@pytest.mark.parametrize(
    "method",
    [
        dg.CGT(step_size=lambda k: 0.1 / (1 + k), threshold=lambda k: 1.0 + k),
        dg.CGT(step_size=np.linspace(0.01, 0.05, 7)[:, None], threshold=np.linspace(0.1, 3, 7)[:, None]),
        dg.CGT(step_size=0.05, threshold=float("inf")),
    ],
    ids=["schedules", "columns", "infinite"],
)
def test_compiled_step_takes_every_kind_of_hyper_parameter(monkeypatch, method):
    assert_close(*both(monkeypatch, method, polynomial(7, 3), dg.Network(dg.graphs.ring(7))))


@needs_numba
def test_what_is_kept_of_all_agents_is_the_same(monkeypatch):
    options = {"paths": True, "invariant": True, "plain_mean": True}
    assert_close(*both(monkeypatch, CGT, polynomial(5, 2), dg.Network(dg.graphs.ring(5)), **options))


@needs_numba
@pytest.mark.parametrize("scale", [1e-170, 1e170])
def test_norms_whose_squares_leave_the_range_are_clipped_alike(monkeypatch, scale):
    linear = scale * np.arange(55.0).reshape(5, 11)  # the largest in the last slab
    problem = dg.problems.quadratic(curvature=np.ones((5, 11)), linear=linear)
    method = dg.CGT(step_size=0.05, threshold=scale)
    ours, reference = both(monkeypatch, method, problem, dg.Network(dg.graphs.ring(5)), x0=np.full(11, scale))
    np.testing.assert_allclose(ours.final_x, reference.final_x, rtol=1e-12)


@needs_numba
@pytest.mark.parametrize("step_size", [3.0, 50.0])
@pytest.mark.parametrize("record_every", [1, 7, 1000])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_run_diverges_at_the_same_iteration(monkeypatch, step_size, record_every, dtype):
    method, network = dg.CGT(step_size=step_size, threshold=float("inf")), dg.Network(dg.graphs.ring(5))
    options = {"steps": 200, "record_every": record_every, "dtype": dtype}
    assert_diverge_alike(*both(monkeypatch, method, polynomial(5, 18, quartic=1.0), network, **options))


@needs_numba
def test_a_run_by_columns_or_on_samples_diverges_at_the_same_iteration(monkeypatch):
    method = dg.CGT(step_size=50.0, threshold=float("inf"))
    network = dg.Network(dg.graphs.ring(4099))
    assert_diverge_alike(*both(monkeypatch, method, polynomial(4099, 2), network, steps=100))
    method, network = dg.CGT(step_size=1e3, threshold=float("inf")), dg.Network(dg.graphs.ring(7))
    assert_diverge_alike(*both(monkeypatch, method, classified(7), network, steps=300, batch_size=3))


def assert_diverge_alike(ours, reference):
    assert ours.verdict == reference.verdict == "diverged"
    assert ours.diverged_at == reference.diverged_at
    np.testing.assert_allclose(ours.final_x, reference.final_x, rtol=1e-3)


@needs_numba
def test_a_run_diverges_just_above_the_limit_only():
    # One step of y = -1 and step size a moves x from 0 to a, in the last slab only; the limit is 1e12.
    linear = np.zeros((2, 9))
    linear[:, -1] = 1
    problem = dg.problems.quadratic(curvature=np.ones((2, 9)), linear=linear)
    for step_size, verdict in ((0.999e12, "running"), (1.001e12, "diverged")):
        method = dg.CGT(step_size=step_size, threshold=float("inf"))
        trace = dg.simulate(method, problem, dg.Network(dg.graphs.ring(2)), steps=1, x0="zeros")
        assert (trace.verdict, trace.facts["compiled_by"]) == (verdict, "numba")


@needs_numba
@pytest.mark.parametrize("kind", ["rows", "columns", "samples"])
def test_bits_do_not_depend_on_recording_chunks_or_resuming(tmp_path, kind):
    n = 4099 if kind == "columns" else 301
    graph = dg.graphs.exponential(n) if kind == "columns" else dg.graphs.k_out(n, 3, seed=0)
    problem = classified(n, 11, 3.0) if kind == "samples" else polynomial(n, 11, quartic=0.5)
    network, batch_size = dg.Network(graph), 3 if kind == "samples" else None
    options = {"steps": 37, "x0": "normal", "batch_size": batch_size}
    whole = dg.simulate(CGT, problem, network, record_every=100, **options)
    others = [
        dg.simulate(CGT, problem, network, record_every=100, chunk=chunk, **options) for chunk in (1, 2, 5)
    ]
    others += [dg.simulate(CGT, problem, network, record_every=every, **options) for every in (1, 7)]
    half = Checkpoint(tmp_path / "run.npz", every=3)
    dg.simulate(CGT, problem, network, record_every=100, checkpoint=half, **{**options, "steps": 20})
    again = Checkpoint(tmp_path / "run.npz", every=3, resume=True)
    others.append(dg.simulate(CGT, problem, network, record_every=100, checkpoint=again, **options))
    for other in others:
        np.testing.assert_array_equal(other.final_x, whole.final_x)
    assert others[-1].columns["k"].tolist() == whole.columns["k"].tolist()


@needs_numba
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("kind", ["rows", "columns", "samples"])
def test_bits_do_not_depend_on_threads(monkeypatch, kind, dtype):
    n = 4099 if kind == "columns" else 301
    graph = dg.graphs.exponential(n) if kind == "columns" else dg.graphs.k_out(n, 3, seed=0)
    problem = classified(n, 19, 3.0) if kind == "samples" else polynomial(n, 19, quartic=0.5)
    options = {"steps": 5, "x0": "normal", "record_every": 2, "dtype": dtype}
    options["batch_size"] = 3 if kind == "samples" else None
    monkeypatch.setattr(compiled_steps, "THREADED_AGENTS", 1)
    runs = []
    for threads in (1, 2, 3):  # of which some begin with an odd agent
        monkeypatch.setattr(compiled_steps, "_threads", lambda threads=threads: threads)
        runs.append(dg.simulate(CGT, problem, dg.Network(graph), **options))
    for run in runs[1:]:
        np.testing.assert_array_equal(run.final_x, runs[0].final_x)
        for name, column in runs[0].columns.items():
            np.testing.assert_array_equal(run.columns[name], column, err_msg=name)


@needs_numba
@pytest.mark.parametrize("where", ["start", "work"])
def test_nobody_waits_for_a_thread_that_fails(monkeypatch, where):
    class Exhausted(ThreadPoolExecutor):
        def submit(self, function, *arguments):
            if function.__name__ == "of_block":
                begun.append(function)
            if where == "start" and len(begun) == 2:
                raise RuntimeError("no more threads")
            return super().submit(function, *arguments)

    def by_rows(*arguments):
        if where == "work" and arguments[-2] > 0:
            raise RuntimeError("no more threads")
        compiled(*arguments)

    begun, compiled = [], compiled_steps.kernels().by_rows
    monkeypatch.setattr(compiled_steps, "THREADED_AGENTS", 1)
    monkeypatch.setattr(compiled_steps, "_threads", lambda: 3)
    monkeypatch.setattr(compiled_steps, "ThreadPoolExecutor", Exhausted)
    monkeypatch.setattr(compiled_steps.kernels(), "by_rows", by_rows)
    network = dg.Network(dg.graphs.k_out(301, 3, seed=0))
    faulthandler.dump_traceback_later(60, exit=True)  # what spins in compiled code cannot be interrupted
    with pytest.raises(RuntimeError, match="no more threads"):
        dg.simulate(CGT, polynomial(301, 19), network, steps=5)
    faulthandler.cancel_dump_traceback_later()
    assert len(begun) == 2


@needs_numba
@pytest.mark.parametrize("order", ["01", "10"])
def test_a_run_of_one_engine_is_not_resumed_by_the_other(monkeypatch, tmp_path, order):
    problem, network, path = polynomial(5, 2), dg.Network(dg.graphs.ring(5)), tmp_path / "run.npz"
    monkeypatch.setenv("DIGRAD_NUMBA", order[0])
    dg.simulate(CGT, problem, network, steps=6, checkpoint=Checkpoint(path, every=3))
    monkeypatch.setenv("DIGRAD_NUMBA", order[1])
    with pytest.raises(CheckpointError, match="compiled_by: "):
        dg.simulate(CGT, problem, network, steps=9, checkpoint=Checkpoint(path, every=3, resume=True))


@needs_numba
def test_a_run_that_stops_at_its_tolerance_stops_there(monkeypatch):
    options = {"steps": 400, "tolerance": 1e-3, "stop_at_tolerance": True, "record_every": 3}
    ours, reference = both(monkeypatch, CGT, polynomial(5, 2), dg.Network(dg.graphs.ring(5)), **options)
    assert ours.steps == reference.steps < 400
    assert_close(ours, reference)


@needs_numba
def test_what_is_not_compiled_by_numba_is_xlas():
    problem, ring = polynomial(7, 3), dg.graphs.ring(7)
    assert is_used(CGT, problem, dg.Network(ring))
    assert not is_used(dg.AB(step_size=0.05), problem, dg.Network(ring))
    assert not is_used(dg.SoftCGT(step_size=0.05, threshold=2.0), problem, dg.Network(ring))
    turns = dg.NetworkSequence([dg.Network(ring), dg.Network(dg.graphs.complete(7))])
    assert not is_used(CGT, problem, turns)
    assert not is_used(CGT, problem, dg.Network(ring, links=dg.Links(loss=0.1)))
    samples = classified(7)
    assert is_used(CGT, samples, dg.Network(ring), WithReplacement(samples.sizes, 3, 0))
    assert not is_used(CGT, samples, dg.Network(ring))  # the gradient of all samples


def test_everything_runs_without_numba(monkeypatch):
    monkeypatch.setattr(compiled_steps, "find_spec", lambda name: None)
    assert not is_used(CGT, polynomial(7, 3), dg.Network(dg.graphs.ring(7)))


@needs_numba
def test_small_runs_are_left_to_xla(monkeypatch):
    monkeypatch.undo()
    for n, d, used in (
        (64, 5000, False),
        (500, 10, False),
        (500, 123, False),
        (1024, 123, True),
        (100_000, 1, False),
    ):
        assert is_used(CGT, polynomial(n, d), dg.Network(dg.graphs.ring(n))) == used
    for graph in (dg.graphs.ring(20_000), dg.graphs.k_out(20_000, 3, seed=0)):
        assert is_used(CGT, polynomial(20_000, 4), dg.Network(graph))
        assert not is_used(CGT, polynomial(20_000, 3), dg.Network(graph))


@pytest.mark.parametrize(
    ("wanted", "cores", "threads"), [(None, 3, 3), ("1", 3, 1), ("8", 3, 3), ("0", 3, 3), ("2,1", 3, 3)]
)
def test_threads_are_those_of_the_process_or_fewer(monkeypatch, wanted, cores, threads):
    monkeypatch.setattr(compiled_steps, "available_cores", lambda: cores)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if wanted is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", wanted)
    assert compiled_steps._threads() == threads


def test_a_small_run_does_not_import_numba():
    code = (
        "import sys, digrad as dg, digrad.cli\n"
        "network = dg.Network(dg.graphs.example5())\n"
        "dg.simulate(dg.CGT(step_size=0.05, threshold=2.0), dg.problems.example_quadratic(), network, steps=3)\n"
        "assert 'numba' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
