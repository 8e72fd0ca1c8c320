import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from digrad import graphs
from digrad.errors import ArgumentError
from digrad.graphs import GENERATORS, is_strongly_connected


def test_ring_sends_to_the_next_agent():
    assert graphs.ring(4).edges == ((3, 0), (0, 1), (1, 2), (2, 3))


def test_exponential_hears_powers_of_two_back():
    graph = graphs.exponential(6)
    assert graph.in_neighbors(0).tolist() == [2, 4, 5]
    assert set(graph.in_degree) == {3}


@pytest.mark.parametrize(("n", "degree"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4), (16, 4)])
def test_exponential_degree_is_log2_rounded_up(n, degree):
    assert set(graphs.exponential(n).in_degree) == {degree}


def test_stars_have_agent_0_at_the_centre():
    assert graphs.out_star(3).edges == ((0, 1), (0, 2))
    assert graphs.star(3).edges == ((1, 0), (2, 0), (0, 1), (0, 2))


def test_complete_has_every_ordered_pair():
    assert graphs.complete(4).n_edges == 12


def test_de_bruijn_without_natural_self_loops_has_2n_minus_2_edges():
    graph = graphs.de_bruijn(8)
    assert graph.n_edges == 14
    assert graph.out_neighbors(3).tolist() == [6, 7]
    assert graph.out_neighbors(7).tolist() == [6]


def test_de_bruijn_of_another_size_names_the_nearest_powers():
    with pytest.raises(ArgumentError, match="must be a power of two, but got 12; use 8 or 16"):
        graphs.de_bruijn(12)


def test_grid_links_neighbours_both_ways_and_torus_one_way_with_wrap_around():
    grid, torus = graphs.grid(2, 3), graphs.torus(2, 3)
    assert grid.n_edges == 14
    assert grid.out_neighbors(1).tolist() == [0, 2, 4]
    assert torus.out_neighbors(5).tolist() == [2, 3]
    assert set(torus.in_degree) == set(torus.out_degree) == {2}


def test_reference_digraphs_have_the_edges_of_the_paper():
    assert set(graphs.example5().edges) == {(0, 1), (1, 2), (2, 3), (3, 4), (4, 0), (0, 2), (1, 4)}
    assert set(graphs.triangle().edges) == {(0, 1), (1, 2), (2, 0), (0, 2)}


@pytest.mark.parametrize(
    "graph",
    [
        graphs.ring(1),
        graphs.complete(1),
        graphs.star(1),
        graphs.out_star(1),
        graphs.exponential(1),
        graphs.de_bruijn(1),
        graphs.grid(1, 1),
        graphs.torus(1, 1),
        graphs.random_digraph(1, 0.5, seed=0),
        graphs.k_out(1, 0, seed=0),
    ],
)
def test_one_agent_has_no_edges(graph):
    assert (graph.n, graph.n_edges) == (1, 0)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 30), st.floats(0, 1), st.integers(0, 2**32))
def test_random_digraph_is_strongly_connected_and_repeatable(n, p, seed):
    graph = graphs.random_digraph(n, p, seed=seed)
    assert is_strongly_connected(graph)
    assert graph == graphs.random_digraph(n, p, seed=seed)


def test_random_digraph_runs_from_a_cycle_to_the_complete_graph():
    assert graphs.random_digraph(9, 0.0, seed=1).n_edges == 9
    assert graphs.random_digraph(9, 1.0, seed=1) == graphs.complete(9)
    assert graphs.random_digraph(9, 5e-324, seed=1).n_edges == 9


def test_random_digraph_has_the_expected_number_of_edges():
    n, p = 200, 0.1
    trials = n * (n - 2)
    extra = graphs.random_digraph(n, p, seed=3).n_edges - n
    assert abs(extra - trials * p) < 5 * (trials * p * (1 - p)) ** 0.5


def test_random_digraph_draws_every_edge_equally_often():
    n, repeats = 5, 2000
    counts = sum(graphs.random_digraph(n, 0.4, seed=seed).to_adjacency().toarray() for seed in range(repeats))
    off_diagonal = counts[~np.eye(n, dtype=bool)] / repeats
    chance = 1 / (n - 1) + (1 - 1 / (n - 1)) * 0.4  # on the cycle, or drawn
    assert np.abs(off_diagonal - chance).max() < 5 * (chance * (1 - chance) / repeats) ** 0.5


@settings(max_examples=50, deadline=None)
@given(st.integers(2, 20), st.data(), st.integers(0, 2**32))
def test_k_out_gives_every_agent_k_receivers_and_is_strongly_connected(n, data, seed):
    k = data.draw(st.integers(1, n - 1))
    graph = graphs.k_out(n, k, seed=seed)
    assert set(graph.out_degree) == {k}
    assert is_strongly_connected(graph)


def test_different_seeds_give_different_graphs():
    assert graphs.random_digraph(20, 0.2, seed=0) != graphs.random_digraph(20, 0.2, seed=1)
    assert graphs.k_out(20, 3, seed=0) != graphs.k_out(20, 3, seed=1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: graphs.ring(0), "`n` of ring must be a whole number of at least 1, but got 0"),
        (lambda: graphs.star(2.5), "`n` of star"),
        (lambda: graphs.ring(10**11), "`n` of ring must be at most 10000000, but got 100000000000"),
        (lambda: graphs.torus(10**4, 10**4), r"`rows \* columns` of torus must be at most 10000000"),
        (lambda: graphs.from_edges(10**11, []), "`n` of Digraph must be at most 10000000"),
        (lambda: graphs.grid(2, 0), "`columns` of grid"),
        (
            lambda: graphs.random_digraph(5, 1.5, seed=0),
            "`p` of random_digraph must be a probability from 0 to 1",
        ),
        (lambda: graphs.random_digraph(5, float("nan"), seed=0), "`p` of random_digraph"),
        (lambda: graphs.random_digraph(5, 0.5, seed=-1), "`seed` of random_digraph"),
        (lambda: graphs.k_out(5, 5, seed=0), "`k` of k_out must be at most n - 1 = 4"),
        (lambda: graphs.k_out(5, 0, seed=0), "`k` of k_out must be a whole number of at least 1"),
    ],
)
def test_a_bad_size_probability_or_seed_is_rejected(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()


def test_the_table_names_every_generator():
    public = {
        name
        for name, value in vars(graphs.generators).items()
        if not name.startswith("_") and callable(value)
    }
    own = {
        name
        for name in public
        if getattr(vars(graphs.generators)[name], "__module__", "") == graphs.generators.__name__
    }
    assert set(GENERATORS) == own
    assert all(GENERATORS[name] is getattr(graphs, name) for name in GENERATORS)
