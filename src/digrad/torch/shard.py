"""Samples of an agent: its part of the data, and the batch of every step."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from digrad import checks
from digrad.errors import ArgumentError
from digrad.sampling import EpochPermutations, WithReplacement


class Shard:
    """The samples of one agent, with the batches that the simulator draws for the same seed.

    A batch is a function of the step, so that a resumed run sees the samples it would have seen.

    Args:
        indices: For every agent the samples it owns, as :func:`digrad.data.partition` returns them.
        agent: This agent's number.
        batch_size: Samples per step.
        seed: Random seed of the batches.
        replacement: Draw with replacement, or walk through a fresh permutation per epoch.

    Raises:
        ArgumentError: There is no such agent, or it owns fewer samples than one batch without replacement.

    Example:
        >>> shard = Shard([np.arange(4), np.arange(4, 10)], agent=1, batch_size=2, seed=0)
        >>> bool((shard.batch(3) >= 4).all()), len(shard)
        (True, 6)
    """

    def __init__(
        self,
        indices: Sequence[npt.NDArray[np.integer]],
        *,
        agent: int,
        batch_size: int,
        seed: int = 0,
        replacement: bool = True,
    ) -> None:
        checks.count(batch_size, "batch_size", "Shard")
        if not 0 <= agent < len(indices):
            raise ArgumentError(f"`agent` of Shard must be 0 to {len(indices) - 1}, but got {agent!r}.")
        sizes = tuple(len(own) for own in indices)
        if min(sizes) < (1 if replacement else batch_size):
            raise ArgumentError(
                f"`indices` of Shard give an agent {min(sizes)} samples, too few for batches of {batch_size}; use "
                "a smaller batch or another partition."
            )
        sampler = WithReplacement if replacement else EpochPermutations
        self._own, self._agent = torch.as_tensor(np.asarray(indices[agent], np.int64)), agent
        self._sampler = sampler(sizes, batch_size, seed)

    def __len__(self) -> int:
        """Return how many samples the agent owns."""
        return len(self._own)

    def batch(self, k: int) -> torch.Tensor:
        """Return the samples of step k, ``[batch_size]``, as indices into the whole data set."""
        drawn = self._sampler.batches(k, 1)[0, self._agent]
        return self._own[torch.from_numpy(drawn.astype(np.int64))]
