"""The example of the README runs as printed, and prints what the README says."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def blocks(language):
    text = README.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def test_python_examples_print_what_the_readme_shows(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names = {}
    first, second, *_ = blocks("python")
    exec(compile(first, str(README), "exec"), names)
    printed, shown = capsys.readouterr().out.splitlines(), blocks("text")[0].splitlines()
    for now, then in zip(printed, shown, strict=True):
        assert words(now) == words(then)
        # Another processor rounds differently, and what is left of a gradient that vanishes is rounding.
        assert numbers(now) == pytest.approx(numbers(then), rel=0.02, abs=1e-6)
    exec(compile(second, str(README), "exec"), names)
    assert "CGT: converged" in capsys.readouterr().out
    assert (tmp_path / "mine.png").stat().st_size > 0


def words(line):
    """Return what is no number."""
    return NUMBER.sub("", without_seconds(line))


def numbers(line):
    return [float(number) for number in NUMBER.findall(without_seconds(line))]


def without_seconds(line):
    return re.sub(r"[\d.e+-]+ s\b", "", line)


def test_figure_of_the_front_page_is_small_and_there():
    (picture,) = re.findall(r"!\[.*\]\((docs/images/.*\.png)\)", README.read_text())
    assert 0 < (README.parent / picture).stat().st_size < 100_000
