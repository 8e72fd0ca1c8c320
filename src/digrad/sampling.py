"""Which samples each agent uses at each step: a pure function of (seed, step), made on the host.

Philox is a counter: the numbers of step k start at a known position, so that any step can be regenerated
without replaying the ones before it, whatever the chunk length, and every engine draws the same samples.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

# Independent streams of one seed: the second word of the Philox key.
SAMPLES, STARTS, PERMUTATIONS, ARCS, AUGMENTATIONS, HELD_OUT = 1, 2, 3, 9, 10, 11
WORDS = 4  # 64-bit numbers per Philox counter value


@dataclass(frozen=True, eq=False)
class WithReplacement:
    """``batch_size`` samples per agent and step, uniform and independent.

    >>> sampler = WithReplacement(sizes=(10, 3), batch_size=2, seed=0)
    >>> bool((sampler.batches(0, 8)[5] == sampler.batches(5, 1)[0]).all())
    True
    """

    sizes: tuple[int, ...]
    batch_size: int
    seed: int

    def batches(self, first: int, length: int) -> npt.NDArray[np.int32]:
        """Return the sample indices of steps first, ..., first + length - 1, ``[length, n, batch]``."""
        numbers = len(self.sizes) * self.batch_size
        counters = -(-numbers // WORDS)
        generator = np.random.Philox(key=[self.seed, SAMPLES]).advance(first * counters)
        raw = generator.random_raw(length * counters * WORDS).reshape(length, -1)[:, :numbers]
        high = (raw >> np.uint64(32)).reshape(length, len(self.sizes), self.batch_size)
        sizes = np.array(self.sizes, np.uint64)[:, None]
        return ((high * sizes) >> np.uint64(32)).astype(np.int32)  # multiply-shift instead of a slow modulo


@dataclass(frozen=True, eq=False)
class EpochPermutations:
    """Each agent walks through a fresh permutation of its samples per epoch; incomplete batches are left out."""

    sizes: tuple[int, ...]
    batch_size: int
    seed: int
    _current: dict[int, tuple[int, npt.NDArray[np.int32]]] = field(
        default_factory=dict, init=False, repr=False
    )

    def batches(self, first: int, length: int) -> npt.NDArray[np.int32]:
        """Return the sample indices of steps first, ..., first + length - 1, ``[length, n, batch]``."""
        table = np.empty((length, len(self.sizes), self.batch_size), np.int32)
        for agent, size in enumerate(self.sizes):
            for row, step in enumerate(range(first, first + length)):
                epoch, slot = divmod(step, size // self.batch_size)
                start = slot * self.batch_size
                table[row, agent] = self._permutation(agent, epoch)[start : start + self.batch_size]
        return table

    def _permutation(self, agent: int, epoch: int) -> npt.NDArray[np.int32]:
        if self._current.get(agent, (-1,))[0] != epoch:
            counter = np.array([0, epoch, agent, 0], np.uint64)
            generator = np.random.Generator(np.random.Philox(key=[self.seed, PERMUTATIONS], counter=counter))
            self._current[agent] = (epoch, generator.permutation(self.sizes[agent]).astype(np.int32))
        return self._current[agent][1]


def normal_start(n: int, d: int, seed: int) -> npt.NDArray[np.float64]:
    """Return a standard normal start for every agent, ``[n, d]``."""
    return np.random.Generator(np.random.Philox(key=[seed, STARTS])).standard_normal((n, d))


def uniforms(seed: int, stream: int, first: int, length: int, numbers: int) -> npt.NDArray[np.float64]:
    """Return ``numbers`` uniform numbers in [0, 1) for each of the steps first, ..., ``[length, numbers]``.

    >>> bool((uniforms(0, ARCS, 0, 8, 7)[5] == uniforms(0, ARCS, 5, 1, 7)[0]).all())
    True
    """
    counters = -(-numbers // WORDS)
    generator = np.random.Philox(key=[seed, stream]).advance(first * counters)
    raw = generator.random_raw(length * counters * WORDS).reshape(length, -1)[:, :numbers]
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
