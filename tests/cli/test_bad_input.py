"""Thirty and more kinds of bad input: each ends in one clear line on standard error and exit code 2."""

import json

import pytest

from digrad.cli import main

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
    "unknown experiment": (["reproduce", "svm"], "'svm' is not 'logistic'"),
    "unknown preset": (["reproduce", "logistic", "--preset", "huge"], "'smoke', 'small', 'medium', 'full'"),
    "negative seed": (["reproduce", "logistic", "--seed", "-1"], "-1"),
    "missing spec": (["run", "absent.toml"], "absent.toml"),
    "no spec": (["run"], "Missing argument 'SPEC'"),
    "unknown generator": (["graph", "rng"], "Did you mean `ring`?"),
    "too few arguments": (["graph", "ring"], "takes n, but got nothing"),
    "too many arguments": (["graph", "example5", "3"], "takes no arguments, but got 3"),
    "not a number": (["graph", "ring", "five"], "`n` of ring must be a number"),
    "no agents": (["graph", "ring", "0"], "at least 1, but got 0"),
    "probability": (["graph", "random_digraph", "5", "1.5"], "1.5"),
    "not a power of two": (["graph", "de_bruijn", "6"], "power of two"),
    "unknown method": (["methods", "CTG"], "Did you mean `CGT`?"),
    "unknown data": (["data", "get", "a9b"], "a9a"),
    "not a run": (["report", "."], "digrad"),
    "repeats": (["bench", "--repeats", "0"], "0 is not in the range"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_command_line(name, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    words, message = COMMANDS[name]
    assert message in refused(monkeypatch, capsys, *words)


GRAPHS = {
    "self loop": ("a.json", {"n": 2, "edges": [[0, 1], [1, 1]]}, "self loop"),
    "out of range": ("a.json", {"n": 2, "edges": [[0, 2]]}, "2"),
    "twice": ("a.json", {"n": 2, "edges": [[0, 1], [0, 1], [1, 0]]}, "(0, 1)"),
    "not json": ("a.json", "{", "a.json"),
    "no edges": ("a.json", {"n": 2}, "edges"),
    "bad line": ("a.txt", "0 1\n1 zero\n", "a.txt"),
    "three numbers": ("a.txt", "0 1\n1 0 5\n", "line 2"),
    "disconnected": ("a.txt", "0 1\n1 0\n2 3\n3 2\n", "agent"),
    "one way only": ("a.txt", "0 1\n1 2\n", "cannot reach"),
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
    "missing argument": ('kind = "example5"', 'kind = "ring"', "n"),
    "unknown problem": ('kind = "logistic"', 'kind = "logistics"', "logistic"),
    "unknown data": ('data = "digits"', 'data = "digit"', "digits"),
    "unknown partition": ('data = "digits"', 'data = "digits"\npartition = "sort"', "Did you mean `sorted`?"),
    "wrong number of weights": ("reg_weight = 1e-3", "reg_weight = [1e-3, 1e-3]", "5 agents"),
    "power below two": ("reg_power = 4", "reg_power = 1", "at least 2"),
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
    "not finite": ("1 1:nan\n", "line 1"),
    "one label": ("1 1:1\n1 2:1\n1 1:1\n1 1:1\n1 1:1\n", "two"),
    "empty": ("", "empty"),
    "fewer samples than agents": ("1 1:1\n-1 1:1\n", "agent"),
}


@pytest.mark.parametrize("name", DATA)
def test_data_file(name, monkeypatch, capsys, tmp_path):
    content, message = DATA[name]
    (tmp_path / "mine.txt").write_text(content)
    (tmp_path / "spec.toml").write_text(SPEC.replace('"digits"', '"mine.txt"'))
    assert message in refused(monkeypatch, capsys, "run", tmp_path / "spec.toml", "--out", tmp_path / "out")


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
