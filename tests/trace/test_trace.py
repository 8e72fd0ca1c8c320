import dataclasses
import json
import math
import pickle

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import digrad as dg
from digrad.errors import ArgumentError, DataError, StorageError
from digrad.trace import Trace, is_stalled

EVERY_FLOAT = st.floats(width=64, allow_nan=True, allow_infinity=True)


def make_trace(name="CGT", loss=(3.0, 1.0, 2.0), **changes):
    k = 10 * np.arange(len(loss))
    columns = {
        "k": k,
        "loss": np.array(loss),
        "grad_norm": np.array(loss) / 10,
        "consensus_error": np.zeros(len(loss)),
        "bytes_sent": 48 * k,
    }
    fields = {
        "name": name,
        "columns": columns,
        "final_x": np.arange(6.0).reshape(2, 3),
        "verdict": "not converged",
        "diverged_at": None,
        "steps": int(k[-1]),
        "seconds": 0.25,
        "facts": {"seed": 0, "threshold": math.inf},
    }
    return Trace(**{**fields, **changes})


def bits(array):
    return array.dtype, array.shape, array.tobytes()


def assert_same(loaded, trace):
    assert list(loaded.columns) == list(trace.columns)
    for column, values in trace.columns.items():
        assert bits(loaded.columns[column]) == bits(values)
    assert bits(loaded.final_x) == bits(trace.final_x)
    for field in (
        "name",
        "verdict",
        "diverged_at",
        "steps",
        "seconds",
        "interrupted",
        "stopped_early",
        "facts",
    ):
        assert getattr(loaded, field) == getattr(trace, field)


def test_columns_are_attributes_and_missing_measures_are_nan():
    trace = make_trace()
    assert trace.loss.tolist() == [3.0, 1.0, 2.0]
    assert trace.k.dtype == trace.bytes_sent.dtype == np.int64
    assert np.isnan(trace.tracking_error).all()
    assert np.isnan(trace.fraction_clipped).all()


def test_arrays_cannot_be_changed_through_the_trace_and_the_given_ones_stay_writeable():
    given_x = np.zeros((2, 3))
    trace = make_trace(final_x=given_x)
    with pytest.raises(ValueError, match="read-only"):
        trace.loss[0] = 0
    with pytest.raises(ValueError, match="read-only"):
        trace.final_x[0, 0] = 1
    given_x[0, 0] = 1
    assert trace.final_x[0, 0] == 1


def test_final_is_the_last_row_and_best_the_smallest_finite_value():
    trace = make_trace(loss=(3.0, 1.0, 2.0, -math.inf, math.nan))
    assert math.isnan(trace.final["loss"])
    assert trace.best == {"loss": 1.0, "grad_norm": 0.1, "consensus_error": 0.0}


def test_summary_has_the_documented_shape_and_is_strict_json():
    trace = make_trace(loss=(1.0, math.inf), verdict="diverged", diverged_at=10)
    summary = json.loads(json.dumps(trace.summary(), allow_nan=False))
    assert summary == {
        "verdict": "diverged",
        "diverged_at": 10,
        "steps": 10,
        "final": {"loss": None, "grad_norm": None, "consensus_error": 0.0},
        "best": {"loss": 1.0, "grad_norm": 0.1, "consensus_error": 0.0},
        "bytes_sent": 480,
        "seconds": 0.25,
    }


def test_repr_is_one_line_with_the_ending_and_the_cost():
    assert repr(make_trace(seconds=0.314)) == (
        "Trace(CGT: not converged, 20 steps, loss 2, |grad| 0.2, consensus 0, 960 B sent, 0.31 s)"
    )
    diverged = make_trace(loss=(1.0, math.inf), verdict="diverged", diverged_at=3, interrupted=True)
    assert repr(diverged).startswith("Trace(CGT: diverged at k=3, 10 steps (interrupted), loss inf")


def test_to_pandas_has_one_row_per_record():
    frame = make_trace().to_pandas()
    assert frame["loss"].tolist() == [3.0, 1.0, 2.0]
    assert frame["k"].dtype == np.int64


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "`name` of Trace"),
        ({"verdict": "divergd"}, "Did you mean `diverged`"),
        ({"final_x": np.zeros(3)}, r"`final_x` of Trace must be \[n, d\]"),
        ({"final_x": np.zeros((3, 0))}, "not empty"),
        ({"columns": {"k": np.arange(3)}}, "loss, grad_norm, consensus_error, bytes_sent is missing"),
        ({"facts": {"problem": object()}}, "`facts` of Trace must hold what JSON can write"),
        ({"facts": {1: 2}}, "`facts` of Trace must hold what JSON can write"),
    ],
)
def test_trace_rejects_bad_fields(changes, message):
    with pytest.raises(ArgumentError, match=message):
        make_trace(**changes)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("loss", np.zeros(2), "`loss` has shape"),
        ("loss", np.zeros((3, 1)), "`loss` has shape"),
        ("loss", ["a", "b", "c"], "`loss` in the columns of Trace must hold numbers"),
        ("k", np.zeros(3), "`k` in the columns of Trace must hold integers"),
        ("k", np.zeros(3, dtype=int), "`k` of Trace must increase"),
    ],
)
def test_trace_rejects_bad_columns(column, values, message):
    with pytest.raises(ArgumentError, match=message):
        make_trace(columns={**make_trace().columns, column: values})


def test_trace_rejects_no_rows():
    with pytest.raises(ArgumentError, match="at least 1"):
        make_trace(columns={name: values[:0] for name, values in make_trace().columns.items()})


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    loss=st.lists(EVERY_FLOAT, min_size=1, max_size=20),
    final_x=hnp.arrays(
        st.sampled_from([np.float32, np.float64]), st.tuples(st.integers(1, 4), st.integers(1, 4))
    ),
    name=st.text(min_size=1, max_size=20),
    fact=EVERY_FLOAT.filter(lambda value: not math.isnan(value)),
)
def test_save_and_load_keep_every_bit(tmp_path, loss, final_x, name, fact):
    columns = {**make_trace(loss=[0.0] * len(loss)).columns, "loss": np.array(loss)}
    trace = make_trace(name=name, columns=columns, final_x=final_x, facts={"a": [fact, {"b": None}]})
    trace.save(tmp_path)
    assert_same(Trace.load(tmp_path, name), trace)


def test_save_and_load_keep_nan_payloads_and_negative_zero(tmp_path):
    payload = np.array([0x7FF8000000000001, 0x7FF8000000000002, 0xFFF8000000000000], dtype=np.uint64)
    columns = {**make_trace().columns, "loss": payload.view(np.float64), "extra": np.array([0.0, -0.0, 0.0])}
    trace = make_trace(columns=columns, verdict="diverged", diverged_at=2, stopped_early=True)
    trace.save(tmp_path)
    assert_same(Trace.load(tmp_path, "CGT"), trace)


def test_save_and_load_keep_a_strided_final_x(tmp_path):
    trace = make_trace(final_x=np.arange(12.0).reshape(3, 4).T)
    trace.save(tmp_path)
    assert_same(Trace.load(tmp_path, "CGT"), trace)


def test_save_writes_the_documented_files_in_open_formats(tmp_path):
    folder = tmp_path / "new" / "run"
    paths = make_trace().save(folder)
    assert [path.name for path in paths] == ["trace-CGT.parquet", "final-CGT.parquet", "trace-CGT.json"]
    assert sorted(folder.iterdir()) == sorted(paths)
    assert pq.read_table(paths[0]).column("loss").to_pylist() == [3.0, 1.0, 2.0]
    assert pq.read_table(paths[1]).column("x").to_pylist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]

    def no_constants(text):
        raise AssertionError(text)

    assert json.loads(paths[2].read_text(), parse_constant=no_constants)["facts"]["seed"] == 0


def test_names_that_look_alike_in_a_file_name_do_not_collide(tmp_path):
    for name in ("a/b", "a b", "../a b"):
        make_trace(name=name, steps=len(name)).save(tmp_path)
    assert [Trace.load(tmp_path, name).steps for name in ("a/b", "a b", "../a b")] == [3, 3, 6]
    assert len(list(tmp_path.iterdir())) == 9


def test_same_trace_gives_same_bytes(tmp_path):
    first = [path.read_bytes() for path in make_trace().save(tmp_path / "a")]
    assert first == [path.read_bytes() for path in make_trace().save(tmp_path / "b")]


def test_load_names_what_the_folder_holds_when_the_trace_is_missing(tmp_path):
    with pytest.raises(DataError, match=r"no trace 'CGT' in .* It holds none"):
        Trace.load(tmp_path / "nowhere", "CGT")
    make_trace().save(tmp_path)
    with pytest.raises(DataError, match="Did you mean `CGT`"):
        Trace.load(tmp_path, "CGD")


@pytest.mark.parametrize("file", [0, 1, 2])
@pytest.mark.parametrize("damage", ["remove", "truncate", "flip", "empty"])
def test_load_raises_data_error_when_a_file_is_missing_or_damaged(tmp_path, file, damage):
    path = make_trace().save(tmp_path)[file]
    data = path.read_bytes()
    if damage == "remove":
        path.unlink()
    elif damage == "truncate":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        path.write_bytes(b"\xff" + data[1:])
    with pytest.raises(DataError, match=r"There is no trace|is missing|is damaged"):
        Trace.load(tmp_path, "CGT")


@pytest.mark.parametrize(
    "change",
    [{"format": 99}, {"name": "AB"}, {"sha256": 1}, {"sha256": {}}, {"verdict": "x"}, {"final_shape": None}],
)
def test_load_raises_data_error_when_the_record_is_not_a_trace(tmp_path, change):
    path = make_trace().save(tmp_path)[2]
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(DataError):
        Trace.load(tmp_path, "CGT")


@pytest.mark.parametrize("field", ["verdict", "facts", "sha256", "final_shape"])
def test_load_raises_data_error_when_the_record_lacks_a_field(tmp_path, field):
    path = make_trace().save(tmp_path)[2]
    record = json.loads(path.read_text())
    del record[field]
    path.write_text(json.dumps(record))
    with pytest.raises(DataError, match=field):
        Trace.load(tmp_path, "CGT")


def test_load_notices_files_of_two_runs(tmp_path):
    make_trace().save(tmp_path / "a")
    make_trace(loss=(1.0, 2.0)).save(tmp_path / "b")
    (tmp_path / "b" / "trace-CGT.parquet").replace(tmp_path / "a" / "trace-CGT.parquet")
    with pytest.raises(DataError, match="SHA-256"):
        Trace.load(tmp_path / "a", "CGT")


def test_save_says_so_when_the_folder_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"file cannot be written \(File exists\)"):
        make_trace().save(tmp_path / "file")


def test_trace_survives_pickling_between_processes():
    trace = make_trace()
    assert_same(pickle.loads(pickle.dumps(trace)), trace)


def test_facts_become_what_json_gives_back():
    facts = {"a": np.float32(0.5), "b": (1, 2), "c": np.arange(2), "d": {"e": np.bool_(True)}}
    assert make_trace(facts=facts).facts == {"a": 0.5, "b": [1, 2], "c": [0, 1], "d": {"e": True}}


@pytest.mark.parametrize(
    ("path", "written"), [("f.pdf", ["f.pdf"]), ("f", ["f.pdf", "f.png"]), ("v1.2", ["v1.2.pdf", "v1.2.png"])]
)
def test_plot_saves_the_formats_asked_for(tmp_path, path, written):
    figure = make_trace().plot(("loss",), path=tmp_path / path)
    assert len(figure.axes) == 1
    assert sorted(file.name for file in tmp_path.iterdir()) == written


@pytest.mark.parametrize("path", ["p.jpg", "p.foo"])
def test_plot_refuses_an_unknown_suffix_and_writes_nothing(tmp_path, path):
    with pytest.raises(ArgumentError, match=r"`path` of plot must end in \.png, \.pdf or \.svg, but got"):
        make_trace().plot(("loss",), path=tmp_path / path)
    assert not list(tmp_path.iterdir())


def test_hyper_parameters_of_many_agents_are_kept_with_the_run_in_full(tmp_path):
    n = 70
    thresholds = np.linspace(0.1, 2.0, n).reshape(n, 1)
    network = dg.Network(dg.graphs.ring(n))
    problem = dg.problems.quadratic(curvature=np.ones((n, 2)), linear=np.eye(n, 2))
    method = dg.CGT(step_size=0.1, threshold=thresholds)
    paths = dg.simulate(method, problem, network, steps=3).save(tmp_path)
    assert [path.name for path in paths if path.suffix == ".npz"] == ["arrays-CGT.npz"]
    again = Trace.load(tmp_path, "CGT")
    np.testing.assert_array_equal(again.arrays["threshold"], thresholds)
    repeated = dg.simulate(dg.CGT(step_size=0.1, **again.arrays), problem, network, steps=3)
    np.testing.assert_array_equal(repeated.final_x, again.final_x)
    (tmp_path / "arrays-CGT.npz").unlink()
    with pytest.raises(DataError, match=r"arrays-CGT.npz is missing"):
        Trace.load(tmp_path, "CGT")


def test_a_run_that_replaces_one_with_long_hyper_parameters_leaves_none_of_them(tmp_path):
    trace = make_trace()
    dataclasses.replace(trace, arrays={"threshold": np.ones(100)}).save(tmp_path)
    trace.save(tmp_path)
    assert not list(tmp_path.glob("arrays-*"))
    assert not Trace.load(tmp_path, trace.name).arrays


def ended_with(grad_norm, *, loss=None, consensus=0.5):
    rows = len(grad_norm)
    columns = {
        "k": np.arange(rows),
        "loss": np.linspace(9.0, 1.0, rows) ** 2 if loss is None else loss,
        "grad_norm": grad_norm,
        "consensus_error": np.broadcast_to(consensus, rows),
    }
    return columns


def test_a_run_has_stalled_when_nothing_changes_any_more_whatever_units_and_constants():
    k = np.arange(200)
    settled = 3.0 + np.exp(-k / 10)
    for scale, shift in ((1.0, 0.0), (1e9, 0.0), (1e-9, 0.0), (1.0, 1e3), (1.0, -4.0)):
        columns = ended_with(scale * settled, loss=scale * settled + shift, consensus=scale)
        assert is_stalled(columns, 1e-12)
    noisy = np.random.default_rng(0).lognormal(0, 0.1, 4000)
    assert is_stalled(ended_with(noisy, loss=noisy), 1e-6)


@pytest.mark.parametrize(
    "columns",
    [
        ended_with(0.99 ** np.arange(200.0), loss=np.ones(200)),  # the gradient still falls
        ended_with((1.0 + np.arange(200)) ** -0.25, loss=np.ones(200)),  # also when slowly
        ended_with(1.01 ** np.arange(200.0), loss=np.ones(200)),  # or grows
        ended_with(np.ones(200)),  # a long way down a slope: the loss still falls
        ended_with(np.ones(200), loss=np.ones(200), consensus=0.99 ** np.arange(200.0)),
        ended_with(np.ones(7), loss=np.ones(7)),  # too few rows to tell
        ended_with(np.full(200, 1e-9), loss=np.ones(200), consensus=1e-9),  # nothing left to do
        ended_with(np.ones(200), loss=np.full(200, np.inf)),
    ],
)
def test_a_run_has_not_stalled_while_something_changes(columns):
    assert not is_stalled(columns, 1e-6)
