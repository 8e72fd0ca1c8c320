"""The few array functions that methods need beyond operators, for NumPy, JAX and torch arrays alike.

The array's own library is asked for, never imported, so that a method runs unchanged in every engine.
"""

import math
import sys
from collections.abc import Sequence
from typing import Any

from digrad.types import Array, Shapes


def zeros_like(x: Array) -> Array:
    """Return zeros of the shape and dtype of ``x``."""
    return _namespace(x).zeros_like(x)


def ones_column(x: Array) -> Array:
    """Return a column of ones ``[n, 1]`` of the dtype of ``x`` ``[n, ...]``."""
    return _namespace(x).ones_like(x[:, :1])


def cast_like(x: Array, like: Array) -> Array:
    """Return ``x`` with the dtype of ``like``.

    >>> import numpy as np
    >>> cast_like(np.eye(2), np.zeros(3, np.float32)).dtype
    dtype('float32')
    """
    return x.astype(like.dtype) if hasattr(x, "astype") else x.to(like.dtype)


def cast(x: Array, dtype: str) -> Array:
    """Return ``x`` in the format called ``dtype``, for example ``"float16"``.

    >>> import numpy as np
    >>> cast(np.array([1 / 3]), "float16")
    array([0.3333], dtype=float16)
    """
    return x.astype(dtype) if hasattr(x, "astype") else x.to(getattr(_namespace(x), dtype))


def where(condition: Array, x: Array, y: Array | float) -> Array:
    """Return x where the condition holds and y elsewhere."""
    return _namespace(x).where(condition, x, y)


def maximum(x: Array, y: Array) -> Array:
    """Return the elementwise maximum of two arrays, or of an array and a number."""
    namespace = _namespace(x)
    return namespace.maximum(x, namespace.zeros_like(x) + y)


def precision(x: Array) -> float:
    """Return the distance from 1 to the next number of the dtype of ``x``.

    >>> import numpy as np
    >>> precision(np.zeros(2)) == 2.0**-52
    True
    """
    return float(_namespace(x).finfo(x.dtype).eps)


def signs(x: Array) -> Array:
    """Return -1, 0 or 1 for each entry."""
    return _namespace(x).sign(x)


def amax(x: Array) -> Array:
    """Return the largest entry of each row, ``[n, 1]``."""
    return _namespace(x).amax(x, -1)[:, None]


def nearest_whole(x: Array) -> Array:
    """Return the nearest whole number of each entry, halves to even."""
    return _namespace(x).round(x)


def is_among_largest(x: Array, k: int) -> Array:
    """Return which entries are the k largest of their row in size; of equals the first.

    >>> import numpy as np
    >>> is_among_largest(np.array([[1.0, -3.0, 1.0]]), 2)
    array([[ True,  True, False]])
    """
    namespace = _namespace(x)
    order = namespace.argsort(-abs(x), stable=True)
    return namespace.argsort(order) < k


def row_norm(x: Array) -> Array:
    """Return the Euclidean norm of each row, ``[n, 1]``; exact scaling avoids overflow of the squares.

    >>> import numpy as np
    >>> row_norm(np.array([[3e200, 4e200], [0.0, 0.0]]))
    array([[5.e+200],
           [0.e+000]])
    """
    _, norm, shrink = _shrunk(x)
    return norm / shrink


def clip_rows(x: Array, threshold: Array | float) -> Array:
    r"""Return ``x_i min(1, c/||x_i||)`` for each row i: its direction, with a norm of at most ``threshold``.

    The factor is 1 for a zero row and for an infinite threshold.

    >>> import numpy as np
    >>> clip_rows(np.array([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]]), 1.0)
    array([[0.6, 0.8], [0.3, 0.4], [0. , 0. ]])
    """
    small, norm, shrink = _shrunk(x)
    return small * (1 / maximum(norm / threshold, shrink))


def clip_factors(x: Array, threshold: Array | float) -> Array:
    """Return ``min(1, c/||x_i||)`` for each row, ``[n, 1]``: 1/max(1, ||x_i||/c), so 0 and inf are safe."""
    return 1 / maximum(row_norm(x) / threshold, 1.0)


def soft_clip_factors(x: Array, threshold: Array | float) -> Array:
    """Return ``c/(c + ||x_i||)`` for each row, ``[n, 1]``: 1/(1 + ||x_i||/c), so 0 and inf are safe.

    >>> import numpy as np
    >>> soft_clip_factors(np.array([[3.0, 4.0], [0.0, 0.0]]), 5.0)
    array([[0.5], [1. ]])
    """
    return 1 / (1 + row_norm(x) / threshold)


def normalize_rows(x: Array) -> Array:
    """Return ``x_i/||x_i||`` for each row, and zero for a zero row.

    >>> import numpy as np
    >>> normalize_rows(np.array([[3.0, 4.0], [0.0, 0.0]]))
    array([[0.6, 0.8], [0. , 0. ]])
    """
    small, norm, shrink = _shrunk(x)
    return small / where(norm > 0, norm, shrink)


def concat_columns(parts: Sequence[Array]) -> Array:
    """Return arrays ``[n, m_i]`` side by side, ``[n, sum m_i]``.

    >>> import numpy as np
    >>> concat_columns([np.ones((1, 2)), np.zeros((1, 1))])
    array([[1., 1., 0.]])
    """
    return parts[0] if len(parts) == 1 else _namespace(parts[0]).concat(list(parts), axis=1)


def split_columns(x: Array, shapes: Shapes) -> list[Array]:
    """Return the arrays of given shapes that rows ``[..., d]`` hold one after another.

    >>> import numpy as np
    >>> [part.shape for part in split_columns(np.zeros((3, 7)), ((2, 3), ()))]
    [(3, 2, 3), (3,)]
    """
    parts, first = [], 0
    for shape in shapes:
        last = first + math.prod(shape)
        parts.append(x[..., first:last].reshape((*x.shape[:-1], *shape)))
        first = last
    return parts


def polar_factor(x: Array) -> Array:
    """Return ``U V^T`` of the singular value decomposition ``U S V^T`` of each matrix ``[n, a, b]``.

    Singular values that are zero, or would be without rounding, count as zero.

    >>> import numpy as np
    >>> (polar_factor(np.array([[[3.0, 0.0], [4.0, 5.0]]])) * 5**0.5).round(12)
    array([[[ 2., -1.],
            [ 1.,  2.]]])
    """
    left, values, right = _namespace(x).linalg.svd(x, full_matrices=False)
    rounding = max(x.shape[-2:]) * precision(x) * values[:, :1]
    return (left * where(values > rounding, 0 * values + 1, 0.0)[:, None, :]) @ right


def newton_schulz(x: Array, iterations: int) -> Array:
    """Return about the polar factor of each matrix ``[n, a, b]``, by products of matrices alone.

    The coefficients are those of Muon, which bring singular values near one quickly, to between 0.7 and 1.2.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    is_tall = x.shape[-2] > x.shape[-1]
    x = x.swapaxes(-1, -2) if is_tall else x
    x = normalize_rows(x.reshape(len(x), -1)).reshape(x.shape)
    for _ in range(iterations):
        square = x @ x.swapaxes(-1, -2)
        x = a * x + (b * square + c * (square @ square)) @ x
    return x.swapaxes(-1, -2) if is_tall else x


def shrinkage(largest: Array) -> Array:
    """Return 1 for a largest entry up to 2^64, and 2^-64 beyond, where float32 cannot hold norms or their inverses.

    Multiplying by a power of two changes no digit.
    """
    ones = _namespace(largest).ones_like(largest)
    return where(largest > 2.0**64, 2.0**-64 * ones, ones)


def _shrunk(x: Array) -> tuple[Array, Array, Array]:
    """Return the rows times their shrinkage, the norms of these, and the shrinkage."""
    largest = amax(abs(x))
    shrink = shrinkage(largest)
    small, scale = x * shrink, where(largest > 0, largest * shrink, shrink)
    return small, scale * ((small / scale) ** 2).sum(-1)[:, None] ** 0.5, shrink


def _namespace(x: Array) -> Any:
    # torch arrays have no __array_namespace__; whoever holds one has imported torch.
    return x.__array_namespace__() if hasattr(x, "__array_namespace__") else sys.modules["torch"]
