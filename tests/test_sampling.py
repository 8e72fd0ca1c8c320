import time

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from digrad.sampling import EpochPermutations, WithReplacement, normal_start

sizes = st.lists(st.integers(1, 40), min_size=1, max_size=5).map(tuple)


@given(sizes, st.integers(1, 9), st.integers(0, 2**63 - 1), st.integers(0, 10**9), st.integers(1, 20))
def test_any_step_is_regenerated_without_replaying(sizes, batch, seed, first, length):
    sampler = WithReplacement(sizes, batch, seed)
    together = sampler.batches(first, length)
    apart = np.concatenate([sampler.batches(k, 1) for k in range(first, first + length)])
    np.testing.assert_array_equal(together, apart)
    assert (together >= 0).all()
    assert (together < np.array(sizes)[:, None]).all()


def test_samples_are_uniform_and_independent_between_agents():
    batches = WithReplacement((10, 10), 50, 1).batches(0, 2000)
    counts = np.bincount(batches[:, 0].ravel(), minlength=10)
    assert abs(counts / counts.sum() - 0.1).max() < 0.005  # five standard deviations of 100 000 draws
    assert abs(np.corrcoef(batches[:, 0].ravel(), batches[:, 1].ravel())[0, 1]) < 0.02


def test_an_epoch_visits_every_sample_once():
    sampler = EpochPermutations((6, 9), 3, 0)
    batches = sampler.batches(0, 6)
    assert sorted(batches[:2, 0].ravel()) == list(range(6))
    assert sorted(batches[2:4, 0].ravel()) == list(range(6))
    assert sorted(batches[:3, 1].ravel()) == list(range(9))
    assert batches[:2, 0].ravel().tolist() != batches[2:4, 0].ravel().tolist()
    np.testing.assert_array_equal(EpochPermutations((6, 9), 3, 0).batches(4, 2), batches[4:])


@given(sizes, st.integers(1, 9), st.integers(0, 2**63 - 1), st.integers(0, 10**6), st.integers(1, 20))
def test_any_step_of_an_epoch_is_regenerated_without_replaying(sizes, batch, seed, first, length):
    batch = min(batch, *sizes) if len(sizes) > 1 else min(batch, sizes[0])
    together = EpochPermutations(sizes, batch, seed).batches(first, length)
    apart = [EpochPermutations(sizes, batch, seed).batches(k, 1)[0] for k in range(first, first + length)]
    np.testing.assert_array_equal(together, apart)
    assert (together < np.array(sizes)[:, None]).all()


def test_permutations_are_uniform():
    batches = EpochPermutations((4,) * 6000, 4, 3).batches(0, 4)  # [epochs, agents, 4]
    orders = batches.reshape(-1, 4) @ np.array([64, 16, 4, 1])
    _, counts = np.unique(orders, return_counts=True)
    assert len(counts) == 24
    assert abs(counts / counts.sum() - 1 / 24).max() < 0.0065  # five standard deviations of 24 000 draws


def test_permutations_of_many_agents_take_no_loop_over_agents():
    began = time.process_time()
    EpochPermutations((20,) * 100_000, 5, 0).batches(0, 8)
    assert time.process_time() - began < 3  # 0.3; a generator per agent and epoch took 7


def test_seeds_give_different_starts_and_samples():
    assert not np.array_equal(normal_start(3, 4, 0), normal_start(3, 4, 1))
    first, second = (WithReplacement((1000,), 8, seed).batches(0, 1) for seed in (0, 1))
    assert not np.array_equal(first, second)
