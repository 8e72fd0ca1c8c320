"""Every example runs as its first docstring says, is short, draws its picture, and ends in a number.

Those of torch are in tests/torch.
"""

import re
import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
SCRIPTS = [path.name for path in sorted(EXAMPLES.glob("*.py")) if not path.name.startswith("torch_")]


@pytest.mark.parametrize("name", SCRIPTS)
def test_example_runs(name, tmp_path, monkeypatch, capsys):
    text = (EXAMPLES / name).read_text()
    assert re.match(r'""".*`.*' + re.escape(name), text), "the first docstring says how to run it"
    monkeypatch.chdir(tmp_path)
    assert "[figure.png]" in text
    monkeypatch.setattr(sys, "argv", [name, "figure.png"])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert re.search(r"\d", capsys.readouterr().out.splitlines()[-1])
    assert (tmp_path / "figure.png").read_bytes()[:4] == b"\x89PNG"
    picture = f"images/example-{name.removesuffix('.py')}.png"
    assert picture in (EXAMPLES.parent / "docs" / "examples.md").read_text()
    assert (EXAMPLES.parent / "docs" / picture).is_file()


def test_eight_examples_are_shorter_than_80_lines():
    lengths = {path.name: len(path.read_text().splitlines()) for path in EXAMPLES.glob("*.py")}
    assert len(lengths) >= 8
    assert max(lengths.values()) < 80
