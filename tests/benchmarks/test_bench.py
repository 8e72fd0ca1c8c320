import json
import resource
import sys
from importlib.util import find_spec

import jax
import numpy as np
import pytest

from benchmarks import BenchReport, BenchRow, large, run, run_bench, workload
from benchmarks.cases import CASES
from benchmarks.figure import growth_figure
from benchmarks.history import remember
from benchmarks.measure import Timing, fastest, interleave, peak_memory
from benchmarks.workload import Workload, paper_problem
from digrad.errors import ArgumentError, DataError, DigradError

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def problem():
    return paper_problem("digits")


@pytest.mark.parametrize("batch_size", [None, 32])
def test_every_numpy_layout_follows_the_trajectory_of_digrad(problem, batch_size):
    with jax.enable_x64(True):
        assert Workload(problem, "float64", 20, batch_size).check_agreement() < 1e-10


def test_bench_is_void_when_numpy_and_digrad_disagree(problem, monkeypatch):
    monkeypatch.setattr(workload, "THRESHOLD", 0.1)
    with jax.enable_x64(True), pytest.raises(DigradError, match=r"NumPy loop .* differ by"):
        Workload(problem, "float64", 20, 32).check_agreement()


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-3)])
def test_metrics_inside_the_loop_equal_deferred_metrics(problem, dtype, tolerance):
    with jax.enable_x64(True):
        work = Workload(problem, dtype, 40, 32)
        inside, deferred = work.run_inside(10), work.run_deferred(10)
    assert inside.shape == (4,)
    np.testing.assert_allclose(inside, deferred, rtol=tolerance)


def test_deferred_losses_are_those_of_the_problem(problem):
    with jax.enable_x64(True):
        work = Workload(problem, "float64", 10, 32)
        first = work.run_deferred(10)[0]
    assert first == pytest.approx(problem.loss(work.x0.mean(axis=0)), rel=1e-12)


def test_interleave_takes_turns_after_one_call_of_each():
    calls = []
    times = interleave({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, repeats=2)
    assert calls == ["a", "b"] * 3
    assert all(timing.cpu >= 0 and timing.wall >= 0 for timing in times.values())


def test_fastest_is_the_least_cpu_time():
    assert fastest({"a": Timing(2.0, 0.1), "b": Timing(1.0, 9.0)})[0] == "b"


def test_peak_memory_is_that_of_this_process_in_bytes():
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    assert 0.1 * largest < peak_memory() <= 1.1 * largest


@pytest.mark.parametrize(
    ("row", "ratio", "ok", "promise"),
    [
        (BenchRow("a", 10.0, "us", 3.0, reference=30.0, at_least=True), 3.0, True, ">= 3x"),
        (BenchRow("b", 10.0, "us", 3.0, reference=29.0, at_least=True), 2.9, False, ">= 3x"),
        (BenchRow("c", 13.0, "us", 1.3, reference=10.0), 1.3, True, "<= 1.3x"),
        (BenchRow("d", 1.2, "GB", 1.0), None, False, "<= 1 GB"),
    ],
)
def test_row_judges_its_promise(row, ratio, ok, promise):
    assert row.ratio == pytest.approx(ratio)
    assert (row.ok, row.promise) == (ok, promise)
    assert row.to_dict()["ok"] is ok


def test_report_is_ok_only_if_every_row_is_and_prints_each():
    kept, broken = BenchRow("fine", 0.5, "GB", 1.0), BenchRow("too much", 2.0, "GB", 1.0)
    assert BenchReport((kept,), {}).ok
    report = BenchReport((kept, broken), {"data": "digits"})
    assert not report.ok
    assert json.loads(json.dumps(report.to_dict()))["rows"][1]["name"] == "too much"
    lines = str(report).splitlines()
    assert any("fine" in line and "kept" in line for line in lines)
    assert any("too much" in line and "BROKEN" in line for line in lines)


def test_parent_and_worker_know_the_same_cases():
    assert tuple(CASES) == run.CASES


def test_run_bench_reports_every_promise_from_fresh_processes(monkeypatch):
    monkeypatch.setattr(run, "CASES", ("full_batch", "memory"))
    monkeypatch.setattr(run, "SWEEPS", ("shared_samples",))
    monkeypatch.setattr(run, "sweep_row", lambda case, data, repeats: BenchRow(case, 1.0, "s"))
    monkeypatch.setattr(run, "STARTS", 1)
    parts = []
    report = run_bench(repeats=1, data="digits", progress=parts.append)
    assert parts == ["full_batch", "memory", "sweeps, shared_samples", "start-up"]
    assert [row.name for row in report.rows] == [
        "step, full batch, float32",
        "step, full batch, float64",
        "peak memory, 1000 steps",
        "shared_samples",
        "import digrad",
        "digrad --help",
    ]
    assert all(row.ours > 0 for row in report.rows)
    assert all(row.floor is not None and row.floor > 0 for row in report.rows[:2])
    assert report.facts["data"] == "digits"


@pytest.mark.slow
def test_every_promise_about_large_networks_is_measured(monkeypatch):
    for name, value in (
        ("MANY", 2000),
        ("CURVE", (10, 100, 1200)),
        ("STEPS", (2, 3)),
        ("STREAM_NUMBERS", 1000),
    ):
        monkeypatch.setattr(large, name, value)
    monkeypatch.setattr(
        large, "_check_agreement", lambda: None
    )  # of 5000 agents, for each graph in a test of its own
    rows = [row for case in run.LARGE for row in CASES[case]("digits", 1)]
    assert [row.target for row in rows if row.target] == [0.9, 0.7, 1.4, 3.0, 1.5, 3.0, 30.0, 10.0, 1.0]
    assert all(
        row.ours > 0 for row in rows if row.unit != "MB"
    )  # what is so small adds nothing to the memory
    assert [row.n for row in rows if row.n] == [10, 100, 1200] * 2 + [2000]
    assert [row.floor is not None for row in rows].count(True) == 8


def test_history_is_compared_with_by_the_next_run(tmp_path):
    rows, path = [BenchRow("a", 2.0, "us"), BenchRow("b", 3.0, "s", 4.0)], tmp_path / "deep" / "history.jsonl"
    assert remember(path, rows, {"data": "digits"}) == {}
    before = remember(path, [BenchRow("a", 1.0, "us")], {})
    assert before == {"a": 2.0, "b": 3.0}
    report = BenchReport((BenchRow("a", 1.0, "us"),), {}, before)
    assert report.to_dict()["rows"][0]["before"] == 2.0
    assert "2" in str(report)


def test_history_that_is_something_else_is_refused(tmp_path):
    path = tmp_path / "history.jsonl"
    path.write_text("no json\n")
    with pytest.raises(DataError, match="is no history of `python -m benchmarks`"):
        remember(path, [], {})


def test_growth_figure_has_a_floor_and_logarithmic_axes():
    rows = [
        BenchRow(f"{graph}, {n} agents", 1.0 * n, "us", reference=2.0 * n, floor=0.1 * n, n=n)
        for graph in ("random 3-out digraph", "exponential graph")
        for n in (10, 100)
    ]
    rows.append(BenchRow("random 3-out digraph, 100 agents, whole run", 150.0, "us", n=100))
    figure = growth_figure(BenchReport(tuple(rows), {}))
    assert len(figure.axes) == 2
    (star,) = (line for line in figure.axes[0].lines if line.get_marker() == "*")
    assert star.get_xydata().tolist() == [[100.0, 150.0]]
    assert figure.axes[0].get_xscale() == figure.axes[0].get_yscale() == "log"
    assert [line.get_label() for line in figure.axes[1].lines][-1].startswith("floor")


@pytest.mark.parametrize("graph", large.GRAPHS)
def test_scipy_loop_follows_the_trajectory_of_digrad_on_large_networks(graph):
    with jax.enable_x64(True):
        work = large.LargeWorkload(graph, 200, 3, "float64", length=10)
        np.testing.assert_allclose(np.asarray(work.run().x), work.run_scipy(), atol=1e-12)
        assert work.floor(1e10) > 0


def test_other_loops_follow_the_trajectory_of_digrad(problem):
    with jax.enable_x64(True):
        work = Workload(problem, "float64", 10, 8)
        ours = np.asarray(work.run().x)
    others = work.others()
    assert set(others) == ({"agent loop", "torch eager"} if find_spec("torch") else {"agent loop"})
    for run_other in others.values():
        np.testing.assert_allclose(run_other(), ours, atol=1e-12)


def test_run_bench_passes_on_the_reason_when_the_data_set_is_unknown():
    with pytest.raises(DigradError, match="no_such_data"):
        run_bench(repeats=1, data="no_such_data")


def test_run_bench_refuses_zero_repeats():
    with pytest.raises(ArgumentError, match="`repeats` of run_bench"):
        run_bench(repeats=0)
