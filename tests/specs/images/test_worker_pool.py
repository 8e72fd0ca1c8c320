import json
import os
import tempfile

import pytest

from digrad.specs.images import worker_pool
from digrad.specs.images.worker_pool import Job, run_jobs

# A worker without digrad: the name of a job's function says what it does.
WORKER = """
import json, os, signal, sys
for line in sys.stdin:
    work = json.loads(line)["function"]
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


def good(tell): ...
def fail(tell): ...
def die(tell): ...
def exit(tell): ...


WORKS = {work.__name__: work for work in (good, fail, die, exit)}


@pytest.fixture
def fake_worker(monkeypatch):
    monkeypatch.setattr(worker_pool, "WORKER", ("-c", WORKER))


def collect(works, workers=1):
    events = []
    named = [Job(f"{place} {work}", WORKS[work], {}) for place, work in enumerate(works)]
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
        run_jobs([Job("a", WORKS["good"], {}), Job("b", WORKS["good"], {})], workers=1, on_event=interrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_no_jobs_start_no_worker(monkeypatch):
    monkeypatch.setattr(worker_pool, "_start", None)
    assert run_jobs([], workers=2, on_event=lambda name, event: None) == {}


def test_a_worker_ends_in_the_middle_of_a_job_when_the_process_that_gave_it_is_gone(tmp_path, monkeypatch):
    (tmp_path / "endless.py").write_text("""
import signal
def work(tell):
    tell({"event": "progress"})
    signal.pause()
""")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with tempfile.TemporaryFile("w+") as log, worker_pool._start(log) as worker:
        worker.stdin.write(json.dumps({"module": "endless", "function": "work", "arguments": {}}) + "\n")
        worker.stdin.flush()
        assert json.loads(worker.stdout.readline()) == {"event": "progress"}
        worker.stdin.close()  # as the system does when a process ends
        assert worker.wait(timeout=60) == 0
