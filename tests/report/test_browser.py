"""The page in a real browser: what a reader does with it, and that it asks nobody for anything."""

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browser import Browser, chromium
from digrad.report import write_report
from digrad.trace import Ensemble, Trace
from stored_runs import NETWORK, SETTING, store, trace

pytestmark = pytest.mark.long

RIGHT, HOME = "\ue014", "\ue011"  # keys, as WebDriver writes them
SECONDS_TO_DRAW = 2.0
LARGEST_PAGE = 1_800_000  # bytes

METHODS = {
    "CGT": trace("CGT"),
    "AB": trace("AB", diverges=True),
    "slow": trace("slow", rate=0.005),
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as one:
        yield one


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(store(tmp_path_factory.mktemp("run"), METHODS))


@pytest.fixture
def show(browser: Browser, page: Path) -> Iterator[Callable[..., Browser]]:
    """Opens a page; at the end the console must be empty and nothing else may have been asked for."""
    shown: list[Path] = []

    def opened(path: Path = page, fragment: str = "", **size: int) -> Browser:
        shown.append(path)
        browser.open(path, fragment, **size)
        return browser

    yield opened
    assert browser.console_messages() == []
    requests = browser.requests()
    assert requests, "the log of the network is empty, so that it shows nothing"
    assert {address.partition("#")[0] for address in requests} == {shown[-1].absolute().as_uri()}


def lines(browser: Browser, metric: str = "loss") -> dict[str, str]:
    """The curves of a figure by the number of their series."""
    script = "return [...document.querySelectorAll(arguments[0])].map(p => [p.dataset.series, p.getAttribute('d')])"
    return dict(browser.run(script, f"#curve-{metric} path.line"))


def column(browser: Browser, key: str) -> list[str]:
    script = """
        const place = [...document.querySelectorAll('#results th')].findIndex(th => th.dataset.key === arguments[0]);
        return [...document.querySelectorAll('#results tbody tr')].map(row => row.cells[place].textContent)"""
    return browser.run(script, key)


def test_every_column_of_the_traces_has_a_figure(show: Callable[..., Browser]) -> None:
    browser = show()
    found = browser.run("return [...document.querySelectorAll('figure.curve')].map(one => one.id)")
    metrics = ("loss", "excess_loss", "grad_norm", "consensus_error", "fraction_clipped")
    assert found == [f"curve-{name}" for name in metrics]
    assert set(lines(browser)) == {"0", "1", "2"}


def test_a_column_that_nobody_knows_is_shown_under_its_own_name(
    show: Callable[..., Browser], tmp_path: Path
) -> None:
    known = {"delivered": np.full(200, 0.9), "seconds_simulated": np.arange(200) * 0.5}
    run = trace("CGT", **known, battery_level=np.linspace(1, 0, 200))
    browser = show(write_report(store(tmp_path / "run", {"CGT": run})))
    titles = browser.run(
        "return [...document.querySelectorAll('figure.curve strong')].map(s => s.textContent)"
    )
    assert {"Delivered", "Battery level"} < set(titles)
    axes = browser.run("return [...document.querySelectorAll('#choose-x option')].map(o => o.value)")
    assert axes == ["k", "evaluations", "bytes_sent", "seconds", "seconds_simulated"]


@pytest.mark.parametrize("width", [1200, 380])
def test_bars_show_who_is_slow_at_any_width(width: int, show: Callable[..., Browser], tmp_path: Path) -> None:
    slowest = {
        "steps": 10,
        "seconds": 40.0,
        "agents": [[3, 4.0, 0.0], [0, 1.0, 3.0]],
        "edges": [[1, 4, 5.0, 1.0], [0, 1, 0.5, 0.0]],
        "deadline": 4.0,
    }
    run = dataclasses.replace(trace("CGT"), facts={"slowest": slowest})
    browser = show(write_report(store(tmp_path / "run", {"CGT": run})), width=width)
    bars = browser.run(
        "return [...document.querySelectorAll('.bar')].map(b => b.getBoundingClientRect().width)"
    )
    straggler, _, computing, waiting, slow_edge, other = bars
    assert straggler > 20
    assert computing / straggler == pytest.approx(0.25, abs=0.02)
    assert waiting / straggler == pytest.approx(0.75, abs=0.02)
    assert other / slow_edge == pytest.approx(0.1, abs=0.02)
    assert browser.run("return document.documentElement.scrollWidth <= window.innerWidth")


def test_a_curve_that_starts_at_rounding_error_is_drawn_whole(
    show: Callable[..., Browser], tmp_path: Path
) -> None:
    apart = np.append(1.3e-7, np.linspace(0.2, 0.4, 199))  # agents that start at one point, in float32
    exploding = trace("AB", diverges=True, consensus_error=np.array([1.3e-7, 1e9, 1e40, 1e90]))
    runs = {"CGT": trace("CGT", consensus_error=apart), "AB": exploding}
    browser = show(write_report(store(tmp_path / "run", runs)))
    points = lines(browser, "consensus_error")["0"].replace("M", "L").split("L")[1:]
    heights = [float(point.split()[1]) for point in points]
    frame = browser.run("return document.querySelector('#curve-consensus_error svg').viewBox.baseVal.height")
    assert 0 <= min(heights) <= max(heights) <= frame


def test_toggle_hides_a_curve_and_a_reload_keeps_it_hidden(show: Callable[..., Browser]) -> None:
    browser = show()
    browser.click('input[data-series="0"]')
    assert set(lines(browser)) == {"1", "2"}
    assert "off=0" in browser.url()
    browser.reload()
    assert set(lines(browser)) == {"1", "2"}
    browser.click("#show-all")
    assert set(lines(browser)) == {"0", "1", "2"}


def test_axis_and_scales_change_the_curves_and_reset_brings_them_back(show: Callable[..., Browser]) -> None:
    browser = show()
    first = lines(browser)
    drawn = [first]
    for selector, value in (
        ("#choose-xscale", "linear"),
        ("#choose-yscale", "log"),
        ("#choose-yscale", "symlog"),
    ):
        browser.choose(selector, value)
        drawn.append(lines(browser))
    assert len({json.dumps(one) for one in drawn}) == 4
    browser.choose("#choose-x", "bytes_sent")
    texts = browser.run("return [...document.querySelectorAll('#curve-loss text')].map(t => t.textContent)")
    assert "bytes sent" in texts
    assert "x=bytes_sent" in browser.url()
    assert "yscale=symlog" in browser.url()
    browser.click("#reset")
    assert "#" not in browser.url()
    assert lines(browser) == first


def test_an_address_shows_what_its_sender_saw(show: Callable[..., Browser], page: Path) -> None:
    fragment = "x=evaluations&xscale=linear&off=1&sort=loss:down&from=600&to=3000"
    browser = show(page, fragment)
    assert browser.run("return document.querySelector('#choose-x').value") == "evaluations"
    assert set(lines(browser)) == {"0", "2"}
    assert column(browser, "method")[0] == "AB"
    x = [float(part.split()[0]) for part in lines(browser)["0"].replace("M", "L").split("L")[1:]]
    assert len(x) == 41  # evaluations are 60 k: k = 10, ..., 50


def test_a_short_run_is_visible_beside_a_long_one(show: Callable[..., Browser], tmp_path: Path) -> None:
    results = {"CGT": trace("CGT", rows=6000, rate=0.001), "AB": trace("AB", diverges=True)}
    browser = show(write_report(store(tmp_path / "run", results)))
    script = "const box = document.querySelector(arguments[0]).getBBox(); return box.width"
    assert browser.run(script, '#curve-loss path[data-series="1"]') > 30  # pixels, of four iterations


def test_divergence_is_marked_and_does_not_squash_the_rest(show: Callable[..., Browser]) -> None:
    browser = show()
    assert column(browser, "verdict")[1] == "diverged at k = 3"
    crosses = (
        "return [...document.querySelectorAll('#curve-loss [data-diverged]')].map(c => c.dataset.diverged)"
    )
    assert browser.run(crosses) == ["1"]
    height = "return document.querySelector('#curve-loss path[data-series=\"0\"]').getBBox().height"
    assert browser.run(height) > 40


def crosses_at(browser: Browser, metric: str = "loss") -> list[float]:
    """Return the places of the crosses of a figure, in pixels from the left."""
    script = """
        const middle = box => box.x + box.width / 2;
        return [...document.querySelectorAll(arguments[0])].map(cross => middle(cross.getBBox()))"""
    return browser.run(script, f"#curve-{metric} [data-diverged]")


def test_cross_stands_at_the_iteration_of_the_divergence_only(
    show: Callable[..., Browser], tmp_path: Path
) -> None:
    unknown = trace("AB", diverges=True, loss=np.array([1.25, 1e60, np.inf, np.nan]))
    path = write_report(store(tmp_path / "run", {"CGT": METHODS["CGT"], "AB": unknown}))
    browser = show(path, "xscale=linear&to=6")
    (at,) = crosses_at(browser)
    assert crosses_at(browser, "grad_norm") == [at]  # which is finite to the end
    ticks = browser.run(
        "return [...document.querySelectorAll('#curve-loss text.middle')]"
        ".map(t => [t.textContent, Number(t.getAttribute('x'))])"
    )
    two, four = dict(ticks)["2"], dict(ticks)["4"]
    assert at == pytest.approx((two + four) / 2, abs=0.5)
    browser = show(path, "xscale=linear&to=2")
    assert crosses_at(browser) == []


def test_explosions_are_shown_whole_when_nothing_else_is(show: Callable[..., Browser]) -> None:
    browser = show()
    top = """
        const path = document.querySelector('#curve-loss path[data-series="1"]').getAttribute('d');
        return Math.min(...path.split(/[ML]/).slice(1).map(point => Number(point.split(' ')[1])))"""
    assert browser.run(top) < 0  # beyond the upper edge
    browser.click('input[data-series="0"]')
    browser.click('input[data-series="2"]')
    assert browser.run(top) > 0


def test_one_step_has_no_half_iterations_on_its_axis(show: Callable[..., Browser], tmp_path: Path) -> None:
    browser = show(write_report(store(tmp_path / "run", {"CGT": trace("CGT", rows=2)})))
    texts = "return [...document.querySelectorAll('#curve-loss text.middle')].map(t => t.textContent)"
    assert browser.run(texts) == ["0", "1", "iteration"]


def test_minimum_is_a_line_with_its_value(show: Callable[..., Browser]) -> None:
    browser = show()
    assert browser.run("return document.querySelector('.minimum-text').textContent") == "F* = 0.25"


def test_table_sorts_by_value_and_what_is_not_finite_is_largest(show: Callable[..., Browser]) -> None:
    browser = show()
    browser.click('th[data-key="loss"] button')
    assert column(browser, "method") == ["CGT", "slow", "AB"]
    browser.click('th[data-key="loss"] button')
    assert column(browser, "method") == ["AB", "slow", "CGT"]
    assert browser.run("return document.querySelector('th[data-key=loss]').ariaSort") == "descending"
    browser.click('th[data-key="loss"] button')
    assert column(browser, "method") == ["CGT", "AB", "slow"]


def test_columns_can_be_hidden_and_shown(show: Callable[..., Browser]) -> None:
    browser = show()
    hidden = "return [...document.querySelectorAll('#results th')].filter(th => th.hidden).map(th => th.dataset.key)"
    first = browser.run(hidden)
    assert "best_loss" in first
    browser.click("details.columns summary")
    browser.click('input[data-column="best_loss"]')
    browser.click('input[data-column="bytes_sent"]')
    assert set(first) ^ set(browser.run(hidden)) == {"best_loss", "bytes_sent"}
    browser.reload()
    assert set(first) ^ set(browser.run(hidden)) == {"best_loss", "bytes_sent"}


def test_seconds_are_those_of_the_runs(show: Callable[..., Browser]) -> None:
    assert column(show(), "seconds") == ["2.50", "2.50", "2.50"]


def test_keys_read_values_off_a_figure(show: Callable[..., Browser]) -> None:
    browser = show()
    browser.press("#curve-grad_norm svg", HOME)
    reading = "return document.querySelector('#curve-grad_norm .reading').innerText"
    assert "k = 0" in browser.run(reading)
    browser.press("#curve-grad_norm svg", RIGHT)
    text = browser.run(reading)
    assert "k = 1" in text
    assert f"{METHODS['CGT'].grad_norm[1]:.5g}" in text


def test_keys_look_closer_and_show_all_again(show: Callable[..., Browser]) -> None:
    browser = show()
    browser.choose("#choose-xscale", "linear")
    whole = lines(browser)
    browser.press("#curve-loss svg", HOME + "+")
    assert ("from=0" in browser.url(), "to=99.5" in browser.url()) == (True, True)
    assert lines(browser)["0"] != whole["0"]
    browser.press("#curve-loss svg", "-")
    assert lines(browser) == whole


def saved(browser: Browser, selector: str) -> str:
    """Return what a button would save."""
    browser.run("URL.createObjectURL = blob => { window.saved = blob; return 'blob:nothing' }")
    browser.run("HTMLAnchorElement.prototype.click = () => {}")
    browser.click(selector)
    return browser.run("return window.saved.text()")


def test_figure_is_saved_as_a_drawing_that_stands_alone_on_white(
    show: Callable[..., Browser], page: Path
) -> None:
    import xml.etree.ElementTree as ElementTree

    text = saved(show(page, "theme=dark"), "#curve-loss .buttons button:first-child")
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root[0].get("fill") == "#ffffff"
    assert "var(" not in text
    assert "stroke:rgb(193, 39, 45)" in text  # the red of CGT on paper


def test_data_of_a_figure_is_saved_as_it_is_shown(show: Callable[..., Browser], page: Path) -> None:
    rows = saved(show(page, "off=1"), "#curve-loss .buttons button:last-child").splitlines()
    assert rows[0] == "run,method,k,loss,smallest,largest"
    assert rows[1].startswith("by hand,CGT,0,1.35")
    assert len(rows) == 1 + 2 * 200


def test_network_tells_weights_and_perron_vectors(show: Callable[..., Browser]) -> None:
    browser = show()
    status = "return document.querySelector('.network .status').textContent"
    browser.run("document.querySelector('.link').dispatchEvent(new Event('focus'))")
    assert "left → top; R = 0.5" in browser.run(status)
    assert "C = 0.4" in browser.run(status)
    browser.run("document.querySelector('.agent').dispatchEvent(new Event('focus'))")
    assert "Agent left receives from right" in browser.run(status)
    assert "u = 1.2; v = 0.8" in browser.run(status)


def test_labels_of_every_agent_are_drawn(show: Callable[..., Browser]) -> None:
    browser = show()
    titles = "return [...document.querySelectorAll('.labels rect title')].map(t => t.textContent)"
    assert browser.run(titles) == [
        "left: 10 of 10 samples (100.0 %) have label 0.",
        "top: 5 of 20 samples (25.0 %) have label 0.",
        "top: 15 of 20 samples (75.0 %) have label 1.",
        "right: 30 of 30 samples (100.0 %) have label 1.",
    ]
    browser.run("document.querySelector('.labels rect[tabindex]').focus()")
    status = "return document.querySelector('.labels .status').textContent"
    assert browser.run(status) == "left: 10 of 10 samples (100.0 %) have label 0."


def test_long_names_of_agents_are_cut_and_not_out_of_the_drawing(
    show: Callable[..., Browser], tmp_path: Path
) -> None:
    names = ["Krankenhaus am Urban", "b", "a name that is longer than any figure has room for"]
    setting = {**SETTING, "network": {**NETWORK, "names": names}}
    browser = show(write_report(store(tmp_path / "run", {"CGT": METHODS["CGT"]}, setting=setting)), width=390)
    shown = browser.run(
        "return [...document.querySelectorAll('.labels text.end, .network .agent text')]"
        ".map(t => [t.firstChild.textContent, t.getBBox().x])"
    )
    assert shown[0][0] == "Krankenhaus am Urban"
    assert shown[2][0].endswith("…")
    assert all(left >= -120 for _, left in shown)
    size = "return [...document.querySelectorAll('.labels text')].map(t => t.getBoundingClientRect().height)"
    assert min(browser.run(size)) > 9  # pixels, on a phone


def test_network_of_many_agents_tells_the_links_that_are_pointed_at(
    show: Callable[..., Browser], tmp_path: Path
) -> None:
    n = 80
    vectors = {name: [value] * n for name, value in {"u": 1.0, "v": 1.0, "R": 0.5, "C": 0.25}.items()}
    shape = {"n": n, "names": None, "n_edges": n, "edges": [[i, (i + 1) % n] for i in range(n)], "period": 1}
    network = {"figures": "", **shape, **vectors}
    run = store(tmp_path / "run", {"CGT": METHODS["CGT"]}, setting={**SETTING, "network": network})
    browser = show(write_report(run))
    point = """
        const drawing = document.querySelector('.network svg'), box = drawing.getBoundingClientRect();
        const at = (place, first) => (first + (place + 0.5) * 380 / 80) * box.width / 420;
        drawing.dispatchEvent(new PointerEvent('pointermove',
          { clientX: box.left + at(7, 30), clientY: box.top + at(8, 10) }));
        return document.querySelector('.network .status').textContent"""
    assert browser.run(point).startswith("7 → 8; R = 0.5,")
    browser.press(".network svg", RIGHT)
    assert browser.run("return document.querySelector('.network .status').textContent").startswith(
        "Agent 0 receives from 79; sends to 1; u = 1; v = 1."
    )


def paths(scale: float = 1.0) -> dict[str, Any]:
    """Return the positions of three agents on their way to the minimum at zero."""
    decay = scale * 0.9 ** np.arange(50)
    return {f"x[{i}][{j}]": (1 + i) * decay * (-1) ** j for i in range(3) for j in range(2)}


def plane_run(folder: Path, result: Trace | Ensemble | None = None) -> Path:
    result = result or trace("CGT", rows=50, **paths())
    axis = np.linspace(-4, 4, 21)
    values = (axis[:, None] ** 2 + axis[None] ** 2).tolist()
    plane = {"across": [-4, 4], "up": [-4, 4], "values": values}
    problem = {
        **SETTING["problem"],
        "minimum": {"loss": 0.0, "grad_norm": 0.0, "x": [0.0, 0.0]},
        "plane": plane,
    }
    setting = {**SETTING, "problem": problem}
    return write_report(store(folder, {"CGT": result}, setting=setting))


def test_plane_shows_the_agents_at_the_scrubbed_iteration(
    show: Callable[..., Browser], tmp_path: Path
) -> None:
    browser = show(plane_run(tmp_path / "run"))
    dots = "return [...document.querySelectorAll('.agent-dot')].map(c => Number(c.getAttribute('cx')))"
    at_end = browser.run(dots)
    assert len(at_end) == 3
    browser.press(".plane input[type=range]", HOME)
    at_start = browser.run(dots)
    assert browser.run("return document.querySelector('.plane output').textContent") == "k = 0"
    assert all(first > last + 10 for first, last in zip(at_start, at_end, strict=True))
    contours = "return [...document.querySelectorAll('.contour')].filter(c => c.getAttribute('d').length > 50).length"
    assert browser.run(contours) > 8
    figures = browser.run("return [...document.querySelectorAll('figure.curve')].length")
    assert figures == 5  # coordinates are no curves
    assert "at=0" in browser.url()
    browser.reload()
    assert browser.run(dots) == at_start


def test_plane_of_several_seeds_shows_the_first(show: Callable[..., Browser], tmp_path: Path) -> None:
    seeds = tuple(trace("CGT", rows=50, seed=seed, **paths(1.0 + seed)) for seed in range(2))
    dots = "return [...document.querySelectorAll('.agent-dot')].map(c => c.getAttribute('cx'))"
    alone = show(plane_run(tmp_path / "alone", seeds[0]), "at=9").run(dots)
    browser = show(plane_run(tmp_path / "run", Ensemble(seeds)), "at=9")
    assert browser.run(dots) == alone
    assert "with the first seed" in browser.run("return document.querySelector('figure.plane').textContent")


def test_plane_plays_to_the_end(show: Callable[..., Browser], tmp_path: Path) -> None:
    browser = show(plane_run(tmp_path / "run"))
    browser.click(".plane .play")
    wait = """
        const scrubber = document.querySelector('.plane input'), seen = new Set();
        return new Promise(done => { const timer = setInterval(() => { seen.add(scrubber.value);
          if (seen.size > 3) { clearInterval(timer); done(seen.size); } }, 10); })"""
    assert browser.run(wait) == 4


def test_one_method_needs_no_legend_to_hide_others(show: Callable[..., Browser], tmp_path: Path) -> None:
    browser = show(write_report(store(tmp_path / "run", {"CGT": METHODS["CGT"]}, setting=None)))
    assert set(lines(browser)) == {"0"}
    assert browser.run("return document.querySelector('#show-all')") is None
    assert browser.run("return document.querySelector('.network')") is None


@pytest.mark.parametrize("count", [20, 60])
def test_many_methods_look_different_without_colour_vision_too(
    show: Callable[..., Browser], tmp_path: Path, count: int
) -> None:
    results = {f"m{i}": trace(f"m{i}", rate=0.005 + 0.001 * i, seed=i) for i in range(count - 2)}
    path = write_report(store(tmp_path / "run", {"CGT": METHODS["CGT"], "AB": METHODS["AB"], **results}))
    browser = show(path)
    looks = browser.run(
        "return [...document.querySelectorAll('#curve-loss path.line')]"
        ".map(p => getComputedStyle(p).stroke + p.getAttribute('stroke-dasharray'))"
    )
    assert len(set(looks)) == count
    assert path.stat().st_size < LARGEST_PAGE


def test_a_method_has_its_colour_in_every_run_and_a_run_its_dashes(
    show: Callable[..., Browser], tmp_path: Path
) -> None:
    other = trace("other", rate=0.01)
    store(tmp_path / "runs" / "a", {"CGT": METHODS["CGT"], "AB": METHODS["AB"]})
    store(tmp_path / "runs" / "b", {"other": other, "CGT": METHODS["CGT"]})
    browser = show(write_report(tmp_path / "runs" / "a", tmp_path / "runs" / "b", out=tmp_path / "both.html"))
    looks = browser.run(
        "return [...document.querySelectorAll('#curve-loss path.line')]"
        ".map(p => [getComputedStyle(p).stroke, p.getAttribute('stroke-dasharray')])"
    )
    (cgt, first), (ab, also_first), (others, second), (again, also_second) = looks
    assert cgt == again
    assert len({cgt, ab, others}) == 3
    assert (first, second) == (also_first, also_second)
    assert first != second


def test_seeds_are_a_band_around_the_median(show: Callable[..., Browser], tmp_path: Path) -> None:
    ensemble = Ensemble(tuple(trace("CGT", seed=seed) for seed in range(3)))
    browser = show(write_report(store(tmp_path / "run", {"CGT": ensemble})))
    assert browser.run("return document.querySelectorAll('#curve-loss path.band').length") == 1
    browser.press("#curve-loss svg", HOME)
    _, low, median, high = ensemble.band("loss")
    text = browser.run("return document.querySelector('#curve-loss .reading').innerText")
    assert f"{median[0]:.5g} [{low[0]:.5g}, {high[0]:.5g}]" in text


def test_a_hundred_thousand_rows_are_drawn_in_time_and_no_peak_is_lost(
    show: Callable[..., Browser], tmp_path: Path
) -> None:
    k = np.arange(100_001)
    loss = 2 + np.sin(k / 50) * np.exp(-k / 40_000)
    peaks = {71_234: 9.5, 18: 7.5, 99_998: 0.01}
    loss[list(peaks)] = list(peaks.values())
    run = trace("CGT", rows=100_001, rate=1e-4, loss=loss)
    path = write_report(store(tmp_path / "run", {"CGT": run, "DGD": trace("DGD", rows=100_001, rate=2e-4)}))
    assert path.stat().st_size < LARGEST_PAGE
    browser = show(path)
    seconds = browser.run("return performance.getEntriesByType('navigation')[0].loadEventEnd / 1000")
    assert 0 < seconds < SECONDS_TO_DRAW
    assert "Of 100001 recorded rows" in browser.run("return document.querySelector('#remark').textContent")
    stored: dict[str, Any] = browser.run("return JSON.parse(document.getElementById('data').textContent)")
    series = stored["series"][0]
    kept = dict(zip(series["k"], series["columns"]["loss"]["median"], strict=True))
    assert {k: kept.get(k) for k in peaks} == peaks


def test_runs_are_compared_on_one_page_and_hidden_together(
    show: Callable[..., Browser], tmp_path: Path
) -> None:
    first = store(tmp_path / "first", {"CGT": METHODS["CGT"]})
    second = store(tmp_path / "second", {"CGT": trace("CGT", rate=0.005)})
    browser = show(write_report(first, second, out=tmp_path / "both.html"))
    assert column(browser, "run") == ["first: by hand", "second: by hand"]
    browser.click("#legend fieldset:nth-of-type(2) legend input")
    assert set(lines(browser)) == {"0"}


def test_table_of_a_sweep_is_sorted_by_a_click(show: Callable[..., Browser], tmp_path: Path) -> None:
    import pandas as pd

    rows = {"method": ["CGT", "CGT", "AB"], "step_size": [0.1, 0.02, 0.1], "loss": [0.3, 0.5, float("inf")]}
    pd.DataFrame(rows).to_parquet(tmp_path / "table.parquet", index=False)
    (tmp_path / "sweep.json").write_text("{}")
    browser = show(write_report(tmp_path))
    rows_shown = "[...document.querySelectorAll('.sortable tbody tr')]"
    cells = f"return {rows_shown}.map(row => [...row.cells].map(cell => cell.textContent).join(' '))"
    browser.click(".sortable th:nth-child(2) button")
    assert browser.run(cells)[0] == "CGT 0.02 0.5"
    browser.click(".sortable th:nth-child(3) button")
    browser.click(".sortable th:nth-child(3) button")
    assert browser.run(cells)[0] == "AB 0.1 inf"
    browser.reload()
    assert browser.run(cells)[0] == "AB 0.1 inf"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_phone_shows_the_whole_width(show: Callable[..., Browser], page: Path, theme: str) -> None:
    browser = show(page, f"theme={theme}", width=390, height=844)
    assert browser.run("return document.documentElement.scrollWidth") <= 390
    paper = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert paper == {"light": "rgb(255, 255, 255)", "dark": "rgb(21, 24, 28)"}[theme]


def test_text_of_users_stays_text(show: Callable[..., Browser], tmp_path: Path) -> None:
    name = "</script><img src=x onerror=alert(1)>"
    browser = show(write_report(store(tmp_path / "run", {name: trace(name)})))
    assert column(browser, "method") == [name]
    assert browser.run("return document.querySelectorAll('img').length") == 0
