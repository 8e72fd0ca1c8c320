"""A test for NaN and infinity in one pass without a copy."""

from typing import Any

import numpy as np
import scipy.sparse as sp


def not_finite_row(samples: Any) -> int | None:
    """Return the first row of ``samples`` (dense, or CSR) that holds NaN or an infinite number, or None.

    >>> not_finite_row(np.array([[1.0, 2.0], [np.inf, 0.0]])), not_finite_row(np.array([3, 4]))
    (1, None)
    """
    is_sparse = sp.issparse(samples)
    values = samples.data if is_sparse else samples
    if values.dtype.kind not in "fc":
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(values.sum()):  # a finite sum has finite terms, and needs no array of flags
            return None
    bad = ~np.isfinite(values)
    if is_sparse:
        return int(np.searchsorted(samples.indptr, np.argmax(bad), side="right")) - 1 if bad.any() else None
    rows = bad.reshape(len(bad), -1).any(axis=1)
    return int(np.argmax(rows)) if rows.any() else None
