import json

import pytest

from digrad.errors import ArgumentError, GraphError
from digrad.graphs import example5, from_edges, out_star, read, split, write


@pytest.mark.parametrize("name", ["graph.json", "graph.txt", "graph.edges"])
@pytest.mark.parametrize(
    "graph", [example5(), out_star(1), from_edges(9, [(0, 1)])], ids=["five", "one", "isolated"]
)
def test_a_written_graph_is_read_back_unchanged(tmp_path, name, graph):
    write(graph, tmp_path / name)
    assert read(tmp_path / name) == graph


def test_json_holds_n_and_edges(tmp_path):
    write(from_edges(3, [(0, 2)]), tmp_path / "graph.json")
    assert json.loads((tmp_path / "graph.json").read_text()) == {"n": 3, "edges": [[0, 2]]}


def test_text_without_header_counts_up_to_the_largest_agent_and_skips_comments(tmp_path):
    path = tmp_path / "graph.txt"
    path.write_text("# edges of my cluster\n0 1  # fast link\n\n\t1   4\n")
    assert read(str(path)) == from_edges(5, [(0, 1), (1, 4)])


def test_the_header_gives_the_number_of_agents(tmp_path):
    path = tmp_path / "graph.txt"
    path.write_text("# n = 6\n0 1\n")
    assert read(path).n == 6


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "g.txt",
            "0 1\n1 x\n",
            r"g\.txt, line 2: expected `sender receiver` as two whole numbers, but found `1 x`",
        ),
        ("g.txt", "# n=3\n\n0 1 0.5\n", r"g\.txt, line 3: .* found `0 1 0\.5`"),
        ("g.txt", "0 -1\n", r"g\.txt, line 1"),
        ("g.txt", "0,1\n", r"g\.txt, line 1"),
        ("g.txt", "", r"neither edges nor a first line"),
        ("g.txt", "# n=2\n0 5\n", r"g\.txt: .*edge \(0, 5\) names an agent"),
        ("g.txt", "# n=0\n", r"g\.txt: .*whole number of at least 1"),
        ("g.txt", "1 1\n", r"g\.txt: .*self loop"),
        ("g.json", '{"n": 2,\n "edges": [[0, 1]', r"g\.json, line 2: not valid JSON"),
        ("g.json", '{"n": 2}', r"the keys `n`, `edges` and perhaps"),
        ("g.json", "[1]", r"one object with the keys"),
        ("g.json", '{"n": 2, "edges": [[0, "1"]]}', r"g\.json: .*must be pairs"),
        ("g.json", '{"n": "2", "edges": []}', r"g\.json: `n` of Digraph"),
    ],
)
def test_a_malformed_file_is_rejected_with_file_line_and_reason(tmp_path, name, text, message):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(GraphError, match=message):
        read(path)


def test_a_missing_or_binary_file_is_a_graph_error(tmp_path):
    with pytest.raises(GraphError, match=r"absent\.txt: cannot be read \(No such file"):
        read(tmp_path / "absent.txt")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(GraphError, match="not a UTF-8 text file"):
        read(tmp_path / "binary.txt")


def test_a_sequence_is_not_written_as_if_it_were_a_graph(tmp_path):
    with pytest.raises(ArgumentError, match=r"must be a Digraph, but got GraphSequence; .* graph\.at\(k\)"):
        write(split(example5(), 3), tmp_path / "graph.json")
    assert not list(tmp_path.iterdir())
