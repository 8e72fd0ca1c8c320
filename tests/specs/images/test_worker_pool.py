import os

import pytest

from digrad.specs.images import training_worker, worker_pool
from digrad.specs.images.worker_pool import Job, run_jobs

# A worker without digrad: a job's work is what it does.
WORKER = """
import json, os, signal, sys
for line in sys.stdin:
    work = json.loads(line)["work"]
    if work == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if work == "exit":
        sys.exit("out of memory")
    if work == "fail":
        print(json.dumps({"event": "failed", "reason": "bad luck"}), flush=True)
    else:
        facts = {"pid": os.getpid(), "threads": os.environ["OMP_NUM_THREADS"]}
        print(json.dumps({"event": "progress", **facts}), flush=True)
        print(json.dumps({"event": "done"}), flush=True)
"""


@pytest.fixture
def fake_worker(monkeypatch):
    monkeypatch.setattr(worker_pool, "WORKER", ("-c", WORKER))


def collect(works, workers=1):
    events = []
    named = [Job(f"{place} {work}", work, {}) for place, work in enumerate(works)]
    failures = run_jobs(named, workers=workers, on_event=lambda name, event: events.append((name, event)))
    return failures, events


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(
    ("work", "reason"),
    [("fail", "bad luck"), ("die", "killed by signal 9"), ("exit", "exit code 1: out of memory")],
)
def test_a_job_that_fails_leaves_the_others_alone(fake_worker, work, reason, workers):
    failures, events = collect(["good", work, "good", "good"], workers)
    assert failures.keys() == {f"1 {work}"}
    assert reason in failures[f"1 {work}"]
    done = {name for name, event in events if event["event"] == "done"}
    assert done == {"0 good", "2 good", "3 good"}


def test_jobs_of_one_worker_are_done_in_order_by_one_process(fake_worker):
    _, events = collect(["good", "good", "good"])
    assert [name for name, event in events if event["event"] == "started"] == ["0 good", "1 good", "2 good"]
    progress = [event for _, event in events if event["event"] == "progress"]
    assert len({event["pid"] for event in progress}) == 1
    assert {event["threads"] for event in progress} == {"1"}


def test_ctrl_c_ends_the_workers(fake_worker):
    pids = []

    def interrupt(name, event):
        if event["event"] == "progress":
            pids.append(event["pid"])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_jobs([Job("a", "good", {}), Job("b", "good", {})], workers=1, on_event=interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_no_jobs_start_no_worker(monkeypatch):
    monkeypatch.setattr(worker_pool, "_start", None)
    assert run_jobs([], workers=2, on_event=lambda name, event: None) == {}


def test_a_worker_ends_when_the_process_that_gave_its_job_is_gone(monkeypatch):
    check = training_worker._end_without_parent()
    check()
    monkeypatch.setattr(os, "getppid", lambda: -1)
    with pytest.raises(SystemExit, match="is gone"):
        check()
