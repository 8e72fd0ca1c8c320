"""A run goes on only with what it began with, loses nothing silently, and survives a full disk."""

import signal
import threading

import numpy as np
import pytest

import digrad as dg
from digrad.errors import ArgumentError, CheckpointError, StorageError

NETWORK, METHOD = dg.Network(dg.graphs.ring(2)), dg.CGT(step_size=0.05, threshold=5.0)
QUADRATIC = dg.problems.quadratic(curvature=[[1.0], [3.0]], linear=[[0.0], [4.0]])
SETTINGS = {"scale": 1.0}
DATA = [np.zeros((3, 1)), np.ones((2, 1))]


class Config:
    scale = 1.0


def from_dictionary(w, batch):
    return (SETTINGS["scale"] * (w - batch) ** 2).mean()


def from_class(w, batch):
    return (Config.scale * (w - batch) ** 2).mean()


def from_inner_function(w, batch):
    def inner(x):
        return SCALE * x**2

    return inner(w - batch).mean()


SCALE = 1.0
CHANGES = {
    "dictionary": (from_dictionary, lambda patch: patch.setitem(SETTINGS, "scale", 2.0)),
    "class": (from_class, lambda patch: patch.setattr(Config, "scale", 2.0)),
    "inner function": (from_inner_function, lambda patch: patch.setitem(globals(), "SCALE", 2.0)),
}


def run(problem, path, *, steps=20, method=METHOD, **options):
    checkpoint = dg.Checkpoint(path, every=10, **options)
    return dg.simulate(method, problem, NETWORK, steps=steps, checkpoint=checkpoint)


@pytest.mark.parametrize("name", CHANGES)
def test_resume_refuses_a_loss_that_names_other_values(name, tmp_path, monkeypatch):
    loss, change = CHANGES[name]
    run(dg.problems.from_loss(loss, DATA, 1), tmp_path / "run.npz")
    change(monkeypatch)
    with pytest.raises(CheckpointError, match="problem_hash"):
        run(dg.problems.from_loss(loss, DATA, 1), tmp_path / "run.npz", steps=40, resume=True)


def test_problem_keeps_its_data_when_the_caller_changes_the_array(tmp_path):
    data = [block.copy() for block in DATA]
    problem = dg.problems.from_loss(from_dictionary, data, 1)
    before = run(problem, tmp_path / "run.npz").loss
    data[1][:] = 7.0
    with pytest.raises(ValueError, match="read-only"):
        problem.local.data[0][:] = 7.0
    assert (run(problem, tmp_path / "other.npz").loss == before).all()


def test_problem_whose_loss_changed_since_is_not_stored(tmp_path, monkeypatch):
    problem = dg.problems.from_loss(from_dictionary, DATA, 1)
    monkeypatch.setitem(SETTINGS, "scale", 2.0)
    with pytest.raises(ArgumentError, match="changed after the problem was made; make the problem again"):
        run(problem, tmp_path / "run.npz")


def test_loss_without_fingerprint_runs_but_is_not_stored(tmp_path):
    lock = threading.Lock()

    def loss(w, batch):
        with lock:
            return ((w - batch) ** 2).mean()

    problem = dg.problems.from_loss(loss, DATA, 1)
    assert dg.simulate(METHOD, problem, NETWORK, steps=3).facts["problem_hash"] is None
    with pytest.raises(ArgumentError, match=r"the problem cannot be identified: .*_thread\.lock"):
        run(problem, tmp_path / "run.npz")


def test_existing_checkpoint_is_neither_overwritten_nor_recomputed_silently(tmp_path):
    path = tmp_path / "run.npz"
    run(QUADRATIC, path)
    before = path.read_bytes()
    with pytest.raises(
        ArgumentError, match=r"resume=True, start over with overwrite=True, or give another path"
    ):
        run(QUADRATIC, path)
    assert path.read_bytes() == before
    with pytest.raises(ArgumentError, match="exclude each other"):
        dg.Checkpoint(path, resume=True, overwrite=True)
    assert run(QUADRATIC, path, overwrite=True).steps == 20


def test_resume_with_more_steps_equals_a_longer_run(tmp_path):
    run(QUADRATIC, tmp_path / "run.npz", steps=23)
    extended = run(QUADRATIC, tmp_path / "run.npz", steps=57, resume=True)
    whole = dg.simulate(METHOD, QUADRATIC, NETWORK, steps=57)
    assert extended.final_x.tobytes() == whole.final_x.tobytes()
    assert all(extended.columns[name].tobytes() == whole.columns[name].tobytes() for name in whole.columns)


@pytest.mark.parametrize("option", ["resume", "overwrite"])
def test_file_of_a_run_under_way_is_refused_to_another(option, tmp_path):
    path = tmp_path / "run.npz"

    def meanwhile(progress):
        with pytest.raises(
            ArgumentError, match=r"writing to .*run\.npz; wait until it has ended, or give another"
        ):
            run(QUADRATIC, path, **{option: True})

    checkpoint = dg.Checkpoint(path, every=10)
    trace = dg.simulate(METHOD, QUADRATIC, NETWORK, steps=20, callback=meanwhile, checkpoint=checkpoint)
    assert trace.steps == 20
    assert [file.name for file in tmp_path.iterdir()] == ["run.npz"]
    assert run(QUADRATIC, path, **{option: True}).steps == 20


def test_full_disk_costs_the_checkpoint_but_not_the_run(tmp_path, full_disk):
    path = tmp_path / "run.npz"
    with (
        full_disk(after=100),
        pytest.warns(UserWarning, match=r"goes on without a checkpoint at k = .*run\.npz"),
    ):
        trace = run(QUADRATIC, path)
    assert trace.steps == 20
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        ("", ArgumentError, "must be a file, but .* is a folder"),
        ("file/run.npz", StorageError, "file cannot be written"),
    ],
)
def test_place_that_cannot_be_written_is_refused_before_the_run(path, error, message, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(error, match=message):
        run(QUADRATIC, tmp_path / path)


@pytest.mark.usefixtures("interruptible")
def test_resume_after_an_interrupt_of_a_diverged_run_diverges_where_it_did(tmp_path):
    def run(**options):
        method, network = dg.AB(step_size=0.05), dg.Network(dg.graphs.example5())
        return dg.simulate(
            method, dg.problems.example_quartic(), network, steps=40, x0=[10.0, 10.0], **options
        )

    def press(progress):
        signal.raise_signal(signal.SIGINT)

    plain = run()
    path = tmp_path / "run.npz"
    assert run(checkpoint=dg.Checkpoint(path), callback=press).interrupted
    resumed = run(checkpoint=dg.Checkpoint(path, resume=True))
    assert (resumed.diverged_at, resumed.k.tolist()) == (plain.diverged_at, plain.k.tolist())
