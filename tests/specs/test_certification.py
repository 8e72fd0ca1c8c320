import copy
import json
import re

import pytest
from matplotlib.figure import Figure

from digrad.errors import ArgumentError, DataError, SpecError
from digrad.specs import certify_spec, parse_spec, smoothness_of_spec, verify_certificate

TEXT = """
name = "tiny"
steps = 200
start = "normal"
start_scale = 3.0

[graph]
kind = "ring"
n = 3

[problem]
kind = "cosh"
center = [[0.5], [-0.5], [0.2]]

[methods.CGT]
step_size = 0.2
threshold = 2.0
"""


pytestmark = pytest.mark.usefixtures("no_figures")


@pytest.fixture
def quick(monkeypatch):
    # What explains a certificate takes seconds, and so do drawings; tests/theory prints the one and draws the other.
    monkeypatch.setattr("digrad.theory.certificates.certify._explained", lambda *asked: {})
    monkeypatch.setattr("digrad.plots.inequalities.row_figure", lambda row: Figure())


@pytest.mark.usefixtures("quick")
def test_certify_writes_the_certificate_and_a_figure_per_inequality(tmp_path):
    result = certify_spec(parse_spec(TEXT), tmp_path / "out", steps=60)
    assert result.certificate.verdict == "fails"  # from this start; the run is proven soon after
    assert result.check.verdict == "PASS"
    assert 0 < result.check.proven_from < 60
    stored = json.loads((tmp_path / "out" / "certificate.json").read_text())
    assert stored["certificate"]["verdict"] == "fails"
    assert len(list((tmp_path / "out" / "figures").glob("*.png"))) == len(result.check.rows)


@pytest.mark.usefixtures("quick")
def test_mini_batches_are_never_certified(tmp_path):
    text = TEXT.replace("steps = 200", "steps = 200\nbatch_size = 8").replace(
        "step_size = 0.2", "step_size = 1e-9"
    )
    text = (
        text[: text.index("[problem]")]
        + '[problem]\nkind = "logistic"\ndata = "breast_cancer"\n'
        + text[text.index("[methods") :]
    )
    result = certify_spec(parse_spec(text), tmp_path / "out", steps=5)
    assert result.certificate.verdict == "not covered"
    assert result.certificate.label == "indicative, not a certificate"
    assert not verify_certificate(tmp_path / "out" / "certificate.json")["gradients are full ones"]


def test_smoothness_draws_the_line_above_all_points(tmp_path):
    result = smoothness_of_spec(parse_spec(TEXT), tmp_path / "out")
    found = result.found
    assert (found.line(found.grad_norms_F) >= found.hessian_norms_F * (1 - 1e-9)).all()
    assert (
        0 < found.line.slope <= 1.1
    )  # cosh with sharpness 1 is (a, 1)-smooth; an estimate is not above the truth
    assert {path.suffix for path in result.files} == {".json", ".png", ".pdf"}


def test_the_theory_is_about_cgt(tmp_path):
    with pytest.raises(SpecError, match="The theory is about CGT"):
        certify_spec(parse_spec(TEXT.replace("[methods.CGT]", "[methods.DGDClip]")), tmp_path / "out")


@pytest.mark.parametrize("write", [certify_spec, smoothness_of_spec])
def test_folder_of_other_files_is_left_alone(write, tmp_path):
    (tmp_path / "certificate.json").write_text('{"mine": 1}')
    with pytest.raises(ArgumentError, match="holds other files; give another --out"):
        write(parse_spec(TEXT), tmp_path)
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [
        ("certificate.json", '{"mine": 1}')
    ]


@pytest.mark.usefixtures("quick")
def test_mini_batches_of_ab_get_a_bound_beside_what_a_run_does(tmp_path):
    text = """
name = "noisy"
steps = 60
seed = 0
batch_size = 8

[graph]
kind = "example5"

[problem]
kind = "logistic"
data = "breast_cancer"
reg_weight = 1e-2
reg_power = 2

[methods.AB]
step_size = 0.01
"""
    result = certify_spec(parse_spec(text), tmp_path / "out")
    found = re.search(r"that is ([0-9.e+-]+), where a run has ([0-9.e+-]+) ", result.notice)
    assert "theorem S, in expectation" in result.notice
    assert 0 < float(found.group(2)) < float(found.group(1))
    assert result.certificate.label == "indicative, not a certificate"


@pytest.mark.usefixtures("quick")
def test_stored_certificate_that_was_altered_is_not_verified(tmp_path):
    alone = """
    name = "alone"
    steps = 3
    graph = {kind = "ring", n = 1}
    problem = {kind = "cosh", center = [[0.5]]}
    methods.CGT = {step_size = 0.5, threshold = 1.0}
    """
    certify_spec(parse_spec(alone), tmp_path / "out")
    path = tmp_path / "out" / "certificate.json"
    stored = json.loads(path.read_text())
    assert all(verify_certificate(path).values())

    def verify(*keys, value):
        changed = copy.deepcopy(stored)
        inner = changed
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
        path.write_text(json.dumps(changed))
        return all(verify_certificate(path).values())

    found = stored["certificate"]
    few = {eps: K - 1 for eps, K in found["K"].items()}
    for key, value in (
        ("verdict", "fails"),
        ("alpha_max", 1.0),
        ("step_size", 1e-3),
        ("K", few),
        ("rate", 0.1),
    ):
        assert not verify("certificate", key, value=value)
    for name, key in (("proof", "eps"), ("proof", "level"), ("largest", "step_size")):
        assert not verify("certificate", name, key, value=2 * found[name][key])
    assert not verify("certificate", "proof", "slack", value=-1.0)
    for key, value in (
        ("step_size", "x"),
        ("step_size", -1.0),
        ("V0", None),
        ("width", []),
        ("convex", "yes"),
    ):
        with pytest.raises(ArgumentError, match="must be the proof of a certificate"):
            verify("certificate", "proof", key, value=value)
    with pytest.raises(ArgumentError, match="not as long as each other"):
        verify("certificate", "proof", "taps", "a", value=[1.0] * 7)
    for key, value in (("certificate", []), ("spec", 3), ("method", None)):
        with pytest.raises(DataError, match="does not hold what was written"):
            verify(key, value=value)
