"""Digraphs that change with the iteration."""

import numpy as np
import pytest

from digrad import graphs
from digrad.errors import ArgumentError, GraphError

EXAMPLE = graphs.example5()


def test_a_sequence_repeats_its_graphs():
    first, second = graphs.ring(4), graphs.from_edges(4, [(0, 2)])
    changing = graphs.sequence([first, second])
    assert [changing.at(k) for k in range(4)] == [first, second, first, second]
    assert set(changing.union.edges) == {*first.edges, *second.edges}
    assert changing.period == 2


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_split_deals_every_edge_out_once(parts):
    changing = graphs.split(EXAMPLE, parts)
    dealt = [edge for k in range(parts) for edge in changing.at(k).edges]
    assert sorted(dealt) == sorted(EXAMPLE.edges)
    assert changing.at(0).edges == EXAMPLE.edges[::parts]


@pytest.mark.parametrize("n", [1, 2, 3, 8, 11])
def test_one_peer_exponential_sends_to_one_peer_at_a_time(n):
    changing = graphs.one_peer_exponential(n)
    assert changing.union == graphs.exponential(n)
    for k in range(changing.period):
        for agent in range(n):
            peers = changing.at(k).out_neighbors(agent).tolist()
            assert peers == ([] if n == 1 else [(agent + 2**k) % n])


@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_one_period_of_one_peer_exponential_averages_exactly(n):
    changing = graphs.one_peer_exponential(n)
    product = np.eye(n)
    for k in range(changing.period):
        product = (np.eye(n) + changing.at(k).to_adjacency().toarray()) / 2 @ product
    np.testing.assert_allclose(product, 1 / n, rtol=0, atol=1e-15)


def test_random_edges_depend_on_seed_and_iteration_alone():
    thinned = graphs.random_edges(graphs.complete(30), 0.3, seed=5)
    table = thinned.presence(0, 50)
    np.testing.assert_array_equal(table[17:23], thinned.presence(17, 6))
    assert abs(table.mean() - 0.3) < 0.01
    assert (graphs.random_edges(graphs.complete(30), 0.3, seed=6).presence(0, 50) != table).any()


def test_local_steps_are_silent_and_advance_a_sequence_by_one_each_time():
    changing = graphs.one_peer_exponential(8)
    slow = graphs.every(3, changing)
    assert slow.period == 9
    assert [slow.at(3 * j) for j in range(5)] == [changing.at(j) for j in range(5)]
    assert all(slow.at(k).n_edges == 0 for k in (1, 2, 4, 5, 7))
    thinned = graphs.random_edges(EXAMPLE, 0.5, seed=1)
    assert [graphs.every(2, thinned).at(2 * j) for j in range(6)] == [thinned.at(j) for j in range(6)]
    assert graphs.every(2, graphs.every(3, EXAMPLE)).content_hash == graphs.every(6, EXAMPLE).content_hash


def test_content_hash_tells_sequences_apart():
    several = [
        graphs.split(EXAMPLE, 2),
        graphs.split(EXAMPLE, 3),
        graphs.every(2, EXAMPLE),
        graphs.random_edges(EXAMPLE, 0.5),
        graphs.random_edges(EXAMPLE, 0.6),
        graphs.random_edges(EXAMPLE, 0.5, seed=1),
    ]
    assert len({one.content_hash for one in several}) == len(several)


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: graphs.sequence([]), ArgumentError, "must be a list of digraphs"),
        (lambda: graphs.sequence(3), ArgumentError, "must be a list of digraphs, but got 3"),
        (
            lambda: graphs.sequence([graphs.ring(3), graphs.ring(4)]),
            GraphError,
            r"same agents, but have \[3, 4\]",
        ),
        (lambda: graphs.split(EXAMPLE, 0), ArgumentError, "`parts` of split"),
        (
            lambda: graphs.split(graphs.split(EXAMPLE, 2), 2),
            ArgumentError,
            "`graph` of split must be a Digraph",
        ),
        (lambda: graphs.random_edges(EXAMPLE, 1.5), ArgumentError, "at most 1, but got 1.5"),
        (
            lambda: graphs.random_edges(EXAMPLE, 0.5, seed=2**64),
            ArgumentError,
            "`seed` of random_edges must be at most 9223372036854775807",
        ),
        (lambda: graphs.random_edges(EXAMPLE, 0.0), ArgumentError, "`p` of random_edges must be positive"),
        (lambda: graphs.every(0, EXAMPLE), ArgumentError, "`steps` of every"),
        (lambda: graphs.every(2, 5), ArgumentError, "`graph` of every must be a Digraph"),
    ],
)
def test_bad_arguments_are_one_clear_line(build, error, message):
    with pytest.raises(error, match=message):
        build()
