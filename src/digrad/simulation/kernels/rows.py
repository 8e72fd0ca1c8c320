"""Sums over rows of numbers that lie one after the other, as compiled functions call them."""

import numba
import numpy as np

from digrad.simulation.kernels.memory_access import CACHE_LINE, PLAIN, REASSOCIATED, prefetch, row

AHEAD = 2  # the agent whose neighbours are fetched while the neighbours of this one are added up


@numba.njit(**PLAIN)
def mix(out, x, sender, weight, begin, end):
    """Let ``out`` be the sum over arcs begin, ..., end - 1 of weight times the row of the sender, in this order."""
    first = (end - begin) % 4
    if first == 1:
        _set_to_one(out, x, sender, weight, begin)
    elif first == 2:
        _set_to_two(out, x, sender, weight, begin)
    elif first == 3:
        _set_to_three(out, x, sender, weight, begin)
    elif end > begin:
        _set_to_four(out, x, sender, weight, begin)
        first = 4
    else:
        out[:] = 0
    for p in range(begin + first, end, 4):
        _add_four(out, x, sender, weight, p)


@numba.njit(**PLAIN)
def _set_to_one(out, x, sender, weight, p):
    width = len(out)
    w0, a0 = weight[p], row(x, sender[p], width)
    for c in range(width):
        out[c] = w0 * a0[c]


@numba.njit(**PLAIN)
def _set_to_two(out, x, sender, weight, p):
    width = len(out)
    w0, w1 = weight[p], weight[p + 1]
    a0, a1 = row(x, sender[p], width), row(x, sender[p + 1], width)
    for c in range(width):
        out[c] = w0 * a0[c] + w1 * a1[c]


@numba.njit(**PLAIN)
def _set_to_three(out, x, sender, weight, p):
    width = len(out)
    w0, w1, w2 = weight[p], weight[p + 1], weight[p + 2]
    a0, a1, a2 = row(x, sender[p], width), row(x, sender[p + 1], width), row(x, sender[p + 2], width)
    for c in range(width):
        out[c] = w0 * a0[c] + w1 * a1[c] + w2 * a2[c]


@numba.njit(**PLAIN)
def _set_to_four(out, x, sender, weight, p):
    width = len(out)
    w0, w1, w2, w3 = weight[p], weight[p + 1], weight[p + 2], weight[p + 3]
    a0, a1 = row(x, sender[p], width), row(x, sender[p + 1], width)
    a2, a3 = row(x, sender[p + 2], width), row(x, sender[p + 3], width)
    for c in range(width):
        out[c] = w0 * a0[c] + w1 * a1[c] + w2 * a2[c] + w3 * a3[c]


@numba.njit(**PLAIN)
def _add_four(out, x, sender, weight, p):
    width = len(out)
    w0, w1, w2, w3 = weight[p], weight[p + 1], weight[p + 2], weight[p + 3]
    a0, a1 = row(x, sender[p], width), row(x, sender[p + 1], width)
    a2, a3 = row(x, sender[p + 2], width), row(x, sender[p + 3], width)
    for c in range(width):
        out[c] = out[c] + w0 * a0[c] + w1 * a1[c] + w2 * a2[c] + w3 * a3[c]


@numba.njit(**PLAIN)
def fetch_rows(x, width, sender, begin, end):
    """Ask for the rows of the senders of some arcs: where they lie no hardware can guess."""
    for p in range(begin, end):
        a = row(x, sender[p], width)
        for place in range(0, width * x.itemsize, CACHE_LINE):
            prefetch(a.ctypes.data + place)


@numba.njit(**REASSOCIATED)
def dot(a, b):
    """Return the scalar product of two rows."""
    total = a.dtype.type(0)
    for c in range(len(a)):
        total += a[c] * b[c]
    return total


@numba.njit(**PLAIN)
def norm(a, smallest, largest):
    """Return the Euclidean norm of a row, scaled where squares leave the range from ``smallest`` to ``largest``."""
    square = dot(a, a)
    if smallest < square < largest:
        return np.sqrt(square)
    scale = a.dtype.type(0)
    for c in range(len(a)):
        if not np.isfinite(a[c]):
            return a.dtype.type(np.nan)  # as digrad.arrays.row_norm
        scale = max(scale, abs(a[c]))
    if scale == 0:
        return scale
    total = a.dtype.type(0)
    for c in range(len(a)):
        total += (a[c] / scale) ** 2
    return scale * np.sqrt(total)
