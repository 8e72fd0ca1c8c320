import json
from importlib import import_module
from pathlib import Path

import pytest

from digrad.cli import main

EXAMPLE = Path(__file__).parents[2] / "examples" / "certify_digits.toml"

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
    # Thirty drawings take seconds; tests/plots/test_inequalities.py draws them.
    monkeypatch.setattr("digrad.theory.RunCheck.figures", lambda check: {})
    monkeypatch.setattr("digrad.plots.save_figure", lambda *arguments, **options: [])


@pytest.fixture
def unexplained(monkeypatch):
    # The upper end, its factors, other thresholds and the paper's bound take seconds; the first test prints them.
    monkeypatch.setattr("digrad.theory.certificates.certify._explained", lambda *asked: {})


@pytest.mark.usefixtures("without_figures")
def test_certify_prints_what_is_proven_and_writes_a_certificate_that_is_verified(
    spec, monkeypatch, capsys, tmp_path
):
    out = tmp_path / "out"
    code, output = call(monkeypatch, capsys, "certify", spec, "--out", out, "--steps", "5")
    assert code == 0, output.err
    lines = output.out.splitlines()
    assert lines[0] == "methods.CGT: holds: alpha = 0.05, c0 = 1"
    for words in (
        "certified: every step up to",
        "largest stable step",
        "factor by factor",
        "c0 = 0.2",
        "as printed",
    ):
        assert any(words in line for line in lines)
    assert "Proven to converge from step 0 on." in lines
    assert "PASS: 5 steps checked" in output.out
    assert "mini-batches" not in output.out
    stored = json.loads((out / "certificate.json").read_text())
    assert stored["certificate"]["verdict"] == "holds"
    assert (stored["check"]["steps"], stored["check"]["proven_from"]) == (5, 0)
    assert {row["chain"] for row in stored["check"]["rows"]} == {"certificate"}
    code, output = call(monkeypatch, capsys, "certify", "--verify", out / "certificate.json")
    assert (code, output.out.splitlines()[-1]) == (0, "verified")
    stored["certificate"]["proof"]["V0"] *= 0.5
    (out / "certificate.json").write_text(json.dumps(stored))
    code, output = call(monkeypatch, capsys, "certify", "--verify", out / "certificate.json")
    assert (code, output.out.splitlines()[-1]) == (1, "not verified")
    code, output = call(monkeypatch, capsys, "certify")
    assert code == 2


@pytest.mark.usefixtures("without_figures", "unexplained")
def test_inequalities_of_the_paper_are_checked_on_request(spec, monkeypatch, capsys, tmp_path):
    code, output = call(
        monkeypatch, capsys, "certify", spec, "--out", tmp_path / "out", "--steps", "5", "--paper"
    )
    assert code == 0, output.err
    stored = json.loads((tmp_path / "out" / "certificate.json").read_text())
    chains = {row["chain"] for row in stored["check"]["rows"]}
    assert chains == {"certificate", "all", "paper"}


@pytest.mark.usefixtures("without_figures", "unexplained")
def test_certify_prints_the_stored_certificate_as_json(spec, monkeypatch, capsys, tmp_path):
    code, output = call(monkeypatch, capsys, "certify", spec, "--out", tmp_path / "out", "--json")
    assert code == 0, output.err
    assert json.loads(output.out) == json.loads((tmp_path / "out" / "certificate.json").read_text())


@pytest.mark.usefixtures("unexplained")
def test_run_that_diverges_is_a_result_and_keeps_the_certificate(spec, monkeypatch, capsys, tmp_path):
    spec.write_text(
        spec.read_text().replace("= 0.05", "= 1e6").replace("threshold = 1.0", "threshold = 1e60")
    )
    code, output = call(monkeypatch, capsys, "certify", spec, "--out", tmp_path / "out")
    assert code == 0, output.err
    assert output.out.startswith("methods.CGT: not certified: ")
    stored = json.loads((tmp_path / "out" / "certificate.json").read_text())
    assert stored["certificate"]["verdict"] == "fails"
    assert stored["check"] is None
    assert f"The run diverged at k = {stored['diverged_at']}: no inequality was checked." in output.out


@pytest.mark.parametrize("command", ["certify", "smoothness"])
def test_results_in_place_of_a_file_are_refused_before_anything_is_computed(
    command, spec, monkeypatch, capsys, tmp_path
):
    module = import_module("digrad.specs.certification")  # digrad.specs has a function of that name
    monkeypatch.setattr(module, "certify", None)
    monkeypatch.setattr(module, "run_cgt", None)
    code, output = call(monkeypatch, capsys, command, spec, "--out", spec)
    assert code == 2
    assert "`out` must be a folder" in output.err.splitlines()[-1]


@pytest.mark.parametrize("command", ["certify", "smoothness"])
def test_specification_without_cgt_is_refused_in_one_line(command, monkeypatch, capsys, tmp_path):
    path = tmp_path / "other.toml"
    path.write_text(SPEC.format(method="DGD"))
    code, output = call(monkeypatch, capsys, command, path, "--out", tmp_path / "out")
    assert code == 2
    errors = [line for line in output.err.splitlines() if not line.startswith("Certifying")]
    assert errors == [
        "digrad: The theory is about CGT, SoftCGT and AB, but `methods` holds DGD; add a table [methods.CGT]."
    ]
    assert not (tmp_path / "out").exists()


def test_smoothness_prints_a_line_per_loss_and_writes_its_figure(spec, monkeypatch, capsys, tmp_path):
    out = tmp_path / "out"
    code, output = call(monkeypatch, capsys, "smoothness", spec, "--out", out)
    assert code == 0, output.err
    lines = output.out.splitlines()
    assert lines[0].startswith("methods.CGT: ")
    assert lines[1].split() == ["loss", "L0", "L1"]
    assert any(line.endswith("indicative, not a certificate") for line in lines)
    assert (out / "smoothness.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.usefixtures("without_figures")
def test_smoothness_prints_what_it_stores_as_json(spec, monkeypatch, capsys, tmp_path):
    code, output = call(monkeypatch, capsys, "smoothness", spec, "--out", tmp_path / "out", "--json")
    assert code == 0
    found = json.loads(output.out)
    assert found == json.loads((tmp_path / "out" / "smoothness.json").read_text())
    assert len(found["losses"]) == 4  # three agents and F
    assert (found["method"], found["label"]) == ("CGT", "indicative, not a certificate")
    assert found["ell"] >= 1
    assert found["b"] >= 0
    points = found["points"]
    assert points["iterations"][0] == 0
    assert {len(values) for values in points.values()} == {len(points["iterations"])}


TWO = """
[methods.slow]
method = "CGT"
step_size = 0.01
threshold = 2.0
"""


@pytest.mark.usefixtures("without_figures", "unexplained")
@pytest.mark.parametrize("command", ["certify", "smoothness"])
def test_method_chooses_among_several_cgt(command, spec, monkeypatch, capsys, tmp_path):
    spec.write_text(spec.read_text() + TWO)
    code, output = call(monkeypatch, capsys, command, spec, "--out", tmp_path / "a")
    assert code == 0, output.err
    assert output.out.startswith("methods.CGT: ")
    code, output = call(monkeypatch, capsys, command, spec, "--out", tmp_path / "b", "--method", "slow")
    assert code == 0, output.err
    assert output.out.startswith("methods.slow: ")
    if command == "certify":
        stored = json.loads((tmp_path / "b" / "certificate.json").read_text())
        assert stored["method"] == "slow"
        assert (stored["check"]["step_size"], stored["check"]["threshold"]) == (0.01, 2.0)


WIDER = {
    "thresholds": ("threshold = 1.0", "threshold = [1.0, 2.0, 1.0]"),
    "steps": ("step_size = 0.05", "step_size = [0.1, 0.1, 0.05]"),
    "schedule": ("step_size = 0.05", 'step_size = {schedule = "inverse", scale = 0.05}'),
    "soft": ("[methods.CGT]", "[methods.SoftCGT]"),
    "AB": ("threshold = 1.0", "threshold = inf"),
}
LIKE_THRESHOLDS = ("steps", "schedule")  # to a command; tests/theory certifies them


@pytest.mark.usefixtures("without_figures", "unexplained")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LIKE_THRESHOLDS else ()) for name in WIDER]
)
def test_certificate_covers_more_than_cgt(name, spec, monkeypatch, capsys, tmp_path):
    spec.write_text(spec.read_text().replace(*WIDER[name]))
    code, output = call(monkeypatch, capsys, "certify", spec, "--out", tmp_path / "out", "--steps", "3")
    assert code == 0, output.err
    assert ": holds: alpha = " in output.out.splitlines()[0]
    stored = json.loads((tmp_path / "out" / "certificate.json").read_text())
    assert (stored["check"] is None) == (name != "AB")
    code, output = call(monkeypatch, capsys, "certify", "--verify", tmp_path / "out" / "certificate.json")
    assert (code, output.out.splitlines()[-1]) == (0, "verified")
    if name != "AB":
        code, output = call(monkeypatch, capsys, "smoothness", spec, "--out", tmp_path / "other")
        assert (code, len(output.err.splitlines())) == (2, 1)


@pytest.mark.parametrize("command", ["certify", "smoothness"])
@pytest.mark.parametrize(
    ("change", "arguments", "message"),
    [
        (
            ("", TWO),
            ("--method", "fast"),
            "must be the label of a CGT, SoftCGT or AB (CGT, slow), but got 'fast'",
        ),
        (('kind = "cosh"', 'kind = "cash"'), (), "cosh"),
        (('kind = "ring"\nn = 3', 'file = "split.txt"'), (), "no agent reaches all others"),
    ],
    ids=["label", "problem", "disconnected"],
)
def test_what_the_theory_does_not_cover_is_refused_in_one_line(
    command, change, arguments, message, spec, monkeypatch, capsys, tmp_path
):
    old, new = change
    text = spec.read_text()
    spec.write_text(text.replace(old, new) if old else text + new)
    (tmp_path / "split.txt").write_text("0 1\n1 0\n2 3\n3 2\n")
    code, output = call(monkeypatch, capsys, command, spec, "--out", tmp_path / "out", *arguments)
    errors = [line for line in output.err.splitlines() if not line.startswith("Certifying")]
    assert code == 2
    assert len(errors) == 1
    assert message in errors[0]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["certify", "smoothness"])
def test_missing_file_is_refused_in_one_line(command, monkeypatch, capsys, tmp_path):
    code, output = call(monkeypatch, capsys, command, tmp_path / "none.toml", "--out", tmp_path / "out")
    assert code == 2
    assert len(output.err.splitlines()) == 1
    assert "cannot be read (No such file or directory)" in output.err


@pytest.mark.parametrize("words", [(), ("tiny.toml", "--verify", "certificate.json")])
def test_certify_is_given_either_a_specification_or_a_certificate(words, monkeypatch, capsys):
    code, output = call(monkeypatch, capsys, "certify", *words)
    assert code == 2
    assert "either SPEC or --verify FILE" in output.err


@pytest.mark.usefixtures("without_figures", "unexplained")
def test_mini_batches_are_named_as_not_checked(spec, monkeypatch, capsys, tmp_path):
    (tmp_path / "few.svm").write_text(
        "".join(f"{(-1) ** i} 1:{i % 5 + i % 2} 2:{i % 3}\n" for i in range(30))
    )
    problem = 'kind = "logistic"\ndata = "few.svm"\nreg_weight = 0.1'
    text = spec.read_text().replace('kind = "cosh"\ncenter = [[0.5], [-0.5], [0.2]]', problem)
    spec.write_text(text.replace("steps = 8", "steps = 8\nbatch_size = 8"))
    code, output = call(monkeypatch, capsys, "certify", spec, "--out", tmp_path / "out")
    assert code == 0, output.err
    notice = "Full gradients were checked, not the specified run with mini-batches of 8: indicative, not a certificate."
    said = json.loads((tmp_path / "out" / "certificate.json").read_text())["notice"]
    assert said in output.out.splitlines()
    assert said.startswith(f"{notice} With mini-batches, theorem M, in expectation: steps stay bounded")


@pytest.mark.usefixtures("without_figures", "unexplained")
def test_example_of_the_theory_is_proven_with_a_practical_step(monkeypatch, capsys, tmp_path):
    code, output = call(monkeypatch, capsys, "certify", EXAMPLE, "--out", tmp_path / "out", "--steps", "5")
    assert code == 0, output.err
    stored = json.loads((tmp_path / "out" / "certificate.json").read_text())
    assert stored["certificate"]["verdict"] == "holds"
    assert stored["check"]["proven_from"] == 0
    assert "Proven to converge from step 0 on." in output.out


@pytest.mark.usefixtures("without_figures", "unexplained")
@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({'kind = "ring"\nn = 3': 'kind = "ring"\nn = 1', "[[0.5], [-0.5], [0.2]]": "[[0.5]]"}, "holds"),
        (
            {
                'kind = "cosh"\ncenter = [[0.5], [-0.5], [0.2]]': 'kind = "quadratic"\n'
                "curvature = [[1.0], [2.0], [1.0]]\nlinear = [[0.5], [1.0], [0.2]]",
                "step_size = 0.05": "step_size = 1e-6",
            },
            "holds",
        ),
        (
            {"[[0.5], [-0.5], [0.2]]": "[[0.0], [0.0], [0.0]]", "step_size = 0.05": "step_size = 1e-6"},
            "holds",
        ),
        (
            {"[problem]": '[mixing]\nR_file = "R.csv"\n\n[problem]', "step_size = 0.05": "step_size = 1e-9"},
            "not covered",
        ),
        ({"step_size = 0.05": "step_size = 10.0"}, "not certified"),
    ],
    ids=["N = 1", "L1 = 0", "D0 = 0", "zeros in u", "alpha too large"],
)
def test_unusual_inputs_are_answered(changes, verdict, spec, monkeypatch, capsys, tmp_path):
    text = spec.read_text()
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    spec.write_text(text)
    (tmp_path / "R.csv").write_text("1, 0, 0\n0.5, 0.5, 0\n0, 0.5, 0.5\n")
    code, output = call(monkeypatch, capsys, "certify", spec, "--out", tmp_path / "out", "--steps", "5")
    assert code == 0, output.err
    assert output.out.startswith(f"methods.CGT: {verdict}: ")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("n = 3", "n = 3\nrandom_edges = 0.5"), "the network changes with time"),
        (("[problem]", '[links]\ncompressor = "bfloat16"\n\n[problem]'), "its links alter messages"),
    ],
)
def test_certify_says_in_one_line_that_a_network_is_not_covered(
    change, reason, spec, monkeypatch, capsys, tmp_path
):
    spec.write_text(spec.read_text().replace(*change))
    code, output = call(monkeypatch, capsys, "certify", spec, "--out", tmp_path / "out")
    assert code == 0, output.err
    assert output.out.startswith("methods.CGT: not covered: alpha = 0.05, c0 = 1\n")
    assert reason in output.out
    assert "Not followed: no inequality was checked." in output.out
    stored = json.loads((tmp_path / "out" / "certificate.json").read_text())
    assert (stored["certificate"]["verdict"], stored["check"]) == ("not covered", None)
    code, output = call(monkeypatch, capsys, "smoothness", spec, "--out", tmp_path / "other")
    assert code == 2
    assert f"`network` of theory.run is not covered: {reason}" in output.err
