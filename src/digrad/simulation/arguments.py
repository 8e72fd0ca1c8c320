"""Validation of what the public functions of the simulator are given, and its one form."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from digrad import checks
from digrad.core.validation import check_fit, check_method, check_network
from digrad.errors import ArgumentError
from digrad.problems import Problem
from digrad.problems.problem import as_floats
from digrad.sampling import EpochPermutations, WithReplacement, normal_start
from digrad.simulation.checkpoint import Checkpoint
from digrad.types import Method

MOST_STEPS = 10**12  # even a microsecond for each would take days
MOST_ROWS = 10**8  # recorded iterations; each takes about 60 bytes


def labelled(methods: Mapping[str, Method] | Sequence[Method]) -> dict[str, Method]:
    """Return methods by label; a sequence is labelled by class, which must then be different for each."""
    if not isinstance(methods, Mapping | Sequence) or isinstance(methods, str) or not methods:
        raise ArgumentError(
            f"`methods` must be a list of methods or a mapping from labels, not empty, but got {methods!r}."
        )
    if isinstance(methods, Mapping):
        return dict(methods)
    labels = [type(method).__name__ for method in methods]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    if twice:
        raise ArgumentError(
            f"`methods` holds {twice[0]} more than once; pass a mapping from labels to methods instead."
        )
    return dict(zip(labels, methods, strict=True))


def make_name(name: Any, method: Any) -> str:
    """Return the name of the trace: the one given, or the class of the method."""
    if name is None:
        return type(method).__name__
    if not isinstance(name, str) or not name:
        raise ArgumentError(f"`name` of simulate must be a non-empty string, but got {name!r}.")
    return name


def make_steps(steps: Any, record_every: Any, name: str) -> tuple[int, int]:
    """Return how many steps to take and how many lie between two recorded rows; refuse what would never end."""
    steps = checks.count(steps, "steps", name, maximum=MOST_STEPS)
    record_every = checks.count(record_every, "record_every", name)
    if steps // record_every > MOST_ROWS:
        raise ArgumentError(
            f"`record_every` of {name} must be at least {-(-steps // MOST_ROWS)} for {steps} steps, or the recorded "
            f"rows do not fit in memory, but got {record_every}."
        )
    return steps, record_every


def check_parts(method: Any, problem: Any, network: Any, name: str) -> None:
    """Raise unless method, problem and network are what they should be and fit together."""
    check_method(method, "simulate")
    if not isinstance(problem, Problem):
        raise ArgumentError(
            f"`problem` must be a digrad Problem (see digrad.problems), but got {type(problem).__name__}."
        )
    check_network(network, "simulate")
    if network.n != problem.n_agents:
        raise ArgumentError(
            f"`network` has {network.n} agents, but `problem` has {problem.n_agents} losses; they must agree."
        )
    check_fit(method, network, name)


def make_seed(seed: Any) -> int:
    """Return the seed as an int."""
    return checks.seed(seed, "simulate")


def make_batch_size(batch_size: Any) -> int | None:
    """Return the batch size as an int, or None for all samples."""
    return None if batch_size is None else checks.count(batch_size, "batch_size", "simulate")


def make_dtype(dtype: Any) -> np.dtype[Any]:
    """Return one of the two dtypes that runs have."""
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = None
    if found not in (np.float32, np.float64):
        raise ArgumentError(f"`dtype` must be float64 or float32, but got {dtype!r}.")
    return found


def check_watchers(checkpoint: Any, callback: Any) -> None:
    """Raise unless they are a Checkpoint and a function, or None."""
    if not isinstance(checkpoint, Checkpoint | None):
        raise ArgumentError(f"`checkpoint` must be a Checkpoint(path, every=...), but got {checkpoint!r}.")
    if callback is not None and not callable(callback):
        raise ArgumentError(f"`callback` of simulate must be a function of a Progress, but got {callback!r}.")


def make_sampler(
    problem: Problem, batch_size: int | None, sampling: str, seed: int
) -> WithReplacement | EpochPermutations | None:
    """Return the sampler of a run, or None when every step uses all samples."""
    checks.choice(sampling, "sampling", "simulate", ("replacement", "epoch"))
    if batch_size is None:
        return None
    if problem.sizes is None:
        raise ArgumentError(
            f"`batch_size` is {batch_size}, but {problem.name} has no samples to draw from; leave it out."
        )
    if not problem.is_estimated_by_batches:
        raise ArgumentError(
            f"`batch_size` is {batch_size}, but the loss of {problem.name} is no mean over the samples of its batch, "
            "so that mini-batches would minimise something else; take the mean, or leave `batch_size` out."
        )
    if sampling == "replacement" and batch_size > max(problem.sizes):
        raise ArgumentError(
            f"`batch_size` is {batch_size}, but no agent has more than {max(problem.sizes)} samples; use at most as "
            "many, or leave it out to use all of them."
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


def make_start(x0: Any, problem: Problem, seed: int) -> npt.NDArray[np.float64]:
    """Return the start of every agent, ``[n, d]``."""
    shape = (problem.n_agents, problem.dim)
    if isinstance(x0, str):
        checks.choice(x0, "x0", "simulate", ("zeros", "normal"))
        return normal_start(*shape, seed) if x0 == "normal" else np.zeros(shape)
    array = as_floats(problem.start if x0 is None else x0, "x0", "simulate")
    if array.shape not in (shape, shape[1:]):
        raise ArgumentError(
            f"`x0` must have shape {shape} or {shape[1:]} for {problem.name}, but got {array.shape}."
        )
    if not np.isfinite(array).all():
        raise ArgumentError("`x0` must be finite, but it holds NaN or infinite entries.")
    return np.broadcast_to(array, shape).copy()
