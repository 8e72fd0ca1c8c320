"""The paper's Section V-A from end to end, and what is refused before it starts."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from digrad import data
from digrad.cli.main import digrad
from digrad.errors import ArgumentError
from digrad.paper import Reproduction, reproduce_logistic
from digrad.paper.claims import FAILS, HOLDS, UNDECIDED, Claim, verdicts
from digrad.paper.reproduction import open_reproduction

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def few(a9a_folder: Path) -> data.Dataset:
    """An eighth of a9a."""
    whole = data.load("a9a")
    return data.Dataset("a9a", whole.features[::8], whole.labels[::8])


@pytest.fixture(scope="module")
def smoke(few: data.Dataset, no_figures: None, tmp_path_factory: pytest.TempPathFactory) -> Reproduction:
    """Run `digrad reproduce logistic --preset smoke` on few samples; return what it calls returns."""
    folder, found = tmp_path_factory.mktemp("smoke"), []

    def reproduce(*arguments: Any, **options: Any) -> Reproduction:
        found.append(reproduce_logistic(*arguments, **options))
        return found[0]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("digrad.paper.reproduce_logistic", reproduce)
        patch.setattr("digrad.data.load", lambda name: few)
        words = ["reproduce", "logistic", "--preset", "smoke", "--out", str(folder)]
        done = CliRunner().invoke(digrad, words, catch_exceptions=False)
    assert "claims.md" in done.stdout
    assert "logistic-sorted (4 of 6), CGT: " in done.stderr
    assert "`digrad reproduce logistic` without --preset" in done.stdout.splitlines()[-1]
    return found[0]


@pytest.mark.slow
@pytest.mark.a9a
def test_resume_of_a_finished_reproduction_computes_nothing(
    smoke: Reproduction, few: data.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("digrad.data.load", lambda name: few)
    monkeypatch.setattr("digrad.specs.runner.drive", None)
    assert reproduce_logistic(smoke.directory, preset="smoke", resume=True).table == smoke.table


@pytest.mark.a9a
def test_smoke_judges_every_claim_and_writes_everything(smoke: Reproduction) -> None:
    assert smoke.table is not None
    assert json.loads((smoke.directory / "claims.json").read_text())["title"] == smoke.table.title
    assert (smoke.directory / "claims.md").read_text() == smoke.table.to_markdown()
    assert {claim.number for claim in smoke.table.claims} == {1, 2, 3}
    assert {path.suffix for path in smoke.figures} == {".png", ".pdf"}
    assert len([path for path in smoke.figures if path.is_file()]) == 6
    for directory in (*smoke.runs.values(), smoke.directory):
        assert (directory / "report.html").is_file()
    assert {"graph", "split", "start", "iterations", "loss", "tracking", "mixing of DGDClip"} <= set(
        smoke.table.choices
    )


@pytest.mark.a9a
def test_plain_gradient_tracking_explodes_only_from_the_large_start(smoke: Reproduction) -> None:
    assert smoke.table is not None
    large, zero, small = (claim for claim in smoke.table.claims if claim.number == 1)
    assert large.holds == HOLDS
    assert large.numbers["diverged_at"] <= 10
    assert large.numbers["largest_over_initial_loss"] == 1
    for claim in (zero, small):
        assert claim.holds == FAILS
        assert claim.numbers["diverged_at"] is None
        assert claim.numbers["largest_fraction_clipped"] == 0
        assert claim.numbers["largest_loss_difference"] <= 1e-12


@pytest.mark.a9a
def test_short_runs_do_not_decide_about_the_end_of_runs(smoke: Reproduction) -> None:
    assert smoke.table is not None
    assert {claim.holds for claim in smoke.table.claims if claim.number > 1} == {UNDECIDED}
    slower = [claim for claim in smoke.table.claims if claim.numbers.get("is_slower")]
    assert {claim.run for claim in slower} == {"logistic-sorted", "logistic-iid"}


@pytest.mark.a9a
def test_clipped_dgd_clips_only_at_the_start_so_that_its_bias_is_that_of_dgd(smoke: Reproduction) -> None:
    assert smoke.table is not None
    for claim in smoke.table.claims:
        if claim.number == 2:
            label = claim.setting.split("; ")[-1]
            assert claim.numbers[f"{label}_last_clipped"] <= 20


def claims_that(*judgements: str) -> list[Claim]:
    return [Claim(2, "slow", f"setting {i}", "run", "", holds, "") for i, holds in enumerate(judgements)]


@pytest.mark.parametrize(
    ("judgements", "overall"),
    [
        ((HOLDS, HOLDS), HOLDS),
        ((FAILS, FAILS), FAILS),
        ((FAILS, UNDECIDED), UNDECIDED),
        ((HOLDS, FAILS), "holds only for: setting 0"),
        ((FAILS, "holds only for the speed"), "holds only for: setting 1: for the speed"),
    ],
)
def test_verdict_of_a_claim_says_where_it_holds(judgements: tuple[str, ...], overall: str) -> None:
    (verdict,) = verdicts(claims_that(*judgements))
    assert verdict.holds == overall


def test_foreign_folder_and_unknown_preset_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="Did you mean `small`"):
        reproduce_logistic(tmp_path / "out", preset="smal")  # type: ignore[arg-type]
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ArgumentError, match="holds other files; give another --out"):
        reproduce_logistic(tmp_path, preset="smoke")
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_reproduction_of_another_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "reproduction.json").write_text('{"experiment": "logistic", "preset": "full", "seed": 0}')
    with pytest.raises(ArgumentError, match=r"give another --out, or --overwrite"):
        reproduce_logistic(tmp_path, preset="smoke")


def test_claims_are_gone_before_the_runs_that_they_are_about(tmp_path: Path) -> None:
    identity = {"experiment": "logistic", "preset": "smoke", "seed": 0}
    for kept in (True, False):
        for name in ("reproduction.json", "claims.json", "claims.md"):
            (tmp_path / name).write_text(json.dumps(identity))
        with open_reproduction(tmp_path, identity, (), resume=kept, overwrite=not kept):
            pass  # and then it is killed
        assert (tmp_path / "claims.json").exists() == (tmp_path / "claims.md").exists() == kept


@pytest.mark.a9a
def test_a_finished_reproduction_is_not_computed_again_unasked(smoke: Reproduction) -> None:
    with pytest.raises(
        ArgumentError, match=r"continue with --resume, start over with --overwrite, or give another"
    ):
        reproduce_logistic(smoke.directory, preset="smoke")
