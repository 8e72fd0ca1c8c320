"""Steps that Numba compiles give the numbers of the method's own step, to rounding, and are used where they should."""

import shutil
import subprocess
import sys
from importlib.util import find_spec

import jax
import numpy as np
import pytest

import digrad as dg
from digrad.data import Dataset
from digrad.sampling import WithReplacement, normal_start
from digrad.simulation import Checkpoint
from digrad.simulation.kernels import table
from digrad.simulation.prepare import prepare

CGT = dg.CGT(step_size=0.05, threshold=2.0)

needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="numba is not installed")


@pytest.fixture(autouse=True)
def of_any_size(monkeypatch):
    """Use kernels for the smallest runs too, in several blocks."""
    monkeypatch.setattr(table, "LEAST_AGENTS", 1)
    monkeypatch.setattr(table, "LEAST_NUMBERS", 1)
    monkeypatch.setattr(table, "BLOCK_BYTES", 64)


def polynomial(n, d, quartic=0.0):
    generator = np.random.default_rng(n)
    return dg.problems.quadratic(
        curvature=generator.uniform(1, 2, (n, d)), linear=generator.standard_normal((n, d)), quartic=quartic
    )


def classified(n, is_sparse):
    generator = np.random.default_rng(0)
    features = generator.standard_normal((11 * n, 9)) * (generator.random((11 * n, 9)) < 0.4)
    if is_sparse:
        import scipy.sparse

        features = scipy.sparse.csr_array(features)
    data = Dataset("samples", features, generator.choice([-1.0, 1.0], 11 * n))
    weights = [0.0, *[1e-2] * (n - 1)]
    return dg.problems.logistic(
        data=data, agents=n, partition="iid", reg_weight=weights, reg_power=[3.0] * (n - 1) + [2.0]
    )


def with_and_without(monkeypatch, method, problem, network, **options):
    """Return the run with kernels and the one without."""
    options = {"steps": 25, "x0": "normal", "record_every": 4, **options}
    runs = []
    for wanted in ("0", "1"):  # and so it stays
        monkeypatch.setenv("DIGRAD_KERNELS", wanted)
        runs.insert(0, dg.simulate(method, problem, network, **options))
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
        return prepare(method, problem, network, start, name="run", sampler=sampler).code.kernel is not None


@needs_numba
@pytest.mark.parametrize(
    ("graph", "d"),
    [
        (dg.graphs.from_edges(1, []), 1),
        (dg.graphs.ring(2), 3),
        (dg.graphs.complete(7), 1),
        (dg.graphs.random_digraph(23, p=0.2, seed=0), 17),
        (dg.graphs.star(10_000), 2),
        (dg.graphs.exponential(4099), 5),
    ],
    ids=["one", "two", "complete", "random", "star", "circulant"],
)
def test_kernel_is_the_step_of_cgt(monkeypatch, graph, d):
    problem, network = polynomial(graph.n, d, quartic=0.5), dg.Network(graph)
    assert is_used(CGT, problem, network)
    assert_close(*with_and_without(monkeypatch, CGT, problem, network))


@needs_numba
def test_kernel_is_the_step_of_cgt_in_single_precision(monkeypatch):
    network = dg.Network(dg.graphs.k_out(70, 3, seed=0))
    ours, reference = with_and_without(monkeypatch, CGT, polynomial(70, 33), network, dtype="float32")
    assert ours.final_x.dtype == np.float32
    assert_close(ours, reference, 2e-5)


@needs_numba
@pytest.mark.parametrize("is_sparse", [False, True], ids=["rows", "lists"])
def test_kernel_is_the_step_of_cgt_on_samples(monkeypatch, is_sparse):
    problem, network = classified(6, is_sparse), dg.Network(dg.graphs.ring(6))
    assert is_used(CGT, problem, network, WithReplacement(problem.sizes, 3, 0))
    assert not is_used(CGT, problem, network)  # the gradient of all samples stays with XLA
    assert_close(*with_and_without(monkeypatch, CGT, problem, network, batch_size=3, seed=1))


@needs_numba
def test_kernel_takes_schedules_and_thresholds_of_agents(monkeypatch):
    problem, network = polynomial(7, 3), dg.Network(dg.graphs.ring(7))
    for method in (
        dg.CGT(step_size=lambda k: 0.1 / (1 + k), threshold=lambda k: 1.0 + k),
        dg.CGT(step_size=0.05, threshold=np.linspace(0.1, 3, 7)[:, None]),
        dg.CGT(step_size=0.05, threshold=float("inf")),
    ):
        assert is_used(method, problem, network)
        assert_close(*with_and_without(monkeypatch, method, problem, network))


@needs_numba
@pytest.mark.parametrize("step_size", [3.0, 50.0])
def test_a_run_diverges_at_the_same_iteration(monkeypatch, step_size):
    method = dg.CGT(step_size=step_size, threshold=float("inf"))
    for record_every in (1, 7, 1000):
        ours, reference = with_and_without(
            monkeypatch, method, polynomial(5, 2, quartic=1.0), dg.Network(dg.graphs.ring(5)),
            steps=200, record_every=record_every,
        )  # fmt: skip
        assert ours.verdict == reference.verdict == "diverged"
        assert ours.diverged_at == reference.diverged_at


@needs_numba
def test_bits_do_not_depend_on_threads_blocks_or_recording(monkeypatch, tmp_path):
    problem, network = polynomial(301, 11), dg.Network(dg.graphs.k_out(301, 3, seed=0))
    options = {"steps": 37, "x0": "normal"}
    whole = dg.simulate(CGT, problem, network, record_every=5, **options)
    monkeypatch.setattr(table, "NUMBERS_OF_THREADS", 1)
    monkeypatch.setattr(table, "_threads", lambda: 2)
    shared = dg.simulate(CGT, problem, network, record_every=5, **options)
    monkeypatch.setattr(table, "BLOCK_BYTES", 1 << 20)
    others = [dg.simulate(CGT, problem, network, record_every=every, **options) for every in (1, 100)]
    half = {**options, "steps": 20, "record_every": 5}
    dg.simulate(CGT, problem, network, checkpoint=Checkpoint(tmp_path / "run.npz", every=3), **half)
    again = Checkpoint(tmp_path / "run.npz", every=3, resume=True)
    others.append(dg.simulate(CGT, problem, network, record_every=5, checkpoint=again, **options))
    for other in (shared, *others):
        np.testing.assert_array_equal(other.final_x, whole.final_x)
    for name in whole.columns:
        np.testing.assert_array_equal(shared.columns[name], whole.columns[name])


@needs_numba
def test_what_has_no_kernel_runs_the_step_of_the_method():
    problem, network = polynomial(7, 3), dg.Network(dg.graphs.ring(7))
    turns = dg.NetworkSequence([network, dg.Network(dg.graphs.complete(7))])
    assert not is_used(dg.AB(step_size=0.05), problem, network)
    assert not is_used(CGT, problem, turns)
    assert not is_used(CGT, problem, dg.Network(dg.graphs.ring(7), links=dg.Links(loss=0.1)))


def test_everything_runs_without_numba(monkeypatch):
    monkeypatch.setattr(table, "find_spec", lambda name: None)
    assert not is_used(CGT, polynomial(7, 3), dg.Network(dg.graphs.ring(7)))


@pytest.mark.parametrize(
    ("version", "known"), [((0, 3), True), ((0, 9), True), ((0, 2), False), ((1, 3), False)]
)
def test_another_layout_of_the_interface_is_not_read(version, known):
    major, minor = version
    assert table._is_known(f"#define XLA_FFI_API_MAJOR {major}\n#define XLA_FFI_API_MINOR {minor}\n") == known
    assert not table._is_known("")


@needs_numba
def test_offsets_are_those_of_the_header(tmp_path):
    from digrad.simulation.kernels import frame

    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    places = {
        "XLA_FFI_CallFrame, extension_start": frame.EXTENSION,
        "XLA_FFI_CallFrame, api": frame.API,
        "XLA_FFI_CallFrame, ctx": frame.CONTEXT,
        "XLA_FFI_CallFrame, stage": frame.STAGE,
        "XLA_FFI_CallFrame, args.args": frame.ARGUMENTS,
        "XLA_FFI_CallFrame, rets.rets": frame.RESULTS,
        "XLA_FFI_Buffer, data": frame.DATA,
        "XLA_FFI_Buffer, dims": frame.DIMS,
        "XLA_FFI_Metadata_Extension, extension_base.type": frame.EXTENSION_TYPE,
        "XLA_FFI_Metadata_Extension, metadata": frame.METADATA,
        "XLA_FFI_Metadata, api_version.major_version": frame.VERSION,
        "XLA_FFI_Api, XLA_FFI_Error_Destroy": frame.DESTROY,
        "XLA_FFI_Api, XLA_FFI_ThreadPool_Schedule": frame.SCHEDULE,
        "XLA_FFI_Api, XLA_FFI_ThreadPool_NumThreads": frame.COUNT_THREADS,
    }
    checks = [
        f'_Static_assert(offsetof({place}) == {offset}, "{place}");' for place, offset in places.items()
    ]
    checks += [
        f'_Static_assert(XLA_FFI_ExecutionStage_EXECUTE == {frame.EXECUTE}, "stage");',
        f'_Static_assert(XLA_FFI_Extension_Metadata == {frame.METADATA_TYPE}, "extension");',
    ]
    source = tmp_path / "offsets.c"
    source.write_text('#include "xla/ffi/api/c_api.h"\n' + "\n".join(checks))
    command = [compiler, "-fsyntax-only", "-I", jax.ffi.include_dir(), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_small_runs_are_left_to_xla(monkeypatch):
    monkeypatch.undo()
    for n, d in ((64, 5000), (500, 123)):
        assert not is_used(CGT, polynomial(n, d), dg.Network(dg.graphs.ring(n)))


@pytest.mark.parametrize(
    ("wanted", "cores", "threads"), [(None, 3, 3), ("1", 3, 1), ("8", 3, 3), ("0", 3, 3), ("2,1", 3, 3)]
)
def test_threads_are_those_of_the_process_or_fewer(monkeypatch, wanted, cores, threads):
    monkeypatch.setattr(table.os, "sched_getaffinity", lambda pid: set(range(cores)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if wanted is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", wanted)
    assert table._threads() == threads


def test_a_small_run_does_not_import_numba():
    code = (
        "import sys, digrad as dg, digrad.cli\n"
        "network = dg.Network(dg.graphs.example5())\n"
        "dg.simulate(dg.CGT(step_size=0.05, threshold=2.0), dg.problems.example_quadratic(), network, steps=3)\n"
        "assert 'numba' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
