"""Methods and problems of another package, in a folder of its own."""

import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

import digrad as dg
from digrad.cli import doctor, main
from digrad.core.method_facts import method_facts
from digrad.errors import PluginError
from digrad.methods.registry import ALL_METHODS
from digrad.specs import parse_spec
from digrad.testing import ContractError, check_method
from plugin_installs import announce, visible

PACKAGE = Path(__file__).parents[1] / "plugin_package"
SPEC = """
name = "plugged"
steps = 600
[graph]
kind = "ring"
n = 3
[problem]
kind = "distances"
target = 2.0
[methods.HeavyBallAB]
step_size = 0.1
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder with what pip leaves of the package, which tests/docs/test_own_method.py installs with pip."""
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    entries = [
        line
        for group, points in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {point}" for name, point in points.items()))
    ]
    source = (PACKAGE / "heavy_ball.py").read_text()
    return announce(tmp_path_factory.mktemp("installed"), "heavy_ball", "\n".join(entries), source)


@pytest.fixture
def digrad(installed, monkeypatch, tmp_path, capsys):
    """Runs a command of digrad in this process, which sees the package until the end of the test."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["digrad", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code or 0, capsys.readouterr()

    with visible(installed):
        yield call


def test_method_of_a_package_is_listed_and_cited(digrad):
    (row,) = json.loads(digrad("methods", "HeavyBallAB", "--json")[1].out)
    assert row["summary"].startswith(
        "Gradient tracking with a row- and a column-stochastic matrix, and a heavy"
    )
    assert (row["needs"], row["vectors"], row["source"]) == (["row", "column"], 2, "Xin and Khan 2020")
    assert "@article{xin2020heavy" in digrad("methods", "HeavyBallAB", "--bibtex")[1].out


@pytest.mark.usefixtures("no_figures")
def test_method_and_problem_of_a_package_run_from_a_specification_and_are_reported(digrad):
    Path("spec.toml").write_text(SPEC)
    code, shown = digrad("run", "spec.toml", "--out", "out", "--json")
    assert code == 0, shown.err
    summary = json.loads(shown.out)["HeavyBallAB"]
    assert summary["verdict"] == "converged"
    # 1/2 x^2 - 2 i x on agents 0, 1, 2: the minimum of the average is 2, its value -2.
    assert summary["final"]["loss"] == pytest.approx(-2.0, abs=1e-9)
    assert "HeavyBallAB" in Path("out", "report.html").read_text()


@pytest.mark.usefixtures("digrad")
def test_check_method_passes_the_method_and_finds_the_broken_invariant():
    import heavy_ball

    assert "conserves its invariant" in check_method(heavy_ball.HeavyBallAB(step_size=0.05))
    with pytest.raises(ContractError, match="LeakyAB: its invariant is broken: a residual of"):
        check_method(heavy_ball.LeakyAB(step_size=0.05))


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('"distances"', '"distance"', "Did you mean `distances`?"),
        (
            "target = 2.0",
            "tarrget = 2.0",
            "does not fit its function: got an unexpected keyword argument 'tarrget'",
        ),
        ("[methods.HeavyBallAB]", "[methods.HeavyBall]", "Did you mean `HeavyBallAB`?"),
        (
            "[methods.HeavyBallAB]",
            "[methods.MissingAB]",
            "'MissingAB' of heavy_ball 1.0 cannot be loaded",
        ),
        ('"distances"\ntarget = 2.0', '"nothing"', "must return a Problem, but it returns a NoneType"),
        ("step_size = 0.1", "step_size = -0.1", "`step_size` of HeavyBallAB must be"),
    ],
)
def test_what_does_not_fit_a_package_is_one_line(digrad, old, new, line):
    Path("spec.toml").write_text(SPEC.replace(old, new))
    code, shown = digrad("run", "spec.toml", "--out", "out")
    assert code == 2
    assert line in shown.err
    assert len(shown.err.strip().splitlines()) == 1, shown.err


def test_broken_method_of_a_package_does_not_hide_the_others(digrad):
    code, shown = digrad("methods", "--json")
    names = [row["name"] for row in json.loads(shown.out)]
    assert code == 0
    assert {"CGT", "HeavyBallAB", "LeakyAB"} <= set(names)
    assert "MissingAB" not in names
    assert "'MissingAB' of heavy_ball 1.0 cannot be loaded" in shown.err


@pytest.mark.parametrize(
    ("source", "line"),
    [
        (
            'raise RuntimeError("no\\nlicence")',
            "cannot be loaded from 'odd:Odd': RuntimeError: no licence; repair",
        ),
        ('import sys; sys.exit("bye")', "cannot be loaded from 'odd:Odd': SystemExit: bye; repair"),
        ("class Odd: pass", "'Odd' of odd 1.0 is not a method, because it is not a dataclass"),
        ("Odd = 3", "'Odd' of odd 1.0 is not a method, because it is not a dataclass"),
        (
            "import dataclasses\n@dataclasses.dataclass\nclass Odd:\n    needs = frozenset()",
            "'Odd' of odd 1.0 is not a method, because it lacks init, estimate, query, step",
        ),
    ],
)
def test_what_is_no_method_is_one_line_and_hides_no_other(tmp_path, source, line):
    with visible(announce(tmp_path / "odd", "odd", "[digrad.methods]\nOdd = odd:Odd\n", source)):
        with pytest.raises(PluginError, match=line) as refused:
            ALL_METHODS["Odd"]
        assert "\n" not in str(refused.value)
        with pytest.warns(UserWarning, match=line):
            assert "CGT" in [row.name for row in method_facts()]
        assert plugin_findings() == {"digrad.methods Odd": str(refused.value)}


def plugin_findings():
    return {found.subject: found.found for found in doctor._plugins()}


def test_built_in_name_is_not_taken_over_and_it_is_said_so(tmp_path):
    entries = "[digrad.methods]\nCGT = odd:CGT\n[digrad.problems]\nlogistic = odd:logistic\n"
    with visible(announce(tmp_path / "odd", "odd", entries)):
        with pytest.warns(UserWarning, match="'CGT' of odd 1.0 is not used, as digrad has one of its own"):
            assert ALL_METHODS["CGT"] is dg.CGT
        spec = SPEC.replace('"distances"\ntarget = 2.0', '"logistic"\ndata = "digits"').replace(
            "HeavyBallAB", "DGD"
        )
        with pytest.warns(UserWarning, match="'logistic' of odd 1.0 is not used"):
            parse_spec(spec)
        unused = "odd 1.0: not used, as digrad has one of that name"
        assert plugin_findings() == {"digrad.methods CGT": unused, "digrad.problems logistic": unused}


def test_doctor_survives_two_packages_with_one_name(tmp_path):
    for package in ("one", "two"):
        announce(tmp_path / "both", package, f"[digrad.methods]\nOdd = {package}:Odd\n")
    with visible(tmp_path / "both"):
        found = plugin_findings()["digrad.methods"]
        assert "'Odd' of digrad.methods is announced by " in found
        assert {"one 1.0", "two 1.0"} <= {part.rstrip(":") for part in re.findall(r"\w+ 1\.0", found)}
