"""Step sizes that a search gives to an experiment with images; the trials themselves are made up."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import digrad as dg
from digrad._internal.json_files import write_json
from digrad.errors import ArgumentError, DigradError
from digrad.paper import cifar_search
from digrad.paper.cifar_search import SearchPlan, read_search, search_step_size, with_step_sizes
from digrad.paper.presets import preset

PLAN = SearchPlan(steps=5, held_out=100, most=2)
SPEC = preset("cifar-iid")


class Jobs:
    """Stores a step size for each method asked for, save those that fail."""

    def __init__(self, step_size: float | None = 0.25, failing: tuple[str, ...] = ()) -> None:
        self.step_size, self.failing = step_size, failing
        self.asked: list[str] = []

    def __call__(self, jobs: Any, **_options: Any) -> dict[str, str]:
        self.asked = [job.arguments["label"] for job in jobs]
        for job, label in zip(jobs, self.asked, strict=True):
            if label not in self.failing:
                entry = {"method": label, "step_size": self.step_size, "trials": [], "is_bounded": True}
                write_json(Path(job.arguments["folder"]) / f"search-{label}.json", entry)
        return {job.name: "out of memory" for job in jobs if job.arguments["label"] in self.failing}


@pytest.fixture
def searched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    def search(jobs: Jobs, plan: SearchPlan = PLAN, *, overwrite: bool = False) -> Any:
        monkeypatch.setattr(cifar_search, "run_jobs", jobs)
        return with_step_sizes(SPEC, tmp_path / "search", plan, 1, None, overwrite=overwrite)

    return search


def test_only_what_the_paper_leaves_open_is_searched(searched: Any) -> None:
    spec, lost = searched(Jobs())
    sizes = {label: table.fields["step_size"] for label, table in spec.methods.items()}
    assert sizes.pop("CGT") == 0.05
    assert set(sizes.values()) == {0.25}
    assert not lost


def test_a_method_whose_search_fails_is_left_out_and_named_and_resumed(searched: Any, tmp_path: Path) -> None:
    spec, lost = searched(Jobs(failing=("AB",)))
    assert set(SPEC.methods) - set(spec.methods) == {"AB"}
    assert lost == {"AB": "no step size: out of memory"}
    again = Jobs()
    spec, lost = searched(again)
    assert again.asked == ["AB"]
    assert set(spec.methods) == set(SPEC.methods)
    assert json.loads((tmp_path / "search" / "search.json").read_text())["methods"]["AB"]["step_size"] == 0.25


def test_where_every_step_size_diverges_there_is_nothing_to_run(searched: Any) -> None:
    with pytest.raises(DigradError, match="CGT-tuned: no step size: every one diverged"):
        searched(Jobs(step_size=None))


def test_trials_of_another_search_are_refused_and_overwritten(searched: Any) -> None:
    searched(Jobs())
    longer = SearchPlan(steps=6, held_out=100, most=2)
    with pytest.raises(ArgumentError, match=r"searched with another specification; .* --overwrite"):
        searched(Jobs(), longer)
    jobs = Jobs(step_size=0.5)
    spec, _ = searched(jobs, longer, overwrite=True)
    assert set(jobs.asked) == set(SPEC.methods) - {"CGT"}
    assert spec.methods["AB"].fields["step_size"] == 0.5


def tuned(folder: Path, monkeypatch: pytest.MonkeyPatch, constant: float) -> list[float | None]:
    """Return the step sizes tried and the one chosen, where a step of 0.2 has a low loss but agents far apart."""
    losses = {0.025: 1.2, 0.05: 1.0, 0.1: 1.04, 0.2: 1.05, 0.4: 2.0}
    tried = []

    def train(method: Any, *_: Any, **__: Any) -> Any:
        tried.append(method.step_size)
        error = 9.0 if method.step_size == 0.2 else method.step_size
        columns = {"k": [0, 5], "test_loss": [2.3 + constant, 0.0], "grad_norm": [np.nan, 1.0]}
        columns |= {"consensus_error": [0.0, error]}
        last = {"test_loss": losses[method.step_size] + constant}
        return SimpleNamespace(
            columns={name: np.array(values) for name, values in columns.items()}, facts={"last": last}
        )

    monkeypatch.setattr("digrad.specs.images.training.train", train)
    built: Any = SimpleNamespace(methods={"AB": dg.AB(0.05)}, problem=None, network=None)
    monkeypatch.setattr(cifar_search, "stored_spec", lambda folder: (SPEC, built))
    search_step_size(lambda event: None, folder=str(folder), label="AB", most=10)
    return [*tried, read_search(folder, "AB")["step_size"]]  # pyright: ignore[reportOptionalSubscript]


@pytest.mark.parametrize("constant", [-1.0, 0.0, 100.0])
def test_step_sizes_are_judged_by_fall_and_agreement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, constant: float
) -> None:
    assert tuned(tmp_path, monkeypatch, constant) == [0.05, 0.1, 0.2, 0.025, 0.1]
    assert tuned(tmp_path, monkeypatch, constant) == [0.1]  # everything is stored
