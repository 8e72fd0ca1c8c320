import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import coo_array, csr_array

from digrad.errors import ArgumentError, GraphError
from digrad.graphs import Digraph, example5, from_adjacency, from_edges, from_networkx, ring


@st.composite
def digraphs(draw: st.DrawFn) -> Digraph:
    n = draw(st.integers(1, 7))
    pairs = [(sender, receiver) for sender in range(n) for receiver in range(n) if sender != receiver]
    return from_edges(n, draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else [])


def test_edges_are_sorted_by_receiver_then_sender_whatever_the_order_given():
    graph = from_edges(4, [(3, 2), (2, 0), (0, 2), (1, 0)])
    assert graph.edges == ((1, 0), (2, 0), (0, 2), (3, 2))
    assert graph.edge_array.dtype == np.int64


def test_neighbours_and_degrees_leave_out_the_agent_itself():
    graph = example5()
    assert graph.n_edges == 7
    assert graph.in_neighbors(2).tolist() == [0, 1]
    assert graph.out_neighbors(1).tolist() == [2, 4]
    assert graph.in_degree.tolist() == [1, 1, 2, 1, 2]
    assert graph.out_degree.tolist() == [2, 2, 1, 1, 1]


def test_graphs_are_equal_and_hash_alike_exactly_when_agents_and_edges_agree():
    graph = from_edges(3, [(0, 1), (1, 2)])
    same = from_edges(3, [(1, 2), (0, 1)])
    assert graph == same
    assert hash(graph) == hash(same)
    assert graph.content_hash == same.content_hash
    assert len({graph, same, from_edges(4, [(0, 1), (1, 2)]), from_edges(3, [(0, 1)])}) == 3
    assert graph != "graph"


def test_content_hash_is_the_same_on_every_machine():
    assert ring(3).content_hash == "2bdf6ae950ae3534b47ea897747aeb14a84c8d6d1e0b20ac965cf38226097cf0"


def test_edges_cannot_be_changed_and_do_not_share_memory_with_the_input():
    given_edges = np.array([(0, 1), (1, 0)])
    graph = from_edges(2, given_edges)
    with pytest.raises(ValueError, match="read-only"):
        graph.edge_array[0, 0] = 1
    given_edges[0] = (7, 7)
    assert graph.edges == ((1, 0), (0, 1))


def test_a_generator_of_edges_is_accepted():
    assert from_edges(3, ((i, i + 1) for i in range(2))).n_edges == 2


@pytest.mark.parametrize(
    ("n", "edges", "message"),
    [
        (
            3,
            [(0, 1), (1, 3)],
            r"edge \(1, 3\) names an agent that does not exist; with n=3 agents are 0 to 2",
        ),
        (3, [(-1, 0)], r"edge \(-1, 0\) names an agent"),
        (3, [(0, 1), (2, 2)], r"edge \(2, 2\) is a self loop; self loops are implicit"),
        (3, [(0, 1), (1, 2), (0, 1)], r"edge \(0, 1\) is listed more than once"),
        (
            3,
            [(0, 1, 0.5)],
            r"pairs \(sender, receiver\) of whole numbers, but got float64 values of shape \(1, 3\)",
        ),
        (3, [(0.0, 1.0)], r"whole numbers, but got float64"),
        (3, [(0, 1), (2,)], r"must be pairs"),
        (3, ["ab"], r"must be pairs"),
        (3, [(True, False)], r"got bool"),
    ],
)
def test_a_bad_edge_is_rejected_with_its_name(n, edges, message):
    with pytest.raises(GraphError, match=message):
        from_edges(n, edges)


@pytest.mark.parametrize("n", [0, -2, 2.5, "3", True, None])
def test_a_bad_number_of_agents_is_rejected(n):
    with pytest.raises(ArgumentError, match="`n` of Digraph must be a whole number of at least 1"):
        from_edges(n, [])


@pytest.mark.parametrize("agent", [-1, 3, 1.5])
def test_neighbours_of_an_agent_that_does_not_exist_are_an_error(agent):
    with pytest.raises(ArgumentError, match=r"`agent` of Digraph\.in_neighbors must be"):
        ring(3).in_neighbors(agent)


@pytest.mark.parametrize("permutation", [[0, 1], [0, 0, 1], [1, 2, 3]])
def test_relabelling_needs_a_permutation(permutation):
    with pytest.raises(ArgumentError, match="each of 0 to 2 once"):
        ring(3).relabeled(permutation)


@settings(deadline=None)
@given(digraphs())
def test_reversing_twice_gives_the_graph_back(graph):
    assert graph.reversed().reversed() == graph
    assert graph.reversed().in_degree.tolist() == graph.out_degree.tolist()


@settings(deadline=None)
@given(digraphs())
def test_symmetrized_adds_exactly_the_missing_reverse_edges(graph):
    expected = set(graph.edges) | {(receiver, sender) for sender, receiver in graph.edges}
    assert set(graph.symmetrized().edges) == expected


@settings(deadline=None)
@given(digraphs(), st.randoms(use_true_random=False))
def test_relabelling_renames_every_edge_and_is_undone_by_its_inverse(graph, random):
    names = list(range(graph.n))
    random.shuffle(names)
    renamed = graph.relabeled(names)
    assert set(renamed.edges) == {(names[sender], names[receiver]) for sender, receiver in graph.edges}
    assert renamed.relabeled(np.argsort(names)) == graph


@settings(deadline=None)
@given(digraphs())
def test_networkx_round_trip_keeps_the_graph(graph):
    assert from_networkx(graph.to_networkx()) == graph


@settings(deadline=None)
@given(digraphs())
def test_adjacency_round_trip_keeps_the_graph_and_has_no_diagonal(graph):
    adjacency = graph.to_adjacency()
    assert adjacency.diagonal().sum() == 0
    assert from_adjacency(adjacency) == graph
    assert from_adjacency(adjacency.toarray() + np.eye(graph.n)) == graph


def test_adjacency_row_is_receiver_and_column_is_sender():
    adjacency = from_edges(3, [(0, 2)]).to_adjacency().toarray()
    assert np.argwhere(adjacency).tolist() == [[2, 0]]


def test_adjacency_ignores_stored_zeros_and_leaves_its_input_alone():
    given_matrix = coo_array(([1.0, 1.0, 0.0], ([0, 0, 1], [1, 1, 0])), shape=(2, 2))
    assert from_adjacency(given_matrix).edges == ((1, 0),)
    assert given_matrix.nnz == 3


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.ones((2, 3)), r"square and not empty, but got shape \(2, 3\)"),
        (np.ones(4), r"must be square, but got shape \(4,\)"),
        (np.empty((0, 0)), "not empty"),
        (csr_array(np.ones((1, 2))), r"shape \(1, 2\)"),
        ([[0, np.nan], [1, 0]], r"has nan at \[0, 1\]"),
        ([[0, 1], [1]], "square array of numbers"),
    ],
)
def test_a_bad_adjacency_matrix_is_rejected(matrix, message):
    with pytest.raises(GraphError, match=message):
        from_adjacency(matrix)


def test_networkx_nodes_0_to_n_keep_their_names_in_any_order():
    graph = networkx.DiGraph()
    graph.add_nodes_from([2, 0, 1])
    graph.add_edge(2, 0)
    assert from_networkx(graph).edges == ((2, 0),)


def test_networkx_nodes_with_other_names_are_numbered_in_order():
    assert from_networkx(networkx.DiGraph([("b", "a"), ("a", "c")])).edges == ((0, 1), (1, 2))


def test_networkx_undirected_edges_go_both_ways_and_self_loops_are_dropped():
    assert from_networkx(networkx.Graph([(0, 1), (1, 1)])).edges == ((1, 0), (0, 1))


def test_networkx_multigraphs_and_empty_graphs_are_rejected():
    with pytest.raises(GraphError, match="multigraph; convert it with"):
        from_networkx(networkx.MultiDiGraph([(0, 1), (0, 1)]))
    with pytest.raises(GraphError, match="has no nodes"):
        from_networkx(networkx.DiGraph())


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: from_networkx(3),
            "`graph` of from_networkx must be a networkx graph, but got int; use from_edges",
        ),
        (lambda: from_edges(3, None), "`edges` of from_edges must be a list of pairs .*, but got None"),
        (lambda: from_edges(3, 7), "`edges` of from_edges must be a list of pairs .*, but got 7"),
    ],
)
def test_something_that_is_no_graph_is_rejected_in_one_line(build, message):
    with pytest.raises(GraphError, match=message) as caught:
        build()
    assert "\n" not in str(caught.value)
