"""The page about reports: its code runs, and its pictures are there."""

import re
import runpy
from pathlib import Path

import pytest
from PIL import Image

from stored_runs import store, trace

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "report.md"


def test_code_of_the_page_runs_and_writes_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) == 3
    for name in ("a", "b"):
        store(tmp_path / "runs" / name, {"CGT": trace("CGT")})
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    assert (tmp_path / "comparison.html").is_file()
    assert (tmp_path / "report.html").is_file()
    assert {path.suffix for path in (tmp_path / "figures").iterdir()} == {".pdf", ".svg", ".png"}
    assert (tmp_path / "results.tex").read_text().count(r"\\") == 3
    assert any((tmp_path / "runs" / "board" / "CGT").iterdir())


def test_pictures_of_the_page_are_small_and_there() -> None:
    pictures = re.findall(r"\]\((\.\./images/report-\w+\.png)\)", PAGE.read_text())
    assert len(pictures) == 3
    assert all(0 < (PAGE.parent / picture).stat().st_size < 100_000 for picture in pictures)


@pytest.mark.slow
def test_pictures_can_be_taken_anew(tmp_path: Path) -> None:
    runpy.run_path(str(PAGE.parents[1] / "pictures.py"))["take_pictures"](tmp_path)
    for kind in ("light", "dark", "phone"):
        now, then = (folder / f"report-{kind}.png" for folder in (tmp_path, PAGE.parents[1] / "images"))
        with Image.open(now) as new, Image.open(then) as old:
            assert new.size == old.size


def test_size_of_the_script_is_as_stated() -> None:
    from digrad.report import page

    folder = Path(page.__file__).parent / "assets"
    assert sorted(path.stem for path in folder.glob("*.js")) == sorted(page.SCRIPTS)
    (stated,) = re.findall(r"(\d+) kB with its style", PAGE.read_text())
    assert round(sum(path.stat().st_size for path in folder.iterdir()) / 1000) == int(stated)
