"""When a run counts as diverged: an entry of x is not finite, or it is far away where the losses are steep.

Far away is beyond 1e12 (1 + max|x_0|), and steep a gradient of more than 1000 times the largest at the start. The first
alone would depend on units: a minimum may lie at 1e15, and on the way there gradients become smaller. Trainings of
networks go by the first alone: no weight of a network is of that size.
"""

# An entry of x beyond this, relative to 1 + max|x_0|, is far away (the design's definition).
DIVERGED = 1e12
# A gradient of more than this many times the largest at the start is steep; noise and overshooting stay below.
STEEP = 1e3


def largest_entry(start: float, representable: float) -> float:
    """Return the entry of x beyond which a run is far away.

    Args:
        start: The largest entry of x_0, in absolute value.
        representable: The largest number of its dtype.

    Example:
        >>> largest_entry(9.0, 1.8e308)
        10000000000000.0
    """
    return min(DIVERGED * (1 + start), representable)
