import json
import math

import numpy as np
import pytest

from digrad.errors import ArgumentError, DataError
from digrad.trace import Ensemble, Trace


def make_trace(loss, *, seed=None, verdict="not converged", diverged_at=None, name="CGT", k=None):
    k = np.arange(len(loss)) if k is None else np.array(k)
    columns = {
        "k": k,
        "bytes_sent": 8 * k,
        **dict.fromkeys(("loss", "grad_norm", "consensus_error"), np.array(loss)),
    }
    facts = {} if seed is None else {"seed": seed}
    return Trace(
        name, columns, np.zeros((2, 1)), verdict, diverged_at, int(k[-1]), 1.0 + len(loss), facts=facts
    )


def three_runs():
    return Ensemble(
        (
            make_trace([5.0, 4.0, 3.0], seed=4),
            make_trace([6.0, 1.0, 2.0], seed=7, verdict="converged"),
            make_trace([7.0, math.inf], seed=5, verdict="diverged", diverged_at=1),
        )
    )


def test_ensemble_rejects_no_traces_and_different_methods():
    with pytest.raises(ArgumentError, match="one or more runs of the same name"):
        Ensemble(())
    with pytest.raises(ArgumentError, match=r"\['AB', 'CGT'\]"):
        Ensemble((make_trace([1.0]), make_trace([1.0], name="AB")))


def test_verdict_is_the_worst():
    assert three_runs().verdicts == {"converged": 1, "not converged": 1, "diverged": 1}
    assert three_runs().verdict == "diverged"
    assert Ensemble(three_runs().traces[:2]).verdict == "not converged"
    assert Ensemble(three_runs().traces[1:2]).verdict == "converged"
    assert three_runs().diverged_at == 1


def test_band_is_smallest_middle_and_largest_and_nan_where_a_run_has_ended():
    k, low, median, high = three_runs().band("loss")
    assert k.tolist() == [0, 1, 2]
    np.testing.assert_array_equal(low, [5.0, 1.0, math.nan])
    np.testing.assert_array_equal(median, [6.0, 4.0, math.nan])
    np.testing.assert_array_equal(high, [7.0, math.inf, math.nan])


def test_band_matches_rows_by_iteration():
    runs = (make_trace([1.0, 2.0, 3.0], k=[0, 10, 20]), make_trace([5.0, 6.0, 7.0], k=[0, 20, 25]))
    k, low, _, high = Ensemble(runs).band("loss")
    assert k.tolist() == [0, 10, 20, 25]
    np.testing.assert_array_equal(low, [1.0, math.nan, 3.0, math.nan])
    np.testing.assert_array_equal(high, [5.0, math.nan, 6.0, math.nan])


def test_band_names_the_nearest_column_when_there_is_none():
    with pytest.raises(ArgumentError, match="Did you mean `loss`"):
        three_runs().band("los")


def test_summary_holds_medians_in_which_divergence_counts_as_infinite():
    summary = json.loads(json.dumps(three_runs().summary(), allow_nan=False))
    assert summary["final"]["loss"] == 3.0
    assert summary["best"]["loss"] == 3.0
    assert (summary["verdict"], summary["diverged_at"], summary["seeds"]) == ("diverged", 1, 3)
    assert (summary["steps"], summary["bytes_sent"], summary["seconds"]) == (2, 16, 4.0)
    assert Ensemble(three_runs().traces[1:]).summary()["final"]["loss"] is None


def test_to_pandas_has_a_seed_column():
    frame = three_runs().to_pandas()
    assert frame["seed"].tolist() == [4, 4, 4, 7, 7, 7, 5, 5]
    assert frame["loss"].tolist()[:3] == [5.0, 4.0, 3.0]


def test_seeds_are_numbered_when_the_facts_do_not_tell_them_apart():
    assert Ensemble((make_trace([1.0]), make_trace([1.0]))).seeds == (0, 1)
    assert Ensemble((make_trace([1.0], seed=3), make_trace([1.0], seed=3))).seeds == (0, 1)


def test_save_and_load_keep_every_bit(tmp_path):
    ensemble = three_runs()
    names = [path.name for path in ensemble.save(tmp_path)]
    assert names[0] == "trace-CGT-seed4.parquet"
    assert names[-1] == "ensemble-CGT.json"
    loaded = Ensemble.load(tmp_path, "CGT")
    assert (loaded.name, loaded.seeds) == ("CGT", (4, 7, 5))
    for one, other in zip(loaded.traces, ensemble.traces, strict=True):
        assert one.loss.tobytes() == other.loss.tobytes()
        assert one.summary() == other.summary()


def test_load_raises_data_error_when_a_seed_is_missing_or_the_ensemble_is(tmp_path):
    paths = three_runs().save(tmp_path)
    paths[5].unlink()
    with pytest.raises(DataError, match="no trace 'CGT-seed7'"):
        Ensemble.load(tmp_path, "CGT")
    with pytest.raises(DataError, match="no ensemble 'AB'"):
        Ensemble.load(tmp_path, "AB")


def test_load_raises_data_error_when_no_trace_is_listed(tmp_path):
    path = three_runs().save(tmp_path)[-1]
    path.write_text(json.dumps({"format": 1, "name": "CGT", "traces": []}))
    with pytest.raises(DataError, match="lists no traces"):
        Ensemble.load(tmp_path, "CGT")


def test_repr_is_one_line():
    text = repr(three_runs())
    assert text.startswith("Ensemble(CGT: 3 seeds, 1 converged, 1 not converged, 1 diverged; medians loss 3,")
    assert "\n" not in text


def test_plot_draws_the_median(tmp_path):
    ax = three_runs().plot(("loss",), path=tmp_path / "f.png").axes[0]
    *_, median = (line for line in ax.lines if line.get_gid() != "diverged")
    assert median.get_ydata().tolist() == [6.0]
