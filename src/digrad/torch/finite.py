"""Finding numbers that are none before they spread."""

import torch

from digrad.torch.engines.mixing import PIECE


def broken_rows(rows: torch.Tensor) -> list[int]:
    """Return the rows of ``[rows, width]`` that hold a number that is not finite, without copying them.

    >>> broken_rows(torch.tensor([[1.0, 2.0], [float("inf"), 0.0], [3e38, 3e38]]))
    [1]
    """
    if rows.sum(1).isfinite().all():  # one pass; a sum of finite numbers may overflow, so it is no proof
        return []
    return [i for i, row in enumerate(rows) if not all(part.isfinite().all() for part in row.split(PIECE))]
