"""The code of the pages on sweeps and on step sizes runs as printed."""

import runpy
import sys
from types import SimpleNamespace

import pytest

from docs_pages import DOCS, blocks


def run(block, names):
    exec(compile(block, "page", "exec"), names)
    return names


def test_a_tuned_step_of_the_page_comes_close_to_the_minimum_and_a_certified_one_is_proven():
    first, *proofs = blocks("guides/step_size.md", "python")
    names = run(first, {})
    lowest = names["problem"].solve().loss
    assert names["found"].is_bounded
    assert names["trace"].final["loss"] <= lowest + 0.05 * abs(lowest)
    for block in proofs:
        run(block, names)
    assert names["certificate"].verdict == "holds"


@pytest.mark.slow
def test_thresholds_of_the_page_are_what_its_script_prints(capsys):
    runpy.run_path(str(DOCS / "thresholds.py"), run_name="__main__")
    head, _, *rows = capsys.readouterr().out.splitlines()
    _, _, page = (DOCS / "guides" / "step_size.md").read_text().partition(f"{head}\n")
    for now, then in zip(rows, page.splitlines()[1 : 1 + len(rows)], strict=True):
        assert now.split(" | ")[0] == then.split(" | ")[0]
        for here, there in zip(numbers(now), numbers(then), strict=True):
            # The last digit printed may differ by one with another rounding, and what is left of zero by more.
            assert here == pytest.approx(there, rel=0.1, abs=1e-13)


def numbers(row):
    return [float(cell) for cell in row.strip("| ").split(" | ")[1:]]


class Executor:
    """Does at once what submitit would ask SLURM to do."""

    def __init__(self, folder):
        self.parameters = {}

    def update_parameters(self, **parameters):
        self.parameters = parameters

    def map_array(self, function, values):
        return [SimpleNamespace(result=lambda value=value: function(value)) for value in values]


def test_blocks_of_the_page_on_sweeps_give_the_rows_that_the_page_says(tmp_path, monkeypatch):
    """The lines for clusters run here, with stand-ins; tests/sweeps/test_workers.py has a cluster of Dask."""
    cluster = SimpleNamespace(scale=lambda jobs: None, close=lambda: None)
    stands_in = {
        "dask.distributed": {"Client": lambda address: cluster},
        "dask_jobqueue": {"SLURMCluster": lambda **asked: cluster},
        "submitit": {"AutoExecutor": Executor},
    }
    for module, names in stands_in.items():
        monkeypatch.setitem(sys.modules, module, SimpleNamespace(**names))
    monkeypatch.chdir(tmp_path)
    here, *elsewhere = blocks("guides/sweeps.md", "python")
    names = run(here, {})
    assert len(names["found"].table) == (6 + 3) * 2
    for block in elsewhere:
        run(block.replace('backend="dask"', 'backend="sequential"').replace("steps=200", "steps=2"), names)
    assert len(names["table"]) == 8
