"""Output of a run while it is under way."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from digrad.cli import observers, output
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
    assert "AB: k = 0 of 50, starting" in result.stderr
    assert "AB: k = 4 of 50, loss" in result.stderr
    assert "diverged at k = 4" in result.stderr
    assert "report.html" in result.stdout


@pytest.mark.parametrize("options", [("--watch", "--quiet"), ("--json", "--jsonl")])
def test_two_ways_to_show_a_run_exclude_each_other(folder: Path, options: tuple[str, str]) -> None:
    result = call(folder, *options)
    assert "exclude each other" in str(result.exception)


def test_time_left_is_that_of_the_speed_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(observers.time, "monotonic", lambda: now[0])
    row = observers.Row(steps=100)
    assert row.seconds_left() is None
    now[0], row.first, row.first_at, row.k = 5.0, 10, 3.0, 30  # twenty steps in two seconds, after compiling
    assert row.seconds_left() == 7.0


def test_watch_fills_a_table_with_a_row_per_method() -> None:
    watch = observers.Watch()
    watch.on_method_start("CGT, seed 3", 100)
    figures = {"loss": 0.5, "grad_norm": math.inf, "consensus_error": math.nan}
    watch.on_progress(SimpleNamespace(name="CGT", k=10, steps=100, **figures))
    cells = [list(column.cells) for column in watch.table().columns]
    assert [cell for (cell,) in cells] == [
        "CGT, seed 3",
        "10/100",
        "0.5",
        "inf",
        "",
        "",
        "running",
    ]


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
