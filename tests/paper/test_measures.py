"""The numbers behind the words of a claim."""

import numpy as np
import pytest

from digrad._internal.json_files import strict
from digrad.paper.claims import Claim, ClaimTable, Ruling
from digrad.paper.measures import iterations_to, largest_over_initial, oscillation, over_seeds, tail_mean
from digrad.trace import Ensemble, Trace


def trace_of(loss: list[float]) -> Trace:
    rows = len(loss)
    columns = {name: np.array(loss, float) for name in ("loss", "grad_norm", "consensus_error")}
    columns |= {"k": 10 * np.arange(rows), "bytes_sent": np.arange(rows)}
    return Trace("CGT", columns, np.zeros((2, 1)), "not converged", None, rows, 0.0)


def test_oscillation_of_a_monotone_curve_is_none() -> None:
    k = np.arange(200)
    found = oscillation(k, 3.0 - 0.01 * k)
    assert found.deviation == pytest.approx(0, abs=1e-12)
    assert found.sign_changes == 0
    assert found.variation == pytest.approx(1)


def test_oscillation_finds_the_amplitude_of_a_wave_on_a_trend() -> None:
    k = np.arange(4000)
    found = oscillation(k, 5.0 - 1e-3 * k + 0.1 * np.sin(k))
    assert found.deviation == pytest.approx(0.1 / np.sqrt(2), rel=0.02)
    assert found.relative == pytest.approx(found.deviation / 2, rel=0.02)  # the mean of the second half is 2
    assert found.sign_changes == pytest.approx(1 / np.pi, rel=0.02)
    assert found.variation > 10


def test_iterations_to_is_the_first_recorded_iteration_at_the_level() -> None:
    trace = trace_of([3, 2, 1, 2, 1])
    assert iterations_to(trace, 1) == 20
    assert iterations_to(trace, 0.5) is None


def test_largest_over_initial_is_absent_when_a_loss_is_not_finite() -> None:
    assert largest_over_initial(trace_of([2, 3, 1])) == 1.5
    assert largest_over_initial(trace_of([2, np.inf, 1])) is None


def test_median_over_seeds_is_absent_when_half_have_none() -> None:
    both = Ensemble((trace_of([3, 1]), trace_of([3, 2])))
    assert over_seeds(both, lambda trace: iterations_to(trace, 1)) is None
    assert over_seeds(both, lambda trace: tail_mean(trace.loss)) == 1.5


def test_claim_table_shows_every_claim_rule_and_choice() -> None:
    claim = Claim(1, "it explodes", "a start", "run", "at 3", "holds", "it diverges", {"diverged_at": 3})
    table = ClaimTable("Title", [claim], [Ruling(1, "it explodes", "holds")], {"graph": "a ring"})
    text = table.to_markdown()
    assert "| (1) it explodes | a start | at 3 | **holds** |" in text
    assert "- (1) it explodes: it diverges" in text
    assert "- **graph**: a ring" in text
    assert strict(table)["claims"][0]["numbers"] == {"diverged_at": 3}
