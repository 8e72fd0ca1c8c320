"""Methods and problems of another package, installed with pip into a folder of its own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent / "plugin_package"
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
def environment(tmp_path_factory):
    """The environment of a process that sees the package."""
    source, target = tmp_path_factory.mktemp("source") / "package", tmp_path_factory.mktemp("installed")
    shutil.copytree(PACKAGE, source)
    command = [
        "pip",
        "--quiet",
        "--disable-pip-version-check",
        "install",
        "--no-deps",
        "--no-build-isolation",
    ]
    subprocess.run([sys.executable, "-m", *command, "--no-index", "--target", target, source], check=True)
    return {**os.environ, "PYTHONPATH": str(target)}


def digrad(environment, *arguments, folder=None):
    command = [sys.executable, "-m", "digrad", *map(str, arguments)]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True)


def python(environment, code):
    return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)


def test_method_of_a_package_is_listed_and_cited(environment):
    listed = digrad(environment, "methods", "HeavyBallAB", "--json")
    (row,) = json.loads(listed.stdout)
    assert row["summary"].startswith(
        "Gradient tracking with a row- and a column-stochastic matrix, and a heavy"
    )
    assert (row["needs"], row["vectors"], row["source"]) == (["row", "column"], 2, "Xin and Khan 2020")
    assert "@article{xin2020heavy" in digrad(environment, "methods", "HeavyBallAB", "--bibtex").stdout


def test_method_and_problem_of_a_package_run_from_a_specification_and_are_reported(environment, tmp_path):
    (tmp_path / "spec.toml").write_text(SPEC)
    ran = digrad(environment, "run", "spec.toml", "--out", "out", "--json", folder=tmp_path)
    assert ran.returncode == 0, ran.stderr
    summary = json.loads(ran.stdout)["HeavyBallAB"]
    assert summary["verdict"] == "converged"
    # 1/2 x^2 - 2 i x on agents 0, 1, 2: the minimum of the average is 2, its value -2.
    assert summary["final"]["loss"] == pytest.approx(-2.0, abs=1e-9)
    assert "HeavyBallAB" in (tmp_path / "out" / "report.html").read_text()


def test_check_method_passes_the_method_and_finds_the_broken_invariant(environment):
    code = "from digrad.testing import check_method; import heavy_ball; "
    passed = python(environment, code + "print(len(check_method(heavy_ball.HeavyBallAB(step_size=0.05))))")
    assert (passed.stdout, passed.stderr) == ("11\n", "")
    broken = python(environment, code + "check_method(heavy_ball.LeakyAB(step_size=0.05))")
    assert "LeakyAB: its invariant is broken: a residual of" in broken.stderr.splitlines()[-1]


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
            "'MissingAB' of digrad-heavy-ball 1.0 cannot be loaded",
        ),
        ('"distances"\ntarget = 2.0', '"nothing"', "must return a Problem, but it returns a NoneType"),
        ("step_size = 0.1", "step_size = -0.1", "`step_size` of HeavyBallAB must be"),
    ],
)
def test_what_does_not_fit_a_package_is_one_line(environment, tmp_path, old, new, line):
    (tmp_path / "spec.toml").write_text(SPEC.replace(old, new))
    ran = digrad(environment, "run", "spec.toml", "--out", "out", folder=tmp_path)
    assert ran.returncode == 2
    assert line in ran.stderr
    assert len(ran.stderr.strip().splitlines()) == 1, ran.stderr


def test_broken_method_of_a_package_does_not_hide_the_others(environment):
    listed = digrad(environment, "methods", "--json")
    names = [row["name"] for row in json.loads(listed.stdout)]
    assert {"CGT", "HeavyBallAB", "LeakyAB"} <= set(names)
    assert "MissingAB" not in names
    assert "'MissingAB' of digrad-heavy-ball 1.0 cannot be loaded" in listed.stderr
