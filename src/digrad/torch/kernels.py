"""Methods whose step has a version of its own that works in place, where an agent has a process for itself."""

from collections.abc import Callable

from digrad.methods import CGT
from digrad.torch.cgt_kernel import cgt_step

# (method, state, gradient, what arrived for each early array of the method) -> None, to the last bit like `step`
KERNELS: dict[type, Callable[..., None]] = {CGT: cgt_step}
