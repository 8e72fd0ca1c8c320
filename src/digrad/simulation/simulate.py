"""Run a method on a problem over a network: the one loop of the simulator, as its users call it."""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from digrad import checks
from digrad.errors import ArgumentError
from digrad.mixing import Network
from digrad.problems import Problem
from digrad.sampling import EpochPermutations, WithReplacement, normal_start
from digrad.simulation import checkpoint as checkpoints
from digrad.simulation import hyper, loop
from digrad.simulation.checkpoint import Checkpoint
from digrad.simulation.executor import SimulatedNet, operators
from digrad.simulation.recorder import Recorder
from digrad.trace import Ensemble, Trace
from digrad.types import Method

DIVERGED = (
    1e12  # an entry of x beyond this, relative to 1 + max|x_0|, counts as diverged (the design's definition)
)
CHUNK = 1000  # steps between two looks at a run
CHUNK_BYTES = 64 << 20  # samples and stored averages of one chunk take at most about this much


@dataclass(frozen=True)
class Progress:
    """What a callback is told after each chunk."""

    name: str
    k: int
    steps: int
    loss: float
    grad_norm: float
    consensus_error: float


def simulate(
    method: Method,
    problem: Problem,
    network: Network,
    *,
    steps: int,
    batch_size: int | None = None,
    seed: int = 0,
    x0: npt.ArrayLike | Literal["zeros", "normal"] | None = None,
    record_every: int = 1,
    dtype: npt.DTypeLike = "float64",
    tolerance: float = 1e-6,
    stop_at_tolerance: bool = False,
    sampling: Literal["replacement", "epoch"] = "replacement",
    plain_mean: bool = False,
    name: str | None = None,
    callback: Callable[[Progress], None] | None = None,
    checkpoint: Checkpoint | None = None,
    chunk: int | None = None,
) -> Trace:
    """Run a method and return what was recorded.

    The result is a pure function of the arguments: the same call gives the same numbers, bit for bit, for
        every ``chunk``
    and after a resume (on one kind of machine and version of JAX). A run that diverges ends there, with that
    verdict. Ctrl-C ends the run and returns what was computed.

    Args:
        method: For example ``CGT(step_size=0.05, threshold=5.0)``; step sizes and thresholds may be functions
            of k.
        problem: The private losses.
        network: Who hears whom, and with which weights.
        steps: How many steps to take.
        batch_size: Samples per agent and step; None uses all of them.
        seed: Of the samples and of a random start.
        x0: The start: an array ``[n, d]`` or ``[d]``, ``"zeros"``, ``"normal"`` (standard normal, different
            for every agent), or None for the start of the problem (zeros for built-in problems).
        record_every: Iterations between two recorded rows; the first and the last iteration are always
            recorded.
        dtype: ``float64`` or ``float32``.
        tolerance: ``converged`` means gradient norm and consensus error of the last row are both at most
            this.
        stop_at_tolerance: End the run at the first recorded iteration that is within ``tolerance``.
        sampling: ``replacement``, or ``epoch`` for a fresh permutation of each agent's samples per epoch.
        plain_mean: Also evaluate the plain average of the agents (columns ``loss_plain_mean``,
            ``grad_norm_plain_mean``).
        name: What the trace is called; the method's class by default.
        callback: Called after every chunk.
        checkpoint: Where to store the run, and whether to go on from there.
        chunk: Steps per compiled call; does not change the numbers.

    Example:
        >>> import digrad as dg
        >>> network = dg.Network(dg.graphs.example5())
        >>> problem = dg.problems.example_quartic()
        >>> trace = simulate(dg.AB(step_size=0.05), problem, network, steps=100, x0=[10.0, 10.0])
        >>> trace.verdict, trace.diverged_at  # plain gradient tracking overflows
        ('diverged', 4)
    """
    name = name or type(method).__name__
    _check(method, problem, network, name)
    steps, record_every = checks.count(steps, "steps", name), checks.count(record_every, "record_every", name)
    checks.positive(tolerance, "tolerance", name)
    if np.dtype(dtype) not in (np.float32, np.float64):
        raise ArgumentError(f"`dtype` must be float64 or float32, but got {dtype!r}.")
    sampler = _sampler(problem, batch_size, sampling, seed)
    start = _start(x0, problem, seed)
    with jax.enable_x64(True):
        run = _Run(
            method, problem, network, start.astype(dtype), sampler, name, record_every, plain_mean, chunk
        )
        facts = {**run.facts(), "seed": seed, "batch_size": batch_size, "sampling": sampling}
        return run.go(steps, tolerance if stop_at_tolerance else None, tolerance, callback, checkpoint, facts)


def compare(
    methods: Mapping[str, Method] | Sequence[Method],
    problem: Problem,
    network: Network,
    *,
    steps: int,
    batch_size: int | None = None,
    seed: int = 0,
    seeds: int = 1,
    x0: npt.ArrayLike | Literal["zeros", "normal"] | None = None,
    record_every: int = 1,
    dtype: npt.DTypeLike = "float64",
    tolerance: float = 1e-6,
    stop_at_tolerance: bool = False,
    callback: Callable[[Progress], None] | None = None,
) -> dict[str, Any]:
    """Run several methods on the same samples from the same start, and return their traces by name.

    A method that diverges stops; the others go on. With ``seeds`` above 1 each method runs with seeds
    ``seed``, ``seed + 1``,
    ... and the result holds an :class:`~digrad.trace.Ensemble` per method, whose plots show bands.

    Args:
        methods: A list, or a mapping from labels to methods (needed when a class occurs twice).
        problem: As in :func:`simulate`, and so are the other arguments.
        network: Who hears whom.
        steps: How many steps to take.
        batch_size: Samples per agent and step.
        seed: The first seed.
        seeds: How many seeds.
        x0: The start.
        record_every: Iterations between two recorded rows.
        dtype: ``float64`` or ``float32``.
        tolerance: Of the verdict.
        stop_at_tolerance: End a run at ``tolerance``.
        callback: Called after every chunk of every run.

    Example:
        >>> import digrad as dg
        >>> problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
        >>> methods = [dg.CGT(step_size=0.05, threshold=5.0), dg.DGD(step_size=0.05)]
        >>> traces = compare(methods, problem, network, steps=400)
        >>> {name: trace.verdict for name, trace in traces.items()}
        {'CGT': 'converged', 'DGD': 'running'}
    """
    results: dict[str, Any] = {}
    count = checks.count(seeds, "seeds", "compare")
    for name, method in labelled(methods).items():
        runs: list[Trace] = []
        for run_seed in range(seed, seed + count):
            trace = simulate(
                method, problem, network, steps=steps, batch_size=batch_size, seed=run_seed, x0=x0, name=name,
                record_every=record_every, dtype=dtype, tolerance=tolerance, callback=callback,
                stop_at_tolerance=stop_at_tolerance,
            )  # fmt: skip
            runs.append(trace)
            results[name] = trace if count == 1 else Ensemble(tuple(runs))
            if trace.interrupted:
                return results
    return results


def labelled(methods: Mapping[str, Method] | Sequence[Method]) -> dict[str, Method]:
    """Return methods by label; a sequence is labelled by class, which must then be different for each."""
    if isinstance(methods, Mapping):
        return dict(methods)
    labels = [type(method).__name__ for method in methods]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise ArgumentError(
            f"`methods` holds {twice[0]} more than once; pass a mapping from labels to methods instead."
        )
    return dict(zip(labels, methods, strict=True))


class _Run:
    """One run under way: the compiled loop, its inputs, and what it has recorded."""

    def __init__(
        self,
        method: Any,
        problem: Problem,
        network: Network,
        x0: npt.NDArray[np.floating],
        sampler: WithReplacement | EpochPermutations | None,
        name: str,
        record_every: int,
        plain_mean: bool,
        chunk: int | None,
    ) -> None:
        self.method, self.problem, self.network, self.x0, self.sampler = method, problem, network, x0, sampler
        self.name, self.record_every, self.plain_mean = name, record_every, plain_mean
        n, d = x0.shape
        numeric, self.schedules = hyper.split_schedules(method, x0.dtype)
        mixing, n_arcs = operators(network, method.needs, x0.dtype)
        ones = np.ones(n)
        self.setting = loop.Setting(
            method=numeric,
            operators=mixing,
            arrays=problem.arrays(x0.dtype),
            u=jnp.asarray(network.u if "row" in method.needs else ones, x0.dtype),
            v=jnp.asarray(network.v if "column" in method.needs else ones, x0.dtype),
            limit=jnp.asarray(DIVERGED * (1 + np.abs(x0).max()), x0.dtype),
            record_every=record_every,
        )
        batch = sampler.batch_size if sampler else 0
        largest = CHUNK_BYTES // max(1, 4 * n * batch + 2 * d * x0.dtype.itemsize // record_every)
        self.chunk = checks.count(chunk, "chunk", name) if chunk is not None else max(1, min(CHUNK, largest))
        self.rows = self.chunk // record_every + 2
        at_start, per_step = self._measure_traffic(n_arcs)
        self.recorder = Recorder(
            problem.local,
            self.setting.arrays,
            bytes_per_step=per_step,
            bytes_at_start=at_start,
            with_plain_mean=plain_mean,
        )
        self.state = loop.start_state(numeric, jnp.asarray(x0), SimulatedNet(mixing, n))
        self.k = 0

    def go(
        self,
        steps: int,
        stop_at: float | None,
        tolerance: float,
        callback: Callable[[Progress], None] | None,
        checkpoint: Checkpoint | None,
        facts: dict[str, Any],
    ) -> Trace:
        """Run to the end, to ``stop_at``, to divergence or to Ctrl-C, and return the trace."""
        began, spent = time.perf_counter(), 0.0
        if checkpoint and checkpoint.resume and Path(checkpoint.path).exists():
            self.k, state, self.recorder.columns, spent = checkpoints.load(
                checkpoint.path, state=self.state, fingerprint=facts
            )
            self.state = jax.device_put(state)
        diverged = interrupted = stopped = False
        try:
            while self.k < steps and not (diverged or stopped):
                diverged, stopped = self._advance(_chunk_end(self.k, steps, self.chunk, checkpoint), stop_at)
                if callback:
                    callback(self._progress(steps))
                if (
                    checkpoint
                    and not (diverged or stopped)
                    and (self.k % checkpoint.every == 0 or self.k == steps)
                ):
                    self._save(checkpoint, facts, spent + time.perf_counter() - began)
        except KeyboardInterrupt:
            interrupted = True
            self.recorder.truncate(self.k)  # rows of a chunk whose state was not yet taken over
            if checkpoint:
                self._save(checkpoint, facts, spent + time.perf_counter() - began)
        _, _, _, rows = self._call(self.state, self.k, self.k + 1, record_every=1)
        self.recorder.append([self.k], rows)
        return Trace(
            name=self.name,
            columns=self.recorder.columns,
            final_x=np.asarray(self.setting.method.estimate(self.state)),
            verdict=_verdict(self.recorder.columns, diverged, tolerance),
            diverged_at=self.k if diverged else None,
            steps=self.k,
            seconds=spent + time.perf_counter() - began,
            interrupted=interrupted,
            stopped_early=stopped,
            facts={**facts, "tolerance": tolerance, "jax": jax.__version__},
        )

    def facts(self) -> dict[str, Any]:
        """Return everything that determines the numbers, except what the caller adds."""
        return {
            "method": type(self.method).__name__,
            "hyper_parameters": hyper.describe(self.method),
            "problem": self.problem.name,
            "problem_hash": self.problem.content_hash,
            "network_hash": self.network.content_hash,
            "start_hash": _hash(self.x0),
            "dtype": self.x0.dtype.name,
            "record_every": self.record_every,
            "plain_mean": self.plain_mean,
        }

    def _advance(self, end: int, stop_at: float | None) -> tuple[bool, bool]:
        """Run one chunk; return whether it diverged, and whether it stopped at the tolerance."""
        before, first = self.state, self.k
        state, k, diverged, rows = self._call(before, first, end, record_every=self.record_every)
        k = int(k)
        ks = np.arange(-(-first // self.record_every) * self.record_every, k, self.record_every)
        self.recorder.append(ks, rows)
        reached = self.recorder.first_within(stop_at, first) if stop_at else None
        if reached is not None:
            self.recorder.truncate(reached)
            state, k, diverged, _ = self._call(before, first, reached, record_every=self.record_every)
        self.state, self.k = state, int(k)
        return bool(diverged), reached is not None

    def _call(
        self, state: Any, first: int, end: int, *, record_every: int
    ) -> tuple[Any, Any, Any, loop.Rows]:
        setting = self.setting._replace(record_every=record_every)
        inputs: dict[str, Any] = {
            "schedules": hyper.evaluate(self.schedules, self.name, first, self.chunk, self.x0.dtype)
        }
        if self.sampler:
            inputs["index"] = self.sampler.batches(first, self.chunk)
        result = loop.run_chunk(setting, state, first, end, inputs, local=self.problem.local, rows=self.rows)
        return jax.block_until_ready(result)

    def _measure_traffic(self, n_arcs: dict[str, int]) -> tuple[int, int]:
        """Return the bytes sent before the first step and per step, counted by the executor in a dry run."""
        net = SimulatedNet(self.setting.operators, len(self.x0), n_arcs)
        state = jax.eval_shape(
            lambda x0: loop.start_state(self.setting.method, x0, net), jnp.asarray(self.x0)
        )
        at_start = net.bytes_sent
        grad = jax.eval_shape(self.setting.method.query, state)
        jax.eval_shape(lambda state, grad: self.setting.method.step(state, grad, net), state, grad)
        return at_start, net.bytes_sent - at_start

    def _progress(self, steps: int) -> Progress:
        last = {key: float(column[-1]) for key, column in self.recorder.columns.items() if len(column)}
        values = {key: last.get(key, float("nan")) for key in ("loss", "grad_norm", "consensus_error")}
        return Progress(name=self.name, k=self.k, steps=steps, **values)

    def _save(self, checkpoint: Checkpoint, facts: dict[str, Any], seconds: float) -> None:
        checkpoints.save(
            checkpoint.path,
            k=self.k,
            state=self.state,
            columns=self.recorder.columns,
            seconds=seconds,
            fingerprint=facts,
        )


def _chunk_end(k: int, steps: int, chunk: int, checkpoint: Checkpoint | None) -> int:
    end = min(k + chunk, steps)
    return min(end, (k // checkpoint.every + 1) * checkpoint.every) if checkpoint else end


def _verdict(
    columns: dict[str, Any], diverged: bool, tolerance: float
) -> Literal["converged", "running", "diverged"]:
    if diverged:
        return "diverged"
    within = columns["grad_norm"][-1] <= tolerance and columns["consensus_error"][-1] <= tolerance
    return "converged" if within else "running"


def _check(method: Any, problem: Any, network: Any, name: str) -> None:
    if isinstance(method, type) or not isinstance(method, Method):
        raise ArgumentError(
            f"`method` must be a method such as CGT(step_size=0.05, threshold=5.0), but got {method!r}."
        )
    if not isinstance(problem, Problem):
        raise ArgumentError(
            f"`problem` must be a digrad Problem (see digrad.problems), but got {type(problem).__name__}."
        )
    if not isinstance(network, Network):
        raise ArgumentError(
            f"`network` must be a digrad Network, but got {type(network).__name__}; "
            "wrap a graph: Network(graph)."
        )
    if network.n != problem.n_agents:
        raise ArgumentError(
            f"`network` has {network.n} agents, but `problem` has {problem.n_agents} losses; they must agree."
        )
    network.require(method.needs, name)


def _sampler(
    problem: Problem, batch_size: int | None, sampling: str, seed: int
) -> WithReplacement | EpochPermutations | None:
    checks.choice(sampling, "sampling", "simulate", ("replacement", "epoch"))
    checks.count(seed, "seed", "simulate", minimum=0)
    if batch_size is None:
        return None
    batch_size = checks.count(batch_size, "batch_size", "simulate")
    if problem.sizes is None:
        raise ArgumentError(
            f"`batch_size` is {batch_size}, but {problem.name} has no samples to draw from; leave it out."
        )
    if sampling == "replacement":
        return WithReplacement(problem.sizes, batch_size, seed)
    if batch_size > min(problem.sizes):
        agent = int(np.argmin(problem.sizes))
        raise ArgumentError(
            f"`batch_size` is {batch_size}, but agent {agent} has only {problem.sizes[agent]} samples, fewer than "
            "one batch per epoch; use a smaller batch or sampling='replacement'."
        )
    return EpochPermutations(problem.sizes, batch_size, seed)


def _start(x0: Any, problem: Problem, seed: int) -> npt.NDArray[np.float64]:
    shape = (problem.n_agents, problem.dim)
    if isinstance(x0, str):
        checks.choice(x0, "x0", "simulate", ("zeros", "normal"))
        return normal_start(*shape, seed) if x0 == "normal" else np.zeros(shape)
    array = np.asarray(problem.start if x0 is None else x0, np.float64)
    if array.shape not in (shape, shape[1:]):
        raise ArgumentError(
            f"`x0` must have shape {shape} or {shape[1:]} for {problem.name}, but got {array.shape}."
        )
    if not np.isfinite(array).all():
        raise ArgumentError("`x0` must be finite, but it holds NaN or infinite entries.")
    return np.broadcast_to(array, shape).copy()


def _hash(array: npt.NDArray[Any]) -> str:
    return hashlib.sha256(array.tobytes()).hexdigest()
