"""Every example runs as its first docstring says, is short, and ends in a number; those of torch in tests/torch."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTS = [path.name for path in sorted(EXAMPLES.glob("*.py")) if not path.name.startswith("torch_")]


@pytest.mark.parametrize("name", SCRIPTS)
def test_example_runs(name):
    text = (EXAMPLES / name).read_text()
    assert re.match(r'""".*`.*' + re.escape(name), text), "the first docstring says how to run it"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / name], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d", done.stdout.splitlines()[-1])


def test_eight_examples_are_shorter_than_80_lines():
    lengths = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    assert len(lengths) >= 8
    assert max(lengths.values()) < 80
