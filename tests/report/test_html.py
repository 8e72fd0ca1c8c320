"""The page of a run is complete, self-contained, and a function of the results alone."""

import html
import json
import re
import shutil
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from digrad.algorithms import METHODS
from digrad.algorithms.catalog import method_facts, section
from digrad.errors import DataError
from digrad.experiments import parse_spec, run
from digrad.report import write_report
from experiment_specs import tiny


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tiny(), tmp_path_factory.mktemp("report") / "tiny", report=write_report).directory


class Checker(HTMLParser):
    """Collects attributes and checks that tags are balanced."""

    VOID = ("meta", "img", "br", "link", "input")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_well_formed_and_needs_nothing_else(directory: Path) -> None:
    page = (directory / "report.html").read_text()
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert len(checker.links) == 4
    assert all(link.startswith("data:image/png;base64,") for link in checker.links)
    assert "<script" not in page
    assert "http" not in page


def test_page_shows_verdicts_methods_and_specification(directory: Path) -> None:
    page = (directory / "report.html").read_text()
    assert "diverged at k = 4" in page
    assert "arXiv:2601.03566" in page
    assert "Clipped gradient tracking for directed graphs (CGT)." in page
    assert "checkpoint_every = 10" in page
    assert json.loads((directory / "environment.json").read_text())["versions"]["jax"] in page


def _references(methods: Iterable[str]) -> set[str]:
    return {section(METHODS[method], "Reference") for method in methods}


def _cited(page: str) -> set[str]:
    found = re.findall(r'<p class="faint reference">(.*?)</p>', page)
    return {html.unescape(reference) for reference in found}


def _assert_cites_exactly(page: str, methods: set[str]) -> None:
    assert _cited(page) == _references(methods)
    absent = _references(METHODS) - _references(methods)
    assert [reference for reference in absent if html.escape(reference) in page] == []


@pytest.mark.parametrize(
    "methods", [{"CGT", "AB"}, {"CGT", "DGDClip"}], ids=["CGT and AB", "CGT and DGDClip"]
)
def test_run_cites_exactly_the_methods_used(tmp_path: Path, methods: set[str]) -> None:
    lines = tiny(steps=10).to_toml().split("[methods.")
    kept = [part for part in lines[1:] if part.split("]")[0] in methods]
    spec = parse_spec("[methods.".join([lines[0], *kept]))
    assert set(spec.methods) == methods
    page = write_report(run(spec, tmp_path / "two").directory).read_text()
    _assert_cites_exactly(page, methods)


def test_reproduction_cites_exactly_the_methods_of_its_runs(directory: Path, tmp_path: Path) -> None:
    shutil.copytree(directory, tmp_path / "tiny")
    figures = ("gradient_tracking_explodes", "cgt_against_clipped_dgd", "bias_without_sampling_noise")
    (tmp_path / "figures").mkdir()
    for figure in figures:
        shutil.copy(directory / "figures" / "graph.png", tmp_path / "figures" / f"{figure}.png")
    claim = {"number": 1, "claim": "c", "holds": "holds", "setting": "s", "measured": "m", "rule": "r"}
    claims = {"title": "t", "verdicts": [claim], "claims": [{**claim, "run": "tiny"}], "choices": {}}
    (tmp_path / "claims.json").write_text(json.dumps(claims))
    (tmp_path / "reproduction.json").write_text(json.dumps({"preset": "smoke", "seed": 0}))
    _assert_cites_exactly(write_report(tmp_path).read_text(), {"CGT", "AB", "DGDClip"})


def test_equal_results_give_the_same_page(directory: Path, tmp_path: Path) -> None:
    other = run(tiny(), tmp_path / "elsewhere", report=write_report).directory
    assert (other / "report.html").read_bytes() == (directory / "report.html").read_bytes()


def test_text_of_users_is_escaped(tmp_path: Path) -> None:
    text = (
        tiny(steps=10)
        .to_toml()
        .replace('"tiny"', '"<b>bold</b> & co"')
        .replace("[methods.AB]", '[methods."<i>"]')
    )
    page = write_report(run(parse_spec(text), tmp_path).directory).read_text()
    assert "&lt;b&gt;bold&lt;/b&gt; &amp; co" in page
    assert not re.search(r"<[bi]>", page)


def test_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a digrad run directory"):
        write_report(tmp_path)
    with pytest.raises(DataError, match="is not a digrad run directory"):
        write_report(tmp_path / "absent")


def test_missing_figure_is_named(tmp_path: Path) -> None:
    directory = run(tiny(steps=10), tmp_path).directory
    (directory / "figures" / "graph.png").unlink()
    with pytest.raises(DataError, match=r"graph.png is missing; run it again"):
        write_report(directory)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_sentence_and_a_reference(method: str) -> None:
    assert method_facts([method])[0].summary.endswith(".")
    reference = section(METHODS[method], "Reference")
    assert len(reference) > 30
    assert "Example" not in reference


def test_a_method_that_needs_the_average_is_marked_in_the_tables(tmp_path: Path) -> None:
    spec = parse_spec(tiny().to_toml() + "\n[methods.GD]\nstep_size = 0.05\n")
    page = run(spec, tmp_path / "gd", report=write_report).directory / "report.html"
    assert "GD (not decentralized)" in page.read_text()
    assert "CGT (not decentralized)" not in page.read_text()


def test_damaged_traces_are_refused_and_the_old_page_stays(directory: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(directory, tmp_path / "copy")
    before = (copy / "report.html").read_bytes()
    trace = next(copy.glob("trace-*.parquet"))
    trace.write_bytes(trace.read_bytes()[:-200])
    with pytest.raises(DataError, match=re.escape(trace.name)):
        write_report(copy)
    assert (copy / "report.html").read_bytes() == before
