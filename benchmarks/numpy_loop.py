"""CGT on logistic regression in NumPy, stacked over agents: what a careful user would write without digrad.

Labels are folded into the samples, products are batched and buffers reused, as in digrad itself. Which layout is
fastest depends on the machine, so there are several; the benchmark compares digrad with the best of them.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from digrad.problems.logistic import Logistic

Array = npt.NDArray[Any]
Gradient = Callable[[Array, Array | None], Array]


class NumpyLogistic:
    """The gradients of a logistic problem at stacked x ``[n, d]``, in several layouts.

    Args:
        local: The problem's losses.
        dtype: float32 or float64.
    """

    def __init__(self, local: Logistic, dtype: npt.DTypeLike) -> None:
        n, m, d = local.n_agents, max(local.sizes), local.dim
        self.rows, self.weights = np.zeros((n, m, d), dtype), np.zeros((n, m), dtype)
        for i, (block, target) in enumerate(zip(local.features, local.targets, strict=True)):
            dense = block.toarray() if scipy.sparse.issparse(block) else block
            self.rows[i, : len(target)] = (2 * target - 1)[:, None] * dense
            self.weights[i, : len(target)] = 1 / len(target)
        self.columns = np.ascontiguousarray(self.rows.transpose(0, 2, 1))
        self._flat = self.rows.reshape(n * m, d)
        self._agent = np.arange(n)[:, None]
        self.slope = (local.reg_weight * local.reg_power).astype(dtype)
        self.power = (local.reg_power / 2 - 1).astype(dtype)
        self._batch = np.empty((n, 0, d), dtype)

    def minibatch_layouts(self) -> dict[str, Gradient]:
        """Return the gradients on samples ``index`` ``[n, batch]``, by layout."""
        return {"take+matmul": self._taken, "gather+matmul": self._gathered, "gather+einsum": self._summed}

    def minibatch_loop(self) -> Gradient:
        """Return the gradient on samples, computed for one agent after the other."""
        return self._each_gathered

    def full_layouts(self) -> dict[str, Gradient]:
        """Return the gradients on all samples, by layout."""
        return {
            "batched rows": self._all_rows,
            "batched columns": self._all_columns,
            "agent loop, rows": self._each_rows,
            "agent loop, columns": self._each_columns,
        }

    def _taken(self, x: Array, index: Array | None) -> Array:
        assert index is not None
        n, b = index.shape
        if self._batch.shape[1] != b:
            self._batch = np.empty((n, b, x.shape[1]), x.dtype)
        row = (index + self._agent * self.rows.shape[1]).reshape(-1)
        np.take(self._flat, row, axis=0, out=self._batch.reshape(n * b, -1), mode="clip")
        return self._by_matmul(self._batch, x)

    def _gathered(self, x: Array, index: Array | None) -> Array:
        return self._by_matmul(self.rows[self._agent, index], x)

    def _each_gathered(self, x: Array, index: Array | None) -> Array:
        assert index is not None
        grad = self._regulariser(x)
        for i, rows in enumerate(self.rows):
            batch = rows[index[i]]
            grad[i] += _residual(batch @ x[i], 1 / len(batch)) @ batch
        return grad

    def _summed(self, x: Array, index: Array | None) -> Array:
        batch = self.rows[self._agent, index]
        residual = _residual(np.einsum("nbd,nd->nb", batch, x), 1 / batch.shape[1])
        return np.einsum("nb,nbd->nd", residual, batch) + self._regulariser(x)

    def _by_matmul(self, batch: Array, x: Array) -> Array:
        residual = _residual(np.matmul(batch, x[:, :, None])[:, :, 0], 1 / batch.shape[1])
        return np.matmul(residual[:, None], batch)[:, 0] + self._regulariser(x)

    def _all_rows(self, x: Array, index: Array | None) -> Array:
        residual = _residual(np.matmul(self.rows, x[:, :, None])[:, :, 0], self.weights)
        return np.matmul(residual[:, None], self.rows)[:, 0] + self._regulariser(x)

    def _all_columns(self, x: Array, index: Array | None) -> Array:
        residual = _residual(np.matmul(x[:, None], self.columns)[:, 0], self.weights)
        return np.matmul(self.columns, residual[:, :, None])[:, :, 0] + self._regulariser(x)

    def _each_rows(self, x: Array, index: Array | None) -> Array:
        grad = self._regulariser(x)
        for i, block in enumerate(self.rows):
            grad[i] += _residual(block @ x[i], self.weights[i]) @ block
        return grad

    def _each_columns(self, x: Array, index: Array | None) -> Array:
        grad = self._regulariser(x)
        for i, block in enumerate(self.columns):
            grad[i] += block @ _residual(x[i] @ block, self.weights[i])
        return grad

    def _regulariser(self, x: Array) -> Array:
        return (self.slope * np.einsum("nd,nd->n", x, x) ** self.power)[:, None] * x


def run_cgt(
    gradient: Gradient,
    x0: Array,
    matrices: tuple[Array, Array],
    *,
    step_size: float,
    threshold: float,
    steps: int,
    batches: Array | None = None,
) -> Array:
    """Return x after ``steps`` steps of CGT.

    Args:
        gradient: A layout of :class:`NumpyLogistic`.
        x0: The start, ``[n, d]``, which fixes the dtype.
        matrices: R and C, ``[n, n]``.
        step_size: alpha.
        threshold: c0.
        steps: How many steps.
        batches: The samples of each step, ``[steps, n, batch]``; None for all samples.
    """
    R, C = (matrix.astype(x0.dtype) for matrix in matrices)
    x, y, g = x0, np.zeros_like(x0), np.zeros_like(x0)
    with np.errstate(over="ignore"):
        for k in range(steps):
            grad = gradient(x, None if batches is None else batches[k])
            y = C @ y
            y += grad
            y -= g
            norm = np.sqrt(np.einsum("nd,nd->n", y, y))
            x = R @ x
            x -= (step_size / np.maximum(norm / threshold, 1))[:, None] * y
            g = grad
    return x


def _residual(margin: Array, weight: Array | float) -> Array:
    """Return -weight/(1 + exp(margin)), overwriting ``margin``."""
    np.exp(margin, out=margin)
    margin += 1
    np.divide(-weight, margin, out=margin)
    return margin
