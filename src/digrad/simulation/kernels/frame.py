"""What XLA hands to a function of ours: the layout of XLA_FFI_CallFrame, in the C header below `jax.ffi.include_dir()`.

Offsets are those of version 0.3 of the interface on a machine of 64 bits. Within its major version the interface only
grows at the end of its structs.
"""

import numba

from digrad.simulation.kernels.memory_access import PLAIN, call, numbers
from digrad.simulation.kernels.table import INTERFACE

MAJOR, MINOR = INTERFACE
EXTENSION, API, CONTEXT, STAGE, ARGUMENTS, RESULTS = 8, 16, 24, 32, 72, 112  # in XLA_FFI_CallFrame
EXECUTE = 3  # XLA_FFI_ExecutionStage_EXECUTE
DATA, DIMS = 24, 40  # in XLA_FFI_Buffer
EXTENSION_TYPE, METADATA_TYPE, METADATA = 8, 1, 24  # in XLA_FFI_Metadata_Extension
VERSION = 24  # of XLA_FFI_Metadata: major and minor version
DESTROY, SCHEDULE, COUNT_THREADS = 64, 136, 144  # in XLA_FFI_Api


@numba.njit(**PLAIN)
def word(address):
    """Return the 64-bit word at an address."""
    return numbers(address, numba.int64, 1)[0]


@numba.njit(**PLAIN)
def put_word(address, value):
    """Store a 64-bit word at an address."""
    numbers(address, numba.int64, 1)[0] = value


@numba.njit(**PLAIN)
def operand(frame, i):
    """Return the address of the numbers of operand i."""
    return word(word(word(frame + ARGUMENTS) + 8 * i) + DATA)


@numba.njit(**PLAIN)
def length(frame, i, axis):
    """Return the length of operand i along an axis."""
    return word(word(word(word(frame + ARGUMENTS) + 8 * i) + DIMS) + 8 * axis)


@numba.njit(**PLAIN)
def result(frame, i):
    """Return the address of the numbers of result i."""
    return word(word(word(frame + RESULTS) + 8 * i) + DATA)


@numba.njit(**PLAIN)
def is_only_asked(frame):
    """Answer XLA where it asks for the version of the interface; return whether there is nothing to execute."""
    extension = word(frame + EXTENSION)
    if extension != 0 and numbers(extension + EXTENSION_TYPE, numba.int32, 1)[0] == METADATA_TYPE:
        version = numbers(word(extension + METADATA) + VERSION, numba.int32, 2)
        version[0], version[1] = MAJOR, MINOR
        return True
    return numbers(frame + STAGE, numba.int32, 1)[0] != EXECUTE


@numba.njit(**PLAIN)
def pool_threads(frame, room):
    """Return how many threads the pool of XLA has, 1 if there is none; ``room`` is the address of five free words."""
    numbers(room, numba.int64, 5)[:] = 0
    put_word(room, 32)
    put_word(room + 16, word(frame + CONTEXT))
    put_word(room + 24, room + 32)
    error = call(word(word(frame + API) + COUNT_THREADS), room, 0)
    return word(room + 32) if _is_fine(frame, room, error) else 1


@numba.njit(**PLAIN)
def schedule(frame, room, task, data):
    """Let a thread of the pool call the C function ``task`` with ``data``; return whether it will."""
    put_word(room, 40)
    put_word(room + 8, 0)
    put_word(room + 16, word(frame + CONTEXT))
    put_word(room + 24, task)
    put_word(room + 32, data)
    return _is_fine(frame, room, call(word(word(frame + API) + SCHEDULE), room, 0))


@numba.njit(**PLAIN)
def _is_fine(frame, room, error):
    """Return whether XLA answered without an error, which is ours to destroy."""
    if error == 0:
        return True
    put_word(room, 24)
    put_word(room + 8, 0)
    put_word(room + 16, error)
    call(word(word(frame + API) + DESTROY), room, 0)
    return False
