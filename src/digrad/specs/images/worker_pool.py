"""Jobs in worker processes of one thread each: on few cores faster, and safer, than one process with many threads.

Jobs go to the standard input of a worker and events come back on its standard output, one JSON object per line. A job
that fails, or takes its worker down, does not touch the others.
"""

import importlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from digrad.errors import DigradError
from digrad.simulation import Progress

Event = Mapping[str, Any]
Tell = Callable[[Event], None]
ENDS = ("done", "failed")  # the last event of a job

WORKER = ("-c", f"from {__name__} import do_jobs; do_jobs()")  # arguments of Python

# One thread; waiting threads sleep instead of spinning; freed memory is kept, because getting it anew from the system
# for every layer of every step costs a tenth of the time.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
}


@dataclass(frozen=True)
class Job:
    """Something to do in a worker.

    Args:
        name: Unique among the jobs; events carry it.
        work: A function of a module, ``work(tell, **arguments)``, which the worker imports.
        arguments: Its arguments, of kinds that JSON can hold.
    """

    name: str
    work: Callable[..., None]
    arguments: Mapping[str, Any]


class JobWatch:
    """Turns events of jobs of equal length into calls of an observer, with the time left for all of them.

    Args:
        names: The jobs.
        steps: Steps of each job.
        every: Steps between two events ``progress`` of a job.
        progress: The observer.
        on_done: Called with the name of a job that is done.
    """

    def __init__(
        self,
        names: Collection[str],
        steps: int,
        every: int,
        progress: Any,
        on_done: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._steps, self._every, self._progress, self._on_done = steps, every, progress, on_done
        self._reached = dict.fromkeys(names, 0)
        self._first: dict[str, int] = {}  # steps that were done before, by an earlier run
        self._began = time.monotonic()
        self.failures: dict[str, str] = {}

    def on_event(self, name: str, event: Event) -> None:
        """Pass an event on."""
        kind = event["event"]
        if kind == "started" and self._progress:
            self._progress.on_method_start(name, self._steps)
        elif kind == "progress":
            self._first.setdefault(name, max(0, event["k"] - self._every))
            self._reached[name] = event["k"]
            if self._progress:
                values = {key: value for key, value in event.items() if key != "event"}
                values |= {"name": name, "seconds_left": self._seconds_left()}
                self._progress.on_progress(Progress(**values))
        elif kind in ENDS:
            self._reached[name] = self._steps
            if kind == "failed":
                self.failures[name] = event["reason"]
            else:
                self._on_done(name)

    def _seconds_left(self) -> float | None:
        reached = sum(self._reached.values())
        computed = reached - sum(self._first.values())
        left = len(self._reached) * self._steps - reached
        return left * (time.monotonic() - self._began) / computed if computed > 0 else None


def run_jobs(jobs: Sequence[Job], *, workers: int, on_event: Callable[[str, Event], None]) -> dict[str, str]:
    """Do all jobs, ``workers`` at a time, in the given order, and return why some failed, by name.

    Args:
        jobs: The jobs.
        workers: Processes at a time.
        on_event: Called in this thread with the name of a job and an event of its worker: ``{"event": "started"}``,
            what the work tells, ``{"event": "done"}`` or ``{"event": "failed", "reason": ...}``.

    Raises:
        KeyboardInterrupt: As it came, after all workers were ended.
    """
    waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    said: queue.SimpleQueue[tuple[str, Event]] = queue.SimpleQueue()
    processes: list[subprocess.Popen[str]] = []
    threads = [
        threading.Thread(target=_employ, args=(waiting, said.put, processes), daemon=True)
        for _ in range(min(workers, len(jobs)))
    ]
    failures: dict[str, str] = {}
    try:
        for thread in threads:
            thread.start()
        left = len(jobs)
        while left:
            name, event = said.get()
            left -= event["event"] in ENDS
            if event["event"] == "failed":
                failures[name] = event["reason"]
            on_event(name, event)
    finally:
        with suppress(queue.Empty):
            while True:
                waiting.get_nowait()
        for process in processes:
            process.kill()
        for thread in threads:
            thread.join()
    return failures


def _employ(
    waiting: "queue.SimpleQueue[Job]",
    say: Callable[[tuple[str, Event]], None],
    processes: "list[subprocess.Popen[str]]",
) -> None:
    """Give jobs to one worker after the other, until none is left: a new one after each that died."""
    while not waiting.empty():
        with (
            suppress(BrokenPipeError),  # of a worker that died before it read its job
            tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as log,
            _start(log) as worker,
        ):
            processes.append(worker)
            while worker.poll() is None:
                try:
                    job = waiting.get_nowait()
                except queue.Empty:
                    return
                for event in _events(job, worker, log):
                    say((job.name, event))


def _events(job: Job, worker: "subprocess.Popen[str]", log: IO[str]) -> Iterator[Event]:
    """Give a job to a worker, and yield what becomes of it."""
    assert worker.stdin is not None
    assert worker.stdout is not None
    yield {"event": "started"}
    work = {"module": job.work.__module__, "function": job.work.__name__, "arguments": dict(job.arguments)}
    with suppress(BrokenPipeError):
        worker.stdin.write(json.dumps(work) + "\n")
        worker.stdin.flush()
        for line in worker.stdout:
            event = json.loads(line)
            yield event
            if event["event"] in ENDS:
                return
    yield {"event": "failed", "reason": _reason(worker.wait(), log)}


def _start(log: IO[str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *WORKER],
        env={**os.environ, **ENVIRONMENT},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )


def _reason(code: int, log: IO[str]) -> str:
    log.seek(0)
    lines = [line for line in log.read().splitlines() if line.strip()]
    said = f": {lines[-1]}" if lines else ""
    return (
        f"its process was killed by signal {-code}{said}"
        if code < 0
        else f"its process ended with exit code {code}{said}"
    )


def do_jobs() -> None:
    """Do the jobs of standard input, in a worker, until it ends: the process that gave them has ended, or is gone."""
    import torch

    torch.set_num_threads(1)
    # Ctrl-C reaches all processes: the one that gave the jobs decides.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints must not look like an event

    def tell(event: Event) -> None:
        answers.write(json.dumps(event) + "\n")
        answers.flush()

    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read_lines, args=(lines,), daemon=True).start()
    while True:
        job = json.loads(lines.get())
        try:
            getattr(importlib.import_module(job["module"]), job["function"])(tell, **job["arguments"])
        except DigradError as error:
            tell({"event": "failed", "reason": str(error)})
        except Exception as error:  # a job's failure is a result of the run; the traceback goes to the log
            traceback.print_exc()
            tell({"event": "failed", "reason": f"{type(error).__name__}: {error}"})
        else:
            tell({"event": "done"})


def _read_lines(lines: "queue.SimpleQueue[str]") -> None:
    """Pass the lines of standard input on; end the process with them, whatever it is doing."""
    for line in sys.stdin:
        lines.put(line)
    os._exit(0)
