"""Memory of the large arrays that a step computes, which the next step uses again.

A freed array of megabytes goes back to the system, and the pages of the next one are faulted in anew, one by one: for a
large model that would be most of the time of a step. A method computes with ordinary operators, which allocate; inside
of this context their results are written to memory that is kept. It is free once no tensor uses it any more.
"""

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

SMALLEST = 1 << 20  # bytes of an array; the allocator keeps smaller ones by itself
_ELEMENTWISE = ("abs", "add", "div", "maximum", "mul", "neg", "pow", "sign", "sub")
_UNUSED = next(sys.getrefcount(one) for one in [np.empty(0)])  # references to an array that only a list holds


def _writers() -> dict[Any, Callable[..., torch.Tensor]]:
    """Return what writes the result of a function of torch to memory that is there, its first argument."""
    found: dict[Any, Callable[..., torch.Tensor]] = {
        torch.empty_like: lambda out, like: out,
        torch.zeros_like: lambda out, like: out.zero_(),
        torch.Tensor.clone: lambda out, x: out.copy_(x),
    }
    for name in _ELEMENTWISE:
        function = getattr(torch, name)
        methods = (getattr(torch.Tensor, one, function) for one in (name, f"__{name}__"))
        found |= dict.fromkeys((function, *methods), lambda out, *x, function=function: function(*x, out=out))
    return found


def reused_memory(like: torch.Tensor) -> contextlib.AbstractContextManager[Any]:
    """Return a context for arithmetic on arrays like this one: it uses memory again if they are large."""
    return Buffers() if like.device.type == "cpu" and like.nbytes >= SMALLEST else contextlib.nullcontext()


class Buffers(TorchFunctionMode):
    """A context in which arithmetic on large arrays of the CPU uses memory again."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: list[np.ndarray] = []
        self._writers = _writers()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch, with memory for its result if that is large."""
        write = self._writers.get(func)
        like = None if write is None or not set(kwargs or ()) <= {"memory_format"} else _result_like(args)
        if write is None or like is None:
            return func(*args, **(kwargs or {}))
        return write(self._memory(like), *args)

    def _memory(self, like: torch.Tensor) -> torch.Tensor:
        """Return memory that no tensor uses."""
        for array in self._kept:
            if sys.getrefcount(array) == _UNUSED and array.nbytes == like.nbytes:
                break
        else:
            array = torch.empty(like.nbytes, dtype=torch.uint8).numpy()  # aligned as tensors are
            self._kept.append(array)
        return torch.from_numpy(array).view(like.dtype).view(like.shape)


def _result_like(args: tuple[Any, ...]) -> torch.Tensor | None:
    """Return the argument whose shape and format those of the result are, if it is a large array of the CPU."""
    tensors = [one for one in args if isinstance(one, torch.Tensor)]
    like = max(tensors, key=lambda one: (one.dtype.is_floating_point, one.numel()), default=None)
    if (
        like is None
        or like.nbytes < SMALLEST
        or like.device.type != "cpu"
        or not like.dtype.is_floating_point
    ):
        return None
    is_alike = all(one.dtype in (like.dtype, torch.bool) for one in tensors)
    is_plain = all(isinstance(one, torch.Tensor | int | float) for one in args)
    shape = torch.broadcast_shapes(*(one.shape for one in tensors))
    return like if is_alike and is_plain and shape == like.shape else None
