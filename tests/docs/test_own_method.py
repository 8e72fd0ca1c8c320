"""The package of howto/own_method.md, written and installed as its page says, works in digrad."""

import os
import subprocess
import sys

import pytest

from docs_pages import titled

BLOCKS = titled("howto/own_method.md")


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The folder with the files of the page, and the environment of a process that sees the package."""
    folder, target = tmp_path_factory.mktemp("package"), tmp_path_factory.mktemp("installed")
    for title, text in BLOCKS.items():
        if title.startswith("file: "):
            (folder / title.removeprefix("file: ")).write_text(text)
    install = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", "--no-deps"]
    subprocess.run([*install, "--no-build-isolation", "--no-index", "--target", target, folder], check=True)
    path = f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}"
    return folder, {**os.environ, "PYTHONPATH": str(target), "PATH": path}


def run(package, *command):
    folder, environment = package
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_commands_of_the_page_list_and_run_the_method(package):
    shown = run(package, "bash", "-ec", BLOCKS["run"])
    assert "Gradient tracking with a row" in shown or "LazyAB" in shown
    assert "converged" in shown


def test_method_of_the_page_keeps_the_contract(package):
    shown = run(package, sys.executable, "-c", BLOCKS["check"])
    assert len(shown.splitlines()) >= 10
