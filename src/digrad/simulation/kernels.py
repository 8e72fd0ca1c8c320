"""Steps of CGT as Numba compiles them; importing this imports Numba.

What counts in a large network is how often memory is read. So the columns are cut into *slabs*: an array
``[slabs, n, 2, width]`` has some columns of all agents in each slab, of each agent first those of x, then those of y. A
slab stays in the cache while it is mixed, and what an agent sends of it is one piece of memory. The norm of y is known
when the last slab is done. Until then slabs hold ``R x``; they become slabs of x right before they are mixed again
(:func:`settle`).

All is computed in registers, and slabs are padded with zeros, because masks are slow on some processors; only the ends
of rows from outside are read with them (:func:`load_row`). Everything that is compiled is in this file: Numba's cache
on disk notices changes in no other.
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
CACHE_LINE = 64
TOGETHER = 16  # agents whose rows are copied between slabs and rows at a time, so that they stay in the cache
AGENTS_AHEAD = 6  # how many agents later the neighbours are used that are fetched now
SAMPLES_AHEAD = 6  # how many samples later a sample is used that is fetched now
ROWS = 4  # registers that x and y of an agent fill in a slab of :func:`by_rows`; by measurement
RUNS, TWO_RUNS = 2, 4  # the same for :func:`by_runs`, of one agent and of two
SAFE = 0.9  # of the limit: below, no rounding of a norm hides an entry above it
WHOLE = 4  # registers that are done at a time where the one slab has whole rows


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


class Hyper(NamedTuple):
    """What the method of one iteration has for numbers."""

    step_size: Any  # [n]
    threshold: Any  # [n]
    limit: Any  # an entry of x above this has diverged


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


for _symbol, _name in ((operator.add, "fadd"), (operator.sub, "fsub"), (operator.mul, "fmul")):
    _operation(_symbol, _name)


@intrinsic(prefer_literal=True)
def zeros(typing_context: Any, array: Any, registers: Any) -> Any:
    """Return as many zeros of the type of an array as some registers hold."""
    vector = Vector(array.dtype, registers.literal_value * REGISTER * 8 // array.dtype.bitwidth)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.get_value_type(vector)(None)

    return vector(array, registers), generate


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


@intrinsic(prefer_literal=True)
def weave(typing_context: Any, a: Any, b: Any, parts: Any, like: Any) -> Any:
    """Return a vector whose parts hold a, b, a, b and so on."""
    width = like.lanes // parts.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _chosen(builder, arguments[:2], [lane // width % 2 for lane in range(like.lanes)])

    return like(a, b, parts, like), generate


@intrinsic(prefer_literal=True)
def part(typing_context: Any, vector: Any, which: Any, parts: Any) -> Any:
    """Return one of the equal parts of a vector."""
    width = vector.lanes // parts.literal_value

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        lanes = [which.literal_value * width + lane for lane in range(width)]
        kind = arguments[0].type
        return builder.shuffle_vector(arguments[0], kind(ir.Undefined), _numbers(lanes))

    return Vector(vector.dtype, width)(vector, which, parts), generate


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
def load_some(typing_context: Any, array: Any, place: Any, count: Any, like: Any) -> Any:
    """Return array[place:place + count], and zeros behind."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = context.get_value_type(like)
        lanes = ir.VectorType(arguments[2].type, kind.count)
        mask = builder.icmp_signed(
            "<", lanes(list(range(kind.count))), _chosen(builder, arguments[2:3], [0] * kind.count)
        )
        pointer = _pointer(context, builder, array, arguments, kind)
        given = [pointer, ir.IntType(32)(_size(array)), mask, kind(None)]
        function = ir.FunctionType(kind, [argument.type for argument in given])
        name = f"llvm.masked.load.v{kind.count}f{array.dtype.bitwidth}.p0"
        return builder.call(cgutils.get_or_insert_function(builder.module, function, name), given)

    return like(array, types.intp, types.intp, like), generate


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
def scatter(x, y, slabs, width, begin, end):
    """Write rows of two arrays ``[n, d]`` into slabs."""
    (n, d), x, y, like = x.shape, x.reshape(-1), y.reshape(-1), zeros(slabs, 1)
    for some in range(begin, end, TOGETHER):
        for first in range(0, d, width):
            for i in range(some, min(end, some + TOGETHER)):
                row, place = (first // width * n + i) * 2 * width, i * d + first
                if first + width <= d:
                    for c in range(0, width, lanes_of(like)):
                        store(slabs, row + c, load(x, place + c, like))
                        store(slabs, row + width + c, load(y, place + c, like))
                else:
                    for c in range(width):
                        slabs[row + c] = x[place + c] if first + c < d else 0
                        slabs[row + width + c] = y[place + c] if first + c < d else 0


@numba.njit(**OPTIONS)
def gather(slabs, scale, x, y, width, begin, end):
    """Write slabs of ``R x`` and y into two arrays ``[n, d]`` of x and y."""
    (n, d), x, y, like = x.shape, x.reshape(-1), y.reshape(-1), zeros(slabs, 1)
    for some in range(begin, end, TOGETHER):
        for first in range(0, d, width):
            for i in range(some, min(end, some + TOGETHER)):
                row, place = (first // width * n + i) * 2 * width, i * d + first
                if first + width <= d:
                    for c in range(0, width, lanes_of(like)):
                        tracker = load(slabs, row + width + c, like)
                        store(y, place + c, tracker)
                        store(x, place + c, load(slabs, row + c, like) - spread(scale[i], like) * tracker)
                else:
                    for c in range(d - first):
                        y[place + c] = slabs[row + width + c]
                        x[place + c] = slabs[row + c] - scale[i] * slabs[row + width + c]


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
def finish(slabs, squares, scale, width, method, begin, end):
    """Let ``scale`` be what x moves by per y, once all slabs are there; return whether x stays within the limit.

    ``squares`` ``[n, 2]`` are those of the norms of R x and y: taken, and set to 0 for the next step.
    """
    n, one, within = len(scale), slabs.dtype.type(1), True
    for i in range(begin, end):
        length = norm(squares[i, 1], slabs, n, width, i)
        ratio = length / method.threshold[i]
        scale[i] = method.step_size[i] / (one if ratio < one else ratio)  # not a number if the ratio is none
        at_most = np.sqrt(squares[i, 0]) + scale[i] * length  # the norm of x, and so are its entries
        if not at_most <= SAFE * method.limit:
            within &= is_within(slabs, scale[i], n, width, i, method.limit)
        squares[i] = 0
    return within


@numba.njit(**INSIDE)
def norm(square, slabs, n, width, i):
    """Return the norm of y_i from its square, or scaled as by digrad.arrays.row_norm where that leaves the range."""
    one, tiny = slabs.dtype.type(1), np.finfo(slabs.dtype).tiny
    if tiny / np.finfo(slabs.dtype).eps ** 2 < square < one / tiny:
        return np.sqrt(square)
    largest, scaled = slabs.dtype.type(0), slabs.dtype.type(0)
    for row in range(i * 2 * width, len(slabs), n * 2 * width):
        for y in slabs[row + width : row + 2 * width]:
            if not np.isfinite(y):
                return slabs.dtype.type(np.nan)
            largest = max(largest, abs(y))
    scale = largest if largest > 0 else one
    for row in range(i * 2 * width, len(slabs), n * 2 * width):
        for y in slabs[row + width : row + 2 * width]:
            scaled += (y / scale) ** 2
    return scale * np.sqrt(scaled)


@numba.njit(**INSIDE)
def is_within(slabs, scale, n, width, i, limit):
    """Return whether no entry of x_i is above the limit, or not a number."""
    within = True
    for row in range(i * 2 * width, len(slabs), n * 2 * width):
        for c in range(row, row + width):
            within &= abs(slabs[c] - scale * slabs[c + width]) <= limit
    return within


@numba.njit(**INSIDE)
def load_row(rows, place, column, d, like):
    """Return some columns of a row with d numbers, and zeros behind its end."""
    if column + lanes_of(like) <= d:
        return load(rows, place + column, like)
    return load_some(rows, place + column, d - column, like)


@numba.njit(**INSIDE)
def polynomial(a, b, q, x):
    """Return a x - b + q x^3, without the last term if there is none: 0 x^3 is not a number once x^3 overflows."""
    grad = a * x - b
    if q > 0:
        grad = grad + spread(q, x) * (x * x * x)
    return grad


@numba.njit(**INSIDE)
def track(old, new, g, is_first, a_b, q, squares, i, slab, row, mixed, y):
    """Equation (2) for some columns of agent i, with gradients a x - b + q x^3.

    The former gradient is read from ``g`` by the first step of a call. Later it is computed again from the former x,
    which ``new`` still holds: that is the same number, and less to read and write.
    """
    width = lanes_of(y)
    a, b = load(a_b, row, y), load(a_b, row + width, y)
    if is_first:
        former = load_row(g, i * g.shape[1], slab * width, g.shape[1], y)
    else:
        former = polynomial(a, b, q[i], load(new, row, y))
    y = y + (polynomial(a, b, q[i], load(old, row, y)) - former)
    store(new, row, mixed)
    store(new, row + width, y)
    squares[i, 0] += total(mixed * mixed)
    squares[i, 1] += total(y * y)


@numba.njit(**OPTIONS)
def by_rows(old, new, arcs, squares, a_b, q, g, is_first, slab, begin, end):
    """Mix one slab of x and y, and let the trackers follow the gradients of polynomials."""
    n, like = len(q), zeros(old, ROWS)
    width = lanes_of(like) // 2
    base = slab * n * 2 * width
    for i in range(begin, end):
        ahead = i + AGENTS_AHEAD
        if ahead < n:
            for arc in range(arcs.first[ahead], arcs.first[ahead + 1]):
                place = base + np.int64(arcs.sender[arc]) * 2 * width
                fetch(old, place)
                fetch(old, place + width)
        mixed = zeros(old, ROWS)
        for arc in range(arcs.first[i], arcs.first[i + 1]):
            place = base + np.int64(arcs.sender[arc]) * 2 * width
            mixed = mixed + weave(arcs.pull[arc], arcs.push[arc], 2, like) * load(old, place, like)
        row = base + i * 2 * width
        track(old, new, g, is_first, a_b, q, squares, i, slab, row, part(mixed, 0, 2), part(mixed, 1, 2))


@numba.njit(**OPTIONS)
def by_runs(old, new, arcs, squares, a_b, q, g, is_first, slab, begin, end):
    """Do the same where all agents listen alike: two agents at a time, and nobody's neighbours are looked up."""
    n, one, two = len(q), zeros(old, RUNS), zeros(old, TWO_RUNS)
    width = lanes_of(one) // 2
    base = slab * n * 2 * width
    for run in range(len(arcs.first) - 1):
        i, last = max(begin, arcs.first[run]), min(end, arcs.first[run + 1])
        while i + 1 < last:
            row, mixed = base + i * 2 * width, zeros(old, TWO_RUNS)
            for arc in range(len(arcs.pull)):
                place = row + arcs.shift[run, arc] * 2 * width
                mixed = mixed + weave(arcs.pull[arc], arcs.push[arc], 4, two) * load(old, place, two)
            track(old, new, g, is_first, a_b, q, squares, i, slab, row, part(mixed, 0, 4), part(mixed, 1, 4))
            row += 2 * width
            track(
                old, new, g, is_first, a_b, q, squares, i + 1, slab, row, part(mixed, 2, 4), part(mixed, 3, 4)
            )
            i += 2
        if i < last:
            row, alone = base + i * 2 * width, zeros(old, RUNS)
            for arc in range(len(arcs.pull)):
                place = row + arcs.shift[run, arc] * 2 * width
                alone = alone + weave(arcs.pull[arc], arcs.push[arc], 2, one) * load(old, place, one)
            track(old, new, g, is_first, a_b, q, squares, i, slab, row, part(alone, 0, 2), part(alone, 1, 2))


@numba.njit(**OPTIONS)
def gradients(old, a_b, q, g, width, begin, end):
    """Write the gradients of polynomials at a slab array of x into an array ``[n, d]``."""
    (n, d), g, like = g.shape, g.reshape(-1), zeros(old, 1)
    for some in range(begin, end, TOGETHER):
        for first in range(0, d, width):
            for i in range(some, min(end, some + TOGETHER)):
                row, place = (first // width * n + i) * 2 * width, i * d + first
                if first + width <= d:
                    for c in range(0, width, lanes_of(like)):
                        a, b = load(a_b, row + c, like), load(a_b, row + width + c, like)
                        store(g, place + c, polynomial(a, b, q[i], load(old, row + c, like)))
                else:
                    for c in range(d - first):
                        x = old[row + c]
                        g[place + c] = a_b[row + c] * x - a_b[row + width + c]
                        if q[i] > 0:
                            g[place + c] += q[i] * (x * x * x)


@numba.njit(**INSIDE)
def dot(rows, place, d, slabs, row, width):
    """Return the scalar product of a row and one that is padded with zeros."""
    products = zeros(slabs, WHOLE)
    for column in range(0, width, lanes_of(products)):
        x = load(slabs, row + column, products)
        products = products + load_row(rows, place, column, d, products) * x
    return total(products)


@numba.njit(**INSIDE)
def fetch_sample(rows, index, m, i, s):
    """Ask for sample s of agent i, or one of a later agent's if this one has no more."""
    n, batch = index.shape
    who, which = i + s // batch, s % batch
    if who < n:
        d = rows.shape[1]
        place = (who * m + index[who, which]) * d
        for column in range(0, d, CACHE_LINE // rows.itemsize):
            fetch(rows, place + column)


@numba.njit(**OPTIONS)
def on_samples(old, new, arcs, squares, reg_weight, reg_power, rows, g, index, slopes, begin, end):
    """Mix x and y, and let the trackers follow the gradients of the logistic loss on mini-batches.

    There is one slab. The rows of agent i begin at i m; ``index`` ``[n, batch]`` says which of them count, ``slopes``
    has room for theirs; ``g`` ``[n, width]`` has the old gradients, and then the new ones.
    """
    (n, batch), d, like = index.shape, rows.shape[1], zeros(old, WHOLE)
    m, width, one, two = len(rows) // n, g.shape[1], old.dtype.type(1), old.dtype.type(2)
    for i in range(begin, end):
        row, square = i * 2 * width, zeros(old, WHOLE)
        for column in range(row, row + width, lanes_of(like)):
            square = square + load(old, column, like) * load(old, column, like)
        for s in range(batch):
            fetch_sample(rows, index, m, i, s + SAMPLES_AHEAD)
            margin = dot(rows, (i * m + index[i, s]) * d, d, old, row, width)
            # 0 if the exponential overflows
            slopes[i, s] = -one / (one + np.exp(margin)) / old.dtype.type(batch)
        norm_square, factor = total(square), old.dtype.type(0)
        if reg_weight[i] > 0 and norm_square > 0:
            factor = reg_weight[i] * reg_power[i] * norm_square ** (reg_power[i] / two - one)
        mixed_squares, y_squares = zeros(old, WHOLE), zeros(old, WHOLE)
        for column in range(0, width, lanes_of(like)):
            grad = spread(factor, like) * load(old, row + column, like)
            for s in range(batch):
                sample = load_row(rows, (i * m + index[i, s]) * d, column, d, like)
                grad = grad + spread(slopes[i, s], like) * sample
            mixed, y = zeros(old, WHOLE), zeros(old, WHOLE)
            for arc in range(arcs.first[i], arcs.first[i + 1]):
                place = np.int64(arcs.sender[arc]) * 2 * width + column
                mixed = mixed + spread(arcs.pull[arc], like) * load(old, place, like)
                y = y + spread(arcs.push[arc], like) * load(old, place + width, like)
            y = y + (grad - load(g, i * width + column, like))  # (2)
            store(g, i * width + column, grad)
            store(new, row + column, mixed)
            store(new, row + width + column, y)
            mixed_squares, y_squares = mixed_squares + mixed * mixed, y_squares + y * y
        squares[i, 0], squares[i, 1] = total(mixed_squares), total(y_squares)
