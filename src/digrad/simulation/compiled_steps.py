"""Runs whose steps Numba has compiled (:mod:`digrad.simulation.kernels`), if it is installed, in place of XLA's loop.

Where the arrays of a step leave the cache, what counts is how often memory is read, and a step in one pass reads it
less often than XLA's. What is not named here (other methods, links, networks that change, agents that go and come,
lanes) runs as XLA compiles it, and so does everything without Numba. The numbers agree to rounding, and do not depend
on threads.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from digrad.algorithms import CGT
from digrad.cores import available_cores
from digrad.mixing import AnyNetwork, Mixing
from digrad.problems import Problem
from digrad.problems.logistic import Logistic
from digrad.problems.polynomial import Polynomial
from digrad.simulation.advance import Carry, Code, Fixed, Inputs, Rows, at, empty, estimates, trackers
from digrad.simulation.operators import Operator, Rolls

LEAST_AGENTS = 65  # of fewer, XLA multiplies densely
LEAST_NUMBERS = 1 << 15  # of x: for less, little is gained
LEAST_ROW = 64  # bytes of a row of x: shorter ones leave most of a register empty
THREADED_NUMBERS = 1 << 20  # of x from which threads share a step
BLOCKS = 8  # of agents for each thread: whoever is free takes the next
AHEAD = 2  # how many agents later the neighbours are used that are fetched now

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class CompiledSteps:
    """Steps of CGT on one network and problem.

    Args:
        kernel: The name of the function of :mod:`~digrad.simulation.kernels`.
        pull: R by rows: the first arc of each receiver, senders, weights.
        push: C by rows.
        ahead: :data:`AHEAD`, or 0 where the hardware foresees who is next.
        problem: The last arguments of the function, but for samples.
    """

    kernel: str
    pull: tuple[Array, Array, Array]
    push: tuple[Array, Array, Array]
    ahead: int
    problem: tuple[Array, ...]

    def advance(self, fixed: Fixed, carry: Carry, end: int, inputs: Inputs, code: Code) -> tuple[Carry, Rows]:
        """Run the steps k = carry.k, ..., end - 1, or until the run has diverged, as XLA's loop does."""
        first, every = int(carry.k), fixed.record_every
        table = jax.tree.map(np.array, empty(fixed, carry, code))
        inputs = jax.tree.map(_read_only, inputs)
        k, state, alive = first, carry.state, True
        with ThreadPoolExecutor(_threads()) as team:
            while k < end and alive:
                is_recorded = k % every == 0
                target = min(k + 1 if is_recorded else (k // every + 1) * every, end)
                given = [at(fixed, inputs, i) for i in range(k - first, target - first)]
                after, done, alive = self._run(state, given, float(fixed.limit), team)
                if is_recorded:
                    row = k // every - (first + every - 1) // every
                    for name, found in _measured(fixed, given[0][0], state, after, keep=code.keep).items():
                        jax.tree.map(partial(_put, row), getattr(table, name), found)
                k, state = k + done, after
        reached = np.asarray(k)
        carry = Carry(reached, reached, np.asarray(alive), state, carry.links, state.g)  # pyright: ignore[reportArgumentType]
        return carry, table

    def _run(
        self, state: Any, given: list[tuple[Any, Any]], limit: float, team: ThreadPoolExecutor
    ) -> tuple[Any, int, bool]:
        """Return the state after steps with these methods and samples, their number, and whether x is within the limit.

        On the way, x and y lie side by side in two arrays that take turns.
        """
        from digrad.simulation import kernels

        (n, d), dtype = state.x.shape, state.x.dtype
        kernel, stale, g = getattr(kernels, self.kernel), _read_only(state.g), np.empty((n, d), dtype)
        pull, push = kernels.Arcs(*self.pull), kernels.Arcs(*self.push)
        room = [np.empty(2 * n * d, dtype) for _ in given[1:3]]
        old = kernels.Pair(_read_only(state.x).reshape(-1), _read_only(state.y).reshape(-1), d)
        before, new, within, blocks = old, old, True, _blocks(n, d)
        for j, (method, samples) in enumerate(given):
            is_first, is_last = j == 0, j == len(given) - 1
            if is_last:
                new = kernels.Pair(np.empty(n * d, dtype), np.empty(n * d, dtype), d)
            else:
                new = kernels.Pair(room[j % 2], room[j % 2][d:], 2 * d)
            batch = () if samples is None else (np.empty(samples.shape, dtype), samples)
            step = partial(
                kernel, old, new, before, stale, g, is_first, is_last, pull, push, self.ahead,
                _hyper(method, limit, n, dtype), *self.problem, *batch,
            )  # fmt: skip
            share = map if len(blocks) == 1 else team.map
            within = all(list(share(step, *zip(*blocks, strict=True))))
            if not (within or is_last):
                return self._run(state, given[: j + 1], limit, team)  # only a last step writes x and y apart
            before, old = old, kernels.Pair(_read_only(new.x), _read_only(new.y), new.stride)
            stale = _read_only(g)
        return type(state)(x=new.x.reshape(n, d), y=new.y.reshape(n, d), g=g), len(given), within


def compiled_steps(
    method: Any,
    problem: Problem,
    network: AnyNetwork,
    operators: dict[str, Operator],
    x0: npt.NDArray[np.floating],
    *,
    has_samples: bool,
) -> CompiledSteps | None:
    """Return the compiled steps of a run on a constant network with perfect links, or None if XLA is to run it.

    Args:
        method: Any.
        problem: The losses.
        network: Who hears whom.
        operators: Of the network, by verb.
        x0: The start.
        has_samples: Whether gradients are those of mini-batches.
    """
    n, d = x0.shape
    is_large = n >= LEAST_AGENTS and n * d >= LEAST_NUMBERS and d * x0.itemsize >= LEAST_ROW
    if type(method) is not CGT or not is_large or not is_available():
        return None
    arrays, local = problem.arrays(x0.dtype), problem.local
    if isinstance(local, Polynomial):
        kernel, given = "on_polynomials", arrays
    elif isinstance(local, Logistic) and has_samples and "rows" in arrays:
        kernel, given = "on_samples", (*arrays["reg"], arrays["rows"])
    else:
        return None
    constant = network.at(0)
    return CompiledSteps(
        kernel=kernel,
        pull=_by_rows(constant.R, x0.dtype),
        push=_by_rows(constant.C, x0.dtype),
        ahead=0 if isinstance(operators["pull"], Rolls) else AHEAD,
        problem=tuple(_read_only(array) for array in given),
    )


def is_available() -> bool:
    """Return whether Numba is installed and wanted: the environment variable ``DIGRAD_NUMBA`` is not 0."""
    return os.environ.get("DIGRAD_NUMBA", "1") != "0" and find_spec("numba") is not None


@partial(jax.jit, static_argnames="keep")
def _measured(
    fixed: Fixed, method: Any, before: Any, after: Any, *, keep: Callable[..., Any] | None
) -> dict[str, Any]:
    """Return what is recorded of an iteration, from the state before its step and the one after."""
    found = estimates(fixed.method, before, u=fixed.u, present=fixed.present)
    found |= trackers(method, after, after.g, v=fixed.v)
    return found | ({"kept": keep(method, before, after, after.g, fixed.arrays)} if keep else {})


def _put(row: int, column: Array, value: Any) -> None:
    column[row] = value


def _read_only(array: Any) -> Array:
    """Return a view that cannot be written to, as those of JAX: for Numba that is a type, and each is compiled."""
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view


def _hyper(method: Any, limit: float, n: int, dtype: np.dtype[Any]) -> Any:
    from digrad.simulation.kernels import Hyper

    step_size, threshold = (
        np.broadcast_to(np.asarray(value, dtype).reshape(-1), n).copy()
        for value in (method.step_size, method.threshold)
    )
    safe = 0.9 * min(limit, float(np.finfo(dtype).max) ** 0.5) ** 2
    return Hyper(step_size, threshold, dtype.type(limit), dtype.type(safe))


def _by_rows(mixing: Mixing, dtype: np.dtype[Any]) -> tuple[Array, Array, Array]:
    matrix = mixing.matrix
    return matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), matrix.data.astype(dtype)


def _blocks(n: int, d: int) -> list[tuple[int, int]]:
    """Return which agents are done at a time, by first and end."""
    count = BLOCKS * _threads() if n * d >= THREADED_NUMBERS and _threads() > 1 else 1
    bounds = [n * i // count for i in range(count + 1)]
    return list(pairwise(bounds))


def _threads() -> int:
    """Return how many threads may work: the cores of this process, or fewer if OMP_NUM_THREADS says so."""
    cores, wanted = available_cores(), os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(wanted)) if wanted.isdecimal() and int(wanted) > 0 else cores
