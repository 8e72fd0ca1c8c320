"""Runs whose steps Numba has compiled (:mod:`digrad.simulation.kernels`), if it is installed, in place of XLA's loop.

Where the arrays of a step leave the cache, what counts is how often memory is read, and these read it less often than
XLA's. What is not named here (other methods, links, networks that change, agents that go and come,
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
from typing import Any, NamedTuple

import jax
import numpy as np
import numpy.typing as npt

from digrad.algorithms import CGT
from digrad.cores import available_cores
from digrad.mixing import AnyNetwork, Network
from digrad.problems import Problem
from digrad.problems.logistic import Logistic
from digrad.problems.polynomial import Polynomial
from digrad.simulation.advance import Carry, Code, Fixed, Inputs, Rows, at, empty, estimates, trackers
from digrad.simulation.operators import Operator, Rolls

LEAST_AGENTS = 65  # of fewer, XLA multiplies densely
LEAST_SLAB = 1024  # agents for whom it pays to call a function for a few columns
LEAST_NUMBERS = 1 << 15  # of x: for less, little is gained
LEAST_ROW = 32  # bytes of a row of x: shorter ones leave most of a slab empty
LEAST_WHOLE_ROW = 64  # the same with samples, and where all agents listen alike, for which XLA needs no slabs
THREADED_AGENTS = 16_384  # from which threads share a slab
ALIGNED = 64  # bytes: where slabs begin, so that what an agent sends begins with a cache line

Array = npt.NDArray[Any]


class Turn(NamedTuple):
    """What a step works on; see :mod:`~digrad.simulation.kernels`."""

    old: Array  # [slabs, n, 2, width], flat: R x, and then x; and y
    new: Array
    scale: Array  # [n] step size times clip factor: x = R x - scale y; at first 0, where x itself is in place of R x
    squares: Array  # [n, 2] of the norms of R x and y
    share: Callable[..., list[Any]]  # (function, *arguments): called for all agents, by threads


@dataclass(frozen=True, eq=False)
class OnPolynomials:
    """Steps with gradients a x - b + q x^3, in slabs of a few columns.

    Args:
        mix: The function of :mod:`~digrad.simulation.kernels`.
        arcs: Whom agents hear, as it takes them.
        width: Columns of a slab.
        a_b: Both coefficients in slabs.
        q: Of each agent.
    """

    mix: Callable[..., None]
    arcs: Any
    width: int
    a_b: Array
    q: Array  # [n]

    def begin(self, g: Array) -> Array:
        """Return the gradients of the step before as the first step takes them."""
        return g

    def step(self, turn: Turn, g: Array, samples: None, *, is_first: bool) -> Array:
        """Mix x and y, and let y follow the gradients."""
        given = (turn.old, turn.new, self.arcs, turn.squares, self.a_b, self.q, g, is_first)
        for slab in range(len(turn.old) // (2 * self.width * len(turn.scale))):
            turn.share(kernels().settle, turn.old, turn.scale, slab, self.width)
            turn.share(self.mix, *given, slab)
        return g

    def end(self, turn: Turn, g: Array) -> Array:
        """Return the gradients of the last step, at the x that is left."""
        found = np.empty(g.shape, g.dtype)
        turn.share(kernels().gradients, turn.new, self.a_b, self.q, found, self.width)
        return found


@dataclass(frozen=True, eq=False)
class OnSamples:
    """Steps with gradients of the logistic loss on mini-batches, in one slab.

    Args:
        arcs: Whom agents hear.
        width: Columns, with those that are zero.
        d: Columns without them.
        problem: The weights and powers of the regularizer, and the samples of all agents.
    """

    arcs: Any
    width: int
    d: int
    problem: tuple[Array, ...]

    def begin(self, g: Array) -> Array:
        """Return the gradients of the step before, with columns of zeros."""
        return np.pad(g, ((0, 0), (0, self.width - self.d)))

    def step(self, turn: Turn, g: Array, samples: Array, *, is_first: bool) -> Array:
        """Mix x and y, and let y follow the gradients, which are left in ``g``."""
        turn.share(kernels().settle, turn.old, turn.scale, 0, self.width)
        slopes = np.empty(samples.shape, g.dtype)
        given = (turn.old, turn.new, self.arcs, turn.squares, *self.problem, g, samples, slopes)
        turn.share(kernels().on_samples, *given)
        return g

    def end(self, turn: Turn, g: Array) -> Array:
        """Return the gradients of the last step."""
        return np.ascontiguousarray(g[:, : self.d])


@dataclass(frozen=True, eq=False)
class CompiledSteps:
    """Steps of CGT on one network and problem, in place of XLA's loop."""

    of: OnPolynomials | OnSamples

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

        On the way, x and y are in slabs, in two arrays that take turns.
        """
        (n, d), dtype, width = state.x.shape, state.x.dtype, self.of.width
        share = partial(_share, team, _blocks(n))
        old, new = (_room(n, d, width, dtype) for _ in range(2))
        turn = Turn(old, new, np.zeros(n, dtype), np.zeros((n, 2), dtype), share)
        share(kernels().scatter, _read_only(state.x), _read_only(state.y), turn.old, width)
        g, done, within = self.of.begin(_read_only(state.g)), 0, True
        while done < len(given) and within:
            method, samples = given[done]
            g = self.of.step(turn, g, samples, is_first=done == 0)
            hyper = _hyper(method, limit, n, dtype)
            within = all(share(kernels().finish, turn.new, turn.squares, turn.scale, width, hyper))
            turn, done = turn._replace(old=turn.new, new=turn.old), done + 1
        g = self.of.end(turn, g)
        turn = turn._replace(new=turn.old)  # so that the memory of the other slabs is free
        x, y = np.empty((n, d), dtype), np.empty((n, d), dtype)
        share(kernels().gather, turn.old, turn.scale, x, y, width)
        return type(state)(x=x, y=y, g=g), done, within


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
    (n, d), dtype = x0.shape, x0.dtype
    local = problem.local
    is_plain = isinstance(local, Polynomial) and not any(isinstance(one, Rolls) for one in operators.values())
    agents = LEAST_SLAB if isinstance(local, Polynomial) else LEAST_AGENTS
    row = LEAST_ROW if is_plain else LEAST_WHOLE_ROW
    is_large = n >= agents and n * d >= LEAST_NUMBERS and d * dtype.itemsize >= row
    if type(method) is not CGT or not is_large or not is_available():
        return None
    constant, arrays = network.at(0), problem.arrays(dtype)
    if isinstance(local, Polynomial):
        return CompiledSteps(_on_polynomials(arrays, constant, operators, dtype))
    if isinstance(local, Logistic) and has_samples and "rows" in arrays:
        lanes = kernels().WHOLE * kernels().REGISTER // dtype.itemsize
        given = tuple(map(_read_only, (*arrays["reg"], arrays["rows"])))
        return CompiledSteps(OnSamples(_rows(constant, dtype), -(-d // lanes) * lanes, d, given))
    return None


def _on_polynomials(
    arrays: Any, network: Network, operators: dict[str, Operator], dtype: np.dtype[Any]
) -> OnPolynomials:
    code, (pull, push) = kernels(), (operators["pull"], operators["push"])
    if isinstance(pull, Rolls) and isinstance(push, Rolls) and pull.offset == push.offset:
        mix, arcs, registers = code.by_runs, _runs(pull, push, network.n), code.RUNS
    else:
        mix, arcs, registers = code.by_rows, _rows(network, dtype), code.ROWS
    width = registers * code.REGISTER // 2 // dtype.itemsize
    a, b, q = map(_read_only, arrays)
    n, d = a.shape
    a_b = _room(n, d, width, dtype)
    code.scatter(a, b, a_b, width, 0, n)
    return OnPolynomials(mix, arcs, width, a_b, np.ascontiguousarray(q).reshape(-1))


def kernels() -> Any:
    """Return :mod:`digrad.simulation.kernels`, which is imported when a run needs it: that takes a second."""
    from digrad.simulation import kernels

    return kernels


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


def _room(n: int, d: int, width: int, dtype: np.dtype[Any]) -> Array:
    """Return room for two arrays ``[n, d]`` in slabs."""
    size = -(-d // width) * n * 2 * width
    memory = np.empty(size + ALIGNED // dtype.itemsize, dtype)
    first = -memory.ctypes.data % ALIGNED // dtype.itemsize
    return memory[first : first + size]


def _hyper(method: Any, limit: float, n: int, dtype: np.dtype[Any]) -> Any:
    step_size, threshold = (
        np.broadcast_to(np.asarray(value, dtype).reshape(-1), n).copy()
        for value in (method.step_size, method.threshold)
    )
    return kernels().Hyper(step_size, threshold, dtype.type(limit))


def _rows(network: Network, dtype: np.dtype[Any]) -> Any:
    """Return R and C by rows, on the arcs that either has."""
    matrices = [mixing.matrix for mixing in (network.R, network.C)]
    either = (abs(matrices[0]) + abs(matrices[1])).tocsr()
    either.sort_indices()
    weights = [_on_arcs(matrix, either).astype(dtype) for matrix in matrices]
    return kernels().Rows(either.indptr.astype(np.int64), either.indices.astype(np.int32), *weights)


def _on_arcs(matrix: Any, arcs: Any) -> Array:
    """Return the entries of a matrix, 0 included, on the arcs that are the entries of another."""
    weight = np.zeros(arcs.nnz)
    weight[np.searchsorted(_places(arcs), _places(matrix))] = matrix.data
    return weight


def _places(matrix: Any) -> Array:
    """Return a number for each entry, ascending by rows."""
    receiver = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
    return receiver * matrix.shape[1] + matrix.indices


def _runs(pull: Rolls, push: Rolls, n: int) -> Any:
    """Return circulant R and C by runs of agents in which the ones heard are equally far ahead or behind."""
    ahead = -np.asarray(pull.offset, np.int64) % n
    first = np.unique(np.concatenate([[0, n], n - ahead[ahead > 0]]))
    shift = np.where(first[:-1, None] + ahead < n, ahead, ahead - n)
    return kernels().Runs(first, shift, np.array(pull.weight), np.array(push.weight))


def _share(
    team: ThreadPoolExecutor, blocks: list[tuple[int, int]], function: Any, *arguments: Any
) -> list[Any]:
    """Call a function for all blocks of agents, and return what it returns."""
    if len(blocks) == 1:
        return [function(*arguments, *blocks[0])]
    return list(team.map(partial(function, *arguments), *zip(*blocks, strict=True)))


def _blocks(n: int) -> list[tuple[int, int]]:
    """Return which agents each thread does, by first and end."""
    count = _threads() if n >= THREADED_AGENTS else 1
    bounds = [n * i // count for i in range(count + 1)]
    return list(pairwise(bounds))


def _threads() -> int:
    """Return how many threads may work: the cores of this process, or fewer if OMP_NUM_THREADS says so."""
    cores, wanted = available_cores(), os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(wanted)) if wanted.isdecimal() and int(wanted) > 0 else cores
