"""Thirty and more kinds of bad input: each ends in one clear line on standard error and exit code 2."""

import json

import pytest

from digrad.cli import main
from digrad.specs import load_spec

SPEC = """
name = "tiny"
steps = 5
seed = 0

[graph]
kind = "example5"

[problem]
kind = "logistic"
data = "digits"
reg_weight = 1e-3
reg_power = 4

[methods.CGT]
step_size = 0.05
threshold = 5.0
"""


def call(monkeypatch, capsys, *words):
    monkeypatch.setattr("sys.argv", ["digrad", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, capsys.readouterr()


def refused(monkeypatch, capsys, *words):
    code, output = call(monkeypatch, capsys, *words)
    assert code == 2, output
    assert output.err.startswith("digrad: ")
    assert output.err.count("\n") == 1
    assert "Traceback" not in output.err
    return output.err


COMMANDS = {
    "unknown command": (["nonsense"], "No such command 'nonsense'"),
    "unknown option": (["demo", "--fast"], "No such option"),
    "unknown experiment": (["reproduce", "svm"], "'svm' is not one of 'logistic', 'cifar', 'links'"),
    "unknown preset": (["reproduce", "logistic", "--preset", "huge"], "'smoke', 'small', 'medium', 'full'"),
    "steps without cifar": (["reproduce", "logistic", "--steps", "5"], "--steps is for cifar"),
    "preset of links": (["reproduce", "links", "--preset", "smoke"], "--preset is for logistic and cifar"),
    "resume of links": (["reproduce", "links", "--resume"], "--resume is for logistic and cifar"),
    "negative seed": (["reproduce", "logistic", "--seed", "-1"], "'--seed': -1 is not in the range x>=0"),
    "missing spec": (["run", "absent.toml"], "absent.toml"),
    "no spec": (["run"], "Missing argument 'SPEC'"),
    "unknown generator": (["graph", "rng"], "Did you mean `ring`?"),
    "too few arguments": (["graph", "ring"], "takes n, but got nothing"),
    "too many arguments": (["graph", "example5", "3"], "takes no arguments, but got 3"),
    "not a number": (["graph", "ring", "five"], "`n` of ring must be a number"),
    "no agents": (["graph", "ring", "0"], "at least 1, but got 0"),
    "probability": (["graph", "random_digraph", "5", "1.5"], "1.5"),
    "not a power of two": (["graph", "de_bruijn", "6"], "power of two"),
    "saved sequence": (
        ["graph", "one_peer_exponential", "4", "--save", "g.json"],
        "must be a Digraph, but got",
    ),
    "unknown method": (["methods", "CTG"], "Did you mean `CGT`?"),
    "unknown data": (["data", "get", "a9b"], "Did you mean `a9a`?"),
    "unknown images": (["data", "get", "cifar11"], "Did you mean `cifar10`?"),
    "method in another case": (["methods", "cgt"], "Did you mean `CGT`?"),
    "too many agents": (
        ["graph", "ring", "100000000000"],
        "`n` of ring must be at most 10000000, but got 1000",
    ),
    "too large a grid": (
        ["graph", "grid", "10000", "10000"],
        "`rows * columns` of grid must be at most 10000000",
    ),
    "too many edges": (
        ["graph", "complete", "20000"],
        "would have 4e+08 edges, but at most 5e+07 can be handled",
    ),
    "negative agents": (
        ["graph", "ring", "-3"],
        "`n` of ring must be a whole number of at least 1, but got -3",
    ),
    "unknown option of graph": (["graph", "ring", "3", "--drw"], "No such option '--drw'"),
    "unknown format": (
        ["graph", "example5", "--draw", "x.foo"],
        "`--draw` of digrad graph must end in .png, .pdf or",
    ),
    "not a run": (["report", "."], "digrad: . is not a digrad run directory"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_command_line(name, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    words, message = COMMANDS[name]
    assert message in refused(monkeypatch, capsys, *words)


GRAPHS = {
    "self loop": ("a.json", {"n": 2, "edges": [[0, 1], [1, 1]]}, "self loop"),
    "out of range": (
        "a.json",
        {"n": 2, "edges": [[0, 2]]},
        "edge (0, 2) names an agent that does not exist; with n=2 agents are 0 to 1",
    ),
    "too many agents": ("a.txt", "# n=100000000000\n0 1\n", "`n` of Digraph must be at most 10000000"),
    "twice": ("a.json", {"n": 2, "edges": [[0, 1], [0, 1], [1, 0]]}, "(0, 1)"),
    "not json": ("a.json", "{", "a.json"),
    "no edges": ("a.json", {"n": 2}, "edges"),
    "bad line": ("a.txt", "0 1\n1 zero\n", "a.txt"),
    "three numbers": ("a.txt", "0 1\n1 0 5\n", "line 2"),
    "disconnected": (
        "a.txt",
        "0 1\n1 0\n2 3\n3 2\n",
        "no agent reaches all others (agent 0 cannot reach agent 2)",
    ),
    "no root": ("a.txt", "1 0\n2 0\n", "no agent reaches all others (agent 0 cannot reach agent 1)"),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graph_file(name, monkeypatch, capsys, tmp_path):
    file, content, message = GRAPHS[name]
    (tmp_path / file).write_text(content if isinstance(content, str) else json.dumps(content))
    assert message in refused(monkeypatch, capsys, "graph", tmp_path / file)


SPECS = {
    "not toml": ("name = ", "name = = ", "TOML"),
    "unknown key": ("steps = 5", "step = 5", "Did you mean `steps`?"),
    "wrong type": ("steps = 5", 'steps = "many"', "steps"),
    "negative steps": ("steps = 5", "steps = -5", "steps"),
    "unknown method": ("[methods.CGT]", "[methods.CTG]", "Did you mean `CGT`?"),
    "unknown hyper-parameter": ("threshold = 5.0", "treshold = 5.0", "Did you mean `threshold`?"),
    "missing hyper-parameter": ("threshold = 5.0", "", "threshold"),
    "negative step size": ("step_size = 0.05", "step_size = -0.05", "must be positive"),
    "unknown generator": ('kind = "example5"', 'kind = "example6"', "Did you mean `example5`?"),
    "missing argument": (
        'kind = "example5"',
        'kind = "ring"',
        "`graph.n` is required by ring",
    ),
    "unknown problem": ('kind = "logistic"', 'kind = "logistics"', "'logistics'. Did you mean `logistic`?"),
    "unknown data": ('data = "digits"', 'data = "digit"', "digits"),
    "unknown partition": ('data = "digits"', 'data = "digits"\npartition = "sort"', "Did you mean `sorted`?"),
    "wrong number of weights": ("reg_weight = 1e-3", "reg_weight = [1e-3, 1e-3]", "5 agents"),
    "power below two": ("reg_power = 4", "reg_power = 1", "at least 2"),
    "dirichlet without alpha": (
        'data = "digits"',
        'data = "digits"\npartition = "dirichlet"',
        'in a spec partition = {scheme = "dirichlet", alpha = 0.5}',
    ),
    "batch above the smallest agent": (
        "seed = 0",
        'seed = 0\nbatch_size = 400\nsampling = "epoch"',
        "`batch_size` is 400, but agent 2 has only 359 samples, fewer than one batch per epoch",
    ),
    "schedule that underflows": (
        "step_size = 0.05",
        'step_size = {schedule = "inverse", scale = 1e-323}',
        "`methods.CGT`: `step_size` of CGT is a schedule, and at k = 4: `step_size` of CGT must be positive",
    ),
    "batch above all agents": (
        "seed = 0",
        "seed = 0\nbatch_size = 1000000",
        "`batch_size` is 1000000, but no agent has more than 360 samples",
    ),
    "endless": ("steps = 5", "steps = 10000000000000", "must be at most 1000000000000, but got 1000"),
    "rows beyond memory": (
        "steps = 5",
        "steps = 1000000000",
        "`record_every` of tiny must be at least 10 for",
    ),
    "empty label": ("[methods.CGT]", '[methods.""]\nmethod = "CGT"', "has a label that is empty"),
    "batch of nothing": ("seed = 0", "seed = 0\nbatch_size = 0", "batch_size"),
}


@pytest.mark.parametrize("name", SPECS)
def test_specification(name, monkeypatch, capsys, tmp_path):
    old, new, message = SPECS[name]
    assert old in SPEC
    path = tmp_path / "spec.toml"
    path.write_text(SPEC.replace(old, new, 1))
    line = refused(monkeypatch, capsys, "run", path, "--out", tmp_path / "out")
    assert message in line
    assert "spec.toml" in line
    assert not (tmp_path / "out").exists()


DATA = {
    "label": ("high 1:1\n", "line 1"),
    "token": ("1 1:1\n-1 2\n", "line 2"),
    "zero index": ("1 0:1\n", "line 1"),
    "descending": ("1 2:1 1:1\n", "line 1"),
    "not finite": ("1 1:nan\n", "sample 0"),
    "one label": ("1 1:1\n1 2:1\n1 1:1\n1 1:1\n1 1:1\n", "two"),
    "empty": ("", "empty"),
    "index of another world": ("1 1:1\n-1 99999999999:1\n", "line 2"),
    "too many features": ("1 1:1\n-1 2000000000:1\n", "the states of 5 agents alone would take 80 GB"),
    "fewer samples than agents": ("1 1:1\n-1 1:1\n", "agent"),
}


@pytest.mark.parametrize("name", DATA)
def test_data_file(name, monkeypatch, capsys, tmp_path):
    content, message = DATA[name]
    (tmp_path / "mine.txt").write_text(content)
    (tmp_path / "spec.toml").write_text(SPEC.replace('"digits"', '"mine.txt"'))
    assert message in refused(monkeypatch, capsys, "run", tmp_path / "spec.toml", "--out", tmp_path / "out")


RING = "0.5,0,0,0,0.5\n0.5,0.5,0,0,0\n0,0.5,0.5,0,0\n0,0,0.5,0.5,0\n0,0,0,0.5,0.5\n"  # edges of example5
MATRICES = {
    "row sum": (RING.replace("0.5,0.5,0,0,0", "0.5,0.4,0,0,0"), "`mixing`: `R`: row 1 sums to 0.9, but"),
    "negative entry": (
        RING.replace("0.5,0.5,0,0,0", "-0.5,1.5,0,0,0"),
        "agent 1 gives to agent 0 is -0.5, but",
    ),
    "zero diagonal": (
        "0,0,0,0,1\n1,0,0,0,0\n0,1,0,0,0\n0,0,1,0,0\n0,0,0,1,0\n",
        "`R`: agent 0 gives itself no weight",
    ),
    "edge outside the graph": (
        RING.replace("0.5,0.5,0,0,0", "0,0.5,0.5,0,0"),
        "(2, 1) is not an edge of the graph",
    ),
    "wrong shape": (
        RING.rpartition("0,0,0,0.5,0.5")[0],
        "`R`: must be square and not empty, but got shape (4, 5)",
    ),
    "fewer agents": ("0.5,0.5\n0.5,0.5\n", "`R`: has 2 rows, but the graph has 5 agents"),
    "ragged": (RING + "1\n", "R.csv is not a file of comma-separated numbers"),
    "words": ("a,b\n", "R.csv is not a file of comma-separated numbers"),
    "empty": ("", "R.csv is not a file of comma-separated numbers (it is empty)"),
    "only a comment": ("# R\n\n", "R.csv is not a file of comma-separated numbers (it is empty)"),
    "missing": (None, "R.csv does not exist"),
}


@pytest.mark.parametrize("name", MATRICES)
def test_matrix_file(name, monkeypatch, capsys, tmp_path):
    content, message = MATRICES[name]
    if content is not None:
        (tmp_path / "R.csv").write_text(content)
    (tmp_path / "spec.toml").write_text(SPEC.replace("[problem]", '[mixing]\nR_file = "R.csv"\n\n[problem]'))
    line = refused(monkeypatch, capsys, "run", tmp_path / "spec.toml", "--out", tmp_path / "out")
    assert message in line
    assert "spec.toml: `mixing" in line
    assert not (tmp_path / "out").exists()


def test_a_good_matrix_file_is_not_refused(tmp_path):
    (tmp_path / "R.csv").write_text(RING)
    (tmp_path / "spec.toml").write_text(SPEC.replace("[problem]", '[mixing]\nR_file = "R.csv"\n\n[problem]'))
    assert load_spec(tmp_path / "spec.toml").build().network.R.toarray()[0].tolist() == [0.5, 0, 0, 0, 0.5]


def test_a_folder_of_something_else_is_not_overwritten(monkeypatch, capsys, tmp_path):
    (tmp_path / "spec.toml").write_text(SPEC)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("keep")
    assert "precious" in refused(
        monkeypatch, capsys, "run", tmp_path / "spec.toml", "--out", tmp_path / "precious"
    )
    assert (tmp_path / "precious" / "file").read_text() == "keep"


def test_an_unwritable_place_is_one_line(monkeypatch, capsys, tmp_path):
    (tmp_path / "spec.toml").write_text(SPEC)
    (tmp_path / "file").write_text("")
    refused(monkeypatch, capsys, "run", tmp_path / "spec.toml", "--out", tmp_path / "file" / "below")
