"""Runs of engine torch: jobs in processes of their own, stored like any other run, killed and resumed bit for bit."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from digrad.cli.main import digrad
from digrad.errors import CheckpointError, DigradError
from digrad.report import write_report
from digrad.specs import RunResult, find_run, load_spec, run, runner
from digrad.trace import Trace
from docs_pages import blocks
from experiment_specs import images
from image_problems import jobs_here, write_batches

pytestmark = pytest.mark.long


class Board:
    """An observer that keeps what it is told."""

    def __init__(self):
        self.started, self.progress, self.ended = [], [], []

    def on_method_start(self, name, steps):
        self.started.append((name, steps))

    def on_progress(self, progress):
        self.progress.append(progress)

    def on_method_end(self, trace):
        self.ended.append(trace.name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_batches(tmp_path_factory.mktemp("batches"), 20)


@pytest.fixture(scope="module")
def board() -> Board:
    return Board()


@pytest.fixture(scope="module")
def whole(folder, tmp_path_factory, board) -> RunResult:
    out = tmp_path_factory.mktemp("whole") / "run"
    with jobs_here("digrad.specs.images.training_jobs"):
        return run(images(folder), out, workers=1, progress=board, report=write_report, formats=("png",))


def assert_same_trace(first: Path, second: Path, label: str) -> None:
    one, other = Trace.load(first, label), Trace.load(second, label)
    for name, column in one.columns.items():
        assert column.tobytes() == other.columns[name].tobytes(), name
    assert one.final_x.tobytes() == other.final_x.tobytes()
    assert one.facts["last"] == other.facts["last"]


def test_torch_run_leaves_the_directory_of_any_run(whole):
    assert not whole.failures
    assert find_run(whole.directory).summary.keys() == {"CGT", "AB"}
    assert whole.results["CGT"].columns["test_accuracy"].shape == (3,)
    assert {"accuracy.png", "loss_and_gradient.png"} <= {path.name for path in whole.figures}
    page = (whole.directory / "report.html").read_text()
    assert '"title":"Test accuracy"' in page
    assert '"key":"epoch"' in page
    assert "<h2>The data of the agents</h2>" in page


def test_torch_run_tells_its_observer_what_happens_and_how_long_it_will_take(whole, board):
    assert board.started == [("CGT", 4), ("AB", 4)]
    assert board.ended == ["CGT", "AB"]
    assert [progress.k for progress in board.progress] == [2, 4, 2, 4]
    assert board.progress[0].seconds_left > 0


def test_torch_run_that_is_complete_is_not_trained_again(whole, folder, monkeypatch):
    monkeypatch.setattr("digrad.specs.images.worker_pool._start", None)
    monkeypatch.setattr(runner, "draw_figures", lambda *_: [])
    again = run(images(folder), whole.directory, resume=True, formats=("png",))
    assert again.results.keys() == whole.results.keys()


@pytest.mark.parametrize(
    ("written", "edited", "place"),
    [("step_size = 0.05", "step_size = 0.06", "method"), ("seed = 0\nseeds", "seed = 1\nseeds", "seed")],
)
def test_an_edited_specification_does_not_take_over_old_trainings(whole, tmp_path, written, edited, place):
    copy = shutil.copytree(whole.directory, tmp_path / "copy")
    text = (copy / "spec.toml").read_text()
    assert written in text
    (copy / "spec.toml").write_text(text.replace(written, edited))
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match=rf"belongs to another run .*{place}: "):
        run(load_spec(copy / "spec.toml"), copy, resume=True)
    assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before


@pytest.mark.slow
def test_seeds_are_added_by_a_resume(folder, tmp_path):
    spec = images(folder, steps=1, seeds=2)
    first = run(spec, tmp_path / "run", workers=1, seeds=1, formats=("png",))
    assert [trace.facts["seed"] for trace in first.results["CGT"].traces] == [0]
    second = run(spec, tmp_path / "run", workers=1, resume=True, formats=("png",))
    assert [trace.facts["seed"] for trace in second.results["CGT"].traces] == [0, 1]


def test_run_says_why_when_no_method_could_be_run(folder, tmp_path, monkeypatch):
    failed = {"CGT": "out of memory", "AB": "out of memory"}
    monkeypatch.setattr("digrad.specs.images.training_jobs.run_jobs", lambda jobs, **options: failed)
    with pytest.raises(DigradError, match=r"CGT: out of memory"):
        run(images(folder, steps=1), tmp_path / "run", workers=1)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "smoothness"])
def test_specification_of_the_page_trains_and_is_measured(command, folder, tmp_path, monkeypatch):
    (text,) = blocks("guides/paper.md", "toml")
    few = f'folder = "{folder}", evaluate = 10, evaluate_last = 10'
    for old, new in {
        "1000": "2",
        "= 32": "= 4",
        "= 100\n": "= 1\n",
        '"resnet20"': f'"small_cnn", {few}',
    }.items():
        assert old in text
        text = text.replace(old, new)
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(text)
    done = CliRunner().invoke(digrad, [command, "mine.toml"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "CGT" in done.stdout or "L0" in done.stdout


def test_killed_torch_run_resumes_to_the_same_bits_and_a_method_that_fails_does_not_lose_the_others(
    whole, folder, tmp_path, monkeypatch
):
    spec, out = images(folder, ab_step_size=[0.1, 0.2, 0.1, 0.1, 0.1]), tmp_path / "run"
    first = spec.model_copy(update={"methods": {"CGT": spec.methods["CGT"]}})  # one worker to start
    (tmp_path / "images.toml").write_text(first.to_toml())
    command = [sys.executable, "-m", "digrad", "run", str(tmp_path / "images.toml"), "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "step 2 of 4" in process.stderr.readline()  # the kill comes at whatever moment it is then
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    monkeypatch.setattr(runner, "draw_figures", lambda *_: [])
    result = run(spec, out, resume=True, workers=1)
    assert result.results.keys() == {"CGT"}
    assert "differs between the agents" in result.failures["AB"]
    assert json.loads((out / "failures.json").read_text()) == result.failures
    assert_same_trace(whole.directory, out, "CGT")
