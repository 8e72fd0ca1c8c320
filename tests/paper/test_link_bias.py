"""Effect of lost packets, from end to end, and links in specifications."""

import json

import pytest
from click.testing import CliRunner

from digrad.cli.main import digrad
from digrad.errors import ArgumentError, SpecError
from digrad.links import Bursts, Clock, Exponential, FixedDelay, Links, compressors
from digrad.paper import link_bias, reproduce_links
from digrad.report import write_report
from digrad.schedules import Geometric
from digrad.specs.graph_table import LinksTable


def test_only_undelivered_mass_that_is_kept_leaves_no_bias(tmp_path, monkeypatch):
    settings = link_bias._settings()
    monkeypatch.setattr(link_bias, "_settings", lambda: {"example": settings["example"]})
    words = ["reproduce", "links", "--out", str(tmp_path / "out"), "--json"]
    rows = json.loads(CliRunner().invoke(digrad, words, catch_exceptions=False).stdout)
    errors = {row["policy"]: row["error"] for row in rows}
    assert errors.pop("kept, own value") < 1e-13
    assert min(errors.values()) > 0.2
    assert (tmp_path / "out" / "links-example.png").is_file()
    assert "| example | kept, own value |" in (tmp_path / "out" / "links.md").read_text()
    page = write_report(tmp_path / "out").read_text()
    assert "<h2>CGT with 30% of all packets lost in out</h2>" in page
    assert page.count("data:image/png") == 1
    with pytest.raises(ArgumentError, match="holds an earlier result"):
        reproduce_links(tmp_path / "out")


def test_the_default_folder_is_replaced_only_by_the_same_numbers(tmp_path, monkeypatch):
    problem, method, options = link_bias._settings()["example"]
    monkeypatch.setattr(
        link_bias, "_settings", lambda: {"example": (problem, method, {**options, "steps": 5})}
    )
    monkeypatch.setattr(link_bias.plots, "save_figure", lambda *arguments, **options: [])
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "reproduce-links"

    def call(*words):
        return CliRunner().invoke(digrad, ["reproduce", "links", *words])

    assert call("--seed", "3").exit_code == 0
    first = (folder / "links.json").read_bytes()
    assert call("--seed", "3").exit_code == 0
    assert (folder / "links.json").read_bytes() == first
    assert "holds an earlier result" in str(call().exception)
    (folder / "environment.json").write_text("of a run of reproduce-links.toml")
    assert "holds other files" in str(call("--overwrite").exception)
    assert (folder / "links.json").read_bytes() == first


def test_the_table_of_links_says_all_that_links_can():
    table = LinksTable(
        loss=0.3, burst_length=5.0, fixed_delay=2, awake=[1.0, 0.5], compressor="top_k", compressor_k=3, noise=0.1,
        noise_ratio=0.99, seed=4,
    )  # fmt: skip
    assert table.build() == Links(
        loss=Bursts(0.3, 5.0),
        delay=FixedDelay(2),
        awake=[1.0, 0.5],
        compressor=compressors.top_k(3),
        noise=Geometric(0.1, 0.99),
        seed=4,
    )
    assert LinksTable().build() is None


def test_the_table_of_links_says_how_long_steps_take():
    drawn = {"distribution": "exponential", "mean": 0.5}
    table = LinksTable(compute=[1.0, 2.0], latency=drawn, bandwidth=1e6, deadline=3.0, clock_seed=7)
    clock = Clock(compute=[1.0, 2.0], latency=Exponential(0.5), bandwidth=1e6, deadline=3.0, seed=7)
    assert table.build() == Links(clock=clock)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"loss": 1.5}, "`links`: `loss` of Links must be"),
        ({"delay": 1, "fixed_delay": 1}, "`links.delay` and `links.fixed_delay` exclude each other"),
        ({"compressor": "quantize"}, "^`links.compressor_bits` is required by the compressor quantize"),
        ({"compressor_k": 3}, "`links.compressor_k`: leave it out, or use the compressor top_k"),
        (
            {"compressor": "sign", "compressor_bits": 3},
            "`links.compressor_bits`: leave it out, or use the compressor quantize",
        ),
        ({"burst_length": 5.0}, "`links.burst_length`: leave it out, or give loss"),
        ({"noise_ratio": 0.9}, "`links.noise_ratio`: leave it out, or give noise"),
        ({"clock_seed": 1}, "`links.clock_seed`: leave it out"),
        ({"deadline": 0.0}, "`links`: `deadline` of Clock must be"),
    ],
)
def test_impossible_tables_are_refused(keys, words):
    with pytest.raises(SpecError, match=words):
        LinksTable(**keys).build()
