"""A run from its start to its end: chunks, progress, Ctrl-C, checkpoints, and the verdict."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from digrad._internal.user_warnings import warn_user
from digrad.core import hyperparameters
from digrad.core.packet_counts import PacketTraffic
from digrad.errors import ArgumentError, CheckpointError, StorageError
from digrad.privacy import Private
from digrad.simulation import checkpoint as checkpoints
from digrad.simulation.checkpoint import Checkpoint
from digrad.simulation.loop import State
from digrad.simulation.mixing import MANY_AGENTS
from digrad.simulation.record import before, columns_of, is_within, joined
from digrad.simulation.setup import LEAST_STEPS, facts_of
from digrad.simulation.simulator import Rows, Simulator
from digrad.trace import Trace, Verdict, is_stalled

CALL_SECONDS = 0.5  # how long a call should take: Ctrl-C and progress wait for its end
FIRST_STEPS = 10  # of the first call, before anything is known about the time of a step


@dataclass(frozen=True)
class Progress:
    """Progress of a run, passed to a callback after each chunk, or of a training or search in a worker process.

    Args:
        name: The method, with its seed if there are several.
        k: Steps done; of a search, trials.
        steps: Steps in all.
        loss: Loss at the average of the agents; of a search, on held-out data.
        grad_norm: Norm of the gradient there.
        consensus_error: How far the agents are apart.
        test_accuracy: Test accuracy of the average model of a training.
        seconds_left: Until all jobs of a pool of workers are done, at the speed so far; None before it is known.
    """

    name: str
    k: int
    steps: int
    loss: float
    grad_norm: float = math.nan
    consensus_error: float = math.nan
    test_accuracy: float | None = None
    seconds_left: float | None = None


def drive(
    simulator: Simulator,
    options: Mapping[str, Any],
    *,
    callback: Callable[[Progress], None] | None = None,
    checkpoint: Checkpoint | None = None,
) -> Trace:
    """Run to the end, to the tolerance, to divergence or to Ctrl-C, and return the trace.

    Args:
        simulator: The simulator to run.
        options: Complete, of :class:`~digrad.simulation.run_options.RunOptions`.
        callback: Called after every chunk.
        checkpoint: File to store the run in, and whether to resume from it.
    """
    if not isinstance(checkpoint, Checkpoint | None):
        raise ArgumentError(f"`checkpoint` must be a Checkpoint(path, every=...), but got {checkpoint!r}.")
    if callback is not None and not callable(callback):
        raise ArgumentError(f"`callback` of simulate must be a function of a Progress, but got {callback!r}.")
    run = _Run(simulator, options, callback, checkpoint)
    with checkpoints.held(checkpoint) if checkpoint else nullcontext(False) as is_stored:
        if is_stored:
            run.resume()
        return run.go()


class _Run:
    """Position of a run, and what it has recorded."""

    def __init__(
        self,
        simulator: Simulator,
        options: Mapping[str, Any],
        callback: Callable[[Progress], None] | None,
        checkpoint: Checkpoint | None,
    ) -> None:
        self.simulator, self.options = simulator, options
        self.callback, self.checkpoint = callback, checkpoint
        self.state, self.rows = simulator.init(options["x0"]), {}
        self.facts = facts_of(simulator.setup, self.state.x0, is_stored=checkpoint is not None)
        self.is_stopped = False  # at the tolerance
        self.began = time.perf_counter()  # less what was spent in earlier processes

    def go(self) -> Trace:
        steps, simulator, interrupted = self.options["steps"], self.simulator, False
        is_large = simulator.setup.problem.n_agents > MANY_AGENTS
        with deferred_interrupt() as is_interrupted:
            try:
                for state, rows in chunks(
                    simulator, self.state, steps, is_interrupted, seconds=CALL_SECONDS,
                    least=LEAST_STEPS if is_large else 1, every=self.checkpoint and self.checkpoint.every,
                ):  # fmt: skip
                    self._take_over(state, rows)
                    if self.callback:
                        self.callback(self._progress())
                    self._save_when_due()
                    # A run that Ctrl-C ends says so, or another one would begin.
                    if self.is_stopped and not is_interrupted():
                        break
            except KeyboardInterrupt:
                interrupted = True
                self._save()
        rows = joined([self.rows, simulator.measure(self.state, last=steps)])
        return ended(
            simulator, self.options, self.state, rows, facts=self.facts, seconds=self._elapsed(),
            interrupted=interrupted, stopped_early=self.is_stopped,
        )  # fmt: skip

    def resume(self) -> None:
        assert self.checkpoint is not None
        path, state = Path(self.checkpoint.path), self.state
        template = (state.method_state, state.links, state.limit, state.memory)
        k, stored, self.rows, seconds = checkpoints.load(path, state=template, fingerprint=self.facts)
        if k > self.options["steps"]:
            raise CheckpointError(
                f"`{path}` is at k = {k}, beyond steps = {self.options['steps']}; ask for at least {k} steps, "
                "or start over with overwrite."
            )
        with jax.enable_x64(True):
            at, (method_state, links, limit, memory) = jax.numpy.asarray(k), jax.device_put(stored)
        self.state = state._replace(
            k=at, reached=at, limit=limit, method_state=method_state, links=links, memory=memory
        )
        self.began -= seconds

    def _take_over(self, state: State, rows: Rows) -> None:
        stop, good = self.options["stop_at_tolerance"], None
        if stop and len(rows["k"]):
            good = is_within(rows, self.options["tolerance"])
        if good is not None and good.any():
            self.is_stopped, k = True, int(rows["k"][np.argmax(good)])
            rows, steps = before(rows, k), k - int(self.state.k)
            state = self.simulator.run(self.state, steps)[0] if steps else self.state
        self.state, self.rows = state, joined([self.rows, rows])

    def _progress(self) -> Progress:
        values = {
            name: float(self.rows[name][-1]) if len(self.rows[name]) else float("nan")
            for name in ("loss", "grad_norm", "consensus_error")
        }
        return Progress(self.simulator.setup.name, int(self.state.k), self.options["steps"], **values)

    def _save_when_due(self) -> None:
        k = int(self.state.k)
        if self.is_stopped or not self.checkpoint:
            return
        if k % self.checkpoint.every == 0 or k == self.options["steps"]:
            self._save()

    def _save(self) -> None:
        state = self.state
        if not self.checkpoint or not state.alive:  # nothing goes on from there
            return
        try:
            checkpoints.save(
                self.checkpoint.path,
                k=int(state.k),
                state=(state.method_state, state.links, state.limit, state.memory),
                columns=self.rows,
                seconds=self._elapsed(),
                fingerprint=self.facts,
            )
        except StorageError as error:  # hours of work are worth more than the file that was to protect them
            warn_user(
                f"{self.simulator.setup.name} goes on without a checkpoint at k = {int(state.k)}: {error}"
            )

    def _elapsed(self) -> float:
        return time.perf_counter() - self.began


def chunks(
    simulator: Simulator,
    state: State,
    steps: int,
    is_interrupted: Callable[[], bool],
    *,
    seconds: float | None = None,
    least: int = 1,
    every: int | None = None,
) -> Iterator[tuple[State, Rows]]:
    """Yield where each call ended and what it recorded, until iteration ``steps`` or until the run has diverged.

    Args:
        simulator: The simulator to run.
        state: Where to begin.
        steps: Where to end.
        is_interrupted: Whether Ctrl-C was pressed.
        seconds: How long a call should take, about: it takes fewer steps then than it could.
        least: How many steps a call takes even if that is longer than ``seconds``.
        every: Calls end at multiples of this.

    Raises:
        KeyboardInterrupt: Ctrl-C was pressed during a call, what it gave has been yielded.
    """
    longest = simulator.setup.length
    length, is_first = min(longest, FIRST_STEPS) if seconds else longest, True
    while (k := int(state.k)) < steps and state.alive:
        began = time.perf_counter()
        state, rows = simulator.run(state, min(length, steps - k, every - k % every if every else steps))
        yield state, rows
        if is_interrupted():
            raise KeyboardInterrupt
        if seconds and not is_first:  # the first call compiles
            per_step = (time.perf_counter() - began) / max(1, int(state.k) - k)
            length = int(min(longest, max(least, seconds / per_step)))
        is_first = False


@contextmanager
def deferred_interrupt() -> Iterator[Callable[[], bool]]:
    """Within the block the first Ctrl-C only sets a flag, which the yielded function reads; a second one raises.

    Python may deliver an interrupt inside a callback of JAX, where it is lost with a traceback; a flag is not. Signals
    reach the main thread only, so elsewhere nothing changes.
    """
    pressed = False

    def note(number: int, frame: Any) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield lambda: False
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, handler)


def _spent(sampling: Any, k: Any) -> dict[str, Any]:
    """Return the privacy that has been spent at each row, if that was asked for."""
    asked = isinstance(sampling, Private) and sampling.delta is not None
    return {"epsilon": sampling.epsilon(k)} if asked else {}


def rule_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what else the end of a run and its verdict depend on."""
    return {name: options[name] for name in ("tolerance", "stop_at_tolerance")}


def ended(
    simulator: Simulator,
    options: Mapping[str, Any],
    state: State,
    rows: Rows,
    *,
    facts: Mapping[str, Any],
    seconds: float,
    interrupted: bool = False,
    stopped_early: bool = False,
) -> Trace:
    """Return the trace of a run whose last iteration is recorded."""
    k, tolerance, setup = int(state.reached), options["tolerance"], simulator.setup
    within, has_diverged = is_within(rows, tolerance)[-1], not bool(state.alive)
    verdict: Verdict = "converged" if within else "not converged"
    if has_diverged:
        verdict = "diverged"
    elif not within and is_stalled(rows, tolerance):
        verdict = "stalled"
    # Whom steps wait for, where the links have a clock.
    times = setup.traffic.times if isinstance(setup.traffic, PacketTraffic) else None
    slowest = {} if times is None else {"slowest": times.slowest(k)}
    return Trace(
        name=setup.name,
        columns={**columns_of(rows), **_spent(options["sampling"], rows["k"])},
        final_x=simulator.estimate(state),
        verdict=verdict,
        diverged_at=k if has_diverged else None,
        steps=k,
        seconds=seconds,
        facts={**facts, **rule_of(options), **slowest, "jax": jax.__version__},
        arrays=hyperparameters.long_arrays(setup.method),
        interrupted=interrupted,
        stopped_early=stopped_early,
    )
