"""The page of a run is complete, self-contained, and a function of the results alone."""

import dataclasses
import html
import itertools
import json
import re
import shutil
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import digrad as dg
from digrad import problems
from digrad.core.method_facts import method_facts, section
from digrad.errors import ArgumentError, DataError, DigradError
from digrad.methods import METHODS
from digrad.report import write_report
from digrad.report.model import model_of
from digrad.report.runs import stored_run
from digrad.report.write_report import _judgement
from digrad.specs import Spec, find_run, parse_spec, run
from digrad.specs.run_directory import is_finished
from digrad.trace import Ensemble
from experiment_specs import sampled, tiny
from stored_runs import store, trace


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "tiny"
    return run(tiny(), folder, report=write_report, formats=()).directory


def _stored(spec: Spec, folder: Path) -> Path:
    return store(folder, {label: trace(label) for label in spec.methods}, spec=spec)


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


def test_runs_in_memory_have_the_page_of_a_stored_run(tmp_path: Path) -> None:
    @dataclasses.dataclass(frozen=True)
    class Own(dg.AB):  # known to nobody
        pass

    problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
    methods = {"mine": Own(0.05), "CGT": dg.CGT(0.05, 5.0), "GD": dg.GD(0.05)}
    traces = dg.compare(methods, problem, network, steps=20, seeds=2, x0="normal")
    page = dg.write_report(traces, problem=problem, network=network, out=tmp_path / "page.html").read_text()
    checker = Checker()
    checker.feed(page)
    assert not checker.open
    assert "20 steps, all samples, medians over 2 seeds from 0 on, float64" in page
    assert "GD (not decentralized)" in page
    assert "<h3>Own</h3>" in page
    assert "<h2>Communication graph</h2>" in page
    assert '"excess_loss":' in page  # the minimum is known
    assert "<h2>Specification</h2>" not in page
    assert dg.write_report(traces["CGT"].traces[0], out=tmp_path / "one.html").is_file()
    with pytest.raises(ArgumentError, match="what simulate or compare returned"):
        dg.write_report({"CGT": 3.0}, out=tmp_path / "none.html")  # type: ignore[dict-item]


def test_excess_loss_has_no_negative_rounding_error_that_would_forbid_a_logarithmic_axis(
    tmp_path: Path,
) -> None:
    loss = 0.25 + np.append(10.0 ** -np.arange(12.0), -1e-16)
    assert loss[-1] < 0.25
    run = store(tmp_path / "run", {"CGT": trace("CGT", rows=13, loss=loss)})
    data, _ = model_of([stored_run(find_run(run))])
    excess = data["series"][0]["columns"]["excess_loss"]["median"]
    assert excess[-1] == 0
    assert min(excess[:-1]) > 0


def test_page_is_well_formed_and_needs_nothing_else(directory: Path) -> None:
    page = (directory / "report.html").read_text()
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert checker.links == []
    assert "default-src 'none'" in page  # the browser refuses what would leave the page
    assert not re.search(r"@import|url\((?!#)", page)
    assert len(page) < 250_000


def _data(page: str) -> dict[str, Any]:
    return json.loads(
        page.partition('<script type="application/json" id="data">')[2].partition("</script>")[0]
    )


def test_page_begins_with_the_verdicts(directory: Path) -> None:
    page = (directory / "report.html").read_text()
    headings = re.findall("<h2>(.*?)</h2>", page)
    assert headings[:2] == ["Results", "Curves"]
    assert headings[-4:] == ["Reproduce", "Specification", "Environment", "BibTeX"]


def test_page_shows_verdicts_methods_and_specification(directory: Path) -> None:
    page = (directory / "report.html").read_text()
    assert "diverged at k = 4" in page
    versions = json.loads((directory / "environment.json").read_text())["versions"]
    assert f"# digrad {versions['digrad']}\ndigrad run spec.toml --out tiny" in page
    assert "bo2026provably" in page
    assert "arXiv:2601.03566" in page
    assert "Clipped gradient tracking for directed graphs (CGT)." in page
    assert "checkpoint_every = 10" in page
    assert versions["jax"] in page


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
    page = write_report(_stored(spec, tmp_path / "two")).read_text()
    _assert_cites_exactly(page, methods)


def _reproduction(directory: Path, tmp_path: Path) -> Path:
    shutil.copytree(directory, tmp_path / "tiny")
    figures = ("gradient_tracking_explodes", "cgt_against_clipped_dgd", "bias_without_sampling_noise")
    (tmp_path / "figures").mkdir()
    for figure in figures:
        (tmp_path / "figures" / f"{figure}.png").write_bytes(b"png")
    claim = {"number": 1, "claim": "c", "holds": "holds", "setting": "s", "measured": "m", "rule": "r"}
    claims = {"title": "t", "verdicts": [claim], "claims": [{**claim, "run": "tiny"}], "choices": {}}
    claims["figures"] = dict.fromkeys(figures, "caption")
    (tmp_path / "claims.json").write_text(json.dumps(claims))
    (tmp_path / "reproduction.json").write_text(json.dumps({"preset": "smoke", "seed": 0}))
    return tmp_path


def test_reproduction_cites_exactly_the_methods_of_its_runs(directory: Path, tmp_path: Path) -> None:
    page = write_report(_reproduction(directory, tmp_path)).read_text()
    _assert_cites_exactly(page, {"CGT", "AB", "DGDClip"})
    assert "digrad reproduce logistic --preset smoke --seed 0" in page
    assert page.index("Which claims hold") < page.index("<h2>Results")


def _without_times(page: str) -> str:
    before, _, after = page.partition('<script type="application/json" id="times">')
    return before + after.partition("</script>")[2]


def test_pages_of_equal_runs_differ_in_nothing_but_durations(directory: Path, tmp_path: Path) -> None:
    other = run(tiny(), tmp_path / "tiny", report=write_report, formats=()).directory
    pages = [(folder / "report.html").read_text() for folder in (directory, other)]
    assert _without_times(pages[0]) == _without_times(pages[1])
    assert _without_times(pages[0]) != pages[0]


def test_the_same_files_give_the_same_bytes(directory: Path, tmp_path: Path) -> None:
    again = write_report(directory, out=tmp_path / "again.html")
    assert again.read_bytes() == (directory / "report.html").read_bytes()


def test_page_holds_the_paths_and_the_plane_of_a_problem_in_two_dimensions(directory: Path) -> None:
    data = _data((directory / "report.html").read_text())
    plane, series = data["runs"][0]["plane"], data["series"][0]
    assert plane["across"][0] < 0.32 < 10 < plane["across"][1]
    assert np.shape(plane["values"]) == (61, 61)
    assert series["columns"]["x[4][1]"]["median"][0] == 10
    assert data["runs"][0]["minimum"] == pytest.approx(problems.example_quartic().solve().loss)


def test_labels_network_and_evaluations_come_from_the_setting(tmp_path: Path) -> None:
    directory = run(sampled(), tmp_path / "run", report=write_report, formats=()).directory
    data = _data((directory / "report.html").read_text())
    (shown,), series = data["runs"], data["series"][0]
    assert np.sum(shown["labels"]["counts"], axis=1).tolist() == [114, 114, 114, 114, 113]
    assert series["evaluations_per_step"] == 4 * 5
    network = dg.Network(dg.graphs.example5())
    for (sender, receiver), pull, push in zip(
        shown["network"]["edges"], shown["network"]["R"], shown["network"]["C"], strict=True
    ):
        assert pull == network.R.toarray()[receiver, sender]
        assert push == network.C.toarray()[receiver, sender]
    assert shown["network"]["u"] == network.u.tolist()


def test_stragglers_and_slow_edges_of_a_clock_are_shown(directory: Path, tmp_path: Path) -> None:
    spec = parse_spec(
        'name = "slow"\nsteps = 21\ngraph = {kind = "example5"}\nproblem = {kind = "example_quadratic"}\n'
        "links = {compute = [1, 1, 1, 9, 1], latency = [0, 0, 0, 0, 0, 5, 0], deadline = 4}\n"
        "methods.CGT = {step_size = 0.05, threshold = 5.0}\n"
    )
    found = run(spec, tmp_path / "slow", report=write_report, formats=()).directory
    page = (found / "report.html").read_text()
    rows = re.findall(r"<tr><td>(?:agent |)([^<]*)</td><td class=\"number\">([^<]*)</td>", _section(page))
    assert rows[0] == ("3", "3 s")  # nine seconds in three steps of four
    assert ("1 → 4", "5 s") in rows
    assert "<h2>Stragglers" not in (directory / "report.html").read_text()


def _section(page: str) -> str:
    return page.split("<h2>Stragglers and slow edges</h2>")[1].split("</section>")[0]


def test_run_stored_without_a_setting_still_has_a_page(directory: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(directory, tmp_path / "old")
    (copy / "setting.json").unlink()
    assert "<h2>Communication graph</h2>" not in write_report(copy).read_text()


def test_folder_of_runs_is_one_page(directory: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        shutil.copytree(directory, tmp_path / "sweep" / name)
    page = write_report(tmp_path / "sweep")
    assert page == tmp_path / "sweep" / "report.html"
    data = _data(page.read_text())
    assert [run["folder"] for run in data["runs"]] == ["a", "b"]
    assert len(data["series"]) == 6


def test_runs_whose_folders_have_one_name_are_told_apart(tmp_path: Path) -> None:
    spec = tiny()
    folders = [_stored(spec, tmp_path / day / "run") for day in ("monday", "tuesday")]
    page = write_report(*folders, out=tmp_path / "page.html").read_text()
    assert [run["folder"] for run in _data(page)["runs"]] == ["monday/run", "tuesday/run"]
    assert "<title>Comparison of monday/run and tuesday/run" in page
    for day in ("monday", "tuesday"):
        assert f"<td>{day}/run: tiny</td>" in page
        assert f"<summary>{day}/run: tiny</summary>" in page


def test_certificate_of_a_run_is_shown(directory: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(directory, tmp_path / "run")
    certificate = {
        "verdict": "fails", "label": "", "reasons": ["alpha is above alpha_max"], "step_size": 0.05, "threshold": 5.0,
        "alpha_max": 0.012, "stable": 0.5, "K": {"0.1": 1e9},
    }  # fmt: skip
    stored = {"method": "CGT", "notice": "", "certificate": certificate, "diverged_at": 7, "check": None}
    for folder in (copy / "certificate", tmp_path / "alone"):
        folder.mkdir()
        (folder / "certificate.json").write_text(json.dumps(stored))
    beside = write_report(copy).read_text()
    assert "not certified" in beside
    assert "alpha is above alpha_max" in beside
    assert "0.012" in beside
    assert "The checked run diverged at k = 7" in beside
    assert "not certified" in write_report(directory, tmp_path / "alone", out=tmp_path / "c.html").read_text()
    with pytest.raises(DataError, match="holds a certificate and no run"):
        write_report(tmp_path / "alone")


def test_text_of_users_is_escaped(tmp_path: Path) -> None:
    text = (
        tiny(steps=10)
        .to_toml()
        .replace('"tiny"', '"<b>bold</b> & co"')
        .replace("[methods.AB]", '[methods."<i>"]')
    )
    page = write_report(_stored(parse_spec(text), tmp_path / "run")).read_text()
    assert "&lt;b&gt;bold&lt;/b&gt; &amp; co" in page
    assert not re.search(r"<[bi]>", page)


def test_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is not a digrad run directory"):
        write_report(tmp_path)
    with pytest.raises(DataError, match="is not a digrad run directory"):
        write_report(tmp_path / "absent")


def test_page_of_a_sweep_names_the_average_of_its_losses(tmp_path: Path) -> None:
    problem, network = dg.problems.example_quadratic(), dg.Network(dg.graphs.example5())
    dg.sweep(
        dg.DGD,
        problem,
        network,
        steps=2,
        grid={"step_size": [0.1]},
        record=dg.Record(average="weighted"),
        out=tmp_path,
    )
    page = write_report(tmp_path).read_text()
    assert "The sweep, measured at the weighted average of the agents" in page


def test_missing_figure_of_a_reproduction_is_named(directory: Path, tmp_path: Path) -> None:
    reproduction = _reproduction(directory, tmp_path)
    (reproduction / "figures" / "cgt_against_clipped_dgd.png").unlink()
    with pytest.raises(DataError, match=r"cgt_against_clipped_dgd.png is missing; run it again"):
        write_report(reproduction)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_has_a_sentence_and_a_reference(method: str) -> None:
    assert method_facts([method])[0].summary.endswith(".")
    reference = section(METHODS[method], "Reference")
    assert len(reference) > 30
    assert "Example" not in reference


def test_a_method_that_needs_the_average_is_marked_in_the_tables(tmp_path: Path) -> None:
    spec = parse_spec(tiny().to_toml() + "\n[methods.GD]\nstep_size = 0.05\n")
    page = write_report(_stored(spec, tmp_path / "gd"))
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


@pytest.mark.parametrize(
    ("name", "edited", "place"),
    [
        ("setting.json", {"problem": [1]}, "its problem"),
        ("setting.json", {"problem": {"agents": 3}}, "its problem.samples"),
        ("setting.json", {"network": {"n": 3, "edges": [[0]]}}, "its network.edges.0"),
        ("summary.json", {"CGT": {"verdict": "converged"}}, "its CGT.diverged_at"),
        ("summary.json", {}, "without results yet"),
        ("summary.json", [], "it: Input should be a valid dictionary"),
    ],
)
def test_files_edited_by_hand_are_refused_with_the_place(
    directory: Path, tmp_path: Path, name: str, edited: object, place: str
) -> None:
    copy = shutil.copytree(directory, tmp_path / "copy")
    (copy / name).write_text(json.dumps(edited))
    with pytest.raises(DataError, match=place):
        write_report(copy)


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterable[tuple[Any, ...]]:
    yield place
    inner = (
        value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    )
    for key, one in inner:
        yield from _places(one, (*place, key))


def _with(value: Any, place: tuple[Any, ...], edited: Any) -> Any:
    if not place:
        return edited
    copied = value.copy()
    copied[place[0]] = _with(value[place[0]], place[1:], edited)
    return copied


@pytest.mark.parametrize(
    "name", ["environment.json", "summary.json", "setting.json", "trace-CGT-seed0.json", "ensemble-CGT.json"]
)
def test_no_edit_of_a_stored_file_is_more_than_refused(name: str, tmp_path: Path) -> None:
    ensemble = Ensemble((trace("CGT", rows=5), trace("CGT", rows=5, seed=1)))
    folder = store(tmp_path / "run", {"CGT": ensemble})
    content = json.loads((folder / name).read_text())
    edits = itertools.cycle([None, "x", 10**400, [[1]], {}, -1, [], True])
    texts = [json.dumps(_with(content, place, next(edits))) for place in _places(content)]
    refused = 0
    for text in (*texts, "[" * 100_000, '{"a":', ""):
        (folder / name).write_text(text)
        for read in (write_report, is_finished, lambda path: find_run(path).results()):
            try:
                read(folder)
            except DigradError:
                refused += 1
    assert refused > 5


def test_where_a_claim_holds_is_text_beside_its_badge() -> None:
    judged = _judgement("holds only for: a setting: against AB / another")
    assert judged.endswith("holds only</span> for: a setting: against AB<br>another")
    assert _judgement("holds only against AB").endswith("holds only</span> against AB")
    assert _judgement("does not hold") == '<span class="badge bad">does not hold</span>'


@pytest.mark.parametrize("seeds", [1, 2])
def test_runs_whose_loss_was_never_finite_have_a_page(tmp_path: Path, seeds: int) -> None:
    spec = parse_spec(
        f'name = "endless"\nsteps = 3\nseeds = {seeds}\nstart = [1e300, 1e300]\ngraph = {{kind = "example5"}}\n'
        'problem = {kind = "example_quartic"}\nmethods.AB = {step_size = 0.05}\n',
        "endless.toml",
    )
    done = run(spec, tmp_path / "run", report=write_report, formats=("png",))
    assert done.results["AB"].verdict == "diverged"
    assert write_report(done.directory).exists()


def test_gradient_evaluations_are_no_axis_where_agents_sleep(tmp_path: Path) -> None:
    spec = parse_spec(
        'name = "drowsy"\nsteps = 3\ngraph = {kind = "example5"}\nlinks = {awake = 0.5}\n'
        'problem = {kind = "example_quadratic"}\nmethods.CGT = {step_size = 0.05, threshold = 1.0}\n',
        "drowsy.toml",
    )
    data, _ = model_of([stored_run(find_run(run(spec, tmp_path / "run", formats=()).directory))])
    assert "evaluations" not in [axis["key"] for axis in data["axes"]]
