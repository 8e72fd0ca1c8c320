r"""Steps of CGT in two passes over the agents, with the gradient inside: equations (1) and (2) of the method's file.

The first pass takes agent after agent the trackers of its in-neighbours, the gradient at its own estimate and the old
gradient, and stores the new tracker, its gradient and its clipped step size; the second takes the estimates of the
in-neighbours and moves. Sums go over in-neighbours in ascending order, the agent itself included. Both passes in one
took longer where x and y are arrays of their own (64 against 52 ms on 100 000 agents); why is not known.
"""

from typing import Any

import numba
import numpy as np

from digrad.simulation.kernels.frame import length, operand, result, word
from digrad.simulation.kernels.memory_access import PLAIN, numbers, row
from digrad.simulation.kernels.rows import AHEAD, fetch_rows, mix, norm
from digrad.simulation.kernels.team import BEGIN, BLOCKS, FRAME, SETUP, STATE, end_after, steps_to_do

# Operands. x, y and g are also results, in place.
X = STATE
PULL, PUSH = X + 3, X + 6  # three operands each: the first arc of each agent [n + 1], sender, weight
LIMIT, STEP_SIZE, THRESHOLD = range(X + 9, X + 12)  # [1]; [1 or iterations, 1 or n] each
GRADIENT = X + 12  # the first of those of the gradient
# Results, after what was done; room for every other step.
NEW_X, NEW_Y, NEW_G, OTHER_X, OTHER_Y, FACTOR = range(1, 7)


def make_cgt(gradient: Any, dtype: Any) -> Any:
    """Return what is done for one ticket, for one kind of gradient and one of numbers."""
    smallest, largest = dtype(np.finfo(dtype).tiny * 1e8), dtype(np.finfo(dtype).max / 1e8)
    one, kind = dtype(1), numba.from_dtype(np.dtype(dtype))

    @numba.njit(**PLAIN)
    def value(frame, which, i, iteration):
        """Return a hyper-parameter of agent i."""
        times, agents = length(frame, which, 0), length(frame, which, 1)
        table = numbers(operand(frame, which), kind, times * agents)
        return table[(iteration if times > 1 else 0) * agents + (i if agents > 1 else 0)]

    @numba.njit(**PLAIN)
    def track(frame, step, begin, end):
        n, d = length(frame, X, 0), length(frame, X, 1)
        iteration = word(operand(frame, BEGIN)) + step
        is_odd = step % 2 == 1
        x = numbers(result(frame, OTHER_X if is_odd else NEW_X), kind, n * d)
        y = numbers(result(frame, OTHER_Y if is_odd else NEW_Y), kind, n * d)
        new_y = numbers(result(frame, NEW_Y if is_odd else OTHER_Y), kind, n * d)
        grad, factor = numbers(result(frame, NEW_G), kind, n * d), numbers(result(frame, FACTOR), kind, n)
        first, sender, weight = arcs(frame, PUSH, n)
        for i in range(begin, end):
            if i + AHEAD < end:
                fetch_rows(y, d, sender, first[i + AHEAD], first[i + AHEAD + 1])
            tracker, own = row(new_y, i, d), row(grad, i, d)
            mix(tracker, y, sender, weight, first[i], first[i + 1])
            for c in range(d):
                tracker[c] -= own[c]
            gradient(frame, GRADIENT, i, iteration, row(x, i, d), own)
            for c in range(d):
                tracker[c] += own[c]
            ratio = norm(tracker, smallest, largest) / value(frame, THRESHOLD, i, iteration)
            clipped = one / (one if ratio < one else ratio)  # not a number if the ratio is none
            factor[i] = value(frame, STEP_SIZE, i, iteration) * clipped

    @numba.njit(**PLAIN)
    def move(frame, step, begin, end):
        """Return whether all estimates are within the limit."""
        n, d = length(frame, X, 0), length(frame, X, 1)
        is_odd = step % 2 == 1
        x = numbers(result(frame, OTHER_X if is_odd else NEW_X), kind, n * d)
        new_x = numbers(result(frame, NEW_X if is_odd else OTHER_X), kind, n * d)
        new_y = numbers(result(frame, NEW_Y if is_odd else OTHER_Y), kind, n * d)
        factor = numbers(result(frame, FACTOR), kind, n)
        limit = numbers(operand(frame, LIMIT), kind, 1)[0]
        first, sender, weight = arcs(frame, PULL, n)
        outside = 0
        for i in range(begin, end):
            if i + AHEAD < end:
                fetch_rows(x, d, sender, first[i + AHEAD], first[i + AHEAD + 1])
            estimate, tracker, scale = row(new_x, i, d), row(new_y, i, d), factor[i]
            mix(estimate, x, sender, weight, first[i], first[i + 1])
            for c in range(d):
                moved = estimate[c] - scale * tracker[c]
                estimate[c] = moved
                outside += 0 if abs(moved) <= limit else 1
        return outside == 0

    @numba.njit(**PLAIN)
    def copy_back(frame, begin, end):
        d = length(frame, X, 1)
        for other, place in ((OTHER_X, NEW_X), (OTHER_Y, NEW_Y)):
            source = numbers(result(frame, other), kind, end * d)
            target = numbers(result(frame, place), kind, end * d)
            for c in range(begin * d, end * d):
                target[c] = source[c]

    @numba.njit(**PLAIN)
    def arcs(frame, which, n):
        first = numbers(operand(frame, which), numba.int64, n + 1)
        count = first[n]
        return (
            first,
            numbers(operand(frame, which + 1), numba.int32, count),
            numbers(operand(frame, which + 2), kind, count),
        )

    def work(team, ticket):
        frame, blocks = word(team + FRAME), word(team + BLOCKS)
        n, size = length(frame, X, 0), word(operand(frame, SETUP) + 24)
        phase, block = ticket // blocks, ticket % blocks
        begin, end, step = block * size, min(n, (block + 1) * size), phase // 2
        if step == steps_to_do(frame):
            copy_back(frame, begin, end)
        elif phase % 2 == 0:
            track(frame, step, begin, end)
        elif not move(frame, step, begin, end):
            end_after(team, step)
        return 0

    return work
