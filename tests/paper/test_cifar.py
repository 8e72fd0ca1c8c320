"""The paper's Section V-B from end to end on real images, and how its claims are judged."""

import json
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from digrad.cli.main import digrad
from digrad.errors import ArgumentError, DataError
from digrad.paper import Reproduction, cifar_claims, reproduce_cifar
from digrad.paper.accuracy_table import accuracy_table, table_markdown
from digrad.paper.claims import FAILS, HOLDS, UNDECIDED
from digrad.paper.presets import preset
from digrad.report import write_report
from digrad.trace import Ensemble, Trace

pytestmark = pytest.mark.long


class Watch:
    """An observer that only notes the events, and how long it took."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.started: list[str] = []
        self.events: dict[str, Any] = {}

    def on_method_start(self, name: str, steps: int) -> None:
        self.started.append(name)

    def on_progress(self, progress: Any) -> None:
        self.events[progress.name] = progress

    def on_method_end(self, trace: Trace) -> None:
        pass


@pytest.fixture(scope="module")
def watch() -> Watch:
    return Watch()


@pytest.fixture(scope="module")
def smoke(
    cifar10_folder: Path, no_figures: None, tmp_path_factory: pytest.TempPathFactory, watch: Watch
) -> Reproduction:
    pytest.importorskip("torch")
    folder, began = tmp_path_factory.mktemp("smoke"), time.monotonic()
    from image_problems import jobs_here  # imports torch

    with jobs_here("digrad.specs.images.training_jobs", "digrad.paper.cifar_search"):
        done = reproduce_cifar(folder, preset="smoke", report=write_report, workers=1, progress=watch)
    watch.seconds = time.monotonic() - began
    return done


@pytest.mark.cifar10
def test_smoke_trains_all_seven_methods_and_writes_everything(smoke: Reproduction) -> None:
    assert smoke.table is not None
    assert not smoke.failures
    assert {claim.number for claim in smoke.table.claims} == {4, 5}
    assert {claim.holds for claim in smoke.table.claims} == {UNDECIDED}  # a few steps decide nothing
    rows = json.loads((smoke.directory / "table.json").read_text())["cifar-iid"]
    assert {row["method"] for row in rows} == {*cifar_claims.BASELINES, *cifar_claims.PROPOSED}
    assert [dict(row) for row in smoke.accuracies["cifar-iid"]] == rows
    assert smoke.accuracies["cifar-iid"].to_latex().count(r"\\") == 1 + len(rows)
    names = {path.name for path in smoke.figures}
    assert {f"cifar-iid-by-{axis}.png" for axis in ("iteration", "epoch", "bytes")} <= names
    for directory in (*smoke.runs.values(), smoke.directory):
        assert (directory / "report.html").is_file()
    again = "digrad reproduce cifar --preset smoke --seed 0 --setting iid --setting explosion"
    assert again in (smoke.directory / "report.html").read_text()


@pytest.mark.cifar10
def test_smoke_stores_every_step_size_tried_and_the_protocol(smoke: Reproduction) -> None:
    stored = json.loads((smoke.directory / "cifar-iid-search" / "search.json").read_text())
    assert "Test images are never looked at" in stored["protocol"]
    assert stored["methods"].keys() == {*cifar_claims.BASELINES, "CGT-tuned"}
    used = {
        row["method"]: row["step_size"]
        for row in json.loads((smoke.directory / "table.json").read_text())["cifar-iid"]
    }
    assert used["CGT"] == 0.05
    for label, search in stored["methods"].items():
        assert len(search["trials"]) == 2
        assert used[label] == search["step_size"]


@pytest.mark.cifar10
def test_smoke_tells_how_search_and_training_go(smoke: Reproduction, watch: Watch) -> None:
    assert smoke.table is not None
    assert {"AB", "AB, step sizes", "CGT"} <= set(watch.started)
    assert watch.events["AB, step sizes"].k == watch.events["AB, step sizes"].steps == 2
    assert watch.events["AB, step sizes"].seconds_left >= 0
    assert 0 <= watch.events["CGT"].test_accuracy <= 1


@pytest.mark.slow
@pytest.mark.cifar10
def test_reproduction_killed_at_a_random_moment_resumes_to_the_same_bits(
    smoke: Reproduction, watch: Watch, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "digrad", "reproduce", "cifar", "--preset", "smoke", "--jobs", "1"]
    command += ["--setting", "iid", "--out", str(tmp_path / "out")]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        process.wait(timeout=random.uniform(0.1, 0.7) * watch.seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    again = reproduce_cifar(tmp_path / "out", preset="smoke", settings=["iid"], workers=1, resume=True)
    assert again.runs.keys() == {"cifar-iid"}
    assert numbers(again.directory) == numbers(smoke.directory)
    for label in (*cifar_claims.PROPOSED, *cifar_claims.BASELINES):
        first, second = (Trace.load(each.runs["cifar-iid"], label) for each in (smoke, again))
        assert first.final_x.tobytes() == second.final_x.tobytes(), label
        assert {name: column.tobytes() for name, column in first.columns.items()} == {
            name: column.tobytes() for name, column in second.columns.items()
        }, label


def numbers(folder: Path) -> Any:
    """Return the accuracies and step sizes of a reproduction, without what depends on the clock."""
    rows = json.loads((folder / "table.json").read_text())["cifar-iid"]
    timeless = [{key: row[key] for key in row if "seconds" not in key} for row in rows]
    return timeless, json.loads((folder / "cifar-iid-search" / "search.json").read_text())


@pytest.mark.slow
@pytest.mark.cifar10
def test_command_of_the_pages_measures_a_step(cifar10_folder: Path, tmp_path: Path) -> None:
    words = [
        "reproduce",
        "cifar",
        "--preset",
        "smoke",
        "--steps",
        "1",
        "--setting",
        "iid",
        "--jobs",
        "1",
    ]
    done = CliRunner().invoke(digrad, [*words, "--out", str(tmp_path / "out")], catch_exceptions=False)
    assert (tmp_path / "out" / "cifar-iid" / "report.html").is_file()
    assert "claims.md" in done.stdout
    assert "nothing is searched" in (tmp_path / "out" / "claims.md").read_text()
    rows = json.loads((tmp_path / "out" / "table.json").read_text())["cifar-iid"]
    assert [row["method"] for row in rows] == [
        "CGT",
        *cifar_claims.BASELINES,
    ]  # without a search, CGT-tuned would be CGT


def test_reproduction_refuses_a_setting_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"`settings` of reproduce_cifar .*'idd'"):
        reproduce_cifar(tmp_path, preset="smoke", settings=["idd"])


@pytest.mark.cifar10
def test_gradient_tracking_diverges_from_the_large_start_where_cgt_does_not(smoke: Reproduction) -> None:
    ab, cgt = (Trace.load(smoke.runs["cifar-explosion"], label) for label in ("AB", "CGT"))
    assert ab.verdict == "diverged"
    assert cgt.verdict == "not converged"
    assert cgt.columns["batch_loss"][-1] < cgt.columns["batch_loss"][1]
    assert cgt.fraction_clipped[1] > 0


def trace_of(label: str, train: list[float], test: list[float], *, epochs: float = 10.0) -> Trace:
    k = np.arange(len(train)) * 100
    columns: dict[str, Any] = dict.fromkeys(
        ("loss", "grad_norm", "consensus_error", "tracker_norm"), np.ones(len(k))
    )
    columns |= {
        "k": k,
        "bytes_sent": k,
        "epoch": np.linspace(0, epochs, len(k)),
        "train_accuracy": np.array(train),
        "test_accuracy": np.array(test),
    }
    last = {"train_accuracy": train[-1], "test_accuracy": test[-1], "test_accuracy_of_agents": [test[-1]] * 5}
    facts = {"last": last, "training_seconds": 1.0, "training_cpu_seconds": 0.5, "seed": 0}
    return Trace(label, columns, np.zeros((5, 1)), "not converged", None, int(k[-1]), 1.0, facts=facts)


def done_with(results: dict[str, Any], steps: int = 400) -> Any:
    spec = SimpleNamespace(name="setting", steps=steps, methods=preset("cifar-iid").methods)
    return SimpleNamespace(
        results=results, spec=spec, problem=SimpleNamespace(model="small_cnn"), directory=Path("run")
    )


SLOW, FAST = [0.1, 0.2, 0.3, 0.4, 0.5], [0.1, 0.4, 0.5, 0.6, 0.7]


def compared(ours: list[float], theirs: list[float], **options: Any) -> Any:
    results = {label: trace_of(label, theirs, theirs, **options) for label in cifar_claims.BASELINES}
    return done_with({"CGT": trace_of("CGT", ours, ours, **options), **results})


@pytest.mark.parametrize("judge", [cifar_claims.claim_on_training, cifar_claims.claim_on_test_images])
def test_claims_hold_when_cgt_is_ahead_of_all_six(judge):
    assert judge(compared(FAST, SLOW), "CGT").holds == HOLDS
    assert judge(compared(SLOW, FAST), "CGT").holds == FAILS
    assert judge(compared(FAST, FAST), "CGT").holds == FAILS


@pytest.mark.parametrize("judge", [cifar_claims.claim_on_training, cifar_claims.claim_on_test_images])
def test_claims_name_the_methods_that_cgt_is_ahead_of(judge):
    done = compared(SLOW, FAST)
    slowest = [0.0, 0.0, 0.1, 0.2, 0.3]
    done.results["AB"] = trace_of("AB", slowest, slowest)
    assert judge(done, "CGT").holds == "holds only against AB"


@pytest.mark.parametrize("judge", [cifar_claims.claim_on_training, cifar_claims.claim_on_test_images])
def test_claims_are_undecided_when_the_runs_are_short(judge):
    assert judge(compared(FAST, SLOW, epochs=2.0), "CGT").holds == UNDECIDED


@pytest.mark.parametrize("judge", [cifar_claims.claim_on_training, cifar_claims.claim_on_test_images])
def test_a_cgt_that_diverges_loses_its_claims(judge):
    done = compared(FAST, SLOW)
    whole = trace_of("CGT", FAST, FAST)
    columns = {name: column[:2] for name, column in whole.columns.items()}
    done.results["CGT"] = replace(
        whole, columns=columns, verdict="diverged", diverged_at=101, facts={**whole.facts, "last": None}
    )
    judged = judge(done, "CGT")
    assert judged.holds == FAILS
    assert "nan" not in judged.measured


def test_who_is_faster_is_read_between_the_rows():
    done = compared(FAST, SLOW)
    done.results["AB"] = trace_of("AB", [0.1, 0.35, 0.5, 0.5, 0.5], SLOW)
    races = cifar_claims.claim_on_training(done, "CGT").numbers["iterations_of_cgt_and_other"]
    assert races["AB"] == (150, 167)  # both pass 0.45 between the same two rows


def test_the_share_that_clipped_weighs_a_row_by_its_steps():
    done = compared(FAST, SLOW)
    whole = done.results["CGT"]
    columns = {**whole.columns, "k": np.array([0, 100, 200, 300, 303])}
    columns["fraction_clipped"] = np.array([np.nan, 1.0, 0.0, 0.0, 1.0])
    done.results["CGT"] = replace(whole, columns=columns)
    assert accuracy_table(done)[0].clipped == pytest.approx(103 / 303)


def test_without_the_images_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIGRAD_DATA", str(tmp_path / "absent"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(DataError, match="digrad data get cifar10"):
        reproduce_cifar(tmp_path / "out", preset="smoke")
    assert not (tmp_path / "out").exists()


def test_a_seed_that_diverged_counts_as_the_worst():
    done = compared(FAST, SLOW)
    bad = trace_of("CGT", FAST, FAST)
    bad = Trace(
        "CGT", bad.columns, bad.final_x, "diverged", 5, 5, 1.0, facts={**bad.facts, "last": None, "seed": 1}
    )
    done.results["CGT"] = Ensemble((bad, bad, trace_of("CGT", FAST, FAST)))
    assert cifar_claims.claim_on_training(done, "CGT").numbers["final_train_accuracy"]["CGT"] == 0.0


def test_table_says_who_diverged():
    done = compared(FAST, SLOW)
    bad = done.results["AB"]
    done.results["AB"] = Trace(
        "AB", bad.columns, bad.final_x, "diverged", 5, 5, 1.0, facts={**bad.facts, "last": None}
    )
    text = table_markdown("setting", accuracy_table(done))
    assert "| AB (diverged) | 0.05 | - | - |" in text
