"""Steps of CGT as Numba compiles them: one pass over the agents, gradient included; importing this imports Numba.

A row of x or y begins ``stride`` numbers after that of the agent before. So both may lie in arrays of their own, or
side by side in one array, where what an in-neighbour sends is one piece of memory. All is computed in registers, some
columns at a time; sums go over in-neighbours in ascending order. Everything that is compiled is in this file, because
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
VECTOR_BYTES = 256  # four registers of AVX-512: who sends is looked up once for all of them
CACHE_LINE = 64
SAMPLES_AHEAD = 3  # how many samples later a sample is used that is fetched now


class Arcs(NamedTuple):
    """A mixing matrix by rows."""

    first: Any  # [n + 1] the first arc of each receiver
    sender: Any  # [arcs]
    weight: Any  # [arcs]


class Pair(NamedTuple):
    """Estimates and trackers: row i of each begins at i * stride."""

    x: Any
    y: Any
    stride: int


class Hyper(NamedTuple):
    """What the method of one iteration has for numbers."""

    step_size: Any  # [n]
    threshold: Any  # [n]
    limit: Any  # an entry of x above this has diverged
    safe: Any  # a sum of squares up to which no entry is


class Vector(types.Type):
    """As many numbers as fit in a register."""

    def __init__(self, dtype: Any) -> None:
        self.dtype, self.lanes = dtype, 8 * VECTOR_BYTES // dtype.bitwidth
        super().__init__(f"Vector({dtype})")


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


@intrinsic
def lanes_of(typing_context: Any, array: Any) -> Any:
    """Return how many numbers of an array a vector has: known when it is compiled."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return context.get_constant(types.intp, Vector(array.dtype).lanes)

    return types.intp(array), generate


@intrinsic
def spread(typing_context: Any, number: Any) -> Any:
    """Return a vector with one number everywhere."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _everywhere(builder, arguments[0], signature.return_type.lanes)

    return Vector(number)(number), generate


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
def load(typing_context: Any, array: Any, place: Any, count: Any) -> Any:
    """Return array[place:], and 0 from ``count`` numbers on."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = context.get_value_type(signature.return_type)
        pointer, align, mask = _masked(context, builder, signature.args[0], kind, *arguments)
        return _call_masked(builder, "load", kind, kind, [pointer, align, mask, kind(None)])

    return Vector(array.dtype)(array, types.intp, types.intp), generate


@intrinsic
def store(typing_context: Any, array: Any, place: Any, count: Any, vector: Any) -> Any:
    """Let array[place:place + count] be the first numbers of a vector."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = arguments[3].type
        pointer, align, mask = _masked(context, builder, signature.args[0], kind, *arguments[:3])
        _call_masked(builder, "store", kind, ir.VoidType(), [arguments[3], pointer, align, mask])
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, vector), generate


@intrinsic
def fetch(typing_context: Any, array: Any, place: Any) -> Any:
    """Ask for the cache line of array[place]: where neighbours lie no hardware can guess."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_value, place_value = arguments
        pointer = _pointer(context, builder, array, array_value, place_value, ir.IntType(8))
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [pointer.type, *[number] * 3])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [pointer, number(0), number(3), number(1)])  # to read, into all caches, data
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


def _pointer(context: Any, builder: Any, kind: Any, array: Any, place: Any, target: Any) -> Any:
    pointer = builder.gep(context.make_array(kind)(context, builder, array).data, [place])
    return builder.bitcast(pointer, target.as_pointer())


def _everywhere(builder: Any, number: Any, lanes: int) -> Any:
    kind = ir.VectorType(number.type, lanes)
    first = builder.insert_element(kind(ir.Undefined), number, ir.IntType(32)(0))
    return builder.shuffle_vector(first, kind(ir.Undefined), ir.VectorType(ir.IntType(32), lanes)(None))


def _masked(context: Any, builder: Any, of_array: Any, kind: Any, array: Any, place: Any, count: Any) -> Any:
    """Return what LLVM's masked loads and stores take: pointer, alignment, and which lanes are meant."""
    lanes = ir.VectorType(count.type, kind.count)
    mask = builder.icmp_signed("<", lanes(list(range(kind.count))), _everywhere(builder, count, kind.count))
    return (
        _pointer(context, builder, of_array, array, place, kind),
        ir.IntType(32)(of_array.dtype.bitwidth // 8),
        mask,
    )


def _call_masked(builder: Any, verb: str, kind: Any, returned: Any, arguments: list[Any]) -> Any:
    element = "f32" if isinstance(kind.element, ir.FloatType) else "f64"
    function = ir.FunctionType(returned, [argument.type for argument in arguments])
    name = f"llvm.masked.{verb}.v{kind.count}{element}.p0"
    return builder.call(cgutils.get_or_insert_function(builder.module, function, name), arguments)


@numba.njit(**INSIDE)
def mix(x, stride, arcs, i, column, count):
    """Return what agent i mixes of some columns of x."""
    mixed = spread(x.dtype.type(0))
    for arc in range(arcs.first[i], arcs.first[i + 1]):
        place = np.int64(arcs.sender[arc]) * stride + column
        mixed = mixed + spread(arcs.weight[arc]) * load(x, place, count)
    return mixed


@numba.njit(**INSIDE)
def fetch_row(x, place, d):
    """Ask for a row of x."""
    for column in range(0, d, lanes_of(x) * CACHE_LINE // VECTOR_BYTES):
        fetch(x, place + column)


@numba.njit(**INSIDE)
def fetch_ahead(old, d, pull, push, ahead, i):
    """Ask for what a later agent will mix, if ``ahead`` says which."""
    if ahead > 0 and i + ahead < len(push.first) - 1:
        for arc in range(push.first[i + ahead], push.first[i + ahead + 1]):
            fetch_row(old.y, np.int64(push.sender[arc]) * old.stride, d)
        for arc in range(pull.first[i + ahead], pull.first[i + ahead + 1]):
            fetch_row(old.x, np.int64(pull.sender[arc]) * old.stride, d)


@numba.njit(**INSIDE)
def dot(a, a_place, b, b_place, d):
    """Return the scalar product of two rows."""
    products = spread(a.dtype.type(0))
    for column in range(0, d, lanes_of(a)):
        products = products + load(a, a_place + column, d - column) * load(b, b_place + column, d - column)
    return total(products)


@numba.njit(**INSIDE)
def norm(square, y, place, d):
    """Return the norm of a row from its square, or scaled as by digrad.arrays.row_norm where that leaves the range."""
    one, tiny = y.dtype.type(1), np.finfo(y.dtype).tiny
    if tiny / np.finfo(y.dtype).eps ** 2 < square < one / tiny:
        return np.sqrt(square)
    largest, scaled = y.dtype.type(0), y.dtype.type(0)
    for c in range(place, place + d):
        if not np.isfinite(y[c]):
            return y.dtype.type(np.nan)
        largest = max(largest, abs(y[c]))
    scale = largest if largest > 0 else one
    for c in range(place, place + d):
        scaled += (y[c] / scale) ** 2
    return scale * np.sqrt(scaled)


@numba.njit(**INSIDE)
def move(old, new, d, pull, method, i, square):
    """Equation (1) for agent i, whose new tracker has this square; return whether its estimate is within the limit."""
    row, one = i * new.stride, new.x.dtype.type(1)
    ratio = norm(square, new.y, row, d) / method.threshold[i]
    scale = spread(method.step_size[i] / (one if ratio < one else ratio))  # not a number if the ratio is none
    squares = spread(new.x.dtype.type(0))
    for column in range(0, d, lanes_of(new.x)):
        count = d - column
        x = mix(old.x, old.stride, pull, i, column, count) - scale * load(new.y, row + column, count)
        squares = squares + x * x
        store(new.x, row + column, count, x)
    if total(squares) <= method.safe:
        return True
    within = True
    for c in range(row, row + d):
        within &= abs(new.x[c]) <= method.limit
    return within


@numba.njit(**OPTIONS)
def on_polynomials(
    old, new, before, stale, g, is_first, is_last, pull, push, ahead, method, a, b, q, begin, end
):
    """Run one step of agents begin, ..., end - 1 with gradients a x - b + q x^3; return whether x is within the limit.

    The old gradient is read where the step is the first of a call, and computed again from the estimates ``before`` the
    old ones elsewhere, which is the same number and less to read and write; the new one is stored by the last step.
    """
    d, within = a.shape[1], True
    for i in range(begin, end):
        fetch_ahead(old, d, pull, push, ahead, i)
        squares = spread(a.dtype.type(0))
        for column in range(0, d, lanes_of(a)):
            count, here = d - column, i * d + column
            slope, offset = load(a, here, count), load(b, here, count)
            grad = polynomial(slope, offset, q[i, 0], load(old.x, i * old.stride + column, count))
            if is_first:
                former = load(stale, here, count)
            else:
                former = polynomial(slope, offset, q[i, 0], load(before.x, i * before.stride + column, count))
            if is_last:
                store(g, here, count, grad)
            y = mix(old.y, old.stride, push, i, column, count) + (grad - former)  # (2)
            squares = squares + y * y
            store(new.y, i * new.stride + column, count, y)
        within &= move(old, new, d, pull, method, i, total(squares))
    return within


@numba.njit(**INSIDE)
def polynomial(a, b, q, x):
    """Return a x - b + q x^3, without the last term if there is none: 0 x^3 is not a number once x^3 overflows."""
    grad = a * x - b
    if q > 0:
        grad = grad + spread(q) * (x * x * x)
    return grad


@numba.njit(**OPTIONS)
def on_samples(
    old,
    new,
    before,
    stale,
    g,
    is_first,
    is_last,
    pull,
    push,
    ahead,
    method,
    reg_weight,
    reg_power,
    rows,
    slopes,
    index,
    begin,
    end,
):
    """Run one step like :func:`on_polynomials` with the logistic loss on mini-batches.

    The rows of agent i begin at i m; ``index`` ``[n, batch]`` says which of them count, ``slopes`` has room for theirs.
    """
    (n, batch), d, within = index.shape, rows.shape[1], True
    m, one = len(rows) // n, g.dtype.type(1)
    for i in range(begin, end):
        fetch_ahead(old, d, pull, push, ahead, i)
        x_row = i * old.stride
        for s in range(batch):
            later = s + SAMPLES_AHEAD
            who, which = (i, later) if later < batch else (i + 1, later - batch)
            if who < n and which < batch:
                fetch_row(rows, (who * m + index[who, which]) * d, d)
            margin = dot(rows, (i * m + index[i, s]) * d, old.x, x_row, d)
            slopes[i, s] = (
                -one / (one + np.exp(margin)) / g.dtype.type(batch)
            )  # 0 if the exponential overflows
        square, factor, two = dot(old.x, x_row, old.x, x_row, d), g.dtype.type(0), g.dtype.type(2)
        if reg_weight[i] > 0 and square > 0:
            factor = reg_weight[i] * reg_power[i] * square ** (reg_power[i] / two - one)
        squares = spread(g.dtype.type(0))
        for column in range(0, d, lanes_of(g)):
            count, here = d - column, i * d + column
            grad = spread(factor) * load(old.x, x_row + column, count)
            for s in range(batch):
                grad = grad + spread(slopes[i, s]) * load(rows, (i * m + index[i, s]) * d + column, count)
            y = mix(old.y, old.stride, push, i, column, count) + (grad - load(stale, here, count))  # (2)
            squares = squares + y * y
            store(g, here, count, grad)
            store(new.y, i * new.stride + column, count, y)
        within &= move(old, new, d, pull, method, i, total(squares))
    return within
