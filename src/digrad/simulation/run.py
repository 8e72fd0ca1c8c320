"""One run under way: the compiled loop, its inputs, what it has recorded, and when it ends."""

import hashlib
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from digrad import metrics
from digrad.errors import ArgumentError, CheckpointError, StorageError
from digrad.fingerprints import fingerprint
from digrad.mixing import Network
from digrad.problems import Problem
from digrad.sampling import EpochPermutations, WithReplacement
from digrad.simulation import checkpoint as checkpoints
from digrad.simulation import hyper, loop
from digrad.simulation.checkpoint import Checkpoint
from digrad.simulation.executor import SimulatedNet, operators
from digrad.simulation.interrupt import deferred_interrupt
from digrad.simulation.recorder import Recorder
from digrad.trace import Trace

DIVERGED = (
    1e12  # an entry of x beyond this, relative to 1 + max|x_0|, counts as diverged (the design's definition)
)
CHUNK = 1000  # steps of a compiled call at most
CHUNK_BYTES = 64 << 20  # samples and stored averages of one chunk take at most about this much
CHUNK_SECONDS = 0.5  # how long a call should take: Ctrl-C and progress wait for its end
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


class Run:
    """One run of one method.

    Args:
        name: Of the trace.
        method: With its schedules.
        problem: The losses.
        network: Who hears whom.
        x0: The start, ``[n, d]``, in the dtype of the run.
        sampler: Of mini-batches, or None.
        plan: How long to run.
        facts: What else determines the numbers; stored with the trace.
    """

    def __init__(
        self,
        name: str,
        method: Any,
        problem: Problem,
        network: Network,
        x0: npt.NDArray[np.floating],
        sampler: WithReplacement | EpochPermutations | None,
        plan: Plan,
        facts: dict[str, Any],
    ) -> None:
        self.name, self.problem, self.x0, self.sampler, self.plan = name, problem, x0, sampler, plan
        self.method, numeric = method, hyper.without_schedules(method, x0.dtype)
        mixing, n_arcs = operators(network, method.needs, x0.dtype)
        self.setting = _setting(numeric, problem, network, mixing, x0, plan.record_every)
        self.length = plan.chunk or _longest_chunk(x0, sampler, plan.record_every)
        self.rows = self.length // plan.record_every + 2
        self.facts = {**facts, **_facts(method, problem, network, x0, plan)}
        at_start, per_step = self._measure_traffic(n_arcs)
        self.recorder = Recorder(
            problem.local,
            self.setting.arrays,
            bytes_per_step=per_step,
            bytes_at_start=at_start,
            with_plain_mean=plan.plain_mean,
        )
        self.state = loop.start_state(numeric, jnp.asarray(x0), SimulatedNet(mixing, len(x0)))
        self.k = 0
        self.diverged = self.stopped = self.interrupted = False
        self.seconds = 0.0  # spent in earlier processes
        self.began = time.perf_counter()

    def go(self) -> Trace:
        """Run to the end, to the tolerance, to divergence or to Ctrl-C, and return the trace."""
        self._resume()
        with deferred_interrupt() as is_interrupted:
            try:
                self._loop(is_interrupted)
            except KeyboardInterrupt:
                self.interrupted = True
            if self.interrupted:
                self.recorder.truncate(self.k)  # rows of a chunk whose state was not yet taken over
                self._save()
        _, _, _, rows = self._call(self.state, self.k, self.k + 1, record_every=1)
        self.recorder.append([self.k], rows)
        return self._trace()

    def _resume(self) -> None:
        checkpoint = self.plan.checkpoint
        if checkpoint is None or not checkpoints.prepare(checkpoint):
            return
        path = Path(checkpoint.path)
        loaded = checkpoints.load(path, state=self.state, fingerprint=self.facts)
        self.k, state, self.recorder.columns, self.seconds = loaded
        self.state = jax.device_put(state)
        if self.k > self.plan.steps:
            raise CheckpointError(
                f"`{path}` is at k = {self.k}, beyond steps = {self.plan.steps}; ask for at least {self.k} steps, "
                "or begin anew with overwrite."
            )

    def _loop(self, is_interrupted: Callable[[], bool]) -> None:
        length = self.length if self.plan.chunk else min(self.length, FIRST_STEPS)
        is_first = True
        while self.k < self.plan.steps and not (self.diverged or self.stopped):
            before, began = self.k, time.perf_counter()
            self._advance(self._end(length))
            if self.plan.callback:
                self.plan.callback(self._progress())
            self._save_when_due()
            if is_interrupted():
                raise KeyboardInterrupt
            if not (self.plan.chunk or is_first):  # the first call compiles
                per_step = (time.perf_counter() - began) / max(1, self.k - before)
                length = int(min(self.length, max(1, CHUNK_SECONDS / per_step)))
            is_first = False

    def _end(self, length: int) -> int:
        end = min(self.k + length, self.plan.steps)
        every = self.plan.checkpoint.every if self.plan.checkpoint else None
        return min(end, (self.k // every + 1) * every) if every else end

    def _advance(self, end: int) -> None:
        """Run one chunk and take over what it gives."""
        before, first, every = self.state, self.k, self.plan.record_every
        state, k, diverged, rows = self._call(before, first, end, record_every=every)
        self.recorder.append(np.arange(-(-first // every) * every, int(k), every), rows)
        reached = (
            self.recorder.first_within(self.plan.tolerance, first) if self.plan.stop_at_tolerance else None
        )
        if reached is not None:
            self.recorder.truncate(reached)
            state, k, diverged, _ = self._call(before, first, reached, record_every=every)
        self.state, self.k, self.diverged, self.stopped = state, int(k), bool(diverged), reached is not None

    def _call(
        self, state: Any, first: int, end: int, *, record_every: int
    ) -> tuple[Any, Any, Any, loop.Rows]:
        setting = self.setting._replace(record_every=record_every)
        # The closing call takes one step more than was asked for, whose schedules need not exist.
        ks = range(first, min(end, self.plan.steps))
        schedules = hyper.evaluate(self.method, self.name, ks, self.length, self.x0.dtype)
        inputs: dict[str, Any] = {"schedules": schedules}
        if self.sampler:
            drawn = self.sampler.batches(first, max(1, end - first))
            inputs["index"] = np.pad(drawn, ((0, self.length - len(drawn)), (0, 0), (0, 0)))
        result = loop.run_chunk(setting, state, first, end, inputs, local=self.problem.local, rows=self.rows)
        return jax.block_until_ready(result)

    def _measure_traffic(self, n_arcs: dict[str, int]) -> tuple[int, int]:
        """Return the bytes sent before the first step and per step, counted by the executor in a dry run."""
        net, method = SimulatedNet(self.setting.operators, len(self.x0), n_arcs), self.setting.method
        state = jax.eval_shape(lambda x0: loop.start_state(method, x0, net), jnp.asarray(self.x0))
        at_start = net.bytes_sent
        grad = jax.eval_shape(method.query, state)
        jax.eval_shape(lambda state, grad: method.step(state, grad, net), state, grad)
        return at_start, net.bytes_sent - at_start

    def _progress(self) -> Progress:
        last = {key: float(column[-1]) for key, column in self.recorder.columns.items() if len(column)}
        values = {key: last.get(key, float("nan")) for key in ("loss", "grad_norm", "consensus_error")}
        return Progress(name=self.name, k=self.k, steps=self.plan.steps, **values)

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
                state=self.state,
                columns=self.recorder.columns,
                seconds=self._elapsed(),
                fingerprint=self.facts,
            )
        except StorageError as error:  # hours of work are worth more than the file that was to protect them
            warnings.warn(f"{self.name} goes on without a checkpoint at k = {self.k}: {error}", stacklevel=2)

    def _elapsed(self) -> float:
        return self.seconds + time.perf_counter() - self.began

    def _trace(self) -> Trace:
        columns, tolerance = self.recorder.columns, self.plan.tolerance
        within = columns["grad_norm"][-1] <= tolerance and columns["consensus_error"][-1] <= tolerance
        verdict: Literal["converged", "running", "diverged"] = "converged" if within else "running"
        return Trace(
            name=self.name,
            columns=columns,
            final_x=np.asarray(self.setting.method.estimate(self.state)),
            verdict="diverged" if self.diverged else verdict,
            diverged_at=self.k if self.diverged else None,
            steps=self.k,
            seconds=self._elapsed(),
            interrupted=self.interrupted,
            stopped_early=self.stopped,
            facts={**self.facts, "tolerance": tolerance, "jax": jax.__version__},
        )


def _setting(
    method: Any,
    problem: Problem,
    network: Network,
    mixing: Any,
    x0: npt.NDArray[np.floating],
    record_every: int,
) -> loop.Setting:
    ones = np.ones(len(x0))
    limit = min(DIVERGED * (1 + float(np.abs(x0).max())), float(np.finfo(x0.dtype).max))
    return loop.Setting(
        method=method,
        operators=mixing,
        arrays=problem.arrays(x0.dtype),
        u=jnp.asarray(metrics.perron_weights(method, network), x0.dtype),
        v=jnp.asarray(network.v if "column" in method.needs else ones, x0.dtype),
        limit=jnp.asarray(limit, x0.dtype),
        record_every=record_every,
    )


def _longest_chunk(x0: npt.NDArray[np.floating], sampler: Any, record_every: int) -> int:
    n, d = x0.shape
    batch = sampler.batch_size if sampler else 0
    per_step = 4 * n * batch + 2 * d * x0.dtype.itemsize // record_every
    return max(1, min(CHUNK, CHUNK_BYTES // max(1, per_step)))


def _facts(
    method: Any, problem: Problem, network: Network, x0: npt.NDArray[np.floating], plan: Plan
) -> dict[str, Any]:
    """Return everything that determines the numbers, except the seed and how samples are drawn."""

    def recognised(make: Callable[[], Any], what: str) -> Any:
        try:
            return make()
        except ArgumentError as error:
            if plan.checkpoint is None:
                return None
            raise ArgumentError(
                f"`checkpoint` of simulate must know its run again, but {what} cannot be recognised: {error}."
            ) from error

    return {
        "method": type(method).__name__,
        "method_hash": recognised(lambda: fingerprint(type(method)), "the class of the method"),
        "hyper_parameters": recognised(lambda: hyper.describe(method), "a hyper-parameter"),
        "problem": problem.name,
        "problem_hash": recognised(lambda: problem.content_hash, "the problem"),
        "network_hash": network.content_hash,
        "start_hash": hashlib.sha256(x0.tobytes()).hexdigest(),
        "dtype": x0.dtype.name,
        "record_every": plan.record_every,
        "plain_mean": plan.plain_mean,
    }
