import json

import pytest

from digrad.cli import main

SPEC = """
name = "tiny"
steps = 8
seed = 0

[graph]
kind = "ring"
n = 3

[problem]
kind = "cosh"
center = [[0.5], [-0.5], [0.2]]

[methods.{method}]
step_size = 0.05
"""


def call(monkeypatch, capsys, *words):
    monkeypatch.setattr("sys.argv", ["digrad", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code or 0, capsys.readouterr()


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(SPEC.format(method="CGT") + "threshold = 1.0\n")
    return path


@pytest.fixture
def without_figures(monkeypatch):
    # Thirty drawings take seconds; tests/theory/test_figures.py draws them.
    monkeypatch.setattr("digrad.theory.RunCheck.figures", lambda check: {})


@pytest.mark.usefixtures("without_figures")
def test_certify_prints_the_chains_and_the_inequalities_and_writes_the_certificate(
    spec, monkeypatch, capsys, tmp_path
):
    code, output = call(monkeypatch, capsys, "certify", spec, "--out", tmp_path / "out", "--steps", "5")
    assert code == 0, output.err
    lines = output.out.splitlines()
    assert lines[0] == "fails: CGT with alpha = 0.05, c0 = 1"
    chains = [line.split()[0] for line in lines if "alpha_max = " in line]
    assert chains == ["sharp", "repaired", "paper"]
    assert "PASS: 5 steps checked" in output.out
    assert "inequality" in output.out
    assert "a-posteriori" in output.out
    stored = json.loads((tmp_path / "out" / "certificate.json").read_text())
    assert stored["certificate"]["verdict"] == "fails"
    assert stored["check"]["steps"] == 5
    assert {row["chain"] for row in stored["check"]["rows"]} == {"all", "sharp", "repaired", "paper"}


@pytest.mark.usefixtures("without_figures")
def test_certify_prints_the_stored_certificate_as_json(spec, monkeypatch, capsys, tmp_path):
    code, output = call(monkeypatch, capsys, "certify", spec, "--out", tmp_path / "out", "--json")
    assert code == 0, output.err
    assert json.loads(output.out) == json.loads((tmp_path / "out" / "certificate.json").read_text())


def test_certify_draws_a_figure_per_inequality(spec, monkeypatch, capsys, tmp_path):
    from digrad.theory import RunCheck

    draw = RunCheck.figures
    monkeypatch.setattr(RunCheck, "figures", lambda check: dict(list(draw(check).items())[:2]))
    code, _ = call(monkeypatch, capsys, "certify", spec, "--out", tmp_path / "out", "--steps", "2")
    assert code == 0
    assert len(list((tmp_path / "out" / "figures").glob("*.png"))) == 2


@pytest.mark.parametrize("command", ["certify", "smoothness"])
def test_specification_without_cgt_is_refused_in_one_line(command, monkeypatch, capsys, tmp_path):
    path = tmp_path / "other.toml"
    path.write_text(SPEC.format(method="AB"))
    code, output = call(monkeypatch, capsys, command, path, "--out", tmp_path / "out")
    assert code == 2
    errors = [line for line in output.err.splitlines() if not line.startswith("Certifying")]
    assert errors == ["digrad: The theory is about CGT, but `methods` holds AB; add a table [methods.CGT]."]
    assert not (tmp_path / "out").exists()


def test_smoothness_prints_a_line_per_loss_and_writes_its_figure(spec, monkeypatch, capsys, tmp_path):
    out = tmp_path / "out"
    code, output = call(monkeypatch, capsys, "smoothness", spec, "--out", out)
    assert code == 0, output.err
    assert output.out.split()[:3] == ["loss", "L0", "L1"]
    code, output = call(monkeypatch, capsys, "smoothness", spec, "--out", out, "--json")
    assert code == 0
    rows = json.loads(output.out)
    assert rows == json.loads((out / "smoothness.json").read_text())
    assert len(rows) == 4  # three agents and F
    assert list(out.glob("smoothness.*"))
