"""Compiled functions, made when a run first needs them and known to XLA from then on; importing this imports Numba."""

from functools import cache
from typing import Any

import jax
import numba
import numpy as np

from digrad.simulation.kernels import gradients, team
from digrad.simulation.kernels.cgt import make_cgt
from digrad.simulation.kernels.table import TARGET, Kernel

MAKERS = {"cgt": make_cgt}


@cache
def _known_to_xla() -> tuple[Any, Any]:
    """Return the function that XLA calls and the one of other threads; both live as long as the process."""
    handler, task = numba.cfunc("intp(intp)")(team.handle), numba.cfunc("intp(intp)")(team.task)
    jax.ffi.register_ffi_target(TARGET, jax.ffi.pycapsule(handler.ctypes), platform="cpu")
    return handler, task


@cache
def _compiled(kernel: Kernel) -> Any:
    work = MAKERS[kernel.method](getattr(gradients, kernel.gradient), np.dtype(kernel.dtype).type)
    return numba.cfunc("intp(intp, intp)")(work)


def addresses(kernel: Kernel) -> tuple[int, int]:
    """Compile what is not yet compiled, tell XLA, and return where work and task are."""
    return _compiled(kernel).address, _known_to_xla()[1].address
