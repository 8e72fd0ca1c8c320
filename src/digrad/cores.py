"""How many cores this process may use."""

import os


def available_cores() -> int:
    """Return the number of cores that this process may use, where the system tells, else those of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
