"""A run from its start to its end: progress, Ctrl-C, checkpoints, the verdict, and what a stored run is known by."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Unpack

import jax
import numpy as np
import numpy.typing as npt

from digrad._internal.fingerprints import fingerprint
from digrad._internal.user_warnings import warn_user
from digrad.core import hyperparameters
from digrad.errors import ArgumentError, CheckpointError, StorageError
from digrad.network import Network
from digrad.privacy import Private
from digrad.problems import Problem
from digrad.simulation import checkpoint as checkpoints
from digrad.simulation.batched_runs import BatchedSimulator
from digrad.simulation.checkpoint import Checkpoint
from digrad.simulation.loop import State
from digrad.simulation.mixing import MANY_AGENTS
from digrad.simulation.record import Rows, before, columns_of, is_within, joined
from digrad.simulation.run_options import RunOptions, SimulatorOptions, check_parts, complete, lists_options
from digrad.simulation.simulator import LEAST_STEPS, Simulator
from digrad.trace import Trace, Verdict, is_stalled
from digrad.types import Method

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
    loss: float = math.nan
    grad_norm: float = math.nan
    consensus_error: float = math.nan
    test_accuracy: float | None = None
    seconds_left: float | None = None


@lists_options(RunOptions)
def simulate(
    method: Method,
    problem: Problem,
    network: Network,
    *,
    callback: Callable[[Progress], None] | None = None,
    checkpoint: Checkpoint | None = None,
    **options: Unpack[RunOptions],
) -> Trace:
    """Run a method and return what was recorded.

    The result is a pure function of the arguments: the same call gives the same numbers, bit for bit, also after a
    resume (on one kind of machine and version of JAX). A run that diverges ends there, with that verdict. Ctrl-C ends
    the run and returns what was computed.

    Args:
        method: For example ``CGT(step_size=0.05, threshold=5.0)``; step sizes and thresholds may be functions
            of k.
        problem: The private losses.
        network: The communication graph and its weights.
        callback: Called every half second, about, with the progress of the run.
        checkpoint: File to store the run in, and whether to resume from it.
        options: Keywords of :class:`digrad.RunOptions`; ``steps`` is required.

    Example:
        >>> import digrad as dg
        >>> network = dg.Network(dg.graphs.example5())
        >>> problem = dg.problems.example_quartic()
        >>> trace = simulate(dg.AB(step_size=0.05), problem, network, steps=100, x0=[10.0, 10.0])
        >>> trace.verdict, trace.diverged_at  # plain gradient tracking overflows
        ('diverged', 4)
    """
    wanted = complete(options, "simulate")
    check_parts(method, problem, network, type(method).__name__, "simulate")
    check_observers(callback, checkpoint, "simulate")
    return drive(
        Simulator.of(method, problem, network, wanted), wanted, callback=callback, checkpoint=checkpoint
    )


def run_name(label: str, seed: int, seeds: int) -> str:
    """Return the name of one of ``seeds`` runs of a method in its progress: with its seed if there are several."""
    return label if seeds == 1 else f"{label}, seed {seed}"


def check_observers(callback: Any, checkpoint: Any, owner: str) -> None:
    """Raise unless a run can call ``callback`` and be stored as ``checkpoint`` says."""
    if callback is not None and not callable(callback):
        raise ArgumentError(f"`callback` of {owner} must be a function of a Progress, but got {callback!r}.")
    if not isinstance(checkpoint, Checkpoint | None):
        raise ArgumentError(
            f"`checkpoint` of {owner} must be a Checkpoint(path, every=...), but got {checkpoint!r}."
        )


def drive(
    simulator: Simulator,
    options: Mapping[str, Any],
    *,
    callback: Callable[[Progress], None] | None = None,
    checkpoint: Checkpoint | None = None,
    name: str | None = None,
) -> Trace:
    """Run to the end, to the tolerance, to divergence or to Ctrl-C, and return the trace.

    Args:
        simulator: The simulator to run.
        options: Complete, of :class:`~digrad.simulation.run_options.RunOptions`.
        callback: Called after every chunk.
        checkpoint: File to store the run in, and whether to resume from it.
        name: Name of the run in its progress; that of the method by default.
    """
    steps, began = options["steps"], time.perf_counter()
    start = simulator.init(options["x0"])
    facts = _facts(simulator, start, is_stored=checkpoint is not None)
    parts: list[Rows] = []

    def save(state: State) -> None:
        if not checkpoint or not state.alive:  # nothing goes on from there
            return
        try:
            checkpoints.save(
                checkpoint.path,
                k=int(state.k),
                state=(state.method_state, state.links, state.limit, state.memory),
                columns=joined(parts),
                seconds=time.perf_counter() - began,
                fingerprint=facts,
            )
        except StorageError as error:  # hours of work are worth more than the file that was to protect them
            warn_user(f"{simulator.name} goes on without a checkpoint at k = {int(state.k)}: {error}")

    def note(state: State) -> None:
        k = int(state.k)
        if callback:
            last = next((part for part in reversed(parts) if part and len(part["k"])), None)
            names = ("loss", "grad_norm", "consensus_error")
            figures = {name: float(last[name][-1]) for name in names if last}
            callback(Progress(name or simulator.name, k, steps, **figures))
        if checkpoint and (k % checkpoint.every == 0 or k == steps):
            save(state)

    with checkpoints.held(checkpoint) if checkpoint else nullcontext(False) as is_stored:
        if checkpoint and is_stored:
            start, rows, seconds = _resumed(checkpoint, start, facts, steps)
            parts.append(rows)
            began -= seconds
        end, interrupted = run_to_end(
            simulator, start, steps, parts, note,
            tolerance=options["tolerance"] if options["stop_at_tolerance"] else None, seconds=CALL_SECONDS,
            least=LEAST_STEPS if simulator.problem.n_agents > MANY_AGENTS else 1,
            every=checkpoint and checkpoint.every,
        )  # fmt: skip
        if interrupted:
            save(end)
        parts.append(simulator.measure(end, last=steps))
        seconds = time.perf_counter() - began
        return ended(simulator, options, end, parts, facts=facts, seconds=seconds, interrupted=interrupted)


def _resumed(
    checkpoint: Checkpoint, start: State, facts: dict[str, Any], steps: int
) -> tuple[State, Rows, float]:
    """Return the state in a file, what had been recorded, and the seconds spent."""
    path, template = Path(checkpoint.path), (start.method_state, start.links, start.limit, start.memory)
    k, stored, rows, seconds = checkpoints.load(path, state=template, fingerprint=facts)
    if k > steps:
        raise CheckpointError(
            f"`{path}` is at k = {k}, beyond steps = {steps}; ask for at least {k} steps, or start over with overwrite."
        )
    with jax.enable_x64(True):
        at, (method_state, links, limit, memory) = jax.numpy.asarray(k), jax.device_put(stored)
    state = start._replace(
        k=at, reached=at, limit=limit, method_state=method_state, links=links, memory=memory
    )
    return state, rows, seconds


def drive_batch(
    simulators: Sequence[Simulator],
    options: Sequence[Mapping[str, Any]],
    *,
    share_samples: bool = False,
) -> list[Trace]:
    """Run all together to the end, to divergence or to Ctrl-C, and return their traces.

    Args:
        simulators: Of one method class, problem and network.
        options: Of each run, complete; only starts and seeds differ.
        share_samples: Give every run the samples of the first.
    """
    began, steps, parts, traces = time.perf_counter(), options[0]["steps"], [], []
    with jax.enable_x64(True):
        batch = BatchedSimulator(simulators, options, share_samples)
        # Never timed: in which product a point is evaluated, and so its rounding, depends on where the calls end.
        state, interrupted = run_to_end(batch, batch.init([one["x0"] for one in options]), steps, parts)
        parts.append(batch.measure(state, steps))
        ends, seconds = batch.states(state), (time.perf_counter() - began) / len(simulators)
        is_stopped = interrupted
        for simulator, own, end, *rows in zip(simulators, options, ends, *parts, strict=True):
            # Far away without having diverged, and so run alone.
            goes_on = not (interrupted or end.alive or simulator.limit_beyond(end) is None)
            if goes_on and not is_stopped:
                traces.append(drive(simulator, own))
                is_stopped = traces[-1].interrupted
                continue
            facts = _facts(simulator, end)
            traces.append(
                ended(
                    simulator,
                    own,
                    end,
                    rows,
                    facts=facts,
                    seconds=seconds,
                    interrupted=interrupted or goes_on,
                )
            )
    return traces


def run_to_end(
    simulator: Simulator | BatchedSimulator,
    state: State,
    steps: int,
    parts: list[Any],
    note: Callable[[State], None] = lambda state: None,
    *,
    tolerance: float | None = None,
    seconds: float | None = None,
    least: int = 1,
    every: int | None = None,
) -> tuple[State, bool]:
    """Run until iteration ``steps``, until all runs have diverged, or to Ctrl-C.

    Args:
        simulator: The simulator of one run or of several.
        state: Where to begin.
        steps: Where to end.
        parts: Gets what each call of the loop recorded.
        note: Called with the state after each call.
        tolerance: End a single run at the first recorded iteration that is within it.
        seconds: How long a call should take, about: it takes fewer steps then than it could.
        least: How many steps a call takes even if that is longer than ``seconds``.
        every: Calls end at multiples of this.

    Returns:
        The state at the end, and whether Ctrl-C ended the run.
    """
    rows: Any
    longest = simulator.length
    length, is_first, is_stopped = min(longest, FIRST_STEPS) if seconds else longest, True, False
    with _deferred_interrupt() as is_interrupted:
        try:
            while (k := int(state.k)) < steps and np.any(state.alive) and not is_stopped:
                began, room = time.perf_counter(), every - k % every if every else steps
                after, rows = simulator.run(state, min(length, steps - k, room))
                if tolerance is not None and (good := is_within(rows, tolerance)).any():
                    is_stopped, last = True, int(rows["k"][np.argmax(good)])
                    rows = before(rows, last)
                    after = simulator.run(state, last - k)[0] if last > k else state
                state = after
                parts.append(rows)
                note(state)
                if is_interrupted():
                    return state, True
                if seconds and not is_first:  # the first call compiles
                    per_step = (time.perf_counter() - began) / max(1, int(state.k) - k)
                    length = int(min(longest, max(least, seconds / per_step)))
                is_first = False
        except KeyboardInterrupt:
            return state, True
    return state, False


@contextmanager
def _deferred_interrupt() -> Iterator[Callable[[], bool]]:
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


def facts_of(
    method: Method,
    problem: Problem,
    network: Network,
    options: Mapping[str, Any],
    x0: npt.NDArray[np.floating],
    *,
    is_stored: bool = False,
) -> dict[str, Any]:
    """Return what determines the numbers of a run, as a stored run is recognised by.

    Args:
        method: With its schedules.
        problem: The private losses.
        network: As a run with the seed meets it.
        options: Complete; those of :class:`~digrad.simulation.run_options.SimulatorOptions` count.
        x0: The start of every agent, in the dtype of the run.
        is_stored: Whether the run is to be stored.

    Raises:
        ArgumentError: The run is to be stored, and one of them cannot be recognised in another process.
    """

    def recognised(make: Callable[[], Any], what: str) -> Any:
        try:
            return make()
        except ArgumentError as error:
            if not is_stored:
                return None
            raise ArgumentError(
                f"`checkpoint` of simulate must be able to recognise its run, but {what} cannot be identified: {error}."
            ) from error

    apart = ("record", "dtype", "gradient_noise")
    told = {name: options[name] for name in SimulatorOptions.__annotations__ if name not in apart}
    told["sampling"] = hyperparameters.plain(options["sampling"])
    if noise := options["gradient_noise"]:
        told["gradient_noise"] = hyperparameters.plain(noise)
    return {
        **told,
        **{name: value for name, value in asdict(options["record"]).items() if value is not False},
        "dtype": options["dtype"].name,
        "method": type(method).__name__,
        "method_hash": recognised(lambda: _hash_of_class(type(method)), "the class of the method"),
        "hyper_parameters": recognised(lambda: hyperparameters.describe(method), "a hyper-parameter"),
        "problem": problem.name,
        "problem_hash": recognised(lambda: problem.content_hash, "the problem"),
        "network_hash": recognised(lambda: network.content_hash, "the network"),
        "start_hash": _hash_of(x0),
    }


def _facts(simulator: Simulator, state: State, *, is_stored: bool = False) -> dict[str, Any]:
    parts = (simulator.method, simulator.problem, simulator.network, simulator.options)
    return facts_of(*parts, state.x0, is_stored=is_stored)


_hash_of_class = lru_cache(maxsize=64)(fingerprint)


def _hash_of(array: npt.NDArray[Any]) -> str:
    """Return the SHA-256 of the entries of an array, in hexadecimal."""
    return sha256(np.ascontiguousarray(array).data).hexdigest()


def rule_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what else the end of a run and its verdict depend on."""
    return {name: options[name] for name in ("tolerance", "stop_at_tolerance")}


def ended(
    simulator: Simulator,
    options: Mapping[str, Any],
    state: State,
    parts: Sequence[Rows],
    *,
    facts: Mapping[str, Any],
    seconds: float,
    interrupted: bool,
) -> Trace:
    """Return the trace of a run whose last iteration is recorded, with its verdict."""
    k, rows = int(state.reached), joined(parts)
    tolerance, sampling = options["tolerance"], options["sampling"]
    is_stop = options["stop_at_tolerance"] and k % options["record_every"] == 0 and k < options["steps"]
    within, has_diverged = is_within(rows, tolerance)[-1], not bool(state.alive)
    verdict: Verdict = "converged" if within else "not converged"
    if has_diverged:
        verdict = "diverged"
    elif not within and is_stalled(rows, tolerance):
        verdict = "stalled"
    asks_privacy = isinstance(sampling, Private) and sampling.delta is not None
    spent = {"epsilon": sampling.epsilon(rows["k"])} if asks_privacy else {}
    return Trace(
        name=simulator.name,
        columns={**columns_of(rows), **spent},
        final_x=simulator.estimate(state),
        verdict=verdict,
        diverged_at=k if has_diverged else None,
        steps=k,
        seconds=seconds,
        facts={**facts, **rule_of(options), **simulator.traffic.facts(k), "jax": jax.__version__},
        arrays=hyperparameters.long_arrays(simulator.method),
        interrupted=interrupted,
        stopped_early=bool(is_stop and within),
    )
