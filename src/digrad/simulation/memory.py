"""Memory of large runs, kept by the process between two calls of the compiled loop."""

import ctypes
from functools import cache

# Of mallopt(3) in the GNU C library.
M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
LARGEST = 2**31 - 1


@cache
def keep_freed_memory() -> None:
    """Let arrays be made of memory that earlier ones have left, for the rest of this process.

    Otherwise each call of the loop gets fresh pages for its results and what it needs on the way, and the system fills
    them with zeros one by one: a fifth of the time of a step of 100 000 agents in dimension 100. Nothing happens where
    the C library has no such setting.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, LARGEST)
        mallopt(M_ARENA_MAX, 1)  # threads with memory of their own return large pieces of it
