"""compare takes everything that simulate takes, and gives the same runs."""

import inspect

import numpy as np
import pytest

import digrad as dg

NETWORK, QUADRATIC = dg.Network(dg.graphs.example5()), dg.problems.example_quadratic()
METHODS = {"CGT": dg.CGT(step_size=0.05, threshold=1.0), "DGD": dg.DGD(step_size=0.05)}


def test_compare_has_every_option_of_simulate():
    options = set(inspect.signature(dg.simulate).parameters) - {"method"}
    assert options | {"methods", "seeds"} == set(inspect.signature(dg.compare).parameters)


def test_every_run_of_compare_is_that_of_simulate(tmp_path):
    problem = dg.problems.logistic(data="digits", agents=5, reg_weight=1e-3, reg_power=4)
    options = {
        "steps": 12,
        "batch_size": 4,
        "sampling": "epoch",
        "record": dg.Record(average="weighted"),
        "x0": "normal",
    }
    found = dg.compare(METHODS, problem, NETWORK, seed=3, seeds=2, **options)
    for label, method in METHODS.items():
        for trace, seed in zip(found[label].traces, (3, 4), strict=True):
            alone = dg.simulate(method, problem, NETWORK, seed=seed, **options)
            for name, column in alone.columns.items():
                np.testing.assert_array_equal(trace.columns[name], column)


def test_seeds_of_full_batch_runs_are_those_of_simulate_up_to_rounding():
    problem = dg.problems.logistic(data="digits", agents=5, reg_weight=1e-3, reg_power=4)
    options = {"steps": 30, "x0": "normal", "record_every": 10}
    found = dg.compare(METHODS, problem, NETWORK, seeds=3, **options)
    for seed, trace in enumerate(found["CGT"].traces):
        alone = dg.simulate(METHODS["CGT"], problem, NETWORK, seed=seed, **options)
        np.testing.assert_allclose(trace.loss, alone.loss, rtol=1e-12)
        np.testing.assert_allclose(trace.final_x, alone.final_x, rtol=0, atol=1e-12)
        assert trace.facts == alone.facts


def test_compare_stores_a_file_per_run_and_goes_on_from_them(tmp_path):
    problem = dg.problems.example_quadratic()
    first = dg.Checkpoint(tmp_path / "runs", every=10)
    dg.compare(METHODS, problem, NETWORK, steps=10, checkpoint=first)
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["CGT-0.npz", "DGD-0.npz"]
    again = dg.Checkpoint(tmp_path / "runs", every=10, resume=True)
    extended = dg.compare(METHODS, problem, NETWORK, steps=20, checkpoint=again)
    whole = dg.compare(METHODS, problem, NETWORK, steps=20)
    np.testing.assert_array_equal(extended["CGT"].final_x, whole["CGT"].final_x)


@pytest.mark.parametrize(("seeds", "names"), [(1, ["CGT"]), (2, ["CGT, seed 3", "CGT, seed 4"])])
def test_progress_names_the_seed_if_there_are_several(seeds, names):
    told = []
    methods = [METHODS["CGT"]]
    found = dg.compare(
        methods, QUADRATIC, NETWORK, steps=3, seed=3, seeds=seeds, callback=lambda one: told.append(one.name)
    )
    assert list(dict.fromkeys(told)) == names
    assert found["CGT"].name == "CGT"


def test_seeds_must_be_a_count():
    with pytest.raises(dg.DigradError, match="`seeds` of compare"):
        dg.compare(METHODS, dg.problems.example_quadratic(), NETWORK, steps=3, seeds=0)


def test_checkpoints_stay_in_their_folder_whatever_the_labels_are(tmp_path):
    folder = tmp_path / "runs"
    methods = {"../x": dg.AB(step_size=0.05), "..": dg.AB(step_size=0.01)}
    dg.compare(methods, dg.problems.example_quadratic(), NETWORK, steps=2, checkpoint=dg.Checkpoint(folder))
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
    assert len(list(folder.glob("*-0.npz"))) == 2


DRAWN = {
    "loss": {"links": dg.Links(loss=0.3)},
    "noise and seconds": {
        "links": dg.Links(noise=0.1, clock=dg.links.Clock(compute=dg.links.Exponential(1.0)))
    },
    "edges": {"graph": dg.graphs.random_edges(dg.graphs.complete(5), 0.5)},
}


@pytest.mark.parametrize("given", DRAWN.values(), ids=DRAWN)
def test_all_that_a_network_draws_follows_the_seed_of_the_run(given):
    network = dg.Network(**{"graph": dg.graphs.example5(), **given})
    problem, options = dg.problems.example_quadratic(), {"steps": 8, "x0": [10.0, -10.0]}
    runs = dg.compare([METHODS["CGT"]], problem, network, seeds=3, **options)["CGT"].traces
    for drawn in {"loss", "seconds_simulated"} & runs[0].columns.keys():
        assert len({trace.columns[drawn][-1] for trace in runs}) == 3
    for seed, trace in enumerate(runs):
        alone = dg.simulate(METHODS["CGT"], problem, network, seed=seed, **options)
        for name, column in alone.columns.items():
            np.testing.assert_array_equal(trace.columns[name], column, err_msg=name)
        assert trace.facts == alone.facts


def test_a_run_on_a_network_that_draws_goes_on_as_its_seed_says(tmp_path):
    network, problem = (
        dg.Network(dg.graphs.example5(), links=dg.Links(loss=0.3)),
        dg.problems.example_quadratic(),
    )
    whole = dg.simulate(METHODS["CGT"], problem, network, steps=20, seed=2)
    for steps in (10, 20):
        checkpoint = dg.Checkpoint(tmp_path / "run.npz", every=5, resume=True)
        resumed = dg.simulate(METHODS["CGT"], problem, network, steps=steps, seed=2, checkpoint=checkpoint)
    np.testing.assert_array_equal(resumed.loss, whole.loss)
    with pytest.raises(dg.DigradError, match="seed"):
        dg.simulate(METHODS["CGT"], problem, network, steps=20, seed=1, checkpoint=checkpoint)


def test_all_methods_are_measured_by_one_function_of_the_estimates():
    start = np.random.default_rng(1).standard_normal((5, 2))
    chosen = [dg.CGT(0.05, 5.0), dg.SGP(0.05), dg.DGD(0.05), dg.DGD(0.05, mixing="row"), dg.FROST(0.05)]
    methods = {str(method): method for method in chosen}
    traces = dg.compare(methods, QUADRATIC, NETWORK, steps=20, x0=start)
    for trace in traces.values():
        assert trace.loss[0] == pytest.approx(QUADRATIC.loss(start.mean(0)), rel=1e-12)
        assert trace.consensus_error[0] == pytest.approx(
            np.linalg.norm(start - start.mean(0)) / 5**0.5, rel=1e-12
        )
        assert trace.loss[-1] == pytest.approx(QUADRATIC.loss(trace.final_x.mean(0)), rel=1e-12)
    assert {row["average"] for row in dg.results_table(traces)} == {"plain mean"}
    assert {ax.get_title() for ax in dg.plots.curves(traces).axes} == {
        "Global loss (plain mean)",
        "Gradient norm (plain mean)",
    }
    weighted = dg.compare(
        methods, QUADRATIC, NETWORK, steps=1, x0=start, record=dg.Record(average="weighted")
    )
    assert len({round(trace.loss[0], 9) for trace in weighted.values()}) == 2
    assert {row["average"] for row in dg.results_table(weighted)} == {"weighted average"}
    mixed = {"plain": traces[str(chosen[0])], "weighted": weighted[str(chosen[0])]}
    assert dg.plots.curves(mixed, "loss").axes[0].get_title() == "Global loss (differing averages)"
