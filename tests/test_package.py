"""Tests of what is shipped: versions agree, both distributions hold what they should, and the wheel works elsewhere."""

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

import digrad

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_versions_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert PROJECT["version"] == digrad.__version__ == citation["version"]


def test_every_requirement_is_a_range_and_constraints_pin_it():
    pinned = dict(line.lower().split("==") for line in (ROOT / "constraints.txt").read_text().split())
    extras = PROJECT["optional-dependencies"].values()
    for requirement in [*PROJECT["dependencies"], *(one for extra in extras for one in extra)]:
        name = re.match(r"[\w-]+", requirement)[0].lower()
        assert "==" not in requirement
        if name == "setuptools":  # which `pip freeze` leaves out
            continue
        assert name in pinned or name.replace("-", "_") in pinned, f"constraints.txt does not pin {name}"


@pytest.mark.parametrize(
    ("name", "made"), [("test", ["test", "package", "test-all"]), ("release", ["package", "docs"])]
)
def test_workflow_calls_targets_that_exist(name, made):
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / f"{name}.yml").read_text())
    jobs = workflow["jobs"]
    runs = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert [run.split()[1] for run in runs] == made
    assert set(made) <= set(targets)
    for job in jobs.values():
        assert set(job.get("needs", [])) <= set(jobs)
        assert all(("uses" in step) != ("run" in step) for step in job["steps"])


def test_release_publishes_only_on_a_tag_and_after_everything_was_built():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # YAML 1.1 reads the key `on` as true
    for job in ("publish-package", "publish-docs"):
        assert set(workflow["jobs"][job]["needs"]) == {"package", "docs"}


def test_hooks_call_what_exists():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert {Path(hook["entry"].split()[0]).name for hook in hooks} == {"ruff", "lint-imports"}
    # A hook that looked at more than `make test` does would change files which are right.
    (folders,) = set(re.findall(r"/ruff (?:format --check|check) (.*)", (ROOT / "Makefile").read_text()))
    looked_at = {hook["files"] for hook in hooks if "ruff" in hook["entry"]}
    assert looked_at == {f"^({'|'.join(folders.split())})/"}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--skip-dependency-check",
        "--outdir",
        folder,
        ROOT,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (source,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, source


def test_wheel_holds_the_package_and_nothing_else(built):
    names = zipfile.ZipFile(built[0]).namelist()
    modules = [path for kind in ("*.py", "*.pyi") for path in (ROOT / "src" / "digrad").rglob(kind)]
    assert {str(path.relative_to(ROOT / "src")) for path in modules} <= set(names)
    assert not [name for name in names if "__pycache__" in name]
    assert {name.split("/")[0] for name in names} == {"digrad", f"digrad-{digrad.__version__}.dist-info"}
    assert {"digrad/specs/presets/demo.toml", "digrad/paper/presets/cifar-iid.toml"} <= set(names)
    assert "digrad/py.typed" in names


def test_source_distribution_holds_what_tests_and_docs_read(built):
    with tarfile.open(built[1]) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}
    wanted = [
        "CONTRIBUTING.md",
        "README.md",
        "CHANGELOG.md",
        "CITATION.cff",
        "Makefile",
        "constraints.txt",
        "LICENSE",
    ]
    wanted += [
        "docs/conf.py",
        "docs/images/front.png",
        "docs/tour.ipynb",
        "examples/tour.ipynb",
        "tests/conftest.py",
    ]
    assert not [name for name in wanted if name not in names]


SMOKE = """
import digrad as dg
trace = dg.simulate(
    dg.CGT(step_size=0.05, threshold=5.0), dg.problems.example_quadratic(), dg.Network(dg.graphs.example5()), steps=500
)
print(dg.__file__, trace.verdict)
"""


def test_wheel_works_outside_of_the_checkout(built, tmp_path):
    venv.create(tmp_path / "empty", with_pip=False)
    python = tmp_path / "empty" / "bin" / "python"
    site = next((tmp_path / "empty" / "lib").glob("python3*")) / "site-packages"
    # Its dependencies are those of this environment: a path in a .pth file does not bring the checkout along.
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"])
    install = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install"]
    subprocess.run([*install, "--quiet", "--no-compile", "--no-deps", "--no-index", built[0]], check=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    runs = {"cwd": tmp_path, "env": environment, "capture_output": True, "text": True, "check": True}
    shown = subprocess.run([tmp_path / "empty" / "bin" / "digrad", "--version"], **runs).stdout
    assert digrad.__version__ in shown
    where, verdict = subprocess.run([python, "-c", SMOKE], **runs).stdout.split()
    assert Path(where).is_relative_to(tmp_path)
    assert verdict == "converged"
