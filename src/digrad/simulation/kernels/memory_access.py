"""Reading and writing memory by its address, in functions that Numba compiles; importing this imports Numba."""

from typing import Any

import numba
from llvmlite import ir
from numba import extending, types
from numba.core import cgutils
from numba.np.numpy_support import carray

# No bounds, no exceptions: a compiled function that XLA calls must not need the interpreter.
PLAIN = {"error_model": "numpy", "boundscheck": False, "fastmath": {"contract"}}
# For sums whose order may be that of the vector unit: norms and scalar products.
REASSOCIATED = {**PLAIN, "fastmath": {"contract", "reassoc"}}
CACHE_LINE = 64

intrinsic: Any = extending.intrinsic  # what it returns is called without the typing context


@intrinsic
def as_pointer(typing_context: Any, address: Any, dtype: Any) -> Any:
    """Return the address as a pointer to numbers of a dtype."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        target = context.get_value_type(signature.return_type)
        return builder.inttoptr(arguments[0], target)

    return types.CPointer(dtype.dtype)(types.intp, dtype), generate


@numba.njit(**PLAIN)
def numbers(address, dtype, count):
    """Return ``count`` numbers at an address, as an array."""
    return carray(as_pointer(address, dtype), (count,))


@intrinsic
def prefetch(typing_context: Any, address: Any) -> Any:
    """Ask for the cache line at an address."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [builder.inttoptr(arguments[0], byte), word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(types.intp), generate


@intrinsic
def add_atomically(typing_context: Any, address: Any, value: Any) -> Any:
    """Add to the whole number at an address, in one piece for all threads, and return what it was before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(64).as_pointer())
        return builder.atomic_rmw("add", pointer, arguments[1], "seq_cst")

    return types.int64(types.intp, types.int64), generate


@intrinsic
def call(typing_context: Any, function: Any, argument: Any, other: Any) -> Any:
    """Call the C function at an address, which takes two words (or only the first) and returns one."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = ir.IntType(64)
        pointer = builder.inttoptr(arguments[0], ir.FunctionType(word, [word, word]).as_pointer())
        return builder.call(pointer, arguments[1:])

    return types.intp(types.intp, types.intp, types.intp), generate


def _of_c_library(name: str) -> Any:
    """Return a function of the C library that takes and returns a word, as compiled functions call it."""

    @intrinsic
    def function(typing_context: Any, argument: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            word = ir.IntType(64)
            kind = ir.FunctionType(word, [word])
            return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)

        return types.intp(types.intp), generate

    return function


allocate, release, let_others_run = map(_of_c_library, ("malloc", "free", "sched_yield"))


@intrinsic
def _pointer_into(typing_context: Any, array: Any, place: Any) -> Any:
    """Return a pointer to a place of an array; nothing is checked."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        whole = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.gep(whole.data, [arguments[1]])

    return types.CPointer(array.dtype)(array, types.intp), generate


@numba.njit(**PLAIN)
def row(array, i, width):
    """Return row i of a flat array of rows."""
    return carray(_pointer_into(array, numba.intp(i) * width), (width,))
