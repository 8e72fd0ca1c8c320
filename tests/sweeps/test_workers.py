"""Sweeps on several processes: the same rows, and one clear line when a worker is killed."""

import os
import signal
from pathlib import Path

import joblib
import pandas as pd
import pytest

import digrad as dg
from digrad._internal.available_cores import available_cores
from digrad.errors import ArgumentError, WorkerError
from digrad.sweeps import workers as sweep_workers

NETWORK = dg.Network(dg.graphs.example5())
QUARTIC = dg.problems.example_quartic()
RUN = {"steps": 20, "x0": [10.0, 10.0], "record_every": 5}
GRID = {"step_size": [0.001, 0.002, 0.05, 0.2]}


def thread_names():
    return [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]


def without_times(found):
    return found.table.drop(columns="seconds")


def test_two_workers_give_the_rows_of_one():
    here = dg.sweep(dg.AB, QUARTIC, NETWORK, grid=GRID, **RUN)
    events = []
    there = dg.sweep(dg.AB, QUARTIC, NETWORK, grid=GRID, workers=2, progress=events.append, **RUN)
    pd.testing.assert_frame_equal(without_times(there), without_times(here), rtol=1e-9)
    assert there.table["verdict"].tolist() == ["not converged", "not converged", "diverged", "diverged"]
    assert [one.done for one in events] == [2, 4]


def test_a_worker_has_its_share_of_the_cores():
    dg.sweep(dg.AB, QUARTIC, NETWORK, grid=GRID, workers=2, **RUN)
    found = joblib.Parallel(n_jobs=2)(joblib.delayed(thread_names)() for _ in range(2))  # in the same workers
    expected = int(os.environ.get("OMP_NUM_THREADS", max(1, available_cores() // 2)))
    assert [names.count("tf_XLAEigen") for names in found] == [expected] * 2


def test_threads_of_this_process_change_none_of_its_settings(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(sweep_workers, "_studies", {})
    before = dict(os.environ)
    dg.sweep(dg.AB, QUARTIC, NETWORK, grid=GRID, workers=dg.Workers(2, "threading"), **RUN)
    assert len(sweep_workers._studies) == 1
    assert dict(os.environ) == before


def test_forked_workers_are_refused():
    with pytest.raises(
        ArgumentError, match="`backend` of Workers must not be 'multiprocessing', which forks"
    ):
        dg.Workers(2, "multiprocessing")


def test_a_killed_worker_is_one_clear_line_and_finished_rows_are_kept(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    def deadly(k):
        with open(fifo):  # until the other row is finished
            os.kill(os.getpid(), signal.SIGKILL)

    def progress(event):
        with open(fifo, "w"):
            assert event.done == 1

    grid = {"step_size": [0.05, deadly]}
    with pytest.raises(WorkerError, match="ended after 1 of 2 rows") as ended:
        dg.sweep(
            dg.AB, QUARTIC, NETWORK, grid=grid, workers=2, out=tmp_path / "out", progress=progress, **RUN
        )
    assert "\n" not in str(ended.value)
    assert "continue with resume=True" in str(ended.value)
    found = dg.sweep(
        dg.AB, QUARTIC, NETWORK, grid={"step_size": [0.05]}, out=tmp_path / "out", resume=True,
        progress=lambda event: pytest.fail("the row was finished before the kill"), **RUN,
    )  # fmt: skip
    assert found.table["verdict"].tolist() == ["diverged"]


def test_an_unknown_backend_is_one_clear_line():
    with pytest.raises(WorkerError, match="backend 'slurmy' failed") as refused:
        dg.sweep(dg.AB, QUARTIC, NETWORK, grid=GRID, workers=dg.Workers(1, "slurmy"), **RUN)
    assert "\n" not in str(refused.value)


def test_a_worker_keeps_its_study_between_batches_and_forgets_old_ones(monkeypatch):
    loaded = []
    real = sweep_workers.cloudpickle.loads
    monkeypatch.setattr(sweep_workers.cloudpickle, "loads", lambda data: loaded.append(1) or real(data))
    monkeypatch.setattr(sweep_workers, "_studies", {})
    for steps in (2, 2, 3, 4):
        here = dg.Workers(1, "sequential")
        dg.sweep(dg.AB, QUARTIC, NETWORK, grid={"step_size": [0.001]}, steps=steps, workers=here)
    assert len(loaded) == 4 + 3  # every batch, and every setting once
    assert len(sweep_workers._studies) == sweep_workers.KEPT


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_dask_cluster_of_another_process_gives_the_same_rows():
    distributed = pytest.importorskip("distributed")
    here = dg.sweep(dg.AB, QUARTIC, NETWORK, grid=GRID, **RUN)
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=True, host="127.0.0.1", dashboard_address=":0"
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        there = dg.sweep(dg.AB, QUARTIC, NETWORK, grid=GRID, workers=dg.Workers(1, "dask"), **RUN)
        processes = set(client.run(os.getpid).values())
    assert len(processes - {os.getpid()}) == 1
    pd.testing.assert_frame_equal(without_times(there), without_times(here), rtol=1e-9)
