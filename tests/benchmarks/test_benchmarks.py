"""The benchmarks measure the same computation on both sides, go on where they ended, and fill the page."""

import json

import jax
import numpy as np
import pytest

from benchmarks import methods, page, report, small
from benchmarks.report import BenchRow


@pytest.mark.parametrize(("problem", "name"), [("quadratic", "DGD"), ("logistic", "SONATA"), ("user", "CGT")])
def test_numpy_loop_follows_the_trajectory_of_digrad(problem, name, monkeypatch):
    monkeypatch.setattr(methods, "STEPS", (5, 5))
    made, gradient = methods.make_problem(problem, 70, 3)
    with jax.enable_x64(True):
        batch = methods.BATCH if problem == "logistic" else None
        work = methods.Work(name, made, gradient, 70, 3, batch=batch, dtype="float64")
        np.testing.assert_allclose(np.asarray(work.run()), work.loop(5), atol=1e-12)


@pytest.mark.parametrize("batch_size", [None, 32])
def test_numpy_loop_of_the_paper_follows_the_trajectory_of_digrad(batch_size):
    with jax.enable_x64(True):
        small.Workload(small.paper_problem("digits"), "float64", 20, batch_size).check()


def test_rows_are_added_to_those_there_are_and_shown_on_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(methods, "STEPS", (2, 2))
    for module in (report, page):
        monkeypatch.setattr(module, "FOLDER", tmp_path)
    (tmp_path / "README.md").write_text(
        "Text.\n<!-- methods -->\nold\n<!-- end -->\n<!-- small -->\n<!-- end -->\n"
    )
    report.save_rows("small.jsonl", [BenchRow("a step", 2.0, "us", 3.0, 8.0, at_least=True)])
    (row,) = methods.rows_of("quadratic", 100, 2, 0.0, ["SGP"])
    assert min(row["one"], row["two"], row["products"], row["loop"]) > 0
    (tmp_path / methods.FILE).write_text(json.dumps(row) + "\n")
    started = []
    monkeypatch.setattr(methods.subprocess, "run", lambda command, **_: started.append(command[3:]))
    methods.measure_methods(agents=[100], dims=[2])
    assert "SGP" not in started[0]
    assert "SGP" in started[1]
    page.write()
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("Text.\n")
    assert "old" not in text
    assert "| a step | 2 us | 8 us | 4.00 | >= 3x | yes |" in text
    assert f"| SGP | {row['one']:.3g} / {row['two']:.3g} ms" in text
    assert (tmp_path / "growth.png").stat().st_size > 0
