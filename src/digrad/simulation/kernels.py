"""Steps of CGT as Numba compiles them; importing this imports Numba.

What counts in a large network is how often memory is read, so that x and y are kept in *slabs* that stay in the cache
while they are mixed. A slab has some columns of all agents, of each agent first those of x, then those of y: what an
agent sends of it is one piece of memory (:func:`by_rows`). Where all agents listen alike, a slab is one column, of x
and then of y, and neighbouring agents are mixed side by side in registers (:func:`by_columns`).

The norm of y is known when the last slab is done. Until then slabs hold ``R x``; they become slabs of x when they are
mixed again, ``x = R x - scale y``.

All is computed in registers, without masks, which are slow on some processors: slabs of rows are padded with zeros, and
the last numbers of a sample are read together with some before them. Everything that is compiled is in this file:
Numba's cache on disk notices changes in no other.
"""

import operator
from typing import Any, NamedTuple

import numba
import numpy as np
from llvmlite import ir
from numba import extending, types
from numba.core import cgutils
from numba.extending import models, register_model

intrinsic: Any = extending.intrinsic  # what it returns is called without the typing context
overload: Any = extending.overload

# Nothing is allocated, so that no references are counted: that took half of the time.
OPTIONS = {"error_model": "numpy", "fastmath": {"contract"}, "nogil": True, "cache": True, "_nrt": False}
INSIDE = {**OPTIONS, "forceinline": True}
REGISTER = 32  # bytes, of AVX2: vectors have one, two or four of these
TOGETHER = 16  # agents whose rows are copied between slabs and rows at a time, so that they stay in the cache
AGENTS_AHEAD = 6  # how many agents later the neighbours are used that are fetched now
PATIENCE = 2000  # times that a thread looks for the others before it leaves its core to somebody else
VECTORS_AHEAD = 2  # how many vectors later a piece of a column is used that is fetched now
ROWS = 4  # registers that x and y of an agent fill in a slab of :func:`by_rows`; by measurement
WIDE = 4  # registers that are done at a time where a slab is longer
SAMPLE = 2  # the same of a sample, of which four are done side by side
SHIFTER = 1.5 * 2.0**52  # added to a float64 number, it leaves no digits behind the point
LOG_2 = (float.fromhex("0x1.62e42fee00000p-1"), float.fromhex("0x1.a39ef35793c76p-33"))  # their sum is log(2)
TAYLOR = tuple(1 / k for k in range(12, 0, -1))  # exp(r) = 1 + r (1 + r / 2 (1 + r / 3 (...)))


class Layout(NamedTuple):
    """Where slabs have their numbers: column c of agent i at c // width * 2 * width * n + i * stride + c % width."""

    width: Any  # columns of a slab
    stride: Any  # from one agent to the next
    lag: Any  # from x to y


class Rows(NamedTuple):
    """Two mixing matrices by rows, on the arcs that either has."""

    first: Any  # [n + 1] the first arc of each receiver
    sender: Any  # [arcs]
    pull: Any  # [arcs]
    push: Any  # [arcs]


class Runs(NamedTuple):
    """Two circulant mixing matrices: agent i of run r, from first[r] on, hears the agents i + shift[r]."""

    first: Any  # [runs + 1]
    shift: Any  # [runs, arcs]
    pull: Any  # [arcs]
    push: Any  # [arcs]


class Coefficients(NamedTuple):
    """Of gradients a x - b + q x^3."""

    a_b: Any  # a and b in slabs, in place of x and y
    q: Any  # [n]
    has_cubes: Any  # whether one q is not 0


class Hyper(NamedTuple):
    """What the method of one iteration has for numbers."""

    step_size: Any  # [n]
    threshold: Any  # [n]


class Vector(types.Type):
    """Some numbers in registers."""

    def __init__(self, dtype: Any, lanes: int) -> None:
        self.dtype, self.lanes = dtype, lanes
        super().__init__(f"Vector({dtype}, {lanes})")


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, vector: Vector) -> None:
        element = manager.lookup(vector.dtype).get_value_type()
        super().__init__(manager, vector, ir.VectorType(element, vector.lanes))


def _operation(symbol: Any, name: str) -> None:
    @intrinsic
    def operation(typing_context: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return getattr(builder, name)(*arguments, flags=["contract"])

        return a(a, b), generate

    @overload(symbol, jit_options=INSIDE)
    def choose(a, b):
        return (lambda a, b: operation(a, b)) if isinstance(a, Vector) and a == b else None


for _symbol, _name in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _operation(_symbol, _name)


@intrinsic(prefer_literal=True)
def zeros(typing_context: Any, array: Any, registers: Any) -> Any:
    """Return as many zeros of the type of an array as some registers hold."""
    vector = Vector(array.dtype, registers.literal_value * REGISTER * 8 // array.dtype.bitwidth)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.get_value_type(vector)(None)

    return vector(array, registers), generate


@intrinsic
def single(typing_context: Any, array: Any) -> Any:
    """Return one zero, for what is left at the end of a loop over vectors."""
    vector = Vector(array.dtype, 1)
    return vector(array), lambda context, builder, *_: context.get_value_type(vector)(None)


@intrinsic
def lanes_of(typing_context: Any, vector: Any) -> Any:
    """Return how many numbers a vector has: known when it is compiled."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.get_constant(types.intp, vector.lanes)

    return types.intp(vector), generate


@intrinsic
def spread(typing_context: Any, number: Any, like: Any) -> Any:
    """Return a vector with one number everywhere."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _chosen(builder, arguments[:1], [0] * like.lanes)

    return like(number, like), generate


@intrinsic
def weave(typing_context: Any, a: Any, b: Any, like: Any) -> Any:
    """Return a vector of which one half holds a, the other b."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _chosen(builder, arguments[:2], [lane // (like.lanes // 2) for lane in range(like.lanes)])

    return like(a, b, like), generate


@intrinsic(prefer_literal=True)
def half(typing_context: Any, vector: Any, which: Any) -> Any:
    """Return the first or the second half of a vector."""
    width = vector.lanes // 2

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = [which.literal_value * width + lane for lane in range(width)]
        kind = arguments[0].type
        return builder.shuffle_vector(arguments[0], kind(ir.Undefined), _numbers(lanes))

    return Vector(vector.dtype, width)(vector, which), generate


@intrinsic
def total(typing_context: Any, vector: Any) -> Any:
    """Return the sum of the numbers of a vector."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = arguments[0].type
        name = f"llvm.vector.reduce.fadd.v{kind.count}f{vector.dtype.bitwidth}"
        function = ir.FunctionType(kind.element, [kind.element, kind])
        add = cgutils.get_or_insert_function(builder.module, function, name)
        return builder.call(add, [kind.element(-0.0), arguments[0]], fastmath=["reassoc"])

    return vector.dtype(vector), generate


@intrinsic
def load(typing_context: Any, array: Any, place: Any, like: Any) -> Any:
    """Return as many numbers from array[place:] as a vector has."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = context.get_value_type(like)
        return builder.load(_pointer(context, builder, array, arguments, kind), align=_size(array))

    return like(array, types.intp, like), generate


@intrinsic
def store(typing_context: Any, array: Any, place: Any, vector: Any) -> Any:
    """Write a vector to array[place:]."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, array, arguments, arguments[2].type)
        builder.store(arguments[2], pointer, align=_size(array))
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), generate


@intrinsic
def fetch(typing_context: Any, array: Any, place: Any) -> Any:
    """Ask for the cache line of array[place]: where neighbours lie no hardware can guess."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _pointer(context, builder, array, arguments, ir.IntType(8))
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, *[number] * 3])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [pointer, number(0), number(3), number(1)])  # to read, into all caches, data
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@intrinsic
def arrive(typing_context: Any, met: Any) -> Any:
    """Count one more thread in met[0], after all that it has written."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        counter = context.make_array(met)(context, builder, arguments[0]).data
        builder.atomic_rmw("add", counter, ir.IntType(64)(1), "acq_rel")
        return context.get_dummy_value()

    return types.void(met), generate


@intrinsic
def arrived(typing_context: Any, met: Any) -> Any:
    """Return met[0], before all that is read next."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        counter = context.make_array(met)(context, builder, arguments[0]).data
        return builder.load_atomic(counter, "acquire", align=8)

    return types.int64(met), generate


@intrinsic
def give_way(typing_context: Any) -> Any:
    """Let other threads have this core, by the C library."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def where_positive(typing_context: Any, condition: Any, vector: Any) -> Any:
    """Return a vector with zeros where another is not above zero."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        nothing = arguments[0].type(None)
        is_positive = builder.fcmp_ordered(">", arguments[0], nothing)
        return builder.select(is_positive, arguments[1], nothing)

    return vector(vector, vector), generate


@intrinsic
def at_least(typing_context: Any, least: Any, vector: Any) -> Any:
    """Return the larger of two vectors; what is no number in the second stays so."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        is_less = builder.fcmp_ordered("<", arguments[1], arguments[0])
        return builder.select(is_less, arguments[0], arguments[1])

    return vector(vector, vector), generate


@intrinsic
def root(typing_context: Any, vector: Any) -> Any:
    """Return the square roots of a vector."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = arguments[0].type
        name = f"llvm.sqrt.v{kind.count}f{vector.dtype.bitwidth}"
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind]), name)
        return builder.call(function, arguments)

    return vector(vector), generate


@intrinsic
def four(typing_context: Any, a: Any, b: Any, c: Any, d: Any) -> Any:
    """Return a vector of four numbers."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _chosen(builder, arguments, [0, 1, 2, 3])

    return Vector(a, 4)(a, a, a, a), generate


@intrinsic(prefer_literal=True)
def lane(typing_context: Any, vector: Any, which: Any) -> Any:
    """Return one number of a vector."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.extract_element(arguments[0], ir.IntType(32)(which.literal_value))

    return vector.dtype(vector, which), generate


@intrinsic
def two_to(typing_context: Any, shifted: Any) -> Any:
    """Return 2^k for whole numbers k, given as float64 numbers k + SHIFTER."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        bits = ir.VectorType(ir.IntType(64), shifted.lanes)
        exponent = builder.add(builder.bitcast(arguments[0], bits), bits([1023] * shifted.lanes))
        return builder.bitcast(builder.shl(exponent, bits([52] * shifted.lanes)), arguments[0].type)

    return shifted(shifted), generate


def _pointer(context: Any, builder: Any, kind: Any, arguments: Any, target: Any) -> Any:
    """Return a pointer to array[place], the first two arguments."""
    array, place = arguments[:2]
    pointer = builder.gep(context.make_array(kind)(context, builder, array).data, [place])
    return builder.bitcast(pointer, target.as_pointer())


def _size(array: Any) -> int:
    return array.dtype.bitwidth // 8


def _numbers(values: list[int]) -> Any:
    return ir.VectorType(ir.IntType(32), len(values))(values)


def _chosen(builder: Any, numbers: list[Any], which: list[int]) -> Any:
    """Return a vector of numbers[which[0]], numbers[which[1]] and so on."""
    kind = ir.VectorType(numbers[0].type, len(numbers))
    vector = kind(ir.Undefined)
    for place, number in enumerate(numbers):
        vector = builder.insert_element(vector, number, ir.IntType(32)(place))
    return builder.shuffle_vector(vector, kind(ir.Undefined), _numbers(which))


@numba.njit(**OPTIONS)
def scatter(rows, slabs, layout, lag, begin, end):
    """Write rows of an array ``[n, d]`` into slabs, with zeros behind them: to x with lag 0, to y with layout.lag."""
    (n, d), width, stride, like = rows.shape, layout.width, layout.stride, zeros(slabs, 1)
    for some in range(begin, end, TOGETHER):
        together = min(end, some + TOGETHER)
        for first in range(0, d, width):
            base = first * 2 * n + lag
            if width % lanes_of(like) == 0 and first + width <= d:
                for i in range(some, together):
                    for c in range(0, width, lanes_of(like)):
                        store(slabs, base + i * stride + c, load(rows, i * d + first + c, like))
            else:
                for c in range(min(width, d - first)):
                    for i in range(some, together):
                        store(slabs, base + i * stride + c, load(rows, i * d + first + c, single(slabs)))
                for c in range(d - first, width):
                    for i in range(some, together):
                        store(slabs, base + i * stride + c, single(slabs))


@numba.njit(**OPTIONS)
def gather(slabs, scale, rows, layout, lag, origin, begin, end):
    """Write x (lag 0) or y (layout.lag) of slabs into an array ``[n, d]``, whose first row is that of agent origin."""
    n, d, width, stride, like = len(scale), rows.shape[1], layout.width, layout.stride, zeros(slabs, 1)
    for some in range(begin, end, TOGETHER):
        together = min(end, some + TOGETHER)
        for first in range(0, d, width):
            base = first * 2 * n
            if width % lanes_of(like) == 0 and first + width <= d:
                for i in range(some, together):
                    for c in range(0, width, lanes_of(like)):
                        at = base + i * stride + c
                        taken = load(slabs, at + lag, like)
                        if lag == 0:
                            taken = taken - spread(scale[i], like) * load(slabs, at + layout.lag, like)
                        store(rows, (i - origin) * d + first + c, taken)
            else:
                for c in range(min(width, d - first)):
                    place, to = base + c, (some - origin) * d + first + c
                    for i in range(some, together):
                        taken = load(slabs, place + i * stride + lag, single(slabs))
                        if lag == 0:
                            tracker = load(slabs, place + i * stride + layout.lag, single(slabs))
                            taken = taken - spread(scale[i], tracker) * tracker
                        store(rows, to + (i - some) * d, taken)


@numba.njit(**OPTIONS)
def gradients(slabs, of, g, layout, begin, end):
    """Write the gradients of polynomials at slabs of x into an array ``[n, d]``."""
    (n, d), width, stride, one = g.shape, layout.width, layout.stride, single(slabs)
    for some in range(begin, end, TOGETHER):
        together = min(end, some + TOGETHER)
        for first in range(0, d, width):
            for c in range(min(width, d - first)):
                for i in range(some, together):
                    at = first * 2 * n + i * stride + c
                    grad = gradient(of, load(of.q, i, one), at, layout.lag, load(slabs, at, one))
                    store(g, i * d + first + c, grad)


@numba.njit(**OPTIONS)
def settle(slabs, scale, slab, width, begin, end):
    """Equation (1): let a slab of ``R x`` be one of x, ``scale`` being the step size times the clip factor."""
    n, like = len(scale), zeros(slabs, 1)
    for i in range(begin, end):
        row = (slab * n + i) * 2 * width
        for place in range(row, row + width, lanes_of(like)):
            moved = load(slabs, place, like) - spread(scale[i], like) * load(slabs, place + width, like)
            store(slabs, place, moved)


@numba.njit(**OPTIONS)
def finish(slabs, squares, scale, layout, method, begin, end):
    """Let ``scale`` be what x moves by per y, once all slabs are there.

    ``squares`` ``[parts, n]`` add up to those of the norms of y; the first row is then how far each agent moves.
    """
    i, like = begin, zeros(slabs, WIDE)
    while i + lanes_of(like) <= end:
        clip(slabs, squares, scale, layout, method, i, like)
        i += lanes_of(like)
    for alone in range(i, end):
        clip(slabs, squares, scale, layout, method, alone, single(slabs))


@numba.njit(**INSIDE)
def clip(slabs, squares, scale, layout, method, i, like):
    """Let scale and the first row of squares be what :func:`finish` says, for some agents from i on."""
    n, tiny, eps, one = len(scale), np.finfo(slabs.dtype).tiny, np.finfo(slabs.dtype).eps, slabs.dtype.type(1)
    square = load(squares, i, like)
    for part in range(1, len(squares)):
        square = square + load(squares, part * n + i, like)
    store(squares, i, square)
    store(scale, i, root(square))
    for who in range(i, i + lanes_of(like)):
        if not tiny / eps**2 < squares[0, who] < one / tiny:  # squares that lose digits, or leave the range
            scale[who] = scaled_norm(slabs, layout, n, who)
    length = load(scale, i, like)
    factor = load(method.step_size, i, like) / at_least(
        spread(one, like), length / load(method.threshold, i, like)
    )
    store(scale, i, factor)
    store(squares, i, factor * length)


@numba.njit(**OPTIONS)
def scaled_norm(slabs, layout, n, i):
    """Return the norm of y_i, scaled as by digrad.arrays.row_norm."""
    largest, scaled = slabs.dtype.type(0), slabs.dtype.type(0)
    for row in range(i * layout.stride + layout.lag, len(slabs), n * 2 * layout.width):
        for y in slabs[row : row + layout.width]:
            if not np.isfinite(y):
                return slabs.dtype.type(np.nan)
            largest = max(largest, abs(y))
    scale = largest if largest > 0 else slabs.dtype.type(1)
    for row in range(i * layout.stride + layout.lag, len(slabs), n * 2 * layout.width):
        for y in slabs[row : row + layout.width]:
            scaled += (y / scale) ** 2
    return scale * np.sqrt(scaled)


@numba.njit(**OPTIONS)
def largest_entry(slabs, scale, layout, begin, end):
    """Return the largest entry of x in absolute value, or not a number if one is none."""
    largest = slabs.dtype.type(0)
    for i in range(begin, end):
        for row in range(i * layout.stride, len(slabs), len(scale) * 2 * layout.width):
            for c in range(row, row + layout.width):
                entry = abs(slabs[c] - scale[i] * slabs[c + layout.lag])
                if entry > largest or np.isnan(entry):
                    largest = entry
    return largest


@numba.njit(**INSIDE)
def gradient(of, q, place, lag, x):
    """Return a x - b + q x^3, without the last term where q is 0: 0 x^3 is not a number once x^3 overflows."""
    grad = load(of.a_b, place, x) * x - load(of.a_b, place + lag, x)
    if of.has_cubes:
        cubed = where_positive(q, x)
        grad = grad + q * (cubed * cubed * cubed)
    return grad


@numba.njit(**OPTIONS)
def meet(met, everybody):
    """Wait until all threads are here; ``met`` ``[1]`` counts them, ``everybody`` is that number then.

    They come at nearly the same time. To wake one that sleeps would take as long as a tenth of its work.
    """
    looked = 0
    arrive(met)
    while arrived(met) < everybody:
        looked += 1
        if looked > PATIENCE:
            give_way()


@numba.njit(**OPTIONS)
def by_rows(old, new, arcs, scale, squares, of, is_first, met, threads, begin, end):
    """Mix x and y of some agents, one slab after the other, when all threads have settled it; they share the cache."""
    width = lanes_of(zeros(old, ROWS)) // 2
    settle(old, scale, 0, width, begin, end)
    for slab in range(len(squares)):
        meet(met, (slab + 1) * threads)
        mix_slab(old, new, arcs, squares, of, is_first, slab, begin, end)
        if slab + 1 < len(squares):
            settle(old, scale, slab + 1, width, begin, end)


@numba.njit(**OPTIONS)
def mix_slab(old, new, arcs, squares, of, is_first, slab, begin, end):
    """Mix one slab of x and y, and let the trackers follow the gradients of polynomials.

    The former gradient is in place of x in the new slabs at the first step of a call. Later it is computed again from
    the former x, which they still hold: that is the same number, and less to read and write.
    """
    n, like = len(of.q), zeros(old, ROWS)
    width = lanes_of(like) // 2
    base = slab * n * 2 * width
    for i in range(begin, end):
        ahead = i + AGENTS_AHEAD
        if ahead < n:
            for arc in range(arcs.first[ahead], arcs.first[ahead + 1]):
                place = base + np.int64(arcs.sender[arc]) * 2 * width
                fetch(old, place)
                fetch(old, place + width)
        both = zeros(old, ROWS)
        for arc in range(arcs.first[i], arcs.first[i + 1]):
            place = base + np.int64(arcs.sender[arc]) * 2 * width
            both = both + weave(arcs.pull[arc], arcs.push[arc], like) * load(old, place, like)
        mixed, y = half(both, 0), half(both, 1)
        row = base + i * 2 * width
        q, former = spread(of.q[i], y), load(new, row, y)
        if not is_first:
            former = gradient(of, q, row, width, former)
        y = y + (gradient(of, q, row, width, load(old, row, y)) - former)  # (2)
        store(new, row, mixed)
        store(new, row + width, y)
        squares[slab, i] = total(y * y)


@numba.njit(**OPTIONS)
def by_columns(old, new, arcs, scale, squares, of, is_first, begin, end):
    """Do the same where all agents listen alike, for some parts of the columns, one column after the other."""
    n, d, like = len(of.q), len(old) // (2 * len(of.q)), zeros(old, WIDE)
    for part in range(begin, end):
        start = d * part // len(squares)
        for c in range(start, d * (part + 1) // len(squares)):
            x, is_new = c * 2 * n, c == start
            for run in range(len(arcs.first) - 1):
                i, last = arcs.first[run], arcs.first[run + 1]
                while i + lanes_of(like) <= last:
                    ahead = x + i + VECTORS_AHEAD * lanes_of(like)
                    for place in (ahead, ahead + n):  # what comes from memory and not from a cache
                        fetch_lines(old, place, like)
                        fetch_lines(new, place, like)
                        fetch_lines(of.a_b, place, like)
                    follow(old, new, arcs, scale, squares, of, is_first, is_new, part, run, x, i, like)
                    i += lanes_of(like)
                for alone in range(i, last):
                    one = single(old)
                    follow(old, new, arcs, scale, squares, of, is_first, is_new, part, run, x, alone, one)
            for run in range(len(arcs.first) - 1):
                i, last = arcs.first[run], arcs.first[run + 1]
                while i + lanes_of(like) <= last:
                    store(new, x + i, mixture(old, x + i, arcs.pull, arcs.shift, run, like))
                    i += lanes_of(like)
                for alone in range(i, last):
                    store(new, x + alone, mixture(old, x + alone, arcs.pull, arcs.shift, run, single(old)))


@numba.njit(**INSIDE)
def mixture(old, place, weight, shift, run, like):
    """Return what some neighbouring agents hear."""
    mixed = like
    for arc in range(len(weight)):
        mixed = mixed + spread(weight[arc], like) * load(old, place + shift[run, arc], like)
    return mixed


@numba.njit(**INSIDE)
def follow(old, new, arcs, scale, squares, of, is_first, is_new, part, run, x, i, like):
    """Equations (1) and (2) for one column, which begins at x, and some agents from i on."""
    n, here = len(of.q), x + i
    tracker = mixture(old, here + n, arcs.push, arcs.shift, run, like)
    point = load(old, here, like) - load(scale, i, like) * load(old, here + n, like)  # (1)
    store(old, here, point)
    q, former = load(of.q, i, like), load(new, here, like)
    if not is_first:
        former = gradient(of, q, here, n, former)
    tracker = tracker + (gradient(of, q, here, n, point) - former)  # (2)
    store(new, here + n, tracker)
    square = tracker * tracker
    if not is_new:
        square = square + load(squares, part * n + i, like)
    store(squares, part * n + i, square)


@numba.njit(**INSIDE)
def fetch_lines(array, place, like):
    """Ask for the two cache lines that a vector fills."""
    fetch(array, place)
    fetch(array, place + lanes_of(like) // 2)


@numba.njit(**OPTIONS)
def on_samples(old, new, arcs, squares, reg_weight, reg_power, rows, keep, g, index, begin, end):
    """Mix x and y, and let the trackers follow the gradients of the logistic loss on mini-batches.

    There is one slab. The samples of agent i begin at i m; ``index`` ``[n, batch]`` says which of them count, ``keep``
    which of the last numbers of a sample are not among those before; ``g`` ``[n, width]`` has the old gradients, and
    then the new ones. Until they are there, gradients are added up where y will be.
    """
    (n, batch), width, like = index.shape, g.shape[1], zeros(old, WIDE)
    for i in range(begin, end):
        x, y = i * 2 * width, i * 2 * width + width
        begin_gradient(old, new, reg_weight[i], reg_power[i], x, y, width)
        for s in range(0, batch, 4):
            who, which = (i, s + 4) if s + 4 < batch else (min(i + 1, n - 1), 0)
            given, following = places(index, rows, i, s), places(index, rows, who, which)
            add_gradient(old, new, rows, keep, given, following, batch - s, batch, x, y)
        square = zeros(old, WIDE)
        for column in range(0, width, lanes_of(like)):
            mixed, tracker, grad = zeros(old, WIDE), zeros(old, WIDE), load(new, y + column, like)
            for arc in range(arcs.first[i], arcs.first[i + 1]):
                place = np.int64(arcs.sender[arc]) * 2 * width + column
                mixed = mixed + spread(arcs.pull[arc], like) * load(old, place, like)
                tracker = tracker + spread(arcs.push[arc], like) * load(old, place + width, like)
            tracker = tracker + (grad - load(g, i * width + column, like))  # (2)
            store(g, i * width + column, grad)
            store(new, x + column, mixed)
            store(new, y + column, tracker)
            square = square + tracker * tracker
        squares[0, i] = total(square)


@numba.njit(**INSIDE)
def places(index, rows, i, s):
    """Return where four samples of agent i begin, from number s of its mini-batch on; the last one fills up."""
    m, d, last = len(rows) // len(index), rows.shape[1], index.shape[1] - 1
    return (
        (i * m + index[i, s]) * d,
        (i * m + index[i, min(s + 1, last)]) * d,
        (i * m + index[i, min(s + 2, last)]) * d,
        (i * m + index[i, min(s + 3, last)]) * d,
    )


@numba.njit(**INSIDE)
def add_gradient(old, new, rows, keep, given, following, left, batch, x, y):
    """Add the gradients at four samples, of which ``left`` count, and fetch the four that follow."""
    d, like, zero = rows.shape[1], zeros(old, SAMPLE), zeros(old, SAMPLE)
    rest, sums = load(keep, 0, like), (zero, zero, zero, zero)
    for c in range(0, d - lanes_of(like) + 1, lanes_of(like)):
        sums = products(rows, given, c, load(old, x + c, like), sums)
        fetch(rows, following[0] + c)
        fetch(rows, following[1] + c)
    column, has_rest = d - lanes_of(like), d % lanes_of(like) > 0
    if has_rest:
        sums = products(rows, given, column, load(old, x + column, like) * rest, sums)
    found, count = (
        slopes(total(sums[0]), total(sums[1]), total(sums[2]), total(sums[3])),
        old.dtype.type(batch),
    )
    factors = (
        spread(old.dtype.type(lane(found, 0)) / count, like),
        spread(old.dtype.type(lane(found, 1) if left > 1 else 0.0) / count, like),
        spread(old.dtype.type(lane(found, 2) if left > 2 else 0.0) / count, like),
        spread(old.dtype.type(lane(found, 3) if left > 3 else 0.0) / count, like),
    )
    for c in range(0, d - lanes_of(like) + 1, lanes_of(like)):
        store(new, y + c, combination(rows, given, c, factors, load(new, y + c, like)))
        fetch(rows, following[2] + c)
        fetch(rows, following[3] + c)
    if has_rest:
        factors = (factors[0] * rest, factors[1] * rest, factors[2] * rest, factors[3] * rest)
        store(new, y + column, combination(rows, given, column, factors, load(new, y + column, like)))


@numba.njit(**INSIDE)
def products(rows, given, column, point, sums):
    """Add the products of a piece of x and the same piece of four samples."""
    return (
        sums[0] + point * load(rows, given[0] + column, point),
        sums[1] + point * load(rows, given[1] + column, point),
        sums[2] + point * load(rows, given[2] + column, point),
        sums[3] + point * load(rows, given[3] + column, point),
    )


@numba.njit(**INSIDE)
def combination(rows, given, column, factors, grad):
    """Add a piece of four samples, times their factors."""
    grad = grad + factors[0] * load(rows, given[0] + column, grad)
    grad = grad + factors[1] * load(rows, given[1] + column, grad)
    grad = grad + factors[2] * load(rows, given[2] + column, grad)
    return grad + factors[3] * load(rows, given[3] + column, grad)


@numba.njit(**INSIDE)
def begin_gradient(old, new, weight, power, x, y, width):
    """Write the gradient of the regularizer weight |x|^power to where y will be."""
    like, square, two = zeros(old, WIDE), zeros(old, WIDE), old.dtype.type(2)
    for column in range(0, width, lanes_of(like)):
        square = square + load(old, x + column, like) * load(old, x + column, like)
    norm_square, factor = total(square), old.dtype.type(0)
    if weight > 0 and norm_square > 0:
        factor = weight * power * norm_square ** (power / two - old.dtype.type(1))
    for column in range(0, width, lanes_of(like)):
        store(new, y + column, spread(factor, like) * load(old, x + column, like))


@numba.njit(**INSIDE)
def slopes(a, b, c, d):
    """Return -1 / (1 + exp(margin)) for four margins, in float64."""
    margin = four(bounded(a), bounded(b), bounded(c), bounded(d))
    shifter, one = spread(SHIFTER, margin), spread(1.0, margin)
    shifted = margin * spread(1 / np.log(2.0), margin) + shifter
    whole = shifted - shifter  # exp(margin) = 2^whole exp(rest), |rest| <= log(2) / 2
    rest = margin - whole * spread(LOG_2[0], margin) - whole * spread(LOG_2[1], margin)
    series = one
    for factor in TAYLOR:
        series = one + series * rest * spread(factor, margin)
    return spread(-1.0, margin) / (one + series * two_to(shifted))


@numba.njit(**INSIDE)
def bounded(margin):
    """Return a margin whose exponential is in the range of float64; what is no number stays so."""
    margin = np.float64(margin)
    margin = 700.0 if margin > 700 else margin
    return -700.0 if margin < -700 else margin
