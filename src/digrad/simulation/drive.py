"""A prepared run on its way: chunks, progress, Ctrl-C, checkpoints, and when it ends."""

import dataclasses
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from digrad.engine import hyper
from digrad.engine.packets import PacketTraffic
from digrad.errors import CheckpointError, StorageError
from digrad.simulation import checkpoint as checkpoints
from digrad.simulation.advance import Carry
from digrad.simulation.checkpoint import Checkpoint
from digrad.simulation.churn import arcs_of, happen
from digrad.simulation.interrupt import deferred_interrupt
from digrad.simulation.prepare import Prepared
from digrad.simulation.recorder import Recorder, tracker_of
from digrad.trace import Trace

CALL_SECONDS = 0.5  # how long a call should take: Ctrl-C and progress wait for its end
FIRST_STEPS = 10  # of the first call, before anything is known about the time of a step


@dataclass(frozen=True)
class Progress:
    """What a callback is told after each chunk."""

    name: str
    k: int
    steps: int
    loss: float
    grad_norm: float
    consensus_error: float


@dataclass(frozen=True)
class Plan:
    """How long to run, what to record, and whom to tell: nothing here changes the iterates."""

    steps: int
    record_every: int
    tolerance: float
    stop_at_tolerance: bool
    plain_mean: bool
    callback: Callable[[Progress], None] | None
    checkpoint: Checkpoint | None
    chunk: int | None  # steps per compiled call; None: chosen by the time they take
    paths: bool = False  # whether the estimate of every agent is recorded
    invariant: bool = False  # whether the residual of the invariant of gradient tracking is

    @property
    def facts(self) -> dict[str, Any]:
        """What a stored run must have in common with one that goes on from it."""
        optional = {name: True for name in ("paths", "invariant") if getattr(self, name)}
        return {"record_every": self.record_every, "plain_mean": self.plain_mean, **optional}


def drive(run: Prepared, plan: Plan) -> Trace:
    """Run to the end, to the tolerance, to divergence or to Ctrl-C, and return the trace."""
    with checkpoints.held(plan.checkpoint) if plan.checkpoint else nullcontext(False) as is_stored:
        return _Drive(run, plan).go(is_stored)


class _Drive:
    def __init__(self, run: Prepared, plan: Plan) -> None:
        self.phases = run.phases()
        self.timeline = run.fates.timeline if run.fates else None
        self.run, self.plan, self.carry, self.k = self.phases[0], plan, run.start, 0
        self.facts = {**run.facts, **plan.facts}
        self.recorder = Recorder(
            run.problem.code,
            run.fixed.arrays,
            run.traffic,
            with_plain_mean=plan.plain_mean,
            paths=run.start.grad.shape if plan.paths else None,
            invariant=plan.invariant and tracker_of(run.fixed.method, run.start.state) is not None,
        )
        self.diverged = self.stopped = self.interrupted = False
        self.seconds = 0.0  # spent in earlier processes
        self.began = time.perf_counter()

    def go(self, is_stored: bool) -> Trace:
        if is_stored:
            self._resume()
        with deferred_interrupt() as is_interrupted:
            try:
                self._loop(is_interrupted)
            except KeyboardInterrupt:
                self.interrupted = True
            if self.interrupted:
                self.recorder.truncate(self.k)  # rows of a chunk whose state was not yet taken over
                self._save()
        k = jax.numpy.asarray(self.k)
        carry = self.carry._replace(k=k, reached=k)
        # One step more shows y and the clipping at the last x, also where the run has diverged.
        _, rows = self.run.call(
            carry._replace(alive=jax.numpy.asarray(True)), self.k + 1, record_every=1, steps=self.plan.steps
        )
        self.recorder.append([self.k], rows)
        trace = ended(self.run, self.plan, self.recorder, carry, seconds=self._elapsed())
        return dataclasses.replace(trace, interrupted=self.interrupted, stopped_early=self.stopped)

    def _resume(self) -> None:
        assert self.plan.checkpoint is not None
        path = Path(self.plan.checkpoint.path)
        template = (self.carry.state, self.carry.links)
        loaded = checkpoints.load(path, state=template, fingerprint=self.facts)
        self.k, stored, self.recorder.columns, self.seconds = loaded
        state, links = jax.device_put(stored)
        k = jax.numpy.asarray(self.k)
        self.carry = self.carry._replace(k=k, reached=k, state=state, links=links)
        if self.k > self.plan.steps:
            raise CheckpointError(
                f"`{path}` is at k = {self.k}, beyond steps = {self.plan.steps}; ask for at least {self.k} steps, "
                "or begin anew with overwrite."
            )

    def _loop(self, is_interrupted: Callable[[], bool]) -> None:
        length = self.run.length if self.plan.chunk else min(self.run.length, FIRST_STEPS)
        is_first = True
        while self.k < self.plan.steps and not (self.diverged or self.stopped):
            before, began = self.k, time.perf_counter()
            self._churn()
            self._advance(self._end(length))
            if self.plan.callback:
                self.plan.callback(self._progress())
            self._save_when_due()
            if is_interrupted():
                raise KeyboardInterrupt
            if not (self.plan.chunk or is_first):  # the first call compiles
                per_step = (time.perf_counter() - began) / max(1, self.k - before)
                length = int(min(self.run.length, max(1, CALL_SECONDS / per_step)))
            is_first = False

    def _churn(self) -> None:
        """Let agents go and come before this iteration, and go on with the network of those who are there."""
        if self.timeline is None:
            return
        phase = self.timeline.phase(self.k)
        self.run = self.phases[phase]
        self.recorder.present = self.timeline.present[phase]
        if (event := self.timeline.event(self.k)) is not None:
            self.carry = happen(event, self.carry, arcs_of(self.run), self.timeline.present[phase])

    def _end(self, length: int) -> int:
        end = min(self.k + length, self.plan.steps, self.run.last_end(self.k, self.plan.record_every))
        if self.timeline:
            end = min([end, *(event.at for event in self.timeline.events if event.at > self.k)])
        every = self.plan.checkpoint.every if self.plan.checkpoint else None
        return min(end, (self.k // every + 1) * every) if every else end

    def _advance(self, end: int) -> None:
        """Run one chunk and take over what it gives."""
        before, first, every = self.carry, self.k, self.plan.record_every
        carry, rows = self._call(before, end)
        self.recorder.append(np.arange(-(-first // every) * every, int(carry.k), every), rows)
        reached = (
            self.recorder.first_within(self.plan.tolerance, first) if self.plan.stop_at_tolerance else None
        )
        if reached is not None:
            self.recorder.truncate(reached)
            carry, _ = self._call(before, reached)
        self.carry, self.k = carry, int(carry.k)
        self.diverged, self.stopped = not bool(carry.alive), reached is not None

    def _call(self, carry: Carry, end: int):
        return self.run.call(carry, end, record_every=self.plan.record_every, steps=self.plan.steps)

    def _progress(self) -> Progress:
        last = {key: float(column[-1]) for key, column in self.recorder.columns.items() if len(column)}
        values = {key: last.get(key, float("nan")) for key in ("loss", "grad_norm", "consensus_error")}
        return Progress(name=self.run.name, k=self.k, steps=self.plan.steps, **values)

    def _save_when_due(self) -> None:
        checkpoint = self.plan.checkpoint
        if checkpoint is None or self.diverged or self.stopped:
            return
        if self.k % checkpoint.every == 0 or self.k == self.plan.steps:
            self._save()

    def _save(self) -> None:
        if not self.plan.checkpoint:
            return
        try:
            checkpoints.save(
                self.plan.checkpoint.path,
                k=self.k,
                state=(self.carry.state, self.carry.links),
                columns=self.recorder.columns,
                seconds=self._elapsed(),
                fingerprint=self.facts,
            )
        except StorageError as error:  # hours of work are worth more than the file that was to protect them
            warnings.warn(
                f"{self.run.name} goes on without a checkpoint at k = {self.k}: {error}", stacklevel=2
            )

    def _elapsed(self) -> float:
        return self.seconds + time.perf_counter() - self.began


def ended(run: Prepared, plan: Plan, recorder: Recorder, carry: Carry, *, seconds: float) -> Trace:
    """Return the trace of a run whose last iteration is recorded."""
    k = int(carry.reached)
    columns, tolerance = recorder.columns, plan.tolerance
    within = recorder.is_within(tolerance)[-1]
    verdict: Literal["converged", "running", "diverged"] = "converged" if within else "running"
    has_diverged = not bool(carry.alive)
    return Trace(
        name=run.name,
        columns=columns,
        final_x=np.asarray(run.fixed.method.estimate(carry.state)),
        verdict="diverged" if has_diverged else verdict,
        diverged_at=k if has_diverged else None,
        steps=k,
        seconds=seconds,
        facts={
            **run.facts,
            **plan.facts,
            **_slowest(run, k),
            "tolerance": tolerance,
            "jax": jax.__version__,
        },
        arrays=hyper.long_arrays(run.method),
    )


def _slowest(run: Prepared, k: int) -> dict[str, Any]:
    """Return whom steps wait for, where the links have a clock."""
    times = run.traffic.times if isinstance(run.traffic, PacketTraffic) else None
    return {} if times is None else {"slowest": times.slowest(k)}
