"""Gradients of one agent in compiled functions: what :mod:`digrad.problems` computes for all agents at once.

Each is a function ``gradient(frame, first, i, iteration, x, out)`` for agent i at an iteration of the chunk.
Its operands are those from number ``first`` on, in the order of :mod:`digrad.simulation.kernels.steps`.
"""

import numba
import numpy as np

from digrad.simulation.kernels.frame import length, operand
from digrad.simulation.kernels.memory_access import PLAIN, numbers, row
from digrad.simulation.kernels.rows import dot


@numba.njit(**PLAIN)
def polynomial(frame, first, i, iteration, x, out):
    """Let ``out`` be a x - b + q x^3."""
    width, dtype = len(x), x.dtype
    a = row(numbers(operand(frame, first), dtype, width), i, width)
    b = row(numbers(operand(frame, first + 1), dtype, width), i, width)
    q = numbers(operand(frame, first + 2), dtype, i + 1)[i]
    if q > 0:
        for c in range(width):
            out[c] = a[c] * x[c] - b[c] + q * (x[c] * x[c] * x[c])
    else:
        for c in range(width):
            out[c] = a[c] * x[c] - b[c]


@numba.njit(**PLAIN)
def logistic_rows(frame, first, i, iteration, x, out):
    """Let ``out`` be the gradient of the logistic loss on a mini-batch of dense samples, plus the regulariser's."""
    width, dtype = len(x), x.dtype
    _regulariser(frame, first, i, x, out)
    samples, index = numbers(operand(frame, first + 3), dtype, width), _batch(frame, first, i, iteration)
    share, offset = dtype.type(1) / dtype.type(len(index)), i * length(frame, first + 2, 1)
    for s in range(0, len(index) - 1, 2):  # two at a time: x and out are read half as often
        one, two = row(samples, offset + index[s], width), row(samples, offset + index[s + 1], width)
        first_slope, second_slope = _slope(share, dot(one, x)), _slope(share, dot(two, x))
        for c in range(width):
            out[c] = out[c] + first_slope * one[c] + second_slope * two[c]
    if len(index) % 2:
        last = row(samples, offset + index[len(index) - 1], width)
        last_slope = _slope(share, dot(last, x))
        for c in range(width):
            out[c] += last_slope * last[c]


@numba.njit(**PLAIN)
def logistic_lists(frame, first, i, iteration, x, out):
    """Let ``out`` be the gradient of the logistic loss on a mini-batch of index lists, plus the regulariser's."""
    width, dtype, slots = len(x), x.dtype, length(frame, first + 3, 1)
    _regulariser(frame, first, i, x, out)
    entries = numbers(operand(frame, first + 3), dtype, slots)
    places = numbers(operand(frame, first + 4), numba.int32, slots)
    index = _batch(frame, first, i, iteration)
    share, offset = dtype.type(1) / dtype.type(len(index)), i * length(frame, first + 2, 1)
    for s in range(len(index)):
        entry, place = row(entries, offset + index[s], slots), row(places, offset + index[s], slots)
        margin = dtype.type(0)
        for slot in range(slots):
            margin += entry[slot] * x[place[slot] - i * width]
        slope = _slope(share, margin)
        for slot in range(slots):
            out[place[slot] - i * width] += slope * entry[slot]


@numba.njit(**PLAIN)
def _batch(frame, first, i, iteration):
    """Return the samples of agent i: operand number ``first`` + 5, ``[iterations, n, batch]``."""
    n, size = length(frame, first + 5, 1), length(frame, first + 5, 2)
    return row(numbers(operand(frame, first + 5), numba.int32, size), iteration * n + i, size)


@numba.njit(**PLAIN)
def _slope(share, margin):
    """Return the derivative of share log(1 + exp(-margin)); an exponential that overflows gives 0, its limit."""
    return -share / (share / share + np.exp(margin))


@numba.njit(**PLAIN)
def _regulariser(frame, first, i, x, out):
    """Let ``out`` be the gradient lambda p ||x||^(p - 2) x."""
    dtype = x.dtype
    weight = numbers(operand(frame, first), dtype, i + 1)[i]
    power = numbers(operand(frame, first + 1), dtype, i + 1)[i]
    if not weight > 0:
        out[:] = 0
        return
    square = dot(x, x)
    scale = dtype.type(1)
    if square > 0:
        scale = square ** (power / dtype.type(2) - dtype.type(1))
    elif power != 2:
        scale = dtype.type(0)
    factor = weight * power * scale
    for c in range(len(x)):
        out[c] = dtype.type(0) if np.isinf(factor) and x[c] == 0 else factor * x[c]
