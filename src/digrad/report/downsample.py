"""Fewer rows of a long run, chosen so that no curve loses a peak."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_HEAD = 20  # first rows, which a logarithmic axis spreads out


def kept_rows(
    k: npt.NDArray[np.integer], curves: Sequence[npt.NDArray[np.floating]], most: int
) -> npt.NDArray[np.intp]:
    """Return which rows to draw, ascending: at most about ``most``, and all of them when there are no more.

    The iterations are cut into stretches, some of equal length and some of equal length on a logarithmic axis. Of
    every stretch the first row stays, and of every curve its smallest and its largest value there, so that an
    envelope drawn of the kept rows is that of all rows, on either axis. Values that are not finite are never the
    smallest or largest, but the last finite value before them stays, as the place where a run ended.

    Args:
        k: The iteration of each row, increasing, ``[K]``.
        curves: Values drawn, ``[K]`` each.
        most: How many rows there may be, about.

    Example:
        >>> wave = np.zeros(1000)
        >>> wave[[123, 777]] = 9.0, -9.0
        >>> rows = kept_rows(np.arange(1000), [wave], 100)
        >>> len(rows) < 120, {0, 123, 777, 999} <= set(rows.tolist())
        (True, True)
    """
    if len(k) <= most:
        return np.arange(len(k))
    stretches = max(4, (most - _HEAD) // (2 * max(1, len(curves)) + 1))
    kept = _rows_of(k, curves, stretches)
    # Curves share many of their extremes: where that leaves room, the stretches are shorter.
    while len(more := _rows_of(k, curves, stretches := 3 * stretches // 2)) <= most:
        kept = more
    return kept


def _rows_of(
    k: npt.NDArray[np.integer], curves: Sequence[npt.NDArray[np.floating]], stretches: int
) -> npt.NDArray[np.intp]:
    owner = _stretch_of(k, stretches)
    begins = np.flatnonzero(np.diff(owner, prepend=owner[0] - 1))
    kept = [np.arange(min(_HEAD, len(k))), begins, np.array([len(k) - 1])]
    for curve in curves:
        finite = np.isfinite(curve)
        kept.append(_extremes(np.where(finite, curve, np.inf), begins, owner))
        kept.append(_extremes(np.where(finite, -curve, np.inf), begins, owner))
        kept.append(np.flatnonzero(finite)[-1:])
    return np.unique(np.concatenate(kept))


def _stretch_of(k: npt.NDArray[np.integer], stretches: int) -> npt.NDArray[np.intp]:
    """Return the number of each row's stretch; two thirds of them are of equal length."""
    last, first = float(k[-1]), float(k[0])
    even = np.linspace(first, last, 2 * stretches // 3 + 1)
    growing = first + np.geomspace(1, last - first + 1, stretches - 2 * stretches // 3 + 1) - 1
    return np.searchsorted(np.unique(np.concatenate([even, growing])), k, side="right")


def _extremes(
    values: npt.NDArray[np.floating], begins: npt.NDArray[np.intp], owner: npt.NDArray[np.intp]
) -> npt.NDArray[np.intp]:
    """Return the first row with the smallest value of each stretch."""
    smallest = np.minimum.reduceat(values, begins)
    place = np.cumsum(np.diff(owner, prepend=owner[0]) > 0)
    rows = np.flatnonzero(values == smallest[place])
    return rows[np.unique(place[rows], return_index=True)[1]]
