"""Number of cores that this process may use."""


def available_cores() -> int:
    """Return how many cores this process may use: those of the machine, or fewer by affinity or a container's quota."""
    import joblib  # which is not imported for the command line's help

    return joblib.cpu_count()
