"""When a run counts as diverged: one rule for all engines."""

# An entry of x beyond this, relative to 1 + max|x_0|, counts as diverged (the design's definition).
DIVERGED = 1e12


def largest_entry(start: float, representable: float) -> float:
    """Return the entry of x beyond which a run has diverged, as one that is not finite has.

    Args:
        start: The largest entry of x_0, in absolute value.
        representable: The largest number of its dtype.

    Example:
        >>> largest_entry(9.0, 1.8e308)
        10000000000000.0
    """
    return min(DIVERGED * (1 + start), representable)
