"""CGT on logistic regression in eager torch, stacked over agents: what a torch user would write without digrad."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.numpy_loop import NumpyLogistic


def torch_run(
    reference: NumpyLogistic,
    x0: npt.NDArray[Any],
    matrices: tuple[npt.NDArray[Any], npt.NDArray[Any]],
    batches: npt.NDArray[np.int32],
    *,
    step_size: float,
    threshold: float,
) -> Callable[[], npt.NDArray[Any]] | None:
    """Return a function that runs the steps of all ``batches`` and returns x; None if torch is not installed."""
    try:
        import torch
    except ImportError:
        return None
    torch.set_num_threads(1)
    rows, start, index = (torch.from_numpy(a) for a in (reference.rows, x0, batches.astype(np.int64)))
    R, C = (torch.from_numpy(matrix.astype(x0.dtype)) for matrix in matrices)
    slope, power = (torch.from_numpy(a)[:, None] for a in (reference.slope, reference.power))
    agent, scale = torch.arange(len(x0))[:, None], -1 / batches.shape[2]

    def run() -> npt.NDArray[Any]:
        x, y, g = start, torch.zeros_like(start), torch.zeros_like(start)
        for chosen in index:
            batch = rows[agent, chosen]
            residual = scale * torch.sigmoid(-torch.einsum("nbd,nd->nb", batch, x))
            grad = torch.einsum("nb,nbd->nd", residual, batch)
            grad += slope * (x * x).sum(1, keepdim=True) ** power * x
            y = C @ y + grad - g
            norm = y.norm(dim=1, keepdim=True)
            x, g = R @ x - step_size * y / (norm / threshold).clamp(min=1), grad
        return x.numpy()

    return run
