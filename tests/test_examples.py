"""Every example runs as its first docstring says, and ends by printing something."""

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
    assert len(text.splitlines()) <= 80
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, EXAMPLES / name], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
