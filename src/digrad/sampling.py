"""Samples that each agent uses at each step: a pure function of (seed, step), made on the host.

Philox is a counter: the numbers of step k start at a known position, so that any step can be regenerated
without replaying the ones before it, whatever the chunk length, and every engine draws the same samples.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

# Independent streams of one seed: the second word of the Philox key.
SAMPLES, STARTS, PERMUTATIONS, EDGES, AUGMENTATIONS, HELD_OUT = 1, 2, 3, 9, 10, 11
LOSS, DELAY, AWAKE, COMPRESSOR, NOISE, COMPUTING, SENDING, GRADIENT_NOISE = 4, 5, 6, 7, 8, 12, 13, 14
POISSON, PRIVACY = 15, 16
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
        raw = _words(self.seed, SAMPLES, first, length, len(self.sizes) * self.batch_size)
        drawn = raw.reshape(length, len(self.sizes), self.batch_size)
        drawn >>= np.uint64(32)  # in place: a call on a large network draws some hundred megabytes
        drawn *= np.array(self.sizes, np.uint64)[:, None]
        drawn >>= np.uint64(32)  # multiply-shift instead of a slow modulo
        return drawn.astype(np.int32)


@dataclass(frozen=True, eq=False)
class EpochPermutations:
    """Each agent walks through a fresh permutation of its samples per epoch; incomplete batches are left out.

    A permutation sorts pseudo-random keys, each a hash of (seed, epoch, agent, sample), so that those of all agents are
    made at once, whatever their epochs.
    """

    sizes: tuple[int, ...]
    batch_size: int
    seed: int
    _epochs: npt.NDArray[np.int64] = field(init=False, repr=False)  # [n] of which the permutations are kept
    _current: npt.NDArray[np.int32] = field(init=False, repr=False)  # [n, largest size]

    def __post_init__(self) -> None:
        n = len(self.sizes)
        object.__setattr__(self, "_epochs", np.full(n, -1, np.int64))
        object.__setattr__(self, "_current", np.zeros((n, max(self.sizes)), np.int32))

    def batches(self, first: int, length: int) -> npt.NDArray[np.int32]:
        """Return the sample indices of steps first, ..., first + length - 1, ``[length, n, batch]``."""
        per_epoch = np.array(self.sizes) // self.batch_size
        agents, within = np.arange(len(self.sizes))[:, None], np.arange(self.batch_size)
        table = np.empty((length, len(self.sizes), self.batch_size), np.int32)
        for row in range(length):
            epoch, slot = np.divmod(first + row, per_epoch)
            self._permute(np.flatnonzero(epoch != self._epochs), epoch)
            table[row] = self._current[agents, slot[:, None] * self.batch_size + within]
        return table

    def _permute(self, agents: npt.NDArray[np.int64], epoch: npt.NDArray[np.int64]) -> None:
        """Replace the permutations of some agents by those of their epochs."""
        if not agents.size:
            return
        sample = np.arange(self._current.shape[1], dtype=np.uint64)
        keys = _hashed(np.uint64(self.seed) + _hashed(np.uint64(PERMUTATIONS)))
        keys = _hashed(_hashed(keys + epoch[agents].astype(np.uint64)) + agents.astype(np.uint64))
        keys = _hashed(keys[:, None] + sample)  # [agents, largest size]
        keys[sample >= np.array(self.sizes, np.uint64)[agents, None]] = np.iinfo(np.uint64).max
        self._current[agents] = np.argsort(keys, axis=1, kind="stable")
        self._epochs[agents] = epoch[agents]


@dataclass(frozen=True, eq=False)
class PoissonSamples:
    """Every sample with probability ``rate``, independently: what privacy by sampling is proven for.

    Steps have different numbers of samples; the places that are left are -1. A step has room for so many that more are
    drawn with probability 1e-15, and then left out.

    >>> sampler = PoissonSamples(sizes=(10, 3), rate=0.5, seed=0)
    >>> bool((sampler.batches(0, 8)[5] == sampler.batches(5, 1)[0]).all())
    True
    """

    sizes: tuple[int, ...]
    rate: float
    seed: int

    @property
    def batch_size(self) -> int:
        """The samples that a step has room for, per agent."""
        from scipy.stats import binom

        return max(1, min(max(self.sizes), int(binom.isf(1e-15, max(self.sizes), self.rate)) + 1))

    def batches(self, first: int, length: int) -> npt.NDArray[np.int32]:
        """Return the sample indices of steps first, ..., first + length - 1, ``[length, n, batch]``, -1 for none."""
        n, m, room = len(self.sizes), max(self.sizes), self.batch_size
        is_own = np.arange(m) < np.array(self.sizes)[:, None]  # [n, m]
        table = np.full((length, n, room), -1, np.int32)
        for row in range(length):  # of many samples, so that one step at a time is enough
            drawn = is_own & (uniforms(self.seed, POISSON, first + row, 1, n * m).reshape(n, m) < self.rate)
            agent, sample = np.nonzero(drawn)
            place = np.arange(len(agent)) - np.repeat(np.cumsum(drawn.sum(1)) - drawn.sum(1), drawn.sum(1))
            fits = place < room
            table[row, agent[fits], place[fits]] = sample[fits]
        return table


def _hashed(words: npt.NDArray[np.uint64] | np.uint64) -> npt.NDArray[np.uint64]:
    """Return the words scrambled by the finalizer of SplitMix64 (Steele, Lea and Flood, 2014)."""
    z = np.atleast_1d(words) + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def normal_start(n: int, d: int, seed: int) -> npt.NDArray[np.float64]:
    """Return a standard normal start for every agent, ``[n, d]``."""
    return np.random.Generator(np.random.Philox(key=[seed, STARTS])).standard_normal((n, d))


def seed_of_run(seed: int, run: int) -> int:
    """Return the seed of a source of randomness in the run with seed ``run``; as given in the run with seed 0.

    >>> seed_of_run(7, 0), seed_of_run(7, 1) == seed_of_run(7, 2)
    (7, False)
    """
    if run == 0:
        return seed
    return int(_hashed(_hashed(np.uint64(seed)) + np.uint64(run))[0] >> np.uint64(11))


def uniforms(seed: int, stream: int, first: int, length: int, numbers: int) -> npt.NDArray[np.float64]:
    """Return ``numbers`` uniform numbers in [0, 1) for each of the steps first, ..., ``[length, numbers]``.

    >>> bool((uniforms(0, EDGES, 0, 8, 7)[5] == uniforms(0, EDGES, 5, 1, 7)[0]).all())
    True
    """
    raw = _words(seed, stream, first, length, numbers)
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _words(seed: int, stream: int, first: int, length: int, numbers: int) -> npt.NDArray[np.uint64]:
    """Return ``numbers`` words of 64 bits for each of the steps first, ..., ``[length, numbers]``."""
    counters = -(-numbers // WORDS)
    generator = np.random.Philox(key=[seed, stream]).advance(first * counters)
    return generator.random_raw(length * counters * WORDS).reshape(length, -1)[:, :numbers]
