"""Names of agents are kept for people, and change no number."""

import networkx
import pytest

import digrad as dg
from digrad.errors import GraphError
from digrad.network import Network


def named():
    return dg.graphs.from_networkx(networkx.DiGraph([("oslo", "rome"), ("rome", "bern"), ("bern", "oslo")]))


def test_labels_of_networkx_become_names_and_come_back():
    graph = named()
    assert graph.names == ("oslo", "rome", "bern")
    assert set(graph.to_networkx().edges) == {("oslo", "rome"), ("rome", "bern"), ("bern", "oslo")}
    assert dg.graphs.from_networkx(networkx.DiGraph([(0, 1), (1, 0)])).names is None


def test_names_are_no_part_of_the_value():
    assert named() == dg.graphs.ring(3)
    assert hash(named()) == hash(dg.graphs.ring(3))
    assert dg.Network(named()).content_hash == dg.Network(dg.graphs.ring(3)).content_hash


def test_names_follow_their_agents():
    assert named().reversed().names == named().symmetrized().names == ("oslo", "rome", "bern")
    assert named().relabeled([2, 0, 1]).names == ("rome", "bern", "oslo")


def test_names_are_written_read_and_shown(tmp_path):
    dg.graphs.write(named(), tmp_path / "a.json")
    assert dg.graphs.read(tmp_path / "a.json").names == named().names
    assert "3 (oslo, rome, bern)" in str(Network(named()).describe())
    drawn = {text.get_text() for text in dg.plots.draw_graph(named()).axes[0].texts}
    assert {"oslo", "rome", "bern"} <= drawn


@pytest.mark.parametrize("names", [("a", "b"), ("a", "a", "b"), ("a", "b", "")])
def test_names_must_be_one_per_agent_and_different(names):
    with pytest.raises(GraphError, match="`names` of Digraph must be 3 different strings"):
        dg.graphs.from_edges(3, [(0, 1)], names=names)
