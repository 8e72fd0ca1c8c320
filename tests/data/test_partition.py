import warnings

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from digrad.data import Partition, partition
from digrad.errors import ArgumentError, DataError

SCHEMES = [
    ("iid", {}),
    ("stratified", {}),
    ("sorted", {}),
    ("shards", {"shards_per_agent": 2}),
    ("dirichlet", {"alpha": 0.5}),
]
schemes = pytest.mark.parametrize(("scheme", "options"), SCHEMES)
TEN_CLASSES = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 200))


@schemes
@given(
    labels=st.lists(st.integers(0, 4), min_size=1, max_size=60),
    agents=st.integers(1, 8),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_partition_is_disjoint_complete_and_deterministic(scheme, options, labels, agents, seed):
    assume(agents * options.get("shards_per_agent", 1) <= len(labels))
    try:
        parts = partition(labels, agents, scheme=scheme, seed=seed, **options)
    except DataError:
        assume(scheme != "dirichlet")  # too few samples for its draws; any other scheme has to succeed
        raise
    again = partition(labels, agents, scheme=scheme, seed=seed, **options)
    assert sorted(np.concatenate(parts.indices).tolist()) == list(range(len(labels)))
    assert parts.n_agents == agents
    assert parts.sizes.min() >= 1
    assert parts.scheme == scheme
    assert all(np.array_equal(a, b) for a, b in zip(parts.indices, again.indices, strict=True))


@schemes
def test_partition_among_one_agent_is_the_identity(scheme, options):
    parts = partition(TEN_CLASSES, 1, scheme=scheme, **options)
    np.testing.assert_array_equal(parts.indices[0], np.arange(2000))


@pytest.mark.parametrize(("scheme", "options"), [row for row in SCHEMES if row[0] != "sorted"])
def test_partition_changes_with_the_seed_of_a_random_scheme(scheme, options):
    first, second = (partition(TEN_CLASSES, 4, scheme=scheme, seed=seed, **options) for seed in (0, 1))
    assert any(a.tolist() != b.tolist() for a, b in zip(first.indices, second.indices, strict=True))


@pytest.mark.parametrize("scheme", ["iid", "stratified", "sorted"])
def test_partition_sizes_differ_by_at_most_one(scheme):
    assert np.ptp(partition(TEN_CLASSES[:1999], 7, scheme=scheme).sizes) == 1


@given(labels=st.lists(st.integers(0, 3), min_size=6, max_size=60), agents=st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_stratified_counts_of_each_label_differ_by_at_most_one(labels, agents):
    counts = partition(labels, agents, scheme="stratified").label_counts(labels)
    assert np.ptp(counts, axis=0).max() <= 1


def test_sorted_gives_consecutive_labels_in_the_order_of_the_samples():
    parts = partition([1, 0, 2, 1, 0, 2], 3, scheme="sorted")
    assert [part.tolist() for part in parts.indices] == [[1, 4], [0, 3], [2, 5]]


def test_sorted_is_the_default():
    assert partition([0, 1], 2).scheme == "sorted"


def test_shards_gives_each_agent_at_most_as_many_labels_as_shards():
    parts = partition(TEN_CLASSES, 10, scheme="shards", shards_per_agent=2)
    assert ((parts.label_counts(TEN_CLASSES) > 0).sum(axis=1) <= 2).all()
    assert (parts.sizes == 200).all()


def test_shards_deals_two_by_default():
    default, two = (partition(TEN_CLASSES, 5, scheme="shards", **o) for o in ({}, {"shards_per_agent": 2}))
    assert all(np.array_equal(a, b) for a, b in zip(default.indices, two.indices, strict=True))


def test_shards_rejects_more_shards_than_samples():
    with pytest.raises(DataError, match="10 samples cannot be cut into 4 x 3 shards"):
        partition(np.arange(10), 4, scheme="shards", shards_per_agent=3)


def test_dirichlet_with_large_alpha_is_uniform():
    labels = np.repeat(np.arange(10), 5000)
    counts = partition(labels, 5, scheme="dirichlet", alpha=1e6).label_counts(labels)
    np.testing.assert_allclose(counts, 1000, rtol=0.02)


def test_dirichlet_with_small_alpha_gives_each_class_to_one_agent():
    counts = partition(TEN_CLASSES, 3, scheme="dirichlet", alpha=1e-3).label_counts(TEN_CLASSES)
    assert (counts.max(axis=0) >= 0.95 * 200).sum() >= 9


def test_dirichlet_keeps_min_size():
    parts = partition(TEN_CLASSES, 5, scheme="dirichlet", alpha=0.3, min_size=150)
    assert parts.sizes.min() >= 150


def test_dirichlet_says_to_raise_alpha_when_no_draw_serves_every_agent():
    with pytest.raises(DataError, match=r"`alpha` = 0\.001 .* Raise alpha"):
        partition([0, 1] * 50, 20, scheme="dirichlet", alpha=1e-3)


def test_partition_rejects_more_agents_than_samples():
    with pytest.raises(DataError, match="3 samples cannot give 4 agents 1 or more"):
        partition([0, 1, 0], 4, scheme="iid")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scheme": "sortd"}, "Did you mean `sorted`"),
        ({"scheme": "dirichlet"}, "`alpha` of partition must be given"),
        ({"scheme": "dirichlet"}, r'dg.data.partition\(labels, n, scheme="dirichlet", alpha=0.5\)'),
        ({"scheme": "dirichlet"}, r'in a spec partition = \{scheme = "dirichlet", alpha = 0.5\}'),
        ({"scheme": "dirichlet", "alpha": 0.0}, "`alpha` of partition must be positive"),
        ({"scheme": "iid", "alpha": 0.5}, "`alpha` of partition is for scheme 'dirichlet'"),
        ({"scheme": "iid", "shards_per_agent": 2}, "`shards_per_agent` of partition is for scheme 'shards'"),
        ({"scheme": "shards", "shards_per_agent": 0}, "`shards_per_agent` of partition"),
        ({"seed": -1}, "`seed` of partition"),
        ({"seed": 2**64}, "`seed` of partition"),
        ({"min_size": 0}, "`min_size` of partition"),
        ({"agents": 0}, "`agents` of partition"),
    ],
)
def test_partition_rejects_bad_arguments(options, message):
    with pytest.raises(ArgumentError, match=message):
        partition([0, 1, 0, 1], **{"agents": 2, **options})


@pytest.mark.parametrize("labels", [[], [[0, 1]], [0.0, float("nan")]])
def test_partition_rejects_labels_it_cannot_sort(labels):
    with pytest.raises(DataError, match="`labels` of partition"):
        partition(labels, 1)


def test_partition_accepts_text_labels():
    assert partition(["b", "a", "b", "a"], 2).indices[0].tolist() == [1, 3]


@pytest.mark.parametrize("indices", [([0, 1], [1]), ([0], [2]), ([0, -1],)])
def test_custom_partition_must_hold_each_sample_once(indices):
    with pytest.raises(DataError, match="missing or repeated"):
        Partition(indices)


@pytest.mark.parametrize(("indices", "who"), [(([0], []), "agent 1 has none"), ((), "no agents")])
def test_custom_partition_must_serve_every_agent(indices, who):
    with pytest.raises(DataError, match=who):
        Partition(indices)


def test_label_counts_is_a_table_of_agents_by_labels():
    parts = Partition(([0, 2, 3], [1]))
    assert parts.label_counts([5, 7, 7, 5]).tolist() == [[2, 1], [0, 1]]


def test_label_counts_rejects_labels_of_other_data():
    with pytest.raises(DataError, match="must have the 2 samples"):
        Partition(([0], [1])).label_counts([0, 1, 2])


def test_total_variation_is_zero_for_equal_mixtures_and_the_hand_value_otherwise():
    labels = [0, 1, 0, 1]
    assert partition(labels, 2, scheme="stratified").total_variation(labels) == 0
    # overall (3/4, 1/4); agents (1, 0) and (1/2, 1/2): distances 1/4 and 1/4
    assert Partition(([0, 1], [2, 3])).total_variation([0, 0, 0, 1]) == 0.25


def test_total_variation_orders_the_schemes():
    tv = {
        name: partition(TEN_CLASSES, 5, scheme=name, **options).total_variation(TEN_CLASSES)
        for name, options in SCHEMES
    }
    assert tv["stratified"] < tv["iid"] < tv["dirichlet"] < tv["sorted"]


def test_describe_shows_the_first_of_many_agents():
    labels = np.arange(50) % 2
    lines = partition(labels, 25, scheme="iid").describe(labels).splitlines()
    assert lines[0].startswith("iid: 50 samples, 25 agents of 2 to 2, total variation 0.")
    assert len(lines) == 23
    assert lines[-1] == "... and 5 more agents"


def test_partition_of_many_agents_is_quick_and_complete():
    parts = partition(np.arange(40_000) % 2, 20_000, scheme="stratified")
    assert parts.sizes.tolist() == [2] * 20_000


def test_a_division_that_leaves_an_agent_one_sample_says_so():
    labels = np.arange(200) % 4
    seed = next(seed for seed in range(200) if _sizes_of_dirichlet(labels, seed=seed).min() == 1)
    with pytest.warns(UserWarning, match="a single sample") as caught:
        parts = partition(labels, 10, scheme="dirichlet", alpha=0.1, seed=seed)
    assert f"agent {int(np.argmin(parts.sizes))} " in str(caught[0].message)
    partition(labels, 10, scheme="dirichlet", alpha=0.1, seed=seed, min_size=2)
    partition(np.arange(5), 5, scheme="iid")


def _sizes_of_dirichlet(labels, *, seed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return partition(labels, 10, scheme="dirichlet", alpha=0.1, seed=seed).sizes
