"""Runs whose steps Numba has compiled (:mod:`digrad.simulation.kernels`), if it is installed, in place of XLA's loop.

Where the arrays of a step leave the cache, what counts is how often memory is read, and these read it less often than
XLA's. What is not named here (other methods, links, networks that change, agents that go and come,
lanes) runs as XLA compiles it, and so does everything without Numba. The numbers agree to rounding, and do not depend
on threads.
"""

import mmap
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np
import numpy.typing as npt

from digrad.algorithms import CGT
from digrad.cores import available_cores
from digrad.mixing import AnyNetwork, Network
from digrad.problems import Problem
from digrad.problems.logistic import Logistic
from digrad.problems.polynomial import Polynomial
from digrad.simulation import blockwise
from digrad.simulation.advance import Carry, Code, Fixed, Inputs, Rows, at, empty
from digrad.simulation.operators import Operator, Rolls

LEAST_AGENTS = 65  # of fewer, XLA multiplies densely
LEAST_SLAB = 1024  # agents for whom it pays to call a function for a few columns
LEAST_NUMBERS = 1 << 15  # of x: for less, little is gained
LEAST_ROW = (
    32  # bytes of a row of x: shorter ones leave most of a slab empty, and XLA needs none for one column
)
THREADED_AGENTS = 16_384  # from which threads share a step
MOST_PARTS = 8  # in which columns are done, whatever the number of threads
SAFE = 0.9  # of the limit: below, no rounding of a bound hides an entry above it

Array = npt.NDArray[Any]


class Turn(NamedTuple):
    """What a step works on; see :mod:`~digrad.simulation.kernels`."""

    old: Array  # slabs of R x, and then x, and of y
    new: Array
    scale: Array  # [n] step size times clip factor: x = R x - scale y; at first 0, where x itself is in place of R x
    squares: Array  # [parts, n] add up to those of the norms of y
    share: Callable[..., list[Any]]  # (function, *arguments): called for all agents, by threads
    share_parts: Callable[..., list[Any]]  # the same for all parts


@dataclass(frozen=True, eq=False)
class OnPolynomials:
    """Steps with gradients a x - b + q x^3, in slabs of a few columns.

    Args:
        arcs: Whom agents hear.
        layout: Of the slabs.
        parts: Of the squares of norms: one per slab.
        of: The coefficients.
        arrays: What metrics need of the problem.
    """

    arcs: Any
    layout: Any
    parts: int
    of: Any
    arrays: Any

    def begin(self, turn: Turn, g: Array) -> Array:
        """Put the gradients of the step before where the first step takes them."""
        turn.share(kernels().scatter, _read_only(g), turn.new, self.layout, 0)
        return g

    def step(self, turn: Turn, g: Array, samples: None, *, is_first: bool) -> None:
        """Mix x and y, and let y follow the gradients."""
        given = (turn.old, turn.new, self.arcs, turn.squares, self.of, is_first)
        for slab in range(self.parts):
            turn.share(kernels().settle, turn.old, turn.scale, slab, self.layout.width)
            turn.share(kernels().by_rows, *given, slab)

    def end(self, turn: Turn, g: Array, into: Array) -> None:
        """Write the gradients of the last step, at the x that is left."""
        turn.share(kernels().gradients, turn.new, self.of, into, self.layout)


class OnPolynomialsOfEqualAgents(OnPolynomials):
    """The same where all agents listen alike, column by column."""

    def step(self, turn: Turn, g: Array, samples: None, *, is_first: bool) -> None:
        """Mix x and y, and let y follow the gradients."""
        given = (turn.old, turn.new, self.arcs, turn.scale, turn.squares, self.of, is_first)
        turn.share_parts(kernels().by_columns, *given)


@dataclass(frozen=True, eq=False)
class OnSamples:
    """Steps with gradients of the logistic loss on mini-batches, in one slab.

    Args:
        arcs: Whom agents hear.
        layout: Of the slab.
        problem: The weights and powers of the regularizer, and the samples of all agents.
        keep: Which of the last numbers of a sample are not among those before.
        arrays: What metrics need of the problem.
    """

    arcs: Any
    layout: Any
    problem: tuple[Array, ...]
    keep: Array
    arrays: Any
    parts: ClassVar[int] = 1

    def begin(self, turn: Turn, g: Array) -> Array:
        """Return the gradients of the step before, with columns of zeros."""
        return np.pad(g, ((0, 0), (0, self.layout.width - g.shape[1])))

    def step(self, turn: Turn, g: Array, samples: Array, *, is_first: bool) -> None:
        """Mix x and y, and let y follow the gradients, which are left in ``g``."""
        turn.share(kernels().settle, turn.old, turn.scale, 0, self.layout.width)
        given = (turn.old, turn.new, self.arcs, turn.squares, *self.problem, self.keep, g, samples)
        turn.share(kernels().on_samples, *given)

    def end(self, turn: Turn, g: Array, into: Array) -> None:
        """Write the gradients of the last step."""
        np.copyto(into, g[:, : into.shape[1]])


@dataclass(frozen=True, eq=False)
class CompiledSteps:
    """Steps of CGT on one network and problem, in place of XLA's loop."""

    of: OnPolynomials | OnSamples

    @property
    def arrays(self) -> Any:
        """What metrics need of the problem, as arrays of the device."""
        return self.of.arrays

    def advance(
        self, fixed: Fixed, carry: Carry, end: int, inputs: Inputs, code: Code, *, reuse: bool
    ) -> tuple[Carry, Rows]:
        """Run the steps k = carry.k, ..., end - 1, or until the run has diverged, as XLA's loop does.

        With ``reuse``, the arrays of ``carry`` become those of the result.
        """
        first, every = int(carry.k), fixed.record_every
        table = jax.tree.map(np.array, empty(fixed, carry, code))
        inputs = jax.tree.map(_read_only, inputs)
        k, state, alive = first, carry.state, True
        with ThreadPoolExecutor(_threads()) as team:
            while k < end and alive:
                is_recorded = k % every == 0
                target = min(k + 1 if is_recorded else (k // every + 1) * every, end)
                given = [at(fixed, inputs, i) for i in range(k - first, target - first)]
                may_write = (reuse or k > first) and not is_recorded
                after, done, alive = self._run(state, given, float(fixed.limit), team, may_write=may_write)
                if is_recorded:
                    row = k // every - (first + every - 1) // every
                    for name, found in _measured(fixed, given[0][0], state, after, keep=code.keep).items():
                        jax.tree.map(partial(_put, row), getattr(table, name), found)
                k, state = k + done, after
        reached = np.asarray(k)
        carry = Carry(reached, reached, np.asarray(alive), state, carry.links, state.g)  # pyright: ignore[reportArgumentType]
        return carry, table

    def _run(
        self,
        state: Any,
        given: list[tuple[Any, Any]],
        limit: float,
        team: ThreadPoolExecutor,
        *,
        may_write: bool,
    ) -> tuple[Any, int, bool]:
        """Return the state after steps with these methods and samples, their number, and whether x is within the limit.

        On the way, x and y are in slabs, in two arrays that take turns.
        """
        (n, d), dtype, layout, code = state.x.shape, state.x.dtype, self.of.layout, kernels()
        turn = Turn(
            old=_room(n, d, layout.width, dtype),
            new=_room(n, d, layout.width, dtype),
            scale=np.zeros(n, dtype),
            squares=np.empty((self.of.parts, n), dtype),
            share=partial(_share, team, _blocks(n, n)),
            share_parts=partial(_share, team, _blocks(self.of.parts, n)),
        )
        turn.share(code.scatter, _read_only(state.x), turn.old, layout, 0)
        turn.share(code.scatter, _read_only(state.y), turn.old, layout, layout.lag)
        g, done, within = self.of.begin(turn, np.asarray(state.g)), 0, True
        bound = float(max(np.max(state.x), -np.min(state.x)))  # of all entries of x: R x has no larger ones
        hyper = None
        while done < len(given) and within:
            method, samples = given[done]
            if hyper is None or method is not given[done - 1][0]:
                hyper = _hyper(method, n, dtype)
            self.of.step(turn, g, samples, is_first=done == 0)
            turn.share(code.finish, turn.new, turn.squares, turn.scale, layout, hyper)
            bound += float(np.max(turn.squares[0]))
            if not bound <= SAFE * limit:
                bound = float(np.max(turn.share(code.largest_entry, turn.new, turn.scale, layout)))
                within = bound <= limit
            turn, done = turn._replace(old=turn.new, new=turn.old), done + 1
        grad = _writable(state.g, may_write)
        self.of.end(turn, g, grad)
        turn = turn._replace(new=turn.old)  # so that the memory of the other slabs is free
        x, y = _writable(state.x, may_write), _writable(state.y, may_write)
        turn.share(code.gather, turn.old, turn.scale, x, y, layout)
        return type(state)(x=x, y=y, g=grad), done, within


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
    (n, d), dtype, local = x0.shape, x0.dtype, problem.local
    row = d * dtype.itemsize
    if type(method) is not CGT or n * d < LEAST_NUMBERS or row < LEAST_ROW or not is_available():
        return None
    if isinstance(local, Polynomial) and n >= LEAST_SLAB:
        pull, push = operators["pull"], operators["push"]
        if isinstance(pull, Rolls) and isinstance(push, Rolls) and pull.offset == push.offset:
            return CompiledSteps(_by_columns(local, pull, push, dtype))
        return CompiledSteps(_by_rows(local, network.at(0), dtype))
    if isinstance(local, Logistic) and n >= LEAST_AGENTS and has_samples and local.is_dense:
        fits = row >= kernels().SAMPLE * kernels().REGISTER
        return CompiledSteps(_on_samples(problem, network.at(0), dtype)) if fits else None
    return None


def _by_rows(local: Polynomial, network: Network, dtype: np.dtype[Any]) -> OnPolynomials:
    width = kernels().ROWS * kernels().REGISTER // 2 // dtype.itemsize
    layout = kernels().Layout(width, 2 * width, width)
    given = (_rows(network, dtype), layout, -(-local.dim // width))
    return OnPolynomials(*given, *_coefficients(local, layout, dtype))


def _by_columns(local: Polynomial, pull: Rolls, push: Rolls, dtype: np.dtype[Any]) -> OnPolynomials:
    n, d = local.curvature.shape
    layout = kernels().Layout(1, 1, n)
    given = (_runs(pull, push, n), layout, min(MOST_PARTS, d))
    return OnPolynomialsOfEqualAgents(*given, *_coefficients(local, layout, dtype))


def _coefficients(local: Polynomial, layout: Any, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Return the coefficients in slabs, and their averages on the device."""
    n, d = local.curvature.shape
    a_b = _room(n, d, layout.width, dtype)
    for rows, lag in ((local.curvature, 0), (local.linear, layout.lag)):
        kernels().scatter(_read_only(rows.astype(dtype, copy=False)), a_b, layout, lag, 0, n)
    q = np.ascontiguousarray(local.quartic, dtype).reshape(-1)
    return kernels().Coefficients(a_b, q, bool(q.any())), jax.device_put(local.averages(dtype))


def _on_samples(problem: Problem, network: Network, dtype: np.dtype[Any]) -> OnSamples:
    code, d, arrays = kernels(), problem.dim, problem.arrays(dtype)
    lanes, some = code.WIDE * code.REGISTER // dtype.itemsize, code.SAMPLE * code.REGISTER // dtype.itemsize
    width = -(-d // lanes) * lanes
    keep = (np.arange(some) >= some - d % some).astype(dtype)
    given = tuple(map(_read_only, (*arrays["reg"], arrays["rows"])))
    return OnSamples(_rows(network, dtype), code.Layout(width, 2 * width, width), given, keep, arrays)


def lean(state: Any) -> Any:
    """Return a state on the host in which arrays of zeros take no memory."""

    def smaller(leaf: Any) -> Array:
        leaf = np.asarray(leaf)
        return leaf if leaf.any() else np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)

    return jax.tree.map(smaller, state)


def kernels() -> Any:
    """Return :mod:`digrad.simulation.kernels`, which is imported when a run needs it: that takes a second."""
    from digrad.simulation import kernels

    return kernels


def is_available() -> bool:
    """Return whether Numba is installed and wanted: the environment variable ``DIGRAD_NUMBA`` is not 0."""
    return os.environ.get("DIGRAD_NUMBA", "1") != "0" and find_spec("numba") is not None


def _measured(
    fixed: Fixed, method: Any, before: Any, after: Any, *, keep: Callable[..., Any] | None
) -> dict[str, Any]:
    """Return what is recorded of an iteration, from the state before its step and the one after."""
    found: dict[str, Any] = blockwise.estimates(np.asarray(before.x), np.asarray(fixed.u))
    found |= blockwise.trackers(after.y, np.asarray(fixed.v), method.threshold)
    return found | ({"kept": _kept(fixed, method, before, after, keep=keep)} if keep else {})


@partial(jax.jit, static_argnames="keep")
def _kept(fixed: Fixed, method: Any, before: Any, after: Any, *, keep: Callable[..., Any]) -> Any:
    return keep(method, before, after, after.g, fixed.arrays)


def _put(row: int, column: Array, value: Any) -> None:
    column[row] = value


def _read_only(array: Any) -> Array:
    """Return a view that cannot be written to, as those of JAX: for Numba that is a type, and each is compiled."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def _writable(array: Any, may_write: bool) -> Array:
    """Return an array itself, if that may and can be written to, or room for another."""
    is_ours = may_write and isinstance(array, np.ndarray) and array.flags.writeable
    return array if is_ours else np.empty(array.shape, array.dtype)


def _room(n: int, d: int, width: int, dtype: np.dtype[Any]) -> Array:
    """Return room for two arrays ``[n, d]`` in slabs: its own pages, and large ones where the system has them."""
    size = -(-d // width) * n * 2 * width
    memory = mmap.mmap(-1, size * dtype.itemsize)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype, size)


def _hyper(method: Any, n: int, dtype: np.dtype[Any]) -> Any:
    given = (np.asarray(value, dtype).reshape(-1) for value in (method.step_size, method.threshold))
    return kernels().Hyper(*(np.broadcast_to(value, n).copy() for value in given))


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
    """Call a function for all blocks, and return what it returns."""
    if len(blocks) == 1:
        return [function(*arguments, *blocks[0])]
    return list(team.map(partial(function, *arguments), *zip(*blocks, strict=True)))


def _blocks(count: int, n: int) -> list[tuple[int, int]]:
    """Return which agents, or parts, each thread does, by first and end."""
    threads = min(_threads(), count) if n >= THREADED_AGENTS else 1
    return list(pairwise(count * i // threads for i in range(threads + 1)))


def _threads() -> int:
    """Return how many threads may work: the cores of this process, or fewer if OMP_NUM_THREADS says so."""
    cores, wanted = available_cores(), os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(wanted)) if wanted.isdecimal() and int(wanted) > 0 else cores
