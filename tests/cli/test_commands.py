import json
import os
import signal
import subprocess
import sys

import pytest

import digrad as dg
from digrad.cli import main
from digrad.cli.main import digrad
from digrad.core.validation import check_links
from digrad.simulation import checkpoint
from digrad.specs import preset, runner
from digrad.trace import Trace
from experiment_specs import tiny

pytestmark = pytest.mark.long


def call(monkeypatch, capsys, *words):
    monkeypatch.setattr("sys.argv", ["digrad", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    output = capsys.readouterr()
    assert ended.value.code in (0, None), output.err
    return output.out


@pytest.mark.parametrize("command", digrad.commands)
def test_every_command_explains_itself(command, monkeypatch, capsys):
    text = call(monkeypatch, capsys, command, "--help")
    assert f"Usage: digrad {command}" in text
    assert len(text.splitlines()) > 5


def test_without_arguments_the_help_is_shown(monkeypatch, capsys):
    assert "digrad demo" in call(monkeypatch, capsys)


def test_help_loads_nothing_heavy():
    code = (
        "import sys; sys.argv = ['digrad', '--help']\n"
        "from digrad.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'jax', 'numpy', 'scipy', 'matplotlib', 'sklearn', 'torch', 'pandas', 'rich'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_warning_is_one_line_shown_once(monkeypatch, capsys):
    network = dg.Network(dg.graphs.example5(), links=dg.Links(loss=0.3, push="drop"))

    def check_twice(**_):
        for _ in range(2):  # as a run does, of its specification and of every seed
            check_links(dg.CGT(step_size=0.05, threshold=2.0), network, "CGT")

    monkeypatch.setattr(digrad, "main", check_twice)
    with pytest.raises(SystemExit):
        main()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("digrad: warning: CGT: push='drop', pull='self' of Links forget what is lost")


def test_graph_describes_draws_and_saves(monkeypatch, capsys, tmp_path):
    text = call(
        monkeypatch, capsys, "graph", "example5", "--draw", tmp_path / "g.png", "--save", tmp_path / "g.json"
    )
    assert "rho_R               0.577350" in text
    assert (tmp_path / "g.png").read_bytes()[:4] == b"\x89PNG"
    again = call(monkeypatch, capsys, "graph", tmp_path / "g.json", "--json")
    assert json.loads(again)["n_edges"] == 7


def test_graph_of_many_edges_says_that_it_takes_a_while(monkeypatch, capsys):
    monkeypatch.setattr("digrad.cli.lookup_commands._MANY_EDGES", 6)
    monkeypatch.setattr(sys, "argv", ["digrad", "graph", "example5"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().err == "describing 7 edges, about a second per million ...\n"


def test_graph_lists_the_perron_vectors_and_the_roots_of_a_small_graph(monkeypatch, capsys):
    lines = call(monkeypatch, capsys, "graph", "example5").splitlines()
    assert "u (Perron of R)     1.481, 1.111, 0.5556, 0.7407, 1.111" in lines
    assert "v (Perron of C)     1.034, 0.5172, 1.034, 1.034, 1.379" in lines
    assert "roots               5 (0, 1, 2, 3, 4)" in lines
    figures = json.loads(call(monkeypatch, capsys, "graph", "ring", "12", "--json"))
    assert figures["u"] == figures["v"] == [1.0] * 12
    assert figures["roots"] == list(range(12))
    assert "0, 1, 2" not in call(monkeypatch, capsys, "graph", "ring", "12")


@pytest.mark.parametrize("words", [("out_star", "4"), ("fork.txt",)])
def test_graph_with_a_root_is_described_drawn_and_saved_without_column_weights(
    words, monkeypatch, capsys, tmp_path
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fork.txt").write_text("0 1\n0 2\n")
    lines = call(monkeypatch, capsys, "graph", *words, "--draw", "g.svg", "--save", "g.json").splitlines()
    assert "strongly connected  no" in lines
    assert "roots               1 (0)" in lines
    assert "rho_R               0.500000" in lines
    assert lines[-1] == (
        "C: not possible: no agent is reached by all others (agent 1 cannot reach agent 0), "
        "but column-stochastic weights need one"
    )
    assert not any(line.startswith(("v ", "rho_C", "u.v")) for line in lines)
    assert b"<svg" in (tmp_path / "g.svg").read_bytes()
    figures = json.loads(call(monkeypatch, capsys, "graph", "g.json", "--json"))
    assert figures["u"] == [figures["n"]] + [0.0] * (figures["n"] - 1)
    assert figures["rho_R"] == pytest.approx(0.5)
    assert figures["v"] is figures["rho_C"] is figures["kappa_v"] is figures["u_dot_v"] is None


def test_methods_are_listed_with_their_facts(monkeypatch, capsys):
    rows = {row["name"]: row for row in json.loads(call(monkeypatch, capsys, "methods", "--json"))}
    assert rows["CGT"]["needs"] == ["row", "column"]
    assert rows["CGT"]["decentralized"] is True
    assert rows["JiangClip"]["decentralized"] is False
    assert (rows["CGT"]["all_reduces"], rows["JiangClip"]["all_reduces"]) == (0, 1)
    assert rows["DSGT"]["converges"] == "exact (row: wrong point)"
    assert rows["SoftCGT"]["source"] == "this library (variant of CGT)"
    assert "@misc{bo2026provably" in call(monkeypatch, capsys, "methods", "CGT", "--bibtex")
    assert "CGT" in call(monkeypatch, capsys, "methods")
    assert "all-reduce" in call(monkeypatch, capsys, "methods")


@pytest.mark.parametrize("other", ["--measure", "--json"])
def test_methods_refuses_to_mix_citations_with(other, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["digrad", "methods", "CGT", "--bibtex", other])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"excludes {other}" in capsys.readouterr().err


def test_methods_are_measured_with_their_steps(monkeypatch, capsys):
    lines = call(monkeypatch, capsys, "methods", "GD", "--measure").splitlines()
    assert "steps" in lines[0]
    row = next(line for line in lines if line.strip().startswith("GD"))
    assert " 3000 " in row
    assert row.split()[-2:] == ["exact", "no"]


def test_data_sets_are_listed_and_verified(monkeypatch, capsys):
    assert "digits" in call(monkeypatch, capsys, "data", "list")
    assert {row["name"] for row in json.loads(call(monkeypatch, capsys, "data", "list", "--json"))} >= {
        "digits",
        "a9a",
    }
    assert "1797 samples" in call(monkeypatch, capsys, "data", "verify", "digits")
    found = json.loads(call(monkeypatch, capsys, "data", "verify", "digits", "--json"))
    assert (found["name"], found["n_samples"], found["dim"]) == ("digits", 1797, 64)
    assert len(found["sha256"]) == 64


def test_data_get_says_that_a_data_set_is_bundled(monkeypatch, capsys):
    assert call(monkeypatch, capsys, "data", "get", "digits") == (
        "digits is bundled with scikit-learn: nothing to fetch.\n"
    )
    found = json.loads(call(monkeypatch, capsys, "data", "get", "digits", "--json"))
    assert (found["source"], found["location"]) == ("bundled", "scikit-learn")


@pytest.fixture
def spec(tmp_path):
    """The path of a specification in which AB diverges."""
    path = tmp_path / "tiny.toml"
    path.write_text(tiny(steps=40).to_toml())
    return path


@pytest.mark.usefixtures("no_figures_here")
def test_run_prints_the_summary_that_it_writes(monkeypatch, capsys, spec, tmp_path):
    out = tmp_path / "out"
    summary = json.loads(call(monkeypatch, capsys, "run", spec, "--out", out, "--json"))
    assert summary == json.loads((out / "summary.json").read_text())
    assert summary["AB"]["verdict"] == "diverged"
    assert (out / "report.html").is_file()
    assert "diverged at k = " in call(monkeypatch, capsys, "run", spec, "--out", out, "--resume")


@pytest.mark.usefixtures("no_figures_here")
def test_the_example_specification_runs_as_printed(monkeypatch, capsys, tmp_path):
    text = call(monkeypatch, capsys, "run", "--example")
    shorter = "\n".join("steps = 20" if line.startswith("steps") else line for line in text.splitlines())
    (tmp_path / "mine.toml").write_text(shorter)
    assert "CGT" in call(monkeypatch, capsys, "run", tmp_path / "mine.toml", "--out", tmp_path / "out")


@pytest.mark.usefixtures("interruptible", "no_figures_here")
def test_ctrl_c_keeps_what_was_computed_and_resume_goes_on(monkeypatch, capsys, spec, tmp_path):
    out, save, pressed = tmp_path / "out", checkpoint.save, []

    def press(*arguments, **options):
        save(*arguments, **options)
        if not pressed:
            pressed.append(os.kill(os.getpid(), signal.SIGINT))

    monkeypatch.setattr(checkpoint, "save", press)
    monkeypatch.setattr("sys.argv", ["digrad", "run", str(spec), "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert "Continue with --resume" in capsys.readouterr().err
    stopped = json.loads((out / "summary.json").read_text())
    assert list(stopped) == ["CGT"]
    assert 0 < stopped["CGT"]["steps"] < 40
    resumed = json.loads(call(monkeypatch, capsys, "run", spec, "--out", out, "--resume", "--json"))
    assert (list(resumed), resumed["CGT"]["steps"]) == (["CGT", "AB", "DGDClip"], 40)


def test_demo_shows_that_tracking_explodes_and_cgt_converges(monkeypatch, capsys, tmp_path):
    out, draw = tmp_path / "demo", runner.draw_figures
    # A PDF takes longer than the runs; tests/plots writes some.
    monkeypatch.setattr(runner, "draw_figures", lambda *given: draw(*given[:-1], formats=("png",)))
    summary = json.loads(call(monkeypatch, capsys, "demo", "--out", out, "--json"))
    assert summary["AB"]["verdict"] == "diverged"
    assert summary["AB"]["diverged_at"] <= 10
    assert summary["CGT"]["verdict"] == "converged"
    assert summary["DGDClip"]["verdict"] == "stalled"
    assert summary["DGDClip"]["final"]["grad_norm"] > 100 * summary["CGT"]["final"]["grad_norm"]
    cgt, clipped = (Trace.load(out, name) for name in ("CGT", "DGDClip"))
    assert cgt.loss.max() < 1.2 * cgt.loss[0]
    assert cgt.loss[-1] - preset("demo").build().problem.solve().loss < 1e-3
    assert clipped.grad_norm[-1000:].mean() > 2 * cgt.grad_norm[-1000:].mean()
    for name in ("spec.toml", "trace-AB.parquet", "environment.json", "report.html"):
        assert (out / name).is_file()
    assert (out / "figures" / "loss_and_gradient.png").is_file()


@pytest.mark.usefixtures("no_figures_here")
def test_demo_replaces_only_itself(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("digrad.specs.preset", lambda name: tiny(steps=20))
    (tmp_path / "demo.toml").write_text(tiny(steps=30).to_toml())
    call(monkeypatch, capsys, "run", "demo.toml", "--quiet")
    before = (tmp_path / "runs" / "demo" / "trace-CGT.parquet").read_bytes()
    monkeypatch.setattr("sys.argv", ["digrad", "demo"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "holds the run of another specification" in capsys.readouterr().err
    assert (tmp_path / "runs" / "demo" / "trace-CGT.parquet").read_bytes() == before
    call(monkeypatch, capsys, "demo", "--overwrite")
    call(monkeypatch, capsys, "demo")  # the same numbers again
    assert Trace.load(tmp_path / "runs" / "demo", "CGT").steps == 20


def test_graph_describes_and_draws_the_union_of_one_that_changes_with_time(monkeypatch, capsys, tmp_path):
    picture = tmp_path / "graph.svg"
    text = call(monkeypatch, capsys, "graph", "one_peer_exponential", "4", "--draw", picture)
    assert text.splitlines()[0].split(maxsplit=3)[3].startswith("with period 2; the figures are those of all")
    assert "v = " not in picture.read_text()
    found = json.loads(call(monkeypatch, capsys, "graph", "one_peer_exponential", "4", "--json"))
    assert (found["n_edges"], found["changes"].split(";")[0]) == (8, "with period 2")
