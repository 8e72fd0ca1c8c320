"""A prepared run on its way: chunks, progress, Ctrl-C, checkpoints, and when it ends."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from digrad._internal.notices import warn_user
from digrad.core import hyperparameters
from digrad.core.packets import PacketTraffic
from digrad.errors import CheckpointError, StorageError
from digrad.simulation import checkpoint as checkpoints
from digrad.simulation.checkpoint import Checkpoint
from digrad.simulation.churn import arcs_of, happen
from digrad.simulation.interrupt import deferred_interrupt
from digrad.simulation.loop import Carry, Rows
from digrad.simulation.operators import MANY_AGENTS
from digrad.simulation.record import Recorder, tracker_of
from digrad.simulation.setup import LEAST_STEPS, Prepared
from digrad.trace import Trace, Verdict, is_stalled

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
    callback: Callable[[Progress], None] | None
    checkpoint: Checkpoint | None
    chunk: int | None  # steps per compiled call; None: chosen by the time they take
    paths: bool = False  # whether the estimate of every agent is recorded
    invariant: bool = False  # whether the residual of the invariant of gradient tracking is

    @property
    def facts(self) -> dict[str, Any]:
        """What a stored run must have in common with one that goes on from it."""
        optional = {name: True for name in ("paths", "invariant") if getattr(self, name)}
        return {"record_every": self.record_every, **optional}

    @property
    def rule(self) -> dict[str, Any]:
        """What else the end of a run and its verdict depend on."""
        return {"tolerance": self.tolerance, "stop_at_tolerance": self.stop_at_tolerance}


def chunks(
    call: Callable[[Carry, int], tuple[Carry, Rows]],
    carry: Carry,
    end: Callable[[int, int], int],
    steps: int,
    *,
    is_interrupted: Callable[[], bool],
    longest: int,
    least: int = 1,
    seconds: float | None = None,
) -> Iterator[tuple[int, Carry, Rows]]:
    """Yield where each call began, where it ended and what it stored, until ``steps`` or until all have diverged.

    Args:
        call: Advances to an iteration.
        carry: Where to begin.
        end: From an iteration and how many steps a call may take, how far it may go.
        steps: Where to end.
        is_interrupted: Whether Ctrl-C was pressed.
        longest: How many steps a call may take.
        least: How many steps a call takes even if that is longer than ``seconds``.
        seconds: How long a call should take, about: it takes fewer steps then.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed during a call, what it gave has been yielded.
    """
    length, is_first = min(longest, FIRST_STEPS) if seconds else longest, True
    while (k := int(carry.k)) < steps and np.asarray(carry.alive).any():
        began = time.perf_counter()
        carry, rows = call(carry, min(end(k, length), steps))
        yield k, carry, rows
        if is_interrupted():
            raise KeyboardInterrupt
        if seconds and not is_first:  # the first call compiles
            per_step = (time.perf_counter() - began) / max(1, int(carry.k) - k)
            length = int(min(longest, max(least, seconds / per_step)))
        is_first = False


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
        facts = {**self.facts, **trace.facts}
        return dataclasses.replace(
            trace, facts=facts, interrupted=self.interrupted, stopped_early=self.stopped
        )

    def _resume(self) -> None:
        assert self.plan.checkpoint is not None
        path = Path(self.plan.checkpoint.path)
        template = (self.carry.state, self.carry.links, self.carry.limit)
        loaded = checkpoints.load(path, state=template, fingerprint=self.facts)
        self.k, stored, self.recorder.columns, self.seconds = loaded
        state, links, limit = jax.device_put(stored)
        k = jax.numpy.asarray(self.k)
        self.carry = self.carry._replace(k=k, reached=k, limit=limit, state=state, links=links)
        self._enter_phase(self.k - 1)  # of the last step taken: what happens at k has not happened yet
        if self.k > self.plan.steps:
            raise CheckpointError(
                f"`{path}` is at k = {self.k}, beyond steps = {self.plan.steps}; ask for at least {self.k} steps, "
                "or begin anew with overwrite."
            )

    def _loop(self, is_interrupted: Callable[[], bool]) -> None:
        parts = chunks(
            self._call, self.carry, self._end, self.plan.steps, is_interrupted=is_interrupted,
            longest=self.run.length, least=LEAST_STEPS if self.run.problem.n_agents > MANY_AGENTS else 1,
            seconds=None if self.plan.chunk else CALL_SECONDS,
        )  # fmt: skip
        for first, carry, rows in parts:
            self._take_over(first, carry, rows)
            if self.plan.callback:
                self.plan.callback(self._progress())
            self._save_when_due()
            if self.stopped and not is_interrupted():  # a run that Ctrl-C ends says so, else another begins
                return

    def _end(self, k: int, length: int) -> int:
        end = min(k + length, self.run.last_end(k, self.plan.record_every))
        if self.timeline:
            end = min([end, *(event.at for event in self.timeline.events if event.at > k)])
        every = self.plan.checkpoint.every if self.plan.checkpoint else None
        return min(end, (k // every + 1) * every) if every else end

    def _call(self, carry: Carry, end: int) -> tuple[Carry, Rows]:
        """Let agents go and come before this iteration, and go on with the network of those who are there."""
        k = int(carry.k)
        self._enter_phase(k)
        if self.timeline and (event := self.timeline.event(k)) is not None:
            carry = happen(event, carry, arcs_of(self.run), self.recorder.present)
        carry, rows = self.run.call(carry, end, record_every=self.plan.record_every, steps=self.plan.steps)
        if not carry.alive and (limit := self.run.limit_beyond(carry)) is not None:
            carry = carry._replace(limit=limit, alive=jax.numpy.asarray(True))
        return carry, rows

    def _enter_phase(self, k: int) -> None:
        """Go on with the network, and record the losses, of those who are there at iteration k."""
        if self.timeline:
            phase = self.timeline.phase(k)
            self.run, self.recorder.present = self.phases[phase], self.timeline.present[phase]

    def _take_over(self, first: int, carry: Carry, rows: Rows) -> None:
        every, reached = self.plan.record_every, None
        self.recorder.append(np.arange(-(-first // every) * every, int(carry.k), every), rows)
        if self.plan.stop_at_tolerance:
            reached = self.recorder.first_within(self.plan.tolerance, first)
        if reached is not None:
            self.recorder.truncate(reached)
            carry, _ = self._call(self.carry, reached)
        self.carry, self.k = carry, int(carry.k)
        self.diverged, self.stopped = not bool(carry.alive), reached is not None

    def _progress(self) -> Progress:
        last = {key: float(column[-1]) for key, column in self.recorder.columns.items() if len(column)}
        values = {key: last.get(key, float("nan")) for key in ("loss", "grad_norm", "consensus_error")}
        return Progress(name=self.run.name, k=self.k, steps=self.plan.steps, **values)

    def _save_when_due(self) -> None:
        checkpoint = self.plan.checkpoint
        if checkpoint is None or self.stopped:
            return
        if self.k % checkpoint.every == 0 or self.k == self.plan.steps:
            self._save()

    def _save(self) -> None:
        if not self.plan.checkpoint or self.diverged:  # nothing goes on from there
            return
        try:
            checkpoints.save(
                self.plan.checkpoint.path,
                k=self.k,
                state=(self.carry.state, self.carry.links, self.carry.limit),
                columns=self.recorder.columns,
                seconds=self._elapsed(),
                fingerprint=self.facts,
            )
        except StorageError as error:  # hours of work are worth more than the file that was to protect them
            warn_user(f"{self.run.name} goes on without a checkpoint at k = {self.k}: {error}")

    def _elapsed(self) -> float:
        return self.seconds + time.perf_counter() - self.began


def ended(run: Prepared, plan: Plan, recorder: Recorder, carry: Carry, *, seconds: float) -> Trace:
    """Return the trace of a run whose last iteration is recorded."""
    k = int(carry.reached)
    columns, tolerance = recorder.columns, plan.tolerance
    within = recorder.is_within(tolerance)[-1]
    has_diverged = not bool(carry.alive)
    verdict: Verdict = "converged" if within else "not converged"
    if has_diverged:
        verdict = "diverged"
    elif not within and is_stalled(columns, tolerance):
        verdict = "stalled"
    return Trace(
        name=run.name,
        columns=columns,
        final_x=np.asarray(run.fixed.method.estimate(carry.state)),
        verdict=verdict,
        diverged_at=k if has_diverged else None,
        steps=k,
        seconds=seconds,
        facts={
            **run.facts,
            **plan.facts,
            **plan.rule,
            **_slowest(run, k),
            "jax": jax.__version__,
        },
        arrays=hyperparameters.long_arrays(run.method),
    )


def _slowest(run: Prepared, k: int) -> dict[str, Any]:
    """Return whom steps wait for, where the links have a clock."""
    times = run.traffic.times if isinstance(run.traffic, PacketTraffic) else None
    return {} if times is None else {"slowest": times.slowest(k)}
