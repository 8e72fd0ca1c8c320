"""A run that is killed between any two changes of files leaves the old results, the new ones or none, and goes on."""

import os
from pathlib import Path
from typing import Any

import pytest

from digrad.errors import ArgumentError, DataError
from digrad.simulation import Record, compare
from digrad.specs import Spec, find_run, parse_spec, run, runner
from digrad.trace import Trace
from experiment_specs import TEXT
from kills import killed_everywhere

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore:.* is computed again")]

OLD = TEXT.format(steps=20, seeds=1).split("methods.DGDClip")[0]
LONGER = OLD.replace("steps = 20", "steps = 40")
OTHER = OLD.replace("threshold = 5.0}", "threshold = 2.0}")
SEEDS = OLD.replace("seeds = 1", "seeds = 2").split("methods.AB")[0]


@pytest.fixture(autouse=True)
def _only_results(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(runner, "draw_figures", lambda *arguments: [])
    monkeypatch.setattr(runner, "setting_of", lambda *arguments, **options: {})


def traces(text: str) -> dict[tuple[str, int], Trace]:
    """Return the traces of the methods of a specification, by label and seed."""
    spec = parse_spec(text)
    built = spec.build()
    found = {}
    for label in built.methods:
        for seed in range(spec.seeds):
            options = {**built.options, "seed": seed, "record": Record(paths=True, invariant=True)}
            run = compare({label: built.methods[label]}, built.problem, built.network, **options)
            found[label, seed] = run[label]
    return found


def results(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.parquet"))}


def is_consistent(folder: Path, wanted: tuple[Spec, ...]) -> bool:
    """Return whether results can be read; if so, they must be those of the specification beside them."""
    try:
        stored = find_run(folder)
    except DataError:
        with pytest.raises(DataError, match=r"without results yet|is not a digrad run"):
            find_run(folder)
        return False
    assert stored.spec in wanted
    found = stored.results()
    assert set(found) == set(stored.spec.methods)
    for label, result in found.items():
        assert stored.summary[label] == result.summary()
        for trace in runner.members(result):
            assert trace.facts["hyper_parameters"].items() >= dict(stored.spec.methods[label].fields).items()
            assert trace.steps == stored.spec.steps or trace.verdict == "diverged"
    return True


@pytest.mark.parametrize(
    ("before", "after", "options"),
    [
        (OLD, LONGER, {"resume": True}),
        (OLD, OTHER, {"overwrite": True}),
        pytest.param(None, SEEDS, {}, marks=pytest.mark.slow),
    ],
    ids=["extended", "overwritten", "seeds"],
)
def test_killed_run_is_old_or_new_or_incomplete_and_goes_on(
    before: str | None, after: str, options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, specs = tmp_path / "start", tuple(parse_spec(text) for text in (before, after) if text)
    if before:
        run(specs[0], start)
    made, built = traces(after), specs[-1].build()
    monkeypatch.setattr(
        runner, "drive", lambda simulator, options, **rest: made[simulator.name, options["seed"]]
    )
    killed = killed_everywhere(
        lambda folder: run(specs[-1], folder, built=built, **options), start, tmp_path / "killed"
    )
    assert len(killed) > 10
    whole = results(killed[-1])
    for copy in killed:
        is_consistent(copy, specs)
        try:
            run(specs[-1], copy, resume=True, built=built)
        except ArgumentError:  # it was killed before the results of the other specification were deleted
            assert options == {"overwrite": True}
            run(specs[-1], copy, built=built, **options)
        assert is_consistent(copy, specs[-1:])
        assert results(copy) == whole
        assert not list(copy.rglob("*.tmp"))
