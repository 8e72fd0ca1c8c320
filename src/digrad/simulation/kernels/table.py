"""Which runs have a step of their own: one row for a method, one for each kind of gradient."""

import os
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from digrad.algorithms import CGT
from digrad.mixing import Mixing
from digrad.problems import LossCode
from digrad.problems.logistic import Logistic
from digrad.problems.polynomial import Polynomial

LEAST_AGENTS = 65  # of fewer, XLA's dense products are faster
LEAST_NUMBERS = 1 << 18  # of x: for less, no gain was measured that pays for Numba's compilation
BLOCK_BYTES = 1 << 17  # of x that one thread takes at a time
NUMBERS_OF_THREADS = 1 << 20  # of x from which threads share the work
METHODS = {CGT: "cgt"}
TARGET = "digrad_steps"  # the name of what XLA calls
INTERFACE = (
    0,
    3,
)  # the version of XLA's foreign function interface that the offsets of `frame` are taken from


class Kernel(NamedTuple):
    """The name of a compiled function; equal names are equal functions."""

    method: str
    gradient: str
    dtype: str
    fields: tuple[str, ...]  # hyper-parameters, in the order of the operands


class Arcs(NamedTuple):
    """A mixing matrix by rows, as scipy has it."""

    first: jax.Array  # [n + 1]
    sender: jax.Array  # [arcs]
    weight: jax.Array  # [arcs]


class KernelArrays(NamedTuple):
    """What a compiled function is given besides state and samples."""

    setup: jax.Array  # [4] addresses of work and task, threads, agents of a block
    pull: Arcs
    push: Arcs


def kernel_of(method: Any, losses: LossCode, arrays: Any, x0: Any, *, has_samples: bool) -> Kernel | None:
    """Return the compiled function for steps of a method on a constant network, or None if there is none."""
    n, d = x0.shape
    if n < LEAST_AGENTS or n * d < LEAST_NUMBERS or type(method) not in METHODS or not is_available():
        return None
    gradient = _gradient(losses.local, arrays, has_samples)
    fields = ("step_size", "threshold")
    shapes = {np.shape(getattr(method, field)) for field in fields if not callable(getattr(method, field))}
    if gradient is None or not shapes <= {(), (n, 1)}:
        return None
    return Kernel(METHODS[type(method)], gradient, x0.dtype.name, fields)


def is_available() -> bool:
    """Return whether Numba is installed, wanted (``DIGRAD_KERNELS`` is not 0) and can be called by this JAX."""
    return (
        os.environ.get("DIGRAD_KERNELS", "1") != "0"
        and find_spec("numba") is not None
        and jax.default_backend() == "cpu"
        and _is_known(_header())
    )


def _header() -> str:
    """Return the C header of the interface that this JAX has."""
    return (Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h").read_text()


def _is_known(header: str) -> bool:
    """Return whether the interface has the layout that we read: within a major version it only grows."""
    found = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header))
    major, minor = INTERFACE
    return int(found.get("MAJOR", -1)) == major and int(found.get("MINOR", -1)) >= minor


def kernel_arrays(kernel: Kernel, pull: Mixing, push: Mixing, d: int) -> KernelArrays:
    """Compile, if that has not happened yet, and return what the function is given."""
    from digrad.simulation.kernels.compile import addresses

    dtype, n = np.dtype(kernel.dtype), pull.n
    block = max(1, BLOCK_BYTES // (d * dtype.itemsize))
    setup = np.array([*addresses(kernel), _threads() if n * d >= NUMBERS_OF_THREADS else 1, block])
    first, second = _arcs(pull, dtype), _arcs(push, dtype)
    if np.array_equal(first[1], second[1]) and np.array_equal(first[0], second[0]):
        second = (*first[:2], second[2])  # one graph: its arcs are read once
    shared = {id(array): jax.device_put(array) for array in (*first, *second)}
    return KernelArrays(
        jax.device_put(setup), *(Arcs(*(shared[id(array)] for array in each)) for each in (first, second))
    )


def _gradient(local: Any, arrays: Any, has_samples: bool) -> str | None:
    if isinstance(local, Polynomial):
        return "polynomial"
    if isinstance(local, Logistic) and has_samples:
        return "logistic_rows" if "rows" in arrays else "logistic_lists"
    return None


def _arcs(mixing: Mixing, dtype: Any) -> tuple[Any, Any, Any]:
    matrix = mixing.matrix
    return matrix.indptr.astype(np.int64), matrix.indices.astype(np.int32), matrix.data.astype(dtype)


def _threads() -> int:
    """Return how many threads may work: the cores of this process, or fewer if OMP_NUM_THREADS says so."""
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return min(cores, int(wanted)) if wanted.isdecimal() and int(wanted) > 0 else cores
