"""Runs whose steps Numba has compiled (:mod:`digrad.simulation.kernels`), if it is installed, in place of XLA's loop.

Where the arrays of a step leave the cache, what counts is how often memory is read, and these read it less often than
XLA's. What is not named here (other methods, links, networks that change, agents that go and come,
lanes) runs as XLA compiles it, and so does everything without Numba. The numbers agree to rounding, and do not depend
on threads.
"""

import mmap
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
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
LARGEST_COPY = 1 << 30  # bytes of samples
LARGE_PAGE = 2 << 20  # bytes
EVERYBODY = 1 << 62  # more threads than there are
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
    threads: int  # that share all agents


@dataclass(frozen=True, eq=False)
class OnPolynomials:
    """Steps with gradients a x - b + q x^3, in slabs of a few columns.

    Args:
        mix: How agents listen, :func:`_by_rows` or :func:`_by_columns`.
        arcs: Whom they hear.
        layout: Of the slabs.
        parts: Of the squares of norms.
        of: The coefficients.
        arrays: What metrics need of the problem.
    """

    mix: Callable[["OnPolynomials", Turn, bool], None]
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
        self.mix(self, turn, is_first)

    def end(self, turn: Turn, g: Array, into: Array) -> None:
        """Write the gradients of the last step, at the x that is left."""
        turn.share(kernels().gradients, turn.new, self.of, into, self.layout)


def _by_rows(steps: OnPolynomials, turn: Turn, is_first: bool) -> None:
    met = np.zeros(1, np.int64)
    given = (turn.old, turn.new, steps.arcs, turn.scale, turn.squares, steps.of, is_first, met, turn.threads)

    def of_block(begin: int, end: int) -> None:
        with _waiting(met):
            kernels().by_rows(*given, begin, end)

    with _waiting(met):
        turn.share(of_block)


@contextmanager
def _waiting(met: Array) -> Iterator[None]:
    """Let the other threads go on if this one fails, or cannot start another: they would wait for ever."""
    try:
        yield
    except BaseException:
        met[0] = EVERYBODY
        raise


def _by_columns(steps: OnPolynomials, turn: Turn, is_first: bool) -> None:
    given = (turn.old, turn.new, steps.arcs, turn.scale, turn.squares, steps.of, is_first)
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

    def advance(self, fixed: Fixed, carry: Carry, end: int, inputs: Inputs, code: Code) -> tuple[Carry, Rows]:
        """Run the steps k = carry.k, ..., end - 1, or until the run has diverged, as XLA's loop does."""
        first, every, d = int(carry.k), fixed.record_every, carry.state.x.shape[1]
        table = jax.tree.map(np.array, empty(fixed, carry, code))
        inputs, k, u, v = jax.tree.map(_read_only, inputs), first, np.asarray(fixed.u), np.asarray(fixed.v)
        threads = _threads() if len(carry.state.x) >= THREADED_AGENTS else 1
        with ThreadPoolExecutor(max(1, threads - 1)) as team:  # this thread works, too
            run = _Run(self.of, carry.state, float(fixed.limit), team, threads)
            while k < end and run.is_within:
                method, samples = at(fixed, inputs, k - first)
                if k % every:
                    run.step(method, samples)
                else:
                    found: dict[str, Any] = blockwise.estimates(run.estimates, d, u)
                    before = run.state() if code.keep else None
                    run.step(method, samples)
                    found |= blockwise.trackers(run.trackers, d, v, method.threshold)
                    if code.keep:
                        found["kept"] = _kept(fixed, method, before, run.state(), keep=code.keep)
                    row = k // every - (first + every - 1) // every
                    for name, value in found.items():
                        jax.tree.map(partial(_put, row), getattr(table, name), value)
                k += 1
            state = run.state(is_last=True)
        reached = np.asarray(k)
        carry = Carry(reached, reached, np.asarray(run.is_within), state, carry.links, state.g)  # pyright: ignore[reportArgumentType]
        return carry, table


class _Run:
    """A state on its way through some steps: x and y in slabs, in two arrays that take turns."""

    def __init__(
        self,
        of: OnPolynomials | OnSamples,
        state: Any,
        limit: float,
        team: ThreadPoolExecutor,
        threads: int,
    ) -> None:
        (n, d), dtype, layout = state.x.shape, state.x.dtype, of.layout
        self._of, self._shape, self._kind, self._limit = of, (n, d), type(state), limit
        blocks = _blocks(n, threads)
        self._turn = Turn(
            old=_room(n, d, layout.width, dtype),
            new=_room(n, d, layout.width, dtype),
            scale=_pages(n, dtype),
            squares=_pages(of.parts * n, dtype).reshape(of.parts, n),
            share=partial(_share, team, blocks),
            share_parts=partial(_share, team, _blocks(of.parts, threads)),
            threads=len(blocks),
        )
        self._turn.share(kernels().scatter, _read_only(state.x), self._turn.old, layout, 0)
        self._turn.share(kernels().scatter, _read_only(state.y), self._turn.old, layout, layout.lag)
        self._start_g: Any = np.asarray(state.g)
        self._g = of.begin(self._turn, self._start_g)
        self._bound = float(
            max(np.max(state.x), -np.min(state.x))
        )  # of all entries of x: R x has no larger ones
        self._method, self._hyper = None, None
        self.is_within = True

    def step(self, method: Any, samples: Any) -> None:
        """Do one step."""
        turn, layout, (n, _) = self._turn, self._of.layout, self._shape
        if method is not self._method:
            self._method, self._hyper = method, _hyper(method, n, turn.scale.dtype)
        self._of.step(turn, self._g, samples, is_first=self._start_g is not None)
        turn.share(kernels().finish, turn.new, turn.squares, turn.scale, layout, self._hyper)
        self._bound += float(np.max(turn.squares[0]))
        if not self._bound <= SAFE * self._limit:
            largest = turn.share(kernels().largest_entry, turn.new, turn.scale, layout)
            self._bound = float(np.max(largest))
            self.is_within = self._bound <= self._limit
        self._turn, self._start_g = turn._replace(old=turn.new, new=turn.old), None

    def estimates(self, some: slice) -> Array:
        """Return x of some agents."""
        return self._gathered(some, 0)

    def trackers(self, some: slice) -> Array:
        """Return y of some agents."""
        return self._gathered(some, self._of.layout.lag)

    def _gathered(self, some: slice, lag: int) -> Array:
        turn, (n, d) = self._turn, self._shape
        is_whole = some.stop - some.start == n
        rows = self._whole() if is_whole else np.empty((some.stop - some.start, d), turn.old.dtype)
        given = (turn.old, turn.scale, rows, self._of.layout, lag, some.start)
        if is_whole:
            turn.share(kernels().gather, *given)
        else:
            kernels().gather(*given, some.start, some.stop)
        return rows

    def _whole(self) -> Array:
        """Return room for an array of all agents, on large pages: threads that fault small ones wait for each other."""
        (n, d), dtype = self._shape, self._turn.old.dtype
        is_large = n * d * dtype.itemsize >= LARGE_PAGE
        return (_pages(n * d, dtype) if is_large else np.empty(n * d, dtype)).reshape(n, d)

    def state(self, *, is_last: bool = False) -> Any:
        """Return the state on the host; no step may follow the last one."""
        g = self._start_g
        if g is None:
            g = self._whole()
            self._of.end(self._turn, self._g, g)
        if is_last:
            self._turn = self._turn._replace(
                new=self._turn.old
            )  # so that the memory of the other slabs is free
        everybody = slice(0, self._shape[0])
        return self._kind(x=self.estimates(everybody), y=self.trackers(everybody), g=g)


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
            return CompiledSteps(_on_columns(local, pull, push, dtype))
        return CompiledSteps(_on_rows(local, network.at(0), dtype))
    if isinstance(local, Logistic) and n >= LEAST_AGENTS and has_samples and local.is_dense:
        fits = row >= kernels().SAMPLE * kernels().REGISTER
        return CompiledSteps(_on_samples(problem, network.at(0), dtype)) if fits else None
    return None


def _on_rows(local: Polynomial, network: Network, dtype: np.dtype[Any]) -> OnPolynomials:
    width = kernels().ROWS * kernels().REGISTER // 2 // dtype.itemsize
    layout = kernels().Layout(width, 2 * width, width)
    given = (_rows(network, dtype), layout, -(-local.dim // width))
    return OnPolynomials(_by_rows, *given, *_coefficients(local, layout, dtype))


def _on_columns(local: Polynomial, pull: Rolls, push: Rolls, dtype: np.dtype[Any]) -> OnPolynomials:
    n, d = local.curvature.shape
    layout = kernels().Layout(1, 1, n)
    given = (_runs(pull, push, n), layout, min(MOST_PARTS, d))
    return OnPolynomials(_by_columns, *given, *_coefficients(local, layout, dtype))


def _coefficients(local: Polynomial, layout: Any, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Return the coefficients in slabs, and their averages on the device."""
    n, d = local.curvature.shape
    a_b = _room(n, d, layout.width, dtype)
    for rows, lag in ((local.curvature, 0), (local.linear, layout.lag)):
        kernels().scatter(_read_only(rows.astype(dtype, copy=False)), a_b, layout, lag, 0, n)
    q = np.ascontiguousarray(local.quartic, dtype).reshape(-1)
    return kernels().Coefficients(a_b, q, bool(q.any())), jax.device_put(local.averages(dtype))


def _on_samples(problem: Problem, network: Network, dtype: np.dtype[Any]) -> OnSamples:
    code, arrays = kernels(), problem.arrays(dtype)
    lanes, some = code.WIDE * code.REGISTER // dtype.itemsize, code.SAMPLE * code.REGISTER // dtype.itemsize
    width, samples = -(-problem.dim // lanes) * lanes, _aligned(np.asarray(arrays["rows"]), some)
    keep = (np.arange(some) >= some - samples.shape[1] % some).astype(dtype)
    given = tuple(map(_read_only, (*arrays["reg"], samples)))
    return OnSamples(_rows(network, dtype), code.Layout(width, 2 * width, width), given, keep, arrays)


def _aligned(samples: Array, lanes: int) -> Array:
    """Return samples that begin with a cache line, zeros behind each: a fifth faster, if memory has room for a copy."""
    count, d = samples.shape
    width = -(-d // lanes) * lanes
    if count * width * samples.itemsize > LARGEST_COPY:
        return samples
    copy = _pages(count * width, samples.dtype).reshape(count, width)
    copy[:, :d] = samples
    return copy


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


def _room(n: int, d: int, width: int, dtype: np.dtype[Any]) -> Array:
    """Return room for two arrays ``[n, d]`` in slabs."""
    return _pages(-(-d // width) * n * 2 * width, dtype)


def _pages(count: int, dtype: np.dtype[Any]) -> Array:
    """Return zeros on pages of their own, and on large ones where the system has them."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(count, dtype)
    memory = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # of a kernel that has none
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype, count)


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
    """Call a function for all blocks at the same time, and return what it returns.

    This thread does the first block itself: threads that it wakes often begin on its core, and wait for each other.
    """
    others = [team.submit(function, *arguments, *block) for block in blocks[1:]]
    return [function(*arguments, *blocks[0]), *(other.result() for other in others)]


def _blocks(count: int, threads: int) -> list[tuple[int, int]]:
    """Return which agents, or parts, each thread does, by first and end."""
    threads = min(threads, count)
    return list(pairwise(count * i // threads for i in range(threads + 1)))


def _threads() -> int:
    """Return how many threads may work: the cores of this process, or fewer if OMP_NUM_THREADS says so."""
    cores, wanted = available_cores(), os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(wanted)) if wanted.isdecimal() and int(wanted) > 0 else cores
