"""The example of the README runs as printed, and ends as the README says."""

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_python_example_shows_that_tracking_explodes_and_cgt_does_not(tmp_path, monkeypatch, capsys):
    block = re.findall(
        r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )[0]
    shorter, replaced = re.subn(r"\bsteps=3000\b", "steps=200", block)
    assert replaced == 1
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(shorter, str(README), "exec"), names)
    traces = names["traces"]
    assert {name: trace.verdict == "diverged" for name, trace in traces.items()} == {
        "CGT": False,
        "AB": True,
        "DGDClip": False,
    }
    assert traces["CGT"].steps == 200
    assert capsys.readouterr().out.splitlines() == [str(trace) for trace in traces.values()]
    assert [path.name for path in tmp_path.iterdir()] == ["cgt.png"]
    assert (tmp_path / "cgt.png").read_bytes()[:4] == b"\x89PNG"
