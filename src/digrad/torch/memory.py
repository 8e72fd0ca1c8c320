"""Giving memory back to the system."""

import ctypes


def release_free_memory() -> None:
    """Return what was freed to the system, where the C library can (glibc).

    ``digrad launch`` makes the allocator keep freed memory, which makes steps several times faster; what only the
    construction of an optimizer needed, as much as half of what training needs, should not be kept too.
    """
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (OSError, AttributeError, TypeError):
        return  # another C library: it has its own policy
