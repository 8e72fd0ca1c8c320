import dataclasses
import json
import time

import networkx as nx
import numpy as np
import pytest

from digrad import graphs
from digrad.core.network_delivery import make_delivery
from digrad.errors import ArgumentError, MixingError
from digrad.links import Bursts, Clock, Exponential, FixedDelay, Links, Uniform, compressors
from digrad.network import (
    Network,
    column_stochastic,
    custom,
    network,
    row_stochastic,
    sinkhorn,
)

EXAMPLE = graphs.example5()


def test_defaults_are_uniform_weights_and_sinkhorn():
    net = Network(EXAMPLE)
    np.testing.assert_array_equal(net.R.toarray(), row_stochastic(EXAMPLE).toarray())
    np.testing.assert_array_equal(net.C.toarray(), column_stochastic(EXAMPLE).toarray())
    np.testing.assert_array_equal(net.W.toarray(), sinkhorn(EXAMPLE).toarray())
    np.testing.assert_allclose(27 * net.u, [40, 30, 15, 20, 30], rtol=1e-13)
    np.testing.assert_allclose(29 * net.v, [30, 15, 30, 30, 40], rtol=1e-13)


def test_doubly_stochastic_weights_are_computed_on_first_use_only(monkeypatch):
    calls = []
    monkeypatch.setattr(network, "sinkhorn", lambda graph, **options: calls.append(graph) or sinkhorn(graph))
    net = Network(EXAMPLE)
    assert calls == []
    assert net.W is net.W
    assert calls == [EXAMPLE]


def test_raw_weights_are_checked_against_the_edges_of_the_graph():
    lazy = (row_stochastic(EXAMPLE).toarray() + np.eye(5)) / 2
    assert Network(EXAMPLE, R=lazy.tolist()).R.graph == EXAMPLE
    with pytest.raises(
        MixingError, match=r"`R`: agent 0 gives weight 0\.2 to agent 1, but \(1, 0\) is not an edge"
    ):
        Network(EXAMPLE, R=np.full((5, 5), 0.2))
    with pytest.raises(MixingError, match=r"`C`: column 0 sums to"):
        Network(EXAMPLE, C=row_stochastic(EXAMPLE).matrix)


def test_mixing_objects_bring_their_own_graph():
    net = Network(graphs.out_star(4), C=column_stochastic(graphs.ring(4)))
    assert net.C.graph == graphs.ring(4)
    assert net.u.tolist() == [4, 0, 0, 0]
    assert net.v.tolist() == [1, 1, 1, 1]


def test_doubly_stochastic_weights_may_serve_as_row_and_column_weights():
    doubly = sinkhorn(EXAMPLE)
    net = Network(EXAMPLE, R=doubly, C=doubly, W=doubly)
    assert net.R is net.C is net.W is doubly


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: Network(graphs.out_star(3)).C,
            r"no agent is reached by all others.*agent 1 cannot reach agent 0.*pass C on a graph that has",
        ),
        (lambda: Network(graphs.out_star(3).reversed()), r"no agent reaches all others .*pass R on a graph"),
        (
            lambda: Network(EXAMPLE, R=row_stochastic(graphs.ring(4))),
            "`R` of Network has 4 agents, but .* has 5",
        ),
        (
            lambda: Network(EXAMPLE, R=3),
            r"`R`: must be a square matrix of real numbers \(got int\); give one row",
        ),
        (
            lambda: Network(EXAMPLE, C=row_stochastic(EXAMPLE)),
            r"`C` of Network must be column-stochastic, but got row-stochastic .*column_stochastic\(graph\)",
        ),
        (
            lambda: Network(EXAMPLE, W=row_stochastic(EXAMPLE)),
            r"`W` of Network must be doubly .*sinkhorn\(graph\)",
        ),
        (
            lambda: Network(graphs.ring(3), C=column_stochastic(graphs.out_star(3))),
            r"`C`: no agent is reached by all others.*\(agent 1 cannot reach agent 0\)",
        ),
        (
            lambda: Network(graphs.ring(3), R=row_stochastic(graphs.out_star(3).reversed())),
            "`R`: no agent reaches all others",
        ),
    ],
)
def test_unsuitable_weights_are_rejected_at_construction(build, message):
    with pytest.raises(MixingError, match=message):
        build()


def test_something_that_is_no_digraph_is_rejected_with_the_way_to_make_one():
    with pytest.raises(
        ArgumentError, match=r"must be a Digraph, .* but got a list of tuple; use .*from_edges"
    ):
        Network([(0, 1)])  # pyright: ignore[reportArgumentType]


def test_require_passes_when_the_weights_exist():
    net = Network(EXAMPLE)
    net.require(frozenset({"row", "column", "doubly", "mean"}), "CGT")
    assert "W" in vars(net)


def test_require_fails_before_the_first_step_when_no_doubly_stochastic_weights_exist():
    net = Network(graphs.out_star(3), C=column_stochastic(graphs.ring(3)))
    net.require(frozenset({"row", "column", "mean"}), "CGT")
    with pytest.raises(
        MixingError, match=r"`DGD` needs doubly stochastic .*agent 1 cannot reach agent 0.*pass W="
    ):
        net.require(frozenset({"doubly"}), "DGD")
    with pytest.raises(ArgumentError, match="`needs` of DGD must be one of"):
        net.require(frozenset({"double"}), "DGD")


def test_network_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Network(EXAMPLE).R = sinkhorn(EXAMPLE)  # pyright: ignore[reportAttributeAccessIssue]


def test_content_hash_depends_on_the_weights_and_not_on_what_was_used():
    net, same = Network(EXAMPLE), Network(EXAMPLE)
    _ = net.W
    lazy = custom((sinkhorn(EXAMPLE).toarray() + np.eye(5)) / 2, "doubly")
    others = [
        Network(EXAMPLE, R=lazy),
        Network(EXAMPLE, C=lazy),
        Network(EXAMPLE, W=lazy),
        Network(graphs.ring(5)),
    ]
    assert net.content_hash == same.content_hash
    assert len({net.content_hash, *(other.content_hash for other in others)}) == 5


def test_describe_of_the_five_agent_example_holds_the_reference_figures():
    summary = Network(EXAMPLE).describe()
    figures = json.loads(json.dumps(summary.to_dict()))
    assert (figures["n"], figures["n_edges"], figures["n_roots"], figures["diameter"]) == (5, 7, 5, 4)
    assert figures["strongly_connected"] is True
    assert figures["u_dot_v"] == pytest.approx(4.980843, abs=5e-7)
    assert figures["kappa_u"] == pytest.approx(8 / 3)
    assert figures["kappa_v"] == pytest.approx(8 / 3)
    assert figures["rho_R"] == pytest.approx(0.577350, abs=5e-7)
    assert figures["norm_W"] == pytest.approx(0.774854, abs=5e-7)
    lines = str(summary).splitlines()
    assert "rho_W               0.639511" in lines
    assert len({line.index(line[20:]) for line in lines}) == 1


def test_describe_lists_vectors_and_roots_for_json_up_to_2000_agents():
    net = Network(EXAMPLE)
    figures = json.loads(json.dumps(net.describe().to_dict()))
    assert figures["u"] == net.u.tolist()
    assert figures["v"] == net.v.tolist()
    assert figures["roots"] == [0, 1, 2, 3, 4]
    assert figures["no_column"] is None
    many = Network(graphs.ring(2001)).describe().to_dict()
    assert many["u"] is many["v"] is many["roots"] is None
    assert many["n_roots"] == 2001


def test_describe_of_a_graph_with_a_root_has_the_row_side_and_the_reason():
    summary = Network(graphs.out_star(3)).describe()
    assert (summary.n_roots, summary.roots, summary.u) == (1, (0,), (3.0, 0.0, 0.0))
    assert summary.rho_R == pytest.approx(0.5)
    assert summary.kappa_u == 1.0
    c_side = (summary.v, summary.v_min, summary.v_max, summary.u_dot_v, summary.kappa_v, summary.rho_C)
    assert set(c_side) == {None}
    assert str(summary).endswith(f"\nC: not possible: {summary.no_column}")
    assert "agent 1 cannot reach agent 0" in str(summary)


def test_describe_of_a_graph_without_a_root_is_rejected():
    with pytest.raises(MixingError, match="no agent reaches all others"):
        Network(graphs.out_star(3).reversed()).describe()


def test_describe_says_what_does_not_exist():
    text = str(Network(graphs.out_star(3), C=column_stochastic(graphs.ring(3))).describe())
    assert "diameter            none (not strongly connected)" in text
    assert "rho_W               no doubly stochastic weights" in text


def test_one_agent_is_a_network():
    summary = Network(graphs.ring(1)).describe()
    assert (summary.n_edges, summary.diameter, summary.rho_R, summary.norm_W) == (0, 0, 0.0, 0.0)


def test_a_hundred_thousand_agents_are_built_in_seconds_and_described_without_dense_algebra():
    start = time.perf_counter()
    net = Network(graphs.k_out(100_000, 3, seed=0))
    assert time.perf_counter() - start < 5  # 0.2 s on an idle core
    summary = net.describe()
    assert summary.u_dot_v == pytest.approx(net.u @ net.v)
    assert str(summary).count("not computed (n > 2000)") == 5


def test_networkx_graph_is_taken_as_it_is():
    given = nx.DiGraph([("a", "b"), ("b", "c"), ("c", "a")])
    network = Network(given)
    assert network.graph == graphs.from_networkx(given)
    assert network.graph.names == ("a", "b", "c")


def test_sequence_that_never_changes_has_the_weights_of_its_graph() -> None:
    sequence, constant = Network(graphs.every(1, graphs.example5())), Network(graphs.example5())
    np.testing.assert_array_equal(sequence.u, constant.u)
    np.testing.assert_array_equal(sequence.v, constant.v)
    np.testing.assert_array_equal(sequence.W.matrix.toarray(), constant.W.matrix.toarray())


def test_weights_on_the_edges_of_a_networkx_graph_are_not_dropped_silently():
    weighted = nx.DiGraph()
    weighted.add_weighted_edges_from([(0, 1, 0.3), (1, 0, 0.7)])
    with pytest.warns(
        UserWarning, match="the weights on the edges of a networkx graph are not read"
    ) as caught:
        Network(weighted)
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match=r"are not read.*Network.from_weights") as caught:
        graphs.from_networkx(weighted)
    assert caught[0].filename == __file__
    weights = np.full((2, 2), 0.5)
    Network(weighted, R=weights, C=weights)
    Network(nx.DiGraph([(0, 1), (1, 0)]))


def test_weights_on_the_edges_of_a_networkx_graph_are_scaled_on_request():
    weighted = nx.DiGraph()
    weighted.add_weighted_edges_from([("b", "a", 3.0), ("a", "b", 1.0), ("a", "a", 1.0), ("c", "a", 4.0)])
    weighted.add_edge("b", "c")  # counts 1
    network = Network.from_weights(weighted)  # agents b, a, c in the order of the edges
    assert network.graph.names == ("b", "a", "c")
    np.testing.assert_allclose(
        network.R.toarray(), [[0.5, 0.5, 0], [3 / 8, 1 / 8, 4 / 8], [0.5, 0, 0.5]], rtol=1e-15
    )
    np.testing.assert_allclose(
        network.C.toarray(), [[2 / 6, 0.5, 0], [3 / 6, 0.5, 0.5], [1 / 6, 0, 0.5]], rtol=1e-15
    )
    np.testing.assert_array_equal(
        Network.from_weights(nx.Graph([(0, 1), (1, 2)])).R.toarray(),
        row_stochastic(graphs.grid(1, 3)).toarray(),
    )


def test_equal_numbers_on_the_edges_give_uniform_weights():
    adjacency = EXAMPLE.to_adjacency()
    for numbers in (adjacency, 7 * adjacency.toarray()):
        scaled = Network.from_weights(numbers)
        np.testing.assert_allclose(scaled.R.toarray(), Network(EXAMPLE).R.toarray(), rtol=1e-15)
        np.testing.assert_allclose(scaled.C.toarray(), Network(EXAMPLE).C.toarray(), rtol=1e-15)
    one_way = Network.from_weights(graphs.out_star(3).to_adjacency())  # C does not exist, R does
    np.testing.assert_array_equal(one_way.R.toarray()[0], [1, 0, 0])
    for bad in (-adjacency, np.nan * adjacency):
        with pytest.raises(MixingError, match="must be finite and not negative"):
            Network.from_weights(bad)


RANDOM = [
    Links(loss=0.3), Links(loss=Bursts(0.3, 5)), Links(delay=3), Links(awake=0.5), Links(noise=0.1),
    Links(compressor=compressors.random_k(2)), Links(clock=Clock(compute=Exponential(1.0))),
    Links(clock=Clock(latency=Uniform(0.0, 1.0), deadline=0.5)),
]  # fmt: skip
NOT_RANDOM = [
    None, Links(compressor=compressors.bfloat16()), Links(), Links(delay=FixedDelay(2)),
    Links(compressor=compressors.top_k(2)),
    Links(clock=Clock(compute=1.0)),
]  # fmt: skip


@pytest.mark.parametrize("links", RANDOM, ids=repr)
def test_another_seed_draws_everything_anew_and_the_seed_zero_nothing(links):
    def drawn(seed):
        return make_drawn(Network(EXAMPLE, links=links).with_seed(seed))

    given = make_drawn(Network(EXAMPLE, links=links))
    np.testing.assert_array_equal(drawn(0), given)
    np.testing.assert_array_equal(drawn(3), drawn(3))
    assert not any(np.array_equal(drawn(seed), given) for seed in (1, 2, 3))
    hashes = {Network(EXAMPLE, links=links).with_seed(seed).content_hash for seed in (0, 1, 2, 3)}
    assert len(hashes) == 4


def make_drawn(net):
    delivery = make_delivery(net)
    found = [delivery.ages(0, 50).ravel(), delivery.awake(0, 50).ravel()]
    if net.links.is_noisy:
        found.append(delivery.noise(0, 50, 0, 2).ravel())
    if isinstance(net.links.compressor, compressors.random_k):
        found.append(delivery.chosen(0, 50, 0, 4).ravel())
    if net.links.clock:
        found += [delivery.work(0, 50).ravel(), net.links.clock.sending(0, 50, 7).ravel()]
    return np.concatenate(found)


@pytest.mark.parametrize("links", NOT_RANDOM, ids=repr)
def test_a_network_that_draws_nothing_has_no_seed(links):
    net = Network(EXAMPLE, links=links)
    assert not net.is_random
    assert net.with_seed(3) is net


def test_edges_drawn_at_random_follow_the_seed():
    net = Network(graphs.random_edges(EXAMPLE, 0.5, seed=1))
    tables = [net.with_seed(seed).graph.presence(0, 20) for seed in (0, 1, 2)]
    np.testing.assert_array_equal(tables[0], net.graph.presence(0, 20))
    assert len({table.tobytes() for table in tables}) == 3
    assert net.with_seed(2).union == net.union


def test_members_of_a_sequence_share_links_that_follow_the_seed():
    net = Network([Network(EXAMPLE), Network(graphs.ring(5))], links=Links(loss=0.3))
    assert net.with_seed(0) is net
    assert net.with_seed(1).networks == net.networks
    assert not np.array_equal(make_delivery(net).ages(0, 50), make_delivery(net.with_seed(1)).ages(0, 50))
