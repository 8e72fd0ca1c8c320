import signal
import subprocess
import sys
import textwrap
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import digrad as dg
from digrad.errors import ArgumentError, CheckpointError, MixingError
from digrad.testing.numpy_net import NumPyNet
from method_cases import CASES, of_each_kind

pytestmark = pytest.mark.long

NETWORK = dg.Network(dg.graphs.example5())
QUADRATIC = dg.problems.example_quadratic()
CGT = dg.CGT(step_size=0.05, threshold=2.0)
CGT_FAR = dg.CGT(step_size=0.05, threshold=1e300)


@cache  # one code, so that all tests share its compiled loops
def digits():
    return dg.problems.logistic(
        data="digits", agents=5, reg_weight=[5e-4, 1e-3, 2e-3, 1e-3, 1e-3], reg_power=[4, 5, 6, 5, 4]
    )


@cache
def user_loss():
    """A small network with one hidden layer, unequal agents: gradients by automatic differentiation."""
    import jax.numpy as jnp

    generator = np.random.default_rng(0)
    data = [(generator.standard_normal((m, 3)), generator.standard_normal(m)) for m in (7, 9, 7, 8, 9)]

    def loss(params, batch):
        features, targets = batch
        return ((jnp.tanh(features @ params["hidden"]) @ params["out"] - targets) ** 2).mean()

    return dg.problems.from_loss(loss, data, {"hidden": generator.standard_normal((3, 4)), "out": np.ones(4)})


def assert_same(first, second):
    assert first.columns.keys() == second.columns.keys()
    for name, column in first.columns.items():
        np.testing.assert_array_equal(column, second.columns[name], err_msg=name)
    np.testing.assert_array_equal(first.final_x, second.final_x)
    assert (first.verdict, first.steps, first.diverged_at) == (
        second.verdict,
        second.steps,
        second.diverged_at,
    )


@pytest.mark.parametrize(("make", "dtype"), [(digits, "float32"), (user_loss, "float64")])
def test_numbers_do_not_depend_on_the_chunk_length(make, dtype, chunks_of):
    problem, runs = make(), []
    for chunk in (1000, 7):
        chunks_of(chunk)
        options = {"steps": 230, "batch_size": 4, "x0": "normal", "record_every": 10, "dtype": dtype}
        runs.append(dg.simulate(CGT, problem, NETWORK, **options))
    assert_same(*runs)
    assert runs[0].k.tolist() == [*range(0, 231, 10)]


SCRIPT = """
import sys
sys.path[:0] = [{folder!r}, {folder!r} + "/.."]
from test_simulate import CGT, NETWORK, digits, user_loss
import digrad as dg
trace = dg.simulate(CGT, {problem}(), NETWORK, steps=230, batch_size=4, x0="normal", record_every=10)
trace.save(sys.argv[1])
"""


@pytest.mark.parametrize("problem", [pytest.param("digits", marks=pytest.mark.slow), "user_loss"])
def test_two_processes_give_the_same_bits(problem, tmp_path):
    script = SCRIPT.format(folder=str(Path(__file__).parent), problem=problem)
    subprocess.run([sys.executable, "-c", script, tmp_path], check=True)
    here = dg.simulate(
        CGT, globals()[problem](), NETWORK, steps=230, batch_size=4, x0="normal", record_every=10
    )
    assert_same(dg.Trace.load(tmp_path, "CGT"), here)


def test_a_resumed_run_equals_the_uninterrupted_one(tmp_path, chunks_of):
    problem, path = user_loss(), tmp_path / "run.ckpt"
    whole = dg.simulate(CGT, problem, NETWORK, steps=230, batch_size=4, x0="normal", record_every=10)
    first = dg.Checkpoint(path, every=60)
    dg.simulate(
        CGT, problem, NETWORK, steps=130, batch_size=4, x0="normal", record_every=10, checkpoint=first
    )
    again = dg.Checkpoint(path, every=60, resume=True)
    chunks_of(7)
    resumed = dg.simulate(
        CGT, problem, NETWORK, steps=230, batch_size=4, x0="normal", record_every=10, checkpoint=again
    )
    assert_same(whole, resumed)


def test_a_kill_in_mid_write_leaves_a_checkpoint_that_resumes(tmp_path):
    """SIGKILL after some of many writes: the file is whole, and the run ends in the same bits."""
    path = tmp_path / "run.ckpt"
    script = textwrap.dedent(f"""
        import sys
        sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parent.parent)!r}]
        from test_simulate import CGT, NETWORK, QUADRATIC
        import digrad as dg
        checkpoint = dg.Checkpoint({str(path)!r}, every=1, resume=True)
        print("ready", flush=True)
        dg.simulate(CGT, QUADRATIC, NETWORK, steps=4000, x0=[10.0, -10.0], checkpoint=checkpoint)
    """)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"ready\n"
        deadline = time.monotonic() + 60
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    resumed = dg.simulate(
        CGT,
        QUADRATIC,
        NETWORK,
        steps=400,
        x0=[10.0, -10.0],
        checkpoint=dg.Checkpoint(path, every=1000, resume=True),
    )
    whole = dg.simulate(CGT, QUADRATIC, NETWORK, steps=resumed.steps, x0=[10.0, -10.0])
    assert_same(whole, resumed)


@pytest.mark.parametrize("damage", [lambda b: b[: len(b) // 2], lambda b: b"", lambda b: b"\0" * len(b)])
def test_a_corrupt_checkpoint_is_refused_with_the_reason(damage, tmp_path):
    path = tmp_path / "run.ckpt"
    dg.simulate(CGT, QUADRATIC, NETWORK, steps=20, checkpoint=dg.Checkpoint(path, every=10))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CheckpointError, match="not a readable checkpoint"):
        dg.simulate(CGT, QUADRATIC, NETWORK, steps=40, checkpoint=dg.Checkpoint(path, every=10, resume=True))


def test_one_flipped_bit_in_the_state_is_noticed(tmp_path):
    path = tmp_path / "run.ckpt"
    dg.simulate(CGT, QUADRATIC, NETWORK, steps=20, checkpoint=dg.Checkpoint(path, every=10))
    data = bytearray(path.read_bytes())
    data[data.index(b"state/0.npy") + 200] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(CheckpointError, match="CRC"):
        dg.simulate(CGT, QUADRATIC, NETWORK, steps=40, checkpoint=dg.Checkpoint(path, every=10, resume=True))


def test_a_foreign_checkpoint_is_refused_and_says_what_differs(tmp_path):
    path = tmp_path / "run.ckpt"
    dg.simulate(CGT, QUADRATIC, NETWORK, steps=20, checkpoint=dg.Checkpoint(path, every=10))
    other = dg.CGT(step_size=0.06, threshold=2.0)
    with pytest.raises(CheckpointError, match=r"hyper_parameters: .*0\.05.* there, .*0\.06.* here"):
        dg.simulate(other, QUADRATIC, NETWORK, steps=40, checkpoint=dg.Checkpoint(path, resume=True))
    with pytest.raises(CheckpointError, match="network_hash"):
        dg.simulate(
            CGT,
            QUADRATIC,
            dg.Network(dg.graphs.ring(5)),
            steps=40,
            checkpoint=dg.Checkpoint(path, resume=True),
        )


def test_interrupt_returns_what_was_computed_and_leaves_a_checkpoint(tmp_path, chunks_of):
    def interrupt(progress):
        if progress.k == 200:
            raise KeyboardInterrupt

    checkpoint = dg.Checkpoint(tmp_path / "run.ckpt", every=500)
    chunks_of(10)
    trace = dg.simulate(CGT, QUADRATIC, NETWORK, steps=1000, callback=interrupt, checkpoint=checkpoint)
    assert (trace.interrupted, trace.steps, trace.k[-1]) == (True, 200, 200)
    again = dg.Checkpoint(tmp_path / "run.ckpt", every=500, resume=True)
    assert_same(
        dg.simulate(CGT, QUADRATIC, NETWORK, steps=1000, checkpoint=again),
        dg.simulate(CGT, QUADRATIC, NETWORK, steps=1000),
    )


def test_compare_stops_at_an_interrupt_with_what_was_computed():
    def interrupt(progress):
        if progress.name == "AB":
            raise KeyboardInterrupt

    methods = [CGT, dg.AB(step_size=0.05), dg.DGD(step_size=0.05)]
    traces = dg.compare(methods, QUADRATIC, NETWORK, steps=50, callback=interrupt)
    assert list(traces) == ["CGT", "AB"]
    assert not traces["CGT"].interrupted
    assert traces["AB"].interrupted


def test_verdicts_are_those_of_the_design():
    far = [10.0, 10.0]
    quartic = dg.problems.example_quartic()
    traces = dg.compare(
        [dg.CGT(step_size=0.05, threshold=5.0), dg.AB(step_size=0.05)], quartic, NETWORK, steps=2000, x0=far
    )
    assert traces["CGT"].verdict == "converged"
    assert traces["AB"].verdict == "diverged"
    at = traces["AB"].diverged_at
    assert at == traces["AB"].steps == traces["AB"].k[-1] <= 6
    assert np.abs(traces["AB"].final_x).max() > 1e12 * 11 or not np.isfinite(traces["AB"].final_x).all()
    before = dg.simulate(dg.AB(step_size=0.05), quartic, NETWORK, steps=at - 1, x0=far)
    assert np.abs(before.final_x).max() <= 1e12 * 11
    assert dg.simulate(dg.DGD(step_size=0.05), QUADRATIC, NETWORK, steps=500).verdict == "stalled"
    assert dg.simulate(dg.DGD(step_size=0.05), QUADRATIC, NETWORK, steps=20).verdict == "not converged"


def test_early_stop_ends_at_the_first_recorded_iteration_within_tolerance(chunks_of):
    chunks_of(10)
    whole = dg.simulate(CGT, QUADRATIC, NETWORK, steps=1000, record_every=5, tolerance=1e-3)
    early = dg.simulate(
        CGT, QUADRATIC, NETWORK, steps=1000, record_every=5, tolerance=1e-3, stop_at_tolerance=True
    )
    within = (whole.grad_norm <= 1e-3) & (whole.consensus_error <= 1e-3)
    assert early.steps == whole.k[np.argmax(within)]
    assert early.stopped_early
    assert early.verdict == "converged"
    np.testing.assert_array_equal(early.loss, whole.loss[: len(early.loss)])
    exact = dg.simulate(CGT, QUADRATIC, NETWORK, steps=early.steps)
    np.testing.assert_array_equal(early.final_x, exact.final_x)


@pytest.mark.parametrize("average_name", ["plain", "weighted"])
def test_recorded_columns_are_what_they_say(average_name):
    """Recomputed in NumPy from a run of the equations of CGT."""
    R, C, u, v = NETWORK.R.toarray(), NETWORK.C.toarray(), NETWORK.u, NETWORK.v
    x = np.random.default_rng(0).standard_normal((5, 2)) * 5
    trace = dg.simulate(CGT, QUADRATIC, NETWORK, steps=30, x0=x, record=dg.Record(average=average_name))
    assert trace.facts["average"] == average_name
    weights = u if average_name == "weighted" else np.ones(5)
    y = QUADRATIC.local_gradients(x)
    for k in range(31):
        norms = np.linalg.norm(y, axis=1)
        average = weights @ x / 5
        assert trace.loss[k] == pytest.approx(QUADRATIC.loss(average), rel=1e-12)
        assert trace.grad_norm[k] == pytest.approx(np.linalg.norm(QUADRATIC.gradient(average)), rel=1e-12)
        assert trace.consensus_error[k] == pytest.approx(
            np.linalg.norm(x - average) / 5**0.5, rel=1e-10, abs=1e-14
        )
        assert trace.tracking_error[k] == pytest.approx(
            np.linalg.norm(y - np.outer(v, y.mean(0))) / 5**0.5, rel=1e-10
        )
        assert trace.fraction_clipped[k] == pytest.approx((norms > 2.0).mean(), rel=1e-15)
        assert trace.bytes_sent[k] == k * 7 * 2 * 2 * 8
        new_x = R @ x - 0.05 * y * np.minimum(1, 2.0 / norms)[:, None]
        y = C @ y + QUADRATIC.local_gradients(new_x) - QUADRATIC.local_gradients(x)
        x = new_x
    np.testing.assert_allclose(
        trace.final_x, dg.simulate(CGT, QUADRATIC, NETWORK, steps=30, x0=trace_start()).final_x, atol=1e-15
    )


def trace_start():
    return np.random.default_rng(0).standard_normal((5, 2)) * 5


def test_schedules_are_evaluated_at_every_iteration(chunks_of):
    chunks_of(10)
    seen = []

    def step_size(k):
        seen.append(k)
        return 0.5 / (k + 10)

    scheduled = dg.simulate(dg.DGD(step_size=step_size), QUADRATIC, NETWORK, steps=25)
    same = dg.simulate(dg.DGD(step_size=dg.schedules.Inverse(0.5, 10)), QUADRATIC, NETWORK, steps=25)
    np.testing.assert_array_equal(scheduled.final_x, same.final_x)
    assert set(range(25)) <= set(seen)
    W, x = NETWORK.W.toarray(), np.zeros((5, 2))
    for k in range(25):
        x = W @ x - 0.5 / (k + 10) * QUADRATIC.local_gradients(x)
    np.testing.assert_allclose(scheduled.final_x, x, atol=1e-13)


def test_a_threshold_schedule_counts_what_it_clipped():
    clipping = dg.CGT(step_size=0.05, threshold=lambda k: 1e-9 if k < 5 else 1e9)
    trace = dg.simulate(clipping, QUADRATIC, NETWORK, steps=10)
    assert trace.fraction_clipped.tolist() == [1.0] * 5 + [0.0] * 6  # at the end with the last threshold
    table = [1e9] * 10  # not asked at k = 10
    rising = dg.CGT(step_size=0.05, threshold=lambda k: table[k])
    assert dg.simulate(rising, QUADRATIC, NETWORK, steps=10).fraction_clipped[-1] == 0.0


def test_the_last_row_of_a_scheduled_run_on_lossy_links_says_what_is_under_way():
    lossy = dg.Network(dg.graphs.example5(), links=dg.Links(loss=0.1))
    trace = dg.simulate(dg.SGP(step_size=dg.schedules.Inverse(0.5, 9)), QUADRATIC, lossy, steps=6)
    assert np.isfinite(trace.columns["in_transit"]).all()


@pytest.mark.parametrize(
    "method",
    [
        dg.CGT, dg.DGDClip, dg.ClippedGD,
        *(pytest.param(method, marks=pytest.mark.slow) for method in (dg.SoftCGT, dg.JiangClip)),
    ],
    ids=lambda method: method.__name__,
)  # fmt: skip
def test_fraction_clipped_counts_norms_above_the_threshold(method):
    never, always = (
        dg.simulate(method(step_size=0.05, threshold=c), QUADRATIC, NETWORK, steps=3, x0=[10.0, -10.0])
        for c in (1e6, 1e-6)
    )
    assert never.fraction_clipped.tolist() == [0.0] * 4
    assert always.fraction_clipped.tolist() == [1.0] * 4


@pytest.mark.parametrize(
    "method",
    [
        dg.SGP, dg.PushDIGing,
        *(pytest.param(method, marks=pytest.mark.slow) for method in (dg.SubgradientPush, dg.ADDOPT, dg.SONATA)),
    ],
    ids=lambda method: method.__name__,
)  # fmt: skip
def test_the_average_of_a_push_sum_method_is_the_one_it_conserves(method):
    # With equal linear losses every agent steps by the same vector, so the conserved average moves by it exactly.
    problem = dg.problems.quadratic(curvature=np.full((5, 1), 1e-300), linear=np.ones((5, 1)))
    x0 = np.array([[1.0], [20.0], [-3.0], [4.0], [50.0]])
    trace = dg.simulate(
        method(step_size=0.1), problem, NETWORK, steps=6, x0=x0, record=dg.Record(average="weighted")
    )
    average = -trace.loss
    if method in (dg.SGP, dg.SubgradientPush):
        np.testing.assert_allclose(average, x0.mean() + 0.1 * np.arange(7), rtol=1e-13)
    else:
        tracked = np.diff(average)
        np.testing.assert_allclose(tracked, 0.1, rtol=1e-12)


def test_a_quadratic_does_not_diverge_in_float32_because_a_power_of_it_would():
    trace = dg.simulate(
        dg.DGD(step_size=0.05), QUADRATIC, NETWORK, steps=300, x0=np.full(2, 1e20), dtype="float32"
    )
    assert trace.verdict == "not converged"
    assert np.isfinite(trace.grad_norm).all()
    assert not np.isnan(trace.loss).any()
    assert trace.loss[-1] < 1


@pytest.mark.parametrize("case", of_each_kind(case for case in CASES if "-" not in case.label))
def test_one_agent_works_everywhere(case):
    problem = dg.problems.quadratic(curvature=[[2.0, 1.0]], linear=[[1.0, 1.0]])
    network = dg.Network(dg.graphs.ring(1))
    trace = dg.simulate(case.method, problem, network, steps=200, x0=[2.0, -1.0], record_every=100)
    assert trace.loss[-1] < trace.loss[0]
    assert trace.bytes_sent[-1] == 0


@pytest.mark.parametrize("case", of_each_kind(CASES))
def test_the_simulator_runs_the_same_mathematics_as_numpy(case):
    x0 = np.random.default_rng(1).standard_normal((5, 2))
    net = NumPyNet(5, R=NETWORK.R.toarray(), C=NETWORK.C.toarray(), W=NETWORK.W.toarray()).bound(case.method)
    state = case.method.init(x0, net)
    for _ in range(25):
        state = case.method.step(state, QUADRATIC.local_gradients(case.method.query(state)), net)
    trace = dg.simulate(case.method, QUADRATIC, NETWORK, steps=25, x0=x0, record_every=25)
    np.testing.assert_allclose(trace.final_x, case.method.estimate(state), rtol=0, atol=1e-12)


def test_seeds_give_an_ensemble_with_bands():
    problem = digits()
    result = dg.compare(
        [CGT], problem, NETWORK, steps=40, batch_size=4, x0="normal", seed=3, seeds=3, record_every=20
    )
    ks, low, middle, high = result["CGT"].band("loss")
    assert ks.tolist() == [0, 20, 40]
    assert (low <= middle).all()
    assert (low < high).all()
    single = dg.simulate(CGT, problem, NETWORK, steps=40, batch_size=4, x0="normal", seed=4, record_every=20)
    np.testing.assert_array_equal(result["CGT"].traces[1].loss, single.loss)


def test_many_agents_run_on_the_sparse_executor():
    n = 300
    generator = np.random.default_rng(0)
    problem = dg.problems.quadratic(
        curvature=1 + generator.random((n, 3)), linear=generator.standard_normal((n, 3))
    )
    network = dg.Network(dg.graphs.k_out(n, 4, seed=0))
    trace = dg.simulate(dg.CGT(step_size=0.1, threshold=5.0), problem, network, steps=400, record_every=100)
    assert trace.verdict == "converged"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": dg.CGT}, "`method` of simulate must be a method such as"),
        ({"problem": "digits"}, "`problem` of simulate must be a digrad Problem"),
        ({"network": dg.graphs.ring(5)}, r"wrap a graph: Network\(graph\)"),
        ({"network": dg.Network(dg.graphs.ring(3))}, "3 agents, but `problem` has 5"),
        ({"steps": 0}, "`steps` of simulate"),
        ({"steps": 1.5}, "`steps` of simulate"),
        ({"record_every": -1}, "`record_every`"),
        ({"batch_size": 3}, "has no samples to draw from"),
        ({"x0": np.zeros(3)}, "`x0` must have shape"),
        ({"x0": [np.nan, 1.0]}, "`x0` must be finite"),
        ({"x0": "gaussian"}, "must be one of 'zeros', 'normal'"),
        ({"dtype": "float16"}, "`dtype` of simulate must be float64 or float32"),
        ({"tolerance": 0}, "`tolerance`"),
        ({"seed": -1}, "`seed`"),
        ({"sampling": "epochs"}, "Did you mean `epoch`"),
        (
            {"method": dg.CGT(step_size=lambda k: 1 - k, threshold=1.0), "steps": 5},
            "and at k = 1: `step_size` of CGT must",
        ),
    ],
)
def test_bad_arguments_get_one_clear_line(change, message):
    arguments = {"method": CGT, "problem": QUADRATIC, "network": NETWORK, "steps": 3, **change}
    with pytest.raises(ArgumentError, match=message) as error:
        dg.simulate(**arguments)
    assert "\n" not in str(error.value)


def test_a_batch_larger_than_an_epoch_is_refused():
    with pytest.raises(ArgumentError, match="agent 0 has only 7 samples"):
        dg.simulate(CGT, user_loss(), NETWORK, steps=3, batch_size=8, sampling="epoch")


def test_compare_refuses_two_methods_with_one_name():
    with pytest.raises(ArgumentError, match="CGT more than once"):
        dg.compare([CGT, CGT], QUADRATIC, NETWORK, steps=3)


def test_a_method_that_needs_balanced_weights_fails_before_the_first_step():
    path = dg.graphs.from_edges(3, [(0, 1), (1, 2)])
    ring = dg.network.column_stochastic(dg.graphs.ring(3))
    network = dg.Network(path, C=ring)
    problem = dg.problems.quadratic(curvature=np.ones((3, 1)), linear=np.ones((3, 1)))
    with pytest.raises(MixingError, match="DGD"):
        dg.simulate(dg.DGD(step_size=0.1), problem, network, steps=3)


def test_a_schedule_is_asked_for_the_steps_of_the_run_only():
    table = [0.05] * 20
    trace = dg.simulate(dg.DGD(step_size=lambda k: table[k]), QUADRATIC, NETWORK, steps=20)
    falling = dg.simulate(dg.DGD(step_size=lambda k: 0.1 * (1 - k / 20)), QUADRATIC, NETWORK, steps=20)
    assert trace.steps == falling.steps == 20
    with pytest.raises(ArgumentError, match="gave 'fast' at k = 0"):
        dg.simulate(dg.DGD(step_size=lambda k: "fast"), QUADRATIC, NETWORK, steps=20)


def scaled_problem(factor):
    return dg.problems.from_loss(
        lambda w, batch: factor * ((w - batch) ** 2).mean(), [np.ones((3, 1))] * 5, 1
    )


def test_a_checkpoint_of_another_closure_is_refused(tmp_path):
    path = tmp_path / "run.ckpt"
    dg.simulate(CGT, scaled_problem(1.0), NETWORK, steps=20, checkpoint=dg.Checkpoint(path, every=10))
    again = dg.Checkpoint(path, every=10, resume=True)
    with pytest.raises(CheckpointError, match="problem_hash"):
        dg.simulate(CGT, scaled_problem(2.0), NETWORK, steps=40, checkpoint=again)
    assert dg.simulate(CGT, scaled_problem(1.0), NETWORK, steps=40, checkpoint=again).steps == 40


def test_resume_with_fewer_steps_than_stored_is_refused(tmp_path):
    path = tmp_path / "run.ckpt"
    dg.simulate(CGT, QUADRATIC, NETWORK, steps=40, checkpoint=dg.Checkpoint(path, every=10))
    with pytest.raises(CheckpointError, match="is at k = 40, beyond steps = 20"):
        dg.simulate(CGT, QUADRATIC, NETWORK, steps=20, checkpoint=dg.Checkpoint(path, every=10, resume=True))


def test_slow_steps_report_progress_about_twice_a_second(monkeypatch):
    seen = []
    times = iter(np.arange(0, 10000, 2.0))
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    dg.simulate(CGT, QUADRATIC, NETWORK, steps=60, callback=lambda progress: seen.append(progress.k))
    assert len(seen) >= 6  # chunks get short when every look at the clock is two seconds later


def test_calls_of_many_agents_are_never_so_short_that_their_ends_count(monkeypatch):
    seen = []
    times = iter(np.arange(0, 10000, 2.0))
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    n = 4100
    problem = dg.problems.quadratic(curvature=np.ones((n, 1)), linear=np.ones((n, 1)))
    network = dg.Network(dg.graphs.ring(n))
    dg.simulate(CGT, problem, network, steps=70, callback=lambda progress: seen.append(progress.k))
    assert seen == [10, 20, 40, 60, 70]  # ten to compile, ten to see how long they take


@pytest.mark.parametrize(("batch_size", "length"), [(4, 20), (64, 8)])
def test_samples_do_not_shorten_calls_to_fewer_bytes_than_the_states_take(batch_size, length, monkeypatch):
    monkeypatch.setattr("digrad.simulation.simulator.BYTES_PER_CALL", 64)
    assert dg.Simulator(CGT, digits(), NETWORK, batch_size=batch_size).length == length


@pytest.mark.usefixtures("interruptible")
def test_sigint_ends_the_run_between_chunks(chunks_of):
    chunks_of(10)

    def press(progress):
        if progress.k >= 20:
            signal.raise_signal(signal.SIGINT)

    trace = dg.simulate(CGT, QUADRATIC, NETWORK, steps=500, callback=press)
    assert (trace.interrupted, trace.steps) == (True, 20)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_numpy_numbers_are_numbers(tmp_path):
    checkpoint = dg.Checkpoint(tmp_path / "new" / "run.ckpt", every=10)
    trace = dg.simulate(CGT, QUADRATIC, NETWORK, steps=np.int64(20), seed=np.int64(1), checkpoint=checkpoint)
    assert trace.facts["seed"] == 1
    problem = dg.problems.from_loss(lambda w, b: (w**2).sum() + 0 * b.sum(), [np.ones(2)], np.int64(3))
    assert problem.dim == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dtype": "foo"}, "`dtype` of simulate must be float64 or float32"),
        ({"x0": [[1.0, 2.0], [3.0]]}, "`x0` of a run must be an array of numbers"),
        ({"seed": 2**64}, "`seed` of simulate must be at most"),
        ({"checkpoint": "run.ckpt"}, "`checkpoint` of simulate must be a Checkpoint"),
        ({"method": dg.CGT(step_size=np.ones(5), threshold=1.0)}, r"column of shape \(5, 1\)"),
        ({"method": dg.DGD(step_size=np.ones((3, 1)))}, r"column of shape \(5, 1\)"),
        (
            {"method": dg.GD(step_size=np.ones((5, 1)))},
            "`step_size` of GD must be one number, because all its agents",
        ),
    ],
)
def test_odd_arguments_get_one_clear_line(change, message):
    arguments = {"method": CGT, "problem": QUADRATIC, "network": NETWORK, "steps": 3, **change}
    with pytest.raises(ArgumentError, match=message):
        dg.simulate(**arguments)


def test_what_has_overflowed_is_infinite_in_columns_files_and_print_and_null_in_json(tmp_path):
    trace = dg.simulate(
        dg.AB(step_size=0.5),
        dg.problems.example_quartic(),
        NETWORK,
        steps=60,
        x0=[1e75, -1e75],
        record=dg.Record(invariant=True),
    )
    assert trace.verdict == "diverged"
    assert (trace.loss[-1], trace.grad_norm[-1]) == (np.inf, np.inf)
    assert trace.tracking_error[-1] == trace.columns["mass_error"][-1] == np.inf
    assert "loss inf, |grad| inf" in repr(trace)
    assert trace.summary()["final"]["loss"] is None
    trace.save(tmp_path)
    assert dg.Trace.load(tmp_path, "AB").loss[-1] == np.inf


def test_a_loss_that_overflows_downwards_is_minus_infinity():
    falls = dg.problems.from_loss(lambda x, batch: -((x + 0 * batch.mean()) ** 4).sum(), [np.ones(1)] * 5, 1)
    assert dg.simulate(CGT, falls, NETWORK, steps=1, x0=[1e80]).loss[0] == -np.inf


def test_a_schedule_that_overflows_is_infinite():
    grows = dg.schedules.Geometric(1.0, 2.0)
    for threshold in (grows, lambda k: 2.0**k, lambda k: 10 ** (k + 300)):
        trace = dg.simulate(dg.CGT(0.05, threshold), QUADRATIC, NETWORK, steps=1100, record_every=100)
        assert trace.verdict == "converged"
    with pytest.raises(dg.DigradError, match=r"`step_size` of CGT is a schedule, and at k = 1024: .* finite"):
        dg.simulate(dg.CGT(grows, 1e-300), QUADRATIC, NETWORK, steps=1100)


def test_whole_numbers_beyond_those_of_arrays_are_floats_or_refused():
    assert dg.simulate(dg.CGT(0.05, 10**30), QUADRATIC, NETWORK, steps=400).verdict == "converged"
    for make in (
        lambda: dg.CGT(10**400, 1.0),
        lambda: dg.CGT(1.0, 10**400),
        lambda: dg.schedules.Geometric(10**400, 0.5),
        lambda: dg.simulate(CGT, QUADRATIC, NETWORK, steps=3, x0=[10**400, 1]),
        lambda: dg.simulate(CGT, QUADRATIC, NETWORK, steps=3, record_every=10**30),
        lambda: dg.simulate(CGT, QUADRATIC, NETWORK, steps=3, tolerance=10**400),
        lambda: dg.problems.quadratic(curvature=[[10**400]], linear=[[1]]),
        lambda: dg.Links(noise=10**400),
        lambda: dg.Checkpoint("run", every=10**30),
    ):
        with pytest.raises(dg.DigradError):
            make()


def test_divergence_does_not_depend_on_the_units_of_x():
    units = 3e14
    curvature, linear = (
        np.array([[1.0], [2.0], [1.5], [1.0], [0.5]]),
        np.array([[-1.0], [2.0], [-3.0], [-4.0], [0.0]]),
    )
    far = dg.problems.quadratic(curvature=curvature, linear=units * linear)
    near = dg.problems.quadratic(curvature=curvature, linear=linear)
    minimum = units * near.solve().x
    assert abs(minimum[0]) > 1e14
    options = {"steps": 300, "record_every": 50, "tolerance": 1.0}
    method = dg.AB(step_size=0.2)
    alone = dg.simulate(method, far, NETWORK, **options)
    assert alone.verdict == "converged"
    np.testing.assert_allclose(alone.final_x, np.tile(minimum, (5, 1)), rtol=1e-12)
    for trace in dg.compare([method], far, NETWORK, seeds=2, **options)["AB"].traces:
        np.testing.assert_allclose(trace.final_x, alone.final_x, rtol=1e-12)
    too_large = dg.simulate(dg.AB(step_size=3.0), far, NETWORK, steps=300)
    assert too_large.verdict == "diverged"
    assert too_large.diverged_at < 100
    assert dg.simulate(dg.AB(step_size=3.0), near, NETWORK, steps=300).diverged_at < 100


@pytest.mark.parametrize("start", [0.0, 1.0])
def test_a_run_diverges_at_the_same_iteration_in_all_units(start):
    def scaled(units):  # by a power of two, which changes no digit
        linear = units * np.array([[-1.0], [2.0], [-3.0], [-4.0], [0.0]])
        problem = dg.problems.quadratic(curvature=np.ones((5, 1)), linear=linear)
        options = {"steps": 200, "x0": [units * start], "record_every": 50}
        runs = dg.sweep(dg.AB, problem, NETWORK, grid={"step_size": [3.0, 4.0]}, **options).table
        return dg.simulate(dg.AB(3.0), problem, NETWORK, **options).diverged_at, *runs["diverged_at"]

    found = {units: scaled(units) for units in (2.0**-100, 1.0, 2.0**50)}
    assert None not in found[1.0]
    assert len(set(found.values())) == 1, found


def test_start_gradients_are_evaluated_once_for_all_runs_that_diverge(monkeypatch):
    asked, evaluate = [], dg.Problem.local_gradients
    monkeypatch.setattr(dg.Problem, "local_gradients", lambda *words: asked.append(1) or evaluate(*words))
    runs = dg.sweep(dg.AB, QUADRATIC, NETWORK, steps=100, grid={"step_size": [3.0, 4.0, 5.0]}).table
    assert set(runs["verdict"]) == {"diverged"}
    assert len(asked) == 4


def test_a_run_that_went_beyond_the_first_limit_is_resumed(tmp_path):
    far = dg.problems.quadratic(curvature=np.ones((5, 1)), linear=np.full((5, 1), -1e15))
    options = {"record_every": 7, "x0": [0.0]}
    whole = dg.simulate(CGT_FAR, far, NETWORK, steps=40, **options)
    dg.simulate(
        CGT_FAR, far, NETWORK, steps=20, checkpoint=dg.Checkpoint(tmp_path / "run", every=20), **options
    )
    again = dg.Checkpoint(tmp_path / "run", every=20, resume=True)
    resumed = dg.simulate(CGT_FAR, far, NETWORK, steps=40, checkpoint=again, **options)
    assert resumed.verdict == whole.verdict == "not converged"
    for name, column in whole.columns.items():
        np.testing.assert_array_equal(resumed.columns[name], column)
