import numpy as np
import pytest
from scipy.sparse import coo_array

from digrad import graphs
from digrad.errors import ArgumentError, MixingError
from digrad.network import column_stochastic, custom, row_stochastic

PATH = graphs.from_edges(3, [(0, 1), (1, 2)])


def changed(entries: dict[tuple[int, int], float], kind: str = "row") -> np.ndarray:
    build = row_stochastic if kind == "row" else column_stochastic
    matrix = build(graphs.example5()).toarray()
    for position, value in entries.items():
        matrix[position] = value
    return matrix


@pytest.mark.parametrize(
    ("matrix", "kind", "message"),
    [
        (np.ones((2, 3)), "row", r"`R`: must be square and not empty, but got shape \(2, 3\)"),
        (np.ones(3), "row", r"`R`: must be square and not empty, but got shape \(3,\)"),
        ([[1, "a"], [0, 1]], "column", r"`C`: must be a square matrix of real numbers"),
        ([[1, 2], [3]], "column", r"`C`: must be a square matrix of real numbers"),
        (np.eye(2) * 1j, "row", r"real numbers \(got complex"),
        (np.empty((0, 0)), "row", "not empty"),
        (np.eye(3), "row", r"`R`: has 3 rows, but the graph has 5 agents"),
        (
            changed({(2, 0): np.nan}),
            "row",
            r"weight that agent 2 gives to agent 0 is nan.*change entry \[2, 0\]",
        ),
        (changed({(2, 0): np.inf}), "row", r"is inf, but weights must be finite"),
        (changed({(4, 1): -0.25}), "row", r"weight that agent 4 gives to agent 1 is -0\.25.*not negative"),
        (changed({(0, 3): 0.3}), "row", r"agent 0 gives weight 0\.3 to agent 3, but \(3, 0\) is not an edge"),
        (
            np.roll(np.eye(5), 1, axis=0),
            "row",
            r"agent 0 gives itself no weight, and neither does any other agent that reaches",
        ),
        (changed({(3, 3): 0.0, (3, 2): 1.0}), "row", None),
        (
            changed({(3, 3): 0.92}),
            "row",
            r"`R`: row 3 sums to 1\.42, but row-stochastic weights must sum to 1 \(within 1e-10\); "
            r"divide agent 3's row by its sum or use row_stochastic\(graph\)\.$",
        ),
        (
            changed({(1, 1): 0.5}, "column"),
            "column",
            r"`C`: column 1 sums to 1\.1666.*column_stochastic\(graph\)\.$",
        ),
        (changed({}, "column"), "row", r"row 0 sums to 0\.8333.* Its columns do sum to 1: .* meant as C\?"),
        (changed({}), "doubly", r"`W`: column 0 sums to 1\.33.*doubly stochastic.*use sinkhorn\(graph\)"),
        (np.eye(5), "row", r"`R`: no agent reaches all others \(agent 0 cannot reach agent 1\)"),
        (changed({(0, 4): 0, (0, 0): 1}), "row", None),
        (np.eye(5), "doubly", r"`W`: agent 0 cannot reach agent 1.*strongly"),
        (
            changed({(0, 4): 0, (4, 4): 1}, "column"),
            "column",
            None,
        ),
    ],
)
def test_weights_are_checked_on_the_graph_and_errors_name_the_agent(matrix, kind, message):
    if message is None:
        assert custom(matrix, kind, graphs.example5()).kind == kind
    else:
        with pytest.raises(MixingError, match=message):
            custom(matrix, kind, graphs.example5())


def test_an_unknown_kind_is_rejected_with_the_nearest():
    with pytest.raises(ArgumentError, match="Did you mean `row`"):
        custom(np.eye(1), "rows")  # pyright: ignore[reportArgumentType]


def test_the_name_given_is_the_name_in_the_message():
    with pytest.raises(MixingError, match=r"^`A`: row 0 sums to 2"):
        custom([[2.0]], "row", name="A")


def test_without_a_graph_the_edges_are_read_off_the_weights():
    mixing = custom([[0.5, 0.5, 0], [0, 0.5, 0.5], [0.5, 0, 0.5]], "doubly")
    assert set(mixing.graph.edges) == {(1, 0), (2, 1), (0, 2)}


def test_an_edge_of_weight_zero_stays_in_the_graph_but_not_in_the_support():
    mixing = custom(changed({(2, 0): 0.0, (2, 1): 2 / 3}), "row", graphs.example5())
    assert mixing.graph == graphs.example5()
    assert set(graphs.example5().edges) - set(mixing.support.edges) == {(0, 2)}


def test_sparse_weights_are_copied_and_duplicates_added():
    given_weights = coo_array(([0.5, 0.5, 0.5, 0.5], ([0, 0, 1, 1], [0, 0, 0, 1])), shape=(2, 2))
    mixing = custom(given_weights, "row")
    np.testing.assert_array_equal(mixing.toarray(), [[1, 0], [0.5, 0.5]])
    assert given_weights.nnz == 4
    assert given_weights.data.flags.writeable


def test_the_sum_may_be_off_by_rounding_but_not_by_more():
    close = [[0.5, 0.5 + 5e-11], [0.5, 0.5]]
    assert custom(close, "row").toarray()[0, 1] == 0.5 + 5e-11
    with pytest.raises(MixingError, match=r"row 0 sums to 1\.0000000005"):
        custom([[0.5, 0.5 + 5e-10], [0.5, 0.5]], "row")


def test_weights_need_an_agent_that_decides_and_not_to_connect_strongly():
    assert custom(row_stochastic(PATH).toarray(), "row", PATH).n == 3
    assert custom(column_stochastic(PATH).toarray(), "column", PATH).n == 3
    fork = graphs.out_star(3)
    with pytest.raises(MixingError, match="no agent is reached by all others"):
        custom(column_stochastic(fork).toarray(), "column", fork)
