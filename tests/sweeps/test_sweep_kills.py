"""A sweep that is killed between any two changes of files can be read as what it is, and goes on."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import digrad as dg
from digrad.errors import DataError
from digrad.report import write_report
from digrad.sweeps import Sweep, workers
from digrad.sweeps import study as batching
from kills import killed_everywhere

OLD: dict[str, Any] = {"steps": 10, "values": [0.1, 0.2, 0.3]}


def rows_of(study: Any, batch: Any) -> list[dict[str, Any]]:
    """Simulate nothing: a row says which configuration it is of."""
    steps = study.options["steps"]
    return [
        {"method": one.label, **one.values, "seed": one.seed, "verdict": "converged", "diverged_at": None,
         "steps": steps, "final_loss": steps * one.values["step_size"], "seconds": 0.0}
        for one in batch.runs
    ]  # fmt: skip


@pytest.fixture
def act(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(batching, "MOST_RUNS", 1)
    monkeypatch.setattr(workers, "run_batch", rows_of)
    problem, network = dg.problems.example_quartic(), dg.Network(dg.graphs.example5())
    scratch = tmp_path / "scratch"
    scratch.touch()

    def stay(event: Any) -> None:
        os.replace(scratch, scratch)  # after each batch the folder stays as it is for a while

    def sweep(folder: Path, *, values: list[float] = OLD["values"], **options: Any) -> None:
        options = {"steps": OLD["steps"], "grid": {"step_size": values}, "progress": stay, **options}
        dg.sweep(dg.AB, problem, network, out=folder, **options)

    return sweep


def read(folder: Path) -> tuple[int, list[float], bool]:
    """Return the steps of a sweep and its rows, which must be of this number of steps."""
    found = Sweep.load(folder)
    steps = found.facts["options"]["steps"]
    if len(found.table):
        assert (found.table["final_loss"] == steps * found.table["step_size"]).all()
        assert (found.table["steps"] == steps).all()
    return steps, found.table["step_size"].tolist() if len(found.table) else [], found.interrupted


@pytest.mark.parametrize(
    "new",
    [
        {"steps": 20, "values": [0.1, 0.2], "overwrite": True},
        {"steps": 10, "values": [0.3, 0.4, 0.1, 0.5], "resume": True},
        {"steps": 20, "values": [0.3, 0.4, 0.1], "resume": True},
    ],
    ids=["overwritten", "resumed", "resumed with other steps"],
)
def test_killed_sweep_is_read_as_what_it_is_and_goes_on(
    new: dict[str, Any], act: Any, tmp_path: Path
) -> None:
    act(tmp_path / "start")
    old, done = (10, OLD["values"], False), (new["steps"], new["values"], False)
    killed = killed_everywhere(lambda folder: act(folder, **new), tmp_path / "start", tmp_path / "killed")
    assert read(killed[-1]) == done
    has_part = False
    for copy in killed:
        steps, values, interrupted = read(copy)
        has_part |= steps == new["steps"] and 0 < len(values) < len(new["values"])
        if (steps, values, interrupted) not in (old, done):
            assert interrupted
            assert values == [
                value for value in (new if steps == new["steps"] else OLD)["values"] if value in values
            ]
        act(copy, **{**new, "overwrite": False, "resume": True})
        assert read(copy) == done
        assert not list(copy.rglob("*.tmp"))
    assert has_part  # of the rows that were finished before a kill


def test_killed_new_sweep_goes_on(act: Any, tmp_path: Path) -> None:
    for copy in killed_everywhere(act, tmp_path / "none", tmp_path / "killed"):
        act(copy, resume=True)
        assert read(copy) == (10, OLD["values"], False)


def test_saved_sweep_is_old_or_new_when_killed(act: Any, tmp_path: Path) -> None:
    act(tmp_path / "start")
    act(tmp_path / "other", steps=20)
    save = Sweep.load(tmp_path / "other").save
    for copy in killed_everywhere(save, tmp_path / "start", tmp_path / "killed"):
        steps, values, _ = read(copy)
        assert (steps, values) in ((10, OLD["values"]), (20, OLD["values"]), (20, []))
    assert (steps, values) == (20, OLD["values"])


def test_report_of_a_sweep_that_has_not_ended_says_so(act: Any, tmp_path: Path) -> None:
    act(tmp_path / "start")
    shutil.copytree(tmp_path / "start", tmp_path / "killed")
    (tmp_path / "killed" / "table.parquet").unlink()
    write_report(tmp_path / "start")
    with pytest.raises(DataError, match=r"killed holds a sweep that has not ended; .* --resume"):
        write_report(tmp_path / "killed")


@pytest.mark.parametrize(
    "edited",
    [
        b"\xff\xfe",
        b"[" * 100_000,
        b"null",
        b'{"id": 1, "row": {}}',
        b'{"id": "1", "row": null}',
        b'{"id": "1", "row": {"method": "AB", "step_size": 0.2}}',
        b'{"id": "1", "row": {"method": "AB", "verdict": "converged", "final_loss": "low"}}',
        b'{"id": "1", "row": {"method": "AB", "verdict": "converged", "steps": 1' + b"0" * 400 + b"}}",
    ],
)
def test_row_that_was_edited_is_computed_again(edited: bytes, act: Any, tmp_path: Path) -> None:
    folder = tmp_path / "start"
    act(folder)
    (folder / "table.parquet").unlink()
    first, second, third = (folder / "rows.jsonl").read_bytes().splitlines()
    name = json.loads(second)["id"].encode()
    (folder / "rows.jsonl").write_bytes(
        b"\n".join([first, edited.replace(b'"1"', b'"' + name + b'"'), third])
    )
    assert read(folder) == (10, [0.1, 0.3], True)
    act(folder, resume=True)
    assert read(folder) == (10, OLD["values"], False)
    (folder / "table.parquet").write_bytes(b"edited")
    with pytest.raises(DataError, match=r"table\.parquet cannot be read"):
        Sweep.load(folder)
