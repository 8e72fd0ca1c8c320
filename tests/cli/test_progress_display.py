"""Output of a run while it is under way."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from digrad.cli import output, progress_display
from digrad.cli.run_commands import report, run
from digrad.trace.trace import HEADLINE
from experiment_specs import tiny


@pytest.fixture(scope="module")
def folder(no_figures: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("live")
    (folder / "tiny.toml").write_text(tiny().to_toml())
    return folder


def call(folder: Path, *options: str) -> Result:
    arguments = [str(folder / "tiny.toml"), "--out", str(folder / "run"), *options]
    return CliRunner().invoke(run, arguments, standalone_mode=False)


@pytest.fixture(scope="module")
def lines(folder: Path) -> list[dict[str, Any]]:
    result = call(folder, "--jsonl")
    assert result.exception is None
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_jsonl_tells_every_event_in_its_own_line(lines: list[dict[str, Any]]) -> None:
    assert [line["event"] for line in lines if line["event"] != "progress"] == ["start", "end"] * 3 + ["done"]
    progress = [line for line in lines if line["event"] == "progress"]
    assert {line["method"] for line in progress} == {"CGT", "AB", "DGDClip"}
    assert progress[0].keys() >= {"k", "steps", "loss", "grad_norm", "consensus_error", "seconds_left"}


def test_jsonl_tells_divergence_without_a_number_that_json_lacks(lines: list[dict[str, Any]]) -> None:
    (ended,) = [line for line in lines if line["event"] == "end" and line["method"] == "AB"]
    assert (ended["verdict"], ended["diverged_at"]) == ("diverged", 4)


def test_quiet_prints_nothing(folder: Path, lines: list[dict[str, Any]]) -> None:
    result = call(folder, "--quiet", "--resume")
    assert result.exception is None
    assert result.output == ""


def test_watch_prints_figures_and_verdicts_where_there_is_no_terminal(
    folder: Path, lines: list[dict[str, Any]]
) -> None:
    result = call(folder, "--watch", "--resume")
    assert "AB: step 0 of 50, starting" in result.stderr
    assert "AB: step 4 of 50, diverged at k = 4, loss" in result.stderr
    assert "|grad|" in result.stderr
    assert "report.html" in result.stdout


@pytest.mark.parametrize("options", [("--watch", "--quiet"), ("--json", "--jsonl")])
def test_two_ways_to_show_a_run_exclude_each_other(folder: Path, options: tuple[str, str]) -> None:
    result = call(folder, *options)
    assert "exclude each other" in str(result.exception)


def test_time_left_is_that_of_the_speed_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(progress_display.time, "monotonic", lambda: now[0])
    row = progress_display.Row(steps=100)
    assert row.seconds_left() is None
    now[0], row.first, row.first_at, row.k = 5.0, 10, 3.0, 30  # twenty steps in two seconds, after compiling
    assert row.seconds_left() == 7.0


def test_watch_tells_figures_and_the_time_left_and_leaves_out_what_is_not_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    monkeypatch.setattr(progress_display.time, "monotonic", lambda: now[0])
    watch = progress_display.ProgressBar(watch=True)
    watch.on_method_start("CGT, seed 3", 100)
    figures = {"loss": 0.5, "grad_norm": math.inf, "consensus_error": math.nan}
    rest = {"test_accuracy": None, "seconds_left": None}
    for now[0], k in ((1.0, 10), (9.0, 50)):
        watch.on_progress(SimpleNamespace(name="CGT", k=k, steps=100, **figures, **rest))
    assert capsys.readouterr().err.splitlines() == [
        "CGT, seed 3: step 0 of 100, starting",
        "CGT, seed 3: step 50 of 100, loss 0.5, |grad| inf, 10 s left",
    ]


def test_bar_prints_the_end_of_a_method_and_nothing_before(capsys: pytest.CaptureFixture[str]) -> None:
    bar = progress_display.ProgressBar()
    bar.on_method_start("AB", 100)
    ended = {"verdict": "diverged", "diverged_at": 4, "interrupted": False, "seconds": 0.125, "facts": {}}
    bar.on_method_end(SimpleNamespace(name="AB", steps=4, final=dict.fromkeys(HEADLINE), **ended))
    assert capsys.readouterr().err == "AB: step 4 of 100, diverged at k = 4, 0.1 s\n"


def test_report_compares_folders_in_the_file_asked_for(folder: Path, lines: list[dict[str, Any]]) -> None:
    out = folder / "both.html"
    run_folder = str(folder / "run")
    result = CliRunner().invoke(report, [run_folder, run_folder, "--out", str(out)], standalone_mode=False)
    assert result.exception is None
    assert result.stdout.strip() == str(out)
    assert out.stat().st_size > 50_000


def test_tables_say_inf_as_traces_do(capsys: pytest.CaptureFixture[str]) -> None:
    ended = {"verdict": "diverged", "diverged_at": 4, "steps": 4, "bytes_sent": 100, "seconds": 0.1}
    output.verdict_table({"AB": {**ended, "final": dict.fromkeys(HEADLINE)}}, "plain mean")
    assert capsys.readouterr().out.split("diverged at k = 4")[1].split()[1:4] == ["inf"] * 3
