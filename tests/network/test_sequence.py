"""Weights of networks that change with the iteration."""

import dataclasses

import numpy as np
import pytest

from digrad import graphs
from digrad.errors import ArgumentError, MixingError
from digrad.network import (
    Network,
    column_stochastic,
    row_stochastic,
    step_weights,
)

EXAMPLE = graphs.example5()


@pytest.mark.parametrize("name", ["R", "C"])
@pytest.mark.parametrize(
    "graph", [graphs.split(EXAMPLE, 3), graphs.random_edges(EXAMPLE, 0.5), graphs.every(2, EXAMPLE)], ids=repr
)
def test_uniform_weights_are_those_of_the_degrees_of_each_iteration(graph, name):
    build = {"R": row_stochastic, "C": column_stochastic}[name]
    found = step_weights(Network(graph), name, 3, 6)
    for row, k in enumerate(range(3, 9)):
        matrix = np.diag(found.own[row])
        matrix[found.edges[:, 1], found.edges[:, 0]] = found.weight[row]
        np.testing.assert_allclose(matrix, build(graph.at(k)).toarray(), rtol=0, atol=0)
        np.testing.assert_array_equal(matrix, getattr(Network(graph).at(k), name).toarray())
    assert (found.weight != 0).sum(axis=1).tolist() == [graph.at(k).n_edges for k in range(3, 9)]


def test_doubly_stochastic_weights_exist_at_every_step_of_one_peer_exponential():
    network = Network(graphs.one_peer_exponential(8))
    network.require(frozenset({"doubly"}), "DGD")
    for k in range(3):
        matrix = network.at(k).W.toarray()
        np.testing.assert_allclose(matrix.sum(axis=0), 1)
        np.testing.assert_allclose(matrix.sum(axis=1), 1)


def test_own_matrices_of_every_step_are_kept():
    R0, R1 = np.array([[1.0, 0.0], [0.3, 0.7]]), np.array([[0.6, 0.4], [0.0, 1.0]])
    there, back = graphs.from_edges(2, [(0, 1)]), graphs.from_edges(2, [(1, 0)])
    changing = Network([Network(there, R=R0, partial=True), Network(back, R=R1, partial=True)])
    np.testing.assert_array_equal(changing.at(5).R.toarray(), R1)
    assert changing.content_hash != Network([changing.at(1), changing.at(0)]).content_hash
    changing.require(frozenset({"row", "column"}), "CGT")


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: Network([]), ArgumentError, "but got a list of nothing"),
        (lambda: Network(np.eye(3)), ArgumentError, "must be a Digraph, .*, but got ndarray"),
        (lambda: Network([Network(graphs.split(EXAMPLE, 2))]), ArgumentError, "of one graph each"),
        (
            lambda: Network([Network(graphs.ring(3)), Network(graphs.ring(4))]),
            ArgumentError,
            "same agents",
        ),
        (
            lambda: Network([Network(graphs.from_edges(3, [(0, 1)]), partial=True)]),
            MixingError,
            "no agent reaches all others",
        ),
        (
            lambda: Network([Network(graphs.out_star(3), partial=True)]).require(
                frozenset({"column"}), "CGT"
            ),
            MixingError,
            "agent 1 cannot reach agent 0",
        ),
        (
            lambda: Network([Network(EXAMPLE, W=np.eye(5), partial=True)] * 2).require(
                frozenset({"doubly"}), "DGD"
            ),
            MixingError,
            "but doubly stochastic weights need a strongly connected graph",
        ),
        (
            lambda: Network(graphs.split(EXAMPLE, 2), R=np.eye(5)),
            ArgumentError,
            "`R` of Network is one matrix",
        ),
        (
            lambda: Network(graphs.split(EXAMPLE, 2)).R,
            MixingError,
            r"ask for that of iteration k: network.at\(k\).R",
        ),
        (
            lambda: Network(graphs.split(graphs.from_edges(3, [(0, 1)]), 2)),
            MixingError,
            "no agent reaches all others",
        ),
    ],
)
def test_networks_that_never_connect_the_agents_are_refused(build, error, message):
    with pytest.raises(error, match=message):
        build()


def test_invalid_matrices_of_a_step_are_refused():
    with pytest.raises(MixingError, match="row 0 sums to"):
        Network(EXAMPLE, R=np.full((5, 5), 0.3) * np.eye(5), partial=True)


def test_describe_of_a_sequence_is_that_of_the_union():
    found, union = Network(graphs.split(EXAMPLE, 3)).describe(), Network(EXAMPLE).describe()
    assert dataclasses.replace(found, changes=None) == union
    assert str(found).startswith("changes with time   with period 3; the figures are those of all its edges")
    assert "changes" not in str(union)
    assert "at random" in str(Network(graphs.random_edges(EXAMPLE, 0.5)).describe())
