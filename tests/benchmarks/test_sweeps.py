"""The benchmark of sweeps measures the same computation twice, or says that it is void."""

import numpy as np
import pytest

from benchmarks import sweeps
from benchmarks.sweeps import CASES, full_batch, shared_samples
from digrad.errors import DigradError


@pytest.mark.parametrize("case", [full_batch, shared_samples])
def test_a_row_compares_runs_together_with_runs_alone(case, monkeypatch):
    monkeypatch.setattr(sweeps, "SIZES", np.array([0.01, 0.02]))
    monkeypatch.setattr(sweeps, "FULL_STEPS", 3)
    monkeypatch.setattr(sweeps, "SAMPLED_STEPS", 3)
    row = case("digits", 1)
    assert row.at_least
    assert row.reference > 0 < row.ours
    assert row.name.startswith("2 step sizes")


def test_different_losses_make_the_benchmark_void():
    with pytest.raises(DigradError, match="the benchmark is void"):
        sweeps._timed(lambda: [1.0], lambda: [1.1], 1)


def test_every_promise_of_sweeps_has_a_case():
    assert list(CASES) == ["full_batch", "shared_samples", "workers"]
