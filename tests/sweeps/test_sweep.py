"""A sweep is the runs themselves, one row each, and survives what ends it."""

import json
import os
import shutil
import signal

import numpy as np
import pandas as pd
import pytest

import digrad as dg
from digrad.errors import ArgumentError
from digrad.simulation.loop import advance
from digrad.sweeps import Sweep, workers
from digrad.sweeps import study as batching
from digrad.sweeps.sweep_results import table_of

NETWORK = dg.Network(dg.graphs.example5())
QUARTIC = dg.problems.example_quartic()
GRID = {"step_size": [0.001, 0.05, 0.2]}
RUN = {"steps": 40, "x0": [10.0, 10.0], "record_every": 10}


@pytest.fixture(scope="module")
def digits():
    return dg.problems.logistic(data="digits", agents=5, reg_weight=1e-3, reg_power=4)


@pytest.fixture(scope="module")
def explosive():
    return dg.sweep(dg.AB, QUARTIC, NETWORK, grid=GRID, **RUN)


def test_rows_say_what_simulate_says_also_of_runs_that_diverge(explosive):
    assert explosive.table["verdict"].tolist() == ["not converged", "diverged", "diverged"]
    for _, row in explosive.table.iterrows():
        alone = dg.simulate(dg.AB(step_size=row["step_size"]), QUARTIC, NETWORK, **RUN)
        assert (row["verdict"], row["steps"]) == (alone.verdict, alone.steps)
        assert row["bytes_sent"] == alone.bytes_sent[-1]
        assert row["diverged_at"] == alone.diverged_at or pd.isna(row["diverged_at"])
        for name in ("loss", "grad_norm", "consensus_error"):
            np.testing.assert_allclose(row[f"final_{name}"], alone.final[name], rtol=1e-9)
            np.testing.assert_allclose(row[f"best_{name}"], alone.best[name], rtol=1e-9)


def test_the_table_is_tidy_and_survives_parquet(explosive, tmp_path):
    explosive.save(tmp_path)
    loaded = Sweep.load(tmp_path)
    pd.testing.assert_frame_equal(loaded.table, explosive.table)
    assert loaded.facts["common_random_numbers"] is False
    assert loaded.table["diverged_at"].dtype == "Int64"
    assert loaded.fields == ["step_size"]


def test_seeds_networks_and_starts_multiply_the_rows():
    networks = {"five": NETWORK, "ring": dg.Network(dg.graphs.ring(5))}
    found = dg.sweep(
        dg.CGT(0.05, 5.0), QUARTIC, networks, steps=5, seeds=2, x0={"zeros": "zeros", "normal": "normal"}
    )
    assert len(found.table) == 8
    assert found.table.groupby(["network", "start", "seed"]).size().eq(1).all()
    row = found.table.query("network == 'ring' and start == 'normal' and seed == 1").iloc[0]
    alone = dg.simulate(dg.CGT(0.05, 5.0), QUARTIC, networks["ring"], steps=5, x0="normal", seed=1)
    np.testing.assert_allclose(row["final_loss"], alone.final["loss"], rtol=1e-9)


@pytest.mark.parametrize("options", [{}, {"stop_at_tolerance": True}], ids=["together", "alone"])
def test_rows_of_a_network_that_draws_follow_their_seeds(options):
    network = dg.Network(dg.graphs.example5(), links=dg.Links(loss=0.3))
    options = {"steps": 20, "x0": [3.0, 3.0], **options}
    found = dg.sweep(dg.AB, QUARTIC, network, grid={"step_size": [0.001, 0.002]}, seed=4, seeds=2, **options)
    assert found.table["final_loss"].nunique() == 4
    for _, row in found.table.iterrows():
        alone = dg.simulate(dg.AB(row["step_size"]), QUARTIC, network, seed=row["seed"], **options)
        np.testing.assert_allclose(row["final_loss"], alone.loss[-1], rtol=1e-9)


def test_iterations_to_a_target_are_those_of_the_trace():
    target = {"grad_norm": 1e-2}
    found = dg.sweep(dg.CGT, QUARTIC, NETWORK, steps=60, grid={**GRID, "threshold": [5.0]}, target=target)
    for _, row in found.table.iterrows():
        trace = dg.simulate(dg.CGT(row["step_size"], 5.0), QUARTIC, NETWORK, steps=60)
        reached = np.flatnonzero(trace.grad_norm <= 1e-2)
        if reached.size:
            assert row["iterations_to_target"] == trace.k[reached[0]]
            assert row["bytes_to_target"] == trace.bytes_sent[reached[0]]
        else:
            assert pd.isna(row["iterations_to_target"])


def test_mini_batches_have_samples_of_their_own_unless_told(digits):
    run = {"steps": 12, "batch_size": 4, "grid": {"step_size": [0.1, 0.2]}, "record_every": 4}
    own = dg.sweep(dg.AB, digits, NETWORK, **run)
    shared = dg.sweep(dg.AB, digits, NETWORK, common_random_numbers=True, seed=3, **run)
    assert own.table["sample_seed"].nunique() == 2
    assert shared.table["sample_seed"].tolist() == [3, 3]
    assert (own.facts["common_random_numbers"], shared.facts["common_random_numbers"]) == (False, True)
    for table in (own.table, shared.table):
        for _, row in table.iterrows():
            alone = dg.simulate(
                dg.AB(row["step_size"]), digits, NETWORK, steps=12, batch_size=4, seed=int(row["sample_seed"])
            )
            np.testing.assert_allclose(row["final_loss"], alone.final["loss"], rtol=1e-9)


def test_batches_of_one_shape_share_one_compiled_loop(monkeypatch):
    monkeypatch.setattr(batching, "MOST_RUNS", 2)
    before = advance._cache_size()
    sizes = [0.01, 0.02, 0.03, 0.04, 0.05]
    found = dg.sweep(dg.DGD(0.1), QUARTIC, NETWORK, steps=5, grid={"step_size": sizes})
    assert found.table["step_size"].tolist() == sizes
    assert advance._cache_size() == before + 1


def test_schedules_and_words_are_swept_too():
    grid = {"step_size": [0.05, dg.schedules.Inverse(0.5, 10)], "mixing": ["row", "sinkhorn"]}
    found = dg.sweep(dg.DGD(0.1), QUARTIC, NETWORK, steps=5, grid=grid)
    assert found.table["mixing"].tolist() == ["row", "sinkhorn"] * 2
    assert found.table["step_size"].str.startswith("Inverse").sum() == 2
    alone = dg.simulate(dg.DGD(dg.schedules.Inverse(0.5, 10), mixing="row"), QUARTIC, NETWORK, steps=5)
    np.testing.assert_allclose(found.table["final_loss"][2], alone.final["loss"], rtol=1e-9)


def test_held_out_losses_are_those_of_the_average_at_the_end(digits):
    found = dg.sweep(dg.AB, digits, NETWORK, steps=5, grid={"step_size": [0.1]}, held_out=digits)
    np.testing.assert_allclose(found.table["held_out_loss"], found.table["final_loss"], rtol=1e-9)


def test_rows_with_gradient_noise_are_stored_and_follow_their_seeds(tmp_path):
    run = {**RUN, "gradient_noise": dg.noise.StudentT(df=3.0, scale=0.1)}
    grid = {"step_size": [0.001, 0.002]}
    dg.sweep(dg.AB, QUARTIC, NETWORK, grid=grid, seeds=2, out=tmp_path, **run)
    found = Sweep.load(tmp_path)
    assert found.facts["options"]["gradient_noise"] == "StudentT(df=3.0, scale=0.1)"
    for _, row in found.table.iterrows():
        alone = dg.simulate(dg.AB(row["step_size"]), QUARTIC, NETWORK, seed=row["seed"], **run)
        np.testing.assert_allclose(row["final_loss"], alone.final["loss"], rtol=1e-9)


def test_finished_rows_are_taken_over_and_only_missing_ones_are_run(tmp_path, monkeypatch):
    dg.sweep(dg.AB, QUARTIC, NETWORK, grid={"step_size": [0.001, 0.05]}, out=tmp_path, **RUN)
    ran = []
    real = batching.run_batch
    monkeypatch.setattr("digrad.sweeps.workers.run_batch", lambda s, b: ran.extend(b.runs) or real(s, b))
    found = dg.sweep(dg.AB, QUARTIC, NETWORK, grid=GRID, out=tmp_path, resume=True, **RUN)
    assert [one.values["step_size"] for one in ran] == [0.2]
    pd.testing.assert_frame_equal(Sweep.load(tmp_path).table, found.table)
    assert found.table["step_size"].tolist() == GRID["step_size"]
    ran.clear()
    dg.sweep(dg.AB, QUARTIC, NETWORK, grid=GRID, out=tmp_path, resume=True, **{**RUN, "steps": 41})
    assert len(ran) == 3  # other steps are other runs


def test_a_folder_is_not_overwritten_silently(tmp_path):
    run = {"grid": {"step_size": [0.001]}, **RUN}
    dg.sweep(dg.AB, QUARTIC, NETWORK, out=tmp_path / "a", **run)
    with pytest.raises(ArgumentError, match="holds rows already; continue with resume=True"):
        dg.sweep(dg.AB, QUARTIC, NETWORK, out=tmp_path / "a", **run)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.tex").write_text("years")
    with pytest.raises(ArgumentError, match="holds other files"):
        dg.sweep(dg.AB, QUARTIC, NETWORK, out=tmp_path / "b", overwrite=True, **run)
    found = dg.sweep(dg.AB, QUARTIC, NETWORK, out=tmp_path / "a", overwrite=True, **run)
    assert len(found.table) == 1


def test_a_torn_last_line_costs_that_row_only(tmp_path):
    run = {"grid": GRID, "out": tmp_path, **RUN}
    whole = dg.sweep(dg.AB, QUARTIC, NETWORK, **run)
    text = (tmp_path / "rows.jsonl").read_text()
    (tmp_path / "rows.jsonl").write_text(text[:-40])
    again = dg.sweep(dg.AB, QUARTIC, NETWORK, resume=True, **run)
    columns = [name for name in whole.table if name != "seconds"]
    pd.testing.assert_frame_equal(again.table[columns], whole.table[columns])


def test_rows_finished_before_a_kill_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(batching, "MOST_RUNS", 1)
    run = {"steps": 20, "x0": [10.0, 10.0], "grid": {"step_size": [0.001, 0.002, 0.003, 0.004]}}

    def kill(event):
        if event.done == 2:  # a kill leaves the folder as it is then
            shutil.copytree(tmp_path / "run", tmp_path / "killed")

    dg.sweep(dg.AB, QUARTIC, NETWORK, out=tmp_path / "run", progress=kill, **run)
    kept = [json.loads(line)["row"] for line in (tmp_path / "killed" / "rows.jsonl").read_text().splitlines()]
    assert [row["step_size"] for row in kept] == [0.001, 0.002]
    events = []
    found = dg.sweep(
        dg.AB, QUARTIC, NETWORK, out=tmp_path / "killed", resume=True, progress=events.append, **run
    )
    assert [row.done for row in events] == [3, 4]
    assert found.table["seconds"][:2].tolist() == [row["seconds"] for row in kept]


def test_a_sweep_killed_before_its_first_row_can_be_begun_again(explosive, tmp_path):
    (tmp_path / "rows.jsonl").touch()
    (tmp_path / ".0123456789abcdef.tmp").write_text("{")
    found = dg.sweep(dg.AB, QUARTIC, NETWORK, grid=GRID, out=tmp_path, **RUN)
    assert len(found.table) == len(explosive.table)


def test_the_rows_of_a_killed_sweep_can_be_read(explosive, tmp_path):
    dg.sweep(dg.AB, QUARTIC, NETWORK, grid=GRID, out=tmp_path, **RUN)
    (tmp_path / "table.parquet").unlink()  # which a kill leaves unwritten
    found = Sweep.load(tmp_path).table
    pd.testing.assert_frame_equal(found.drop(columns="seconds"), explosive.table.drop(columns="seconds"))


def test_a_folder_that_does_not_say_which_rows_it_will_have_is_refused(explosive, tmp_path):
    explosive.save(tmp_path)
    facts = json.loads((tmp_path / "sweep.json").read_text())
    (tmp_path / "sweep.json").write_text(json.dumps({**facts, "rows": None}))
    with pytest.raises(dg.DigradError, match="its rows; run the sweep again"):
        Sweep.load(tmp_path)


def test_progress_says_how_long_it_will_take(monkeypatch):
    monkeypatch.setattr(batching, "MOST_RUNS", 1)
    events = []
    dg.sweep(dg.AB, QUARTIC, NETWORK, grid=GRID, progress=events.append, **RUN)
    assert [(one.done, one.total) for one in events] == [(1, 3), (2, 3), (3, 3)]
    assert events[0].seconds_left == pytest.approx(2 * events[0].seconds)
    assert events[-1].seconds_left == 0


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_keeps_what_was_finished(tmp_path, monkeypatch):
    monkeypatch.setattr(batching, "MOST_RUNS", 1)

    def interrupt(event):
        os.kill(os.getpid(), signal.SIGINT)

    found = dg.sweep(dg.AB, QUARTIC, NETWORK, grid=GRID, out=tmp_path, progress=interrupt, **RUN)
    assert found.interrupted
    assert len(found.table) == 1


def test_the_best_row_of_each_method_is_finite(explosive):
    found = explosive.best()
    assert found["step_size"].tolist() == [0.001]
    with pytest.raises(ArgumentError, match="Did you mean `final_loss`"):
        explosive.best("finl_loss")


@pytest.fixture
def lucky():
    """Two step sizes, of which the worse one has a lucky seed, and one seed that diverged."""
    losses = {0.1: [5.0, 2.0, 3.0], 0.2: [1.0, 9.0, 9.0], 0.3: [0.0, 0.0, 0.5]}
    rows = [
        {
            "method": "AB", "step_size": size, "momentum": 0.5, "seed": seed,
            "verdict": "diverged" if size == 0.3 and seed else "converged", "diverged_at": None, "steps": 10,
            "final_loss": loss, "iterations_to_target": None if seed == 0 else seed, "bytes_to_target": None,
        }
        for size, many in losses.items()
        for seed, loss in enumerate(many)
    ]  # fmt: skip
    return Sweep(table_of(rows), {})


def test_the_best_is_a_median_with_its_spread_and_not_a_seed(lucky):
    (best,) = lucky.best().to_dict("records")
    figures = (
        "step_size",
        "seeds",
        "final_loss",
        "final_loss_low",
        "final_loss_high",
        "iterations_to_target",
    )
    assert [best[name] for name in figures] == [0.1, 3, 3.0, 2.0, 5.0, 2.0]
    medians = lucky.medians()
    assert medians["step_size"].tolist() == [0.1, 0.2, 0.3]  # what diverged comes last, however low its loss
    assert medians["verdict"].tolist() == ["converged", "converged", "diverged"]
    assert medians["bytes_to_target"].isna().all()
    assert "seed" not in medians


def test_a_sweep_is_a_data_frame_that_may_be_changed(lucky):
    frame = lucky.to_pandas()
    frame["final_loss"] = 0.0
    assert lucky.table["final_loss"].max() == 9.0
    assert isinstance(lucky, dg.Sweep)


def test_figures_mark_what_diverged(explosive, tmp_path):
    figure = explosive.plot(path=tmp_path / "a.png")
    crosses = [line for line in figure.axes[0].lines if line.get_gid() == "diverged"]
    assert crosses[0].get_xdata().tolist() == [0.05, 0.2]
    assert (tmp_path / "a.png").stat().st_size > 1000
    both = dg.sweep(dg.CGT, QUARTIC, NETWORK, grid={**GRID, "threshold": [1.0, 1e30]}, **RUN)
    figure = both.heat_map()
    crosses = [line for line in figure.axes[0].lines if line.get_gid() == "diverged"]
    assert len(crosses[0].get_xdata()) == (both.table["verdict"] == "diverged").sum() > 0
    with pytest.raises(ArgumentError, match=r"over 2 swept fields needs as many .* are step_size"):
        explosive.heat_map()


@pytest.mark.parametrize(("average", "named"), [("plain", "plain mean"), ("weighted", "weighted average")])
def test_figures_name_the_average_that_losses_are_of(average, named):
    grid = {"step_size": [0.01, 0.1], "threshold": [1.0, 2.0]}
    held_out = {"held_out": QUARTIC} if average == "weighted" else {}
    found = dg.sweep(
        dg.CGT, QUARTIC, NETWORK, steps=2, grid=grid, record=dg.Record(average=average), **held_out
    )
    assert f"({named})" in found.plot().axes[0].get_title()
    assert f"({named})" in found.heat_map().axes[-1].get_ylabel()  # of the colour bar
    if held_out:
        assert "(plain mean)" in found.plot("held_out_loss").axes[0].get_title()
    assert "mean" not in found.plot("bytes_to_target").axes[0].get_title()


def test_a_heat_map_is_over_the_two_swept_fields_whatever_they_are(lucky):
    table = lucky.table.assign(momentum=[0.1, 0.5, 0.9] * 3)
    figure = Sweep(table.rename(columns={"step_size": "beta"}), {}).heat_map()
    assert (figure.axes[0].get_xlabel(), figure.axes[0].get_ylabel()) == ("beta", "momentum")


def test_a_heat_map_does_not_mix_networks_or_starts_and_crosses_out_what_diverged_for_one_seed():
    networks = {"example5": NETWORK, "ring": dg.Network(dg.graphs.ring(5))}
    starts = {"near": [0.1, 0.1], "far": lambda problem, seed: [0.1, 0.1] if seed < 2 else [10.0, 10.0]}
    found = dg.sweep(
        dg.CGT, QUARTIC, networks, grid={"step_size": [0.001, 0.05], "threshold": [1e20, 1e30]}, seeds=3,
        **{**RUN, "x0": starts},
    )  # fmt: skip
    panels = {ax.get_title(): ax for ax in found.heat_map().axes if ax.get_title()}
    assert list(panels) == [
        f"CGT, network {network}, start {start}" for network in networks for start in starts
    ]
    crosses = {
        title: next(line.get_xdata().tolist() for line in ax.lines if line.get_gid() == "diverged")
        for title, ax in panels.items()
    }
    assert crosses["CGT, network ring, start near"] == []
    assert crosses["CGT, network ring, start far"] == [1.5, 1.5]  # of three seeds one


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"target": {"gradnorm": 1}}, "Did you mean `grad_norm`"),
        ({"target": {}}, "`target` of sweep must map"),
        ({"batch_size": 4}, "has no samples to draw from"),
        ({"workers": 0}, "`workers` of sweep"),
        ({"held_out": 3}, "`held_out` of sweep must be a Problem"),
        ({"x0": [1.0]}, "`x0` must have shape"),
        ({"resume": True, "overwrite": True, "out": "here"}, "give one of the two"),
        ({"grid": {"step_size": [0.001, np.full(5, 0.001), 0.002]}}, "its shape is \\(5,\\)"),
    ],
)
def test_bad_arguments_get_one_line_before_the_first_run(arguments, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(workers, "run_batch", lambda *_: pytest.fail("something was run"))
    with pytest.raises(ArgumentError, match=said) as refused:
        dg.sweep(dg.AB, QUARTIC, NETWORK, **{"grid": GRID, **RUN, **arguments})
    assert "\n" not in str(refused.value)


def test_long_arrays_are_named_in_the_table_and_stored_as_arrays(tmp_path):
    problem = dg.problems.quadratic(curvature=np.ones((65, 1)), linear=np.ones((65, 1)))
    thresholds = [np.full((65, 1), level) for level in (1.0, 2.0)]
    found = dg.sweep(
        dg.CGT(step_size=0.1, threshold=1.0), problem, dg.Network(dg.graphs.ring(65)),
        steps=2, grid={"threshold": thresholds}, out=tmp_path,
    )  # fmt: skip
    names = found.table["threshold"].tolist()
    assert all(len(name) < 100 for name in names)
    with np.load(tmp_path / "arrays.npz") as stored:
        assert set(stored) == set(names)
        for name, given in zip(names, thresholds, strict=True):
            np.testing.assert_array_equal(stored[name], given)


@pytest.mark.parametrize("batch_size", [None, 4])
def test_a_bad_schedule_is_reported_under_its_label(digits, batch_size):
    methods = {"good": dg.AB(step_size=lambda k: 0.1), "bad": dg.AB(step_size=lambda k: 0.1 - k)}
    with pytest.raises(ArgumentError, match="`step_size` of bad is a schedule, and at k = 1"):
        dg.sweep(methods, digits, NETWORK, steps=3, batch_size=batch_size)
