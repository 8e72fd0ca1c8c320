"""A run leaves a complete directory, can be interrupted or killed at any moment, and goes on bit for bit."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import digrad as dg
from digrad._internal.files import locked
from digrad.errors import ArgumentError, CheckpointError, DataError, StorageError
from digrad.simulation import Simulator
from digrad.specs import Built, RunResult, Spec, find_run, load_spec, parse_spec, run, run_directory, runner
from digrad.trace import Ensemble, Trace
from experiment_specs import TEXT, sampled, tiny

pytestmark = pytest.mark.long


class Recorder:
    """An observer that keeps what it is told, and acts after a number of progress calls."""

    def __init__(self, act_after: int | None = None) -> None:
        self.events: list[tuple[str, Any]] = []
        self.calls, self.act_after = 0, act_after

    def on_method_start(self, name: str, steps: int) -> None:
        self.events.append(("start", (name, steps)))

    def on_progress(self, progress: Any) -> None:
        self.calls += 1
        if self.calls == self.act_after:
            raise KeyboardInterrupt

    def on_method_end(self, trace: Trace) -> None:
        self.events.append(("end", trace.name))


BUILT: dict[str, Built] = {}


def run_again(spec: Spec, out: Path, **options: Any) -> RunResult:
    """Run a specification on the problem and network that were built for it before: nothing compiles again."""
    kind = spec.problem.kind
    if kind not in BUILT:
        BUILT[kind] = spec.build()
    first = BUILT[kind]
    return run(spec, out, built=spec.build_on(first.problem, first.network), **options)


def numbers(directory: Path) -> dict[str, bytes]:
    """The files that hold numbers, byte for byte."""
    return {path.name: path.read_bytes() for path in sorted(directory.glob("*.parquet"))}


@pytest.fixture(autouse=True)
def _without_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    # They take longer than everything else; the fixtures of the module are made before this and have figures.
    monkeypatch.setattr(runner, "draw_figures", lambda *arguments: [])


@pytest.fixture(scope="module")
def finished(empty_figures: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_again(tiny(), tmp_path_factory.mktemp("runs") / "tiny").directory


@pytest.fixture(scope="module")
def uninterrupted(empty_figures: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_again(sampled(), tmp_path_factory.mktemp("runs") / "sampled").directory


def test_run_directory_holds_what_the_design_says(finished: Path) -> None:
    files = {str(path.relative_to(finished)) for path in finished.rglob("*") if path.is_file()}
    traces = {f"{kind}-{name}" for name in ("CGT", "AB", "DGDClip") for kind in ("trace", "final")}
    figures = {
        f"figures/{name}.{kind}"
        for name in ("explosion", "loss_and_gradient", "consensus", "graph")
        for kind in ("png", "pdf")
    }
    records = {f"trace-{name}.json" for name in ("CGT", "AB", "DGDClip")}
    others = {"spec.toml", "summary.json", "setting.json", "environment.json"}
    others |= {f"checkpoints/{name}-seed0.npz" for name in ("CGT", "DGDClip")}  # AB diverged: it cannot go on
    assert files == {f"{trace}.parquet" for trace in traces} | figures | records | others


def test_summary_has_exactly_the_shape_of_the_design(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    assert list(summary) == ["CGT", "AB", "DGDClip"]
    for entry in summary.values():
        assert list(entry) == ["verdict", "diverged_at", "steps", "final", "best", "bytes_sent", "seconds"]
        assert entry["verdict"] in ("converged", "not converged", "stalled", "diverged")
        assert entry["diverged_at"] is None or isinstance(entry["diverged_at"], int)
        assert isinstance(entry["steps"], int)
        assert isinstance(entry["bytes_sent"], int)
        assert isinstance(entry["seconds"], float)
        for figures in (entry["final"], entry["best"]):
            assert list(figures) == ["loss", "grad_norm", "consensus_error"]
            assert all(value is None or isinstance(value, float) for value in figures.values())
    assert (summary["AB"]["verdict"], summary["AB"]["diverged_at"]) == ("diverged", 4)
    assert summary["CGT"]["verdict"] == "not converged"


def test_stored_run_is_read_back(finished: Path) -> None:
    stored = find_run(finished)
    assert stored.spec == tiny()
    results = stored.results()
    assert {label: result.summary() for label, result in results.items()} == stored.summary
    assert set(stored.environment) >= {"python", "platform", "cpu_count", "versions", "started", "finished"}


def test_observer_is_told_of_every_method(tmp_path: Path) -> None:
    observer = Recorder()
    run_again(tiny(), tmp_path, progress=observer)
    labels = ("CGT", "AB", "DGDClip")
    assert observer.events == [
        event for label in labels for event in (("start", (label, 50)), ("end", label))
    ]


def test_several_seeds_give_ensembles(tmp_path: Path) -> None:
    result = run_again(sampled(seeds=2), tmp_path)
    assert all(isinstance(one, Ensemble) for one in result.results.values())
    assert [trace.facts["seed"] for trace in result.results["CGT"].traces] == [0, 1]
    assert find_run(tmp_path).summary["CGT"]["seeds"] == 2
    assert set(find_run(tmp_path).results()) == {"CGT", "DGDClip"}


def test_interrupted_run_stores_what_was_computed_and_resumes_bit_for_bit(
    tmp_path: Path, uninterrupted: Path
) -> None:
    result = run_again(sampled(), tmp_path, progress=Recorder(act_after=3))
    assert result.interrupted
    assert 0 < result.results["CGT"].steps < 400
    assert list(find_run(tmp_path).summary) == ["CGT"]
    resumed = run_again(sampled(), tmp_path, resume=True)
    assert not resumed.interrupted
    assert numbers(tmp_path) == numbers(uninterrupted)


def test_interrupted_ensemble_resumes_bit_for_bit(tmp_path: Path) -> None:
    whole = run_again(sampled(seeds=2), tmp_path / "whole").directory
    part = run_again(
        sampled(seeds=2), tmp_path / "part", progress=Recorder(act_after=15)
    )  # in the second seed
    assert part.interrupted
    observer = Recorder()
    run_again(sampled(seeds=2), tmp_path / "part", resume=True, progress=observer)
    assert numbers(tmp_path / "part") == numbers(whole)


@pytest.mark.parametrize("label", ["CGT", "DGDClip"])  # nothing is done; one method is
def test_killed_run_resumes_bit_for_bit(tmp_path: Path, uninterrupted: Path, label: str) -> None:
    killed = tmp_path / "killed"

    class Killer(Recorder):
        def on_progress(self, progress: Any) -> None:
            if (
                progress.name == label and progress.k > 40 and not killed.exists()
            ):  # after the first checkpoint
                shutil.copytree(tmp_path / "run", killed)  # what a kill would leave

    run_again(sampled(), tmp_path / "run", progress=Killer())
    assert list((killed / "checkpoints").glob("*.npz"))
    assert not (killed / "summary.json").exists()
    with pytest.raises(DataError, match="without results yet"):
        find_run(killed)
    run_again(sampled(), killed, resume=True)
    assert numbers(killed) == numbers(uninterrupted)


def test_finished_methods_are_not_run_again_on_resume(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Simulator, "of", lambda *_: pytest.fail("a simulator was built"))
    before = numbers(finished)
    observer = Recorder()
    run_again(tiny(), finished, resume=True, progress=observer)
    assert observer.calls == 0
    assert len(observer.events) == 6
    assert numbers(finished) == before


def test_finished_run_is_not_recomputed_silently(tmp_path: Path, finished: Path) -> None:
    before = numbers(finished)
    with pytest.raises(
        ArgumentError, match=r"a finished run .* with --resume, .* --overwrite, or give another --out"
    ):
        run_again(tiny(), finished)
    assert numbers(finished) == before
    run_again(tiny(), tmp_path)
    run_again(tiny(), tmp_path, overwrite=True)
    assert numbers(tmp_path) == before


def test_interrupted_run_is_not_restarted_silently(tmp_path: Path) -> None:
    run_again(sampled(), tmp_path, progress=Recorder(act_after=3))
    (checkpoint,) = (tmp_path / "checkpoints").glob("*.npz")
    before = checkpoint.read_bytes()
    with pytest.raises(ArgumentError, match=r"a run that has not ended .* continue with --resume"):
        run_again(sampled(), tmp_path)
    assert checkpoint.read_bytes() == before
    with pytest.raises(ArgumentError, match="--resume keeps what --overwrite deletes"):
        run_again(sampled(), tmp_path, resume=True, overwrite=True)


def test_more_steps_extend_a_finished_run_bit_for_bit(tmp_path: Path) -> None:
    whole = run_again(tiny(steps=73), tmp_path / "whole").directory
    part = run_again(tiny(steps=31), tmp_path / "part").directory
    observer = Recorder()
    run_again(tiny(steps=73), part, resume=True, progress=observer)
    assert numbers(part) == numbers(whole)
    assert find_run(part).spec.steps == 73
    with pytest.raises(ArgumentError, match="steps: 73 there, 50 here"):
        run_again(tiny(), part, resume=True)


def test_second_run_into_one_folder_is_refused(tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(ArgumentError, match="Another process is writing to"):
        run_again(tiny(), tmp_path)


def test_full_disk_names_the_file_and_leaves_nothing_truncated(tmp_path: Path, full_disk: Any) -> None:
    with (
        full_disk(after=2500),
        pytest.warns(UserWarning, match="goes on without a checkpoint"),
        pytest.raises(StorageError, match=r"trace-CGT\.parquet cannot be written"),
    ):
        run_again(tiny(steps=500), tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".tmp", ".npz", ".parquet")]


def test_a_method_can_be_added_to_a_finished_run(tmp_path: Path) -> None:
    both = tiny()
    first = next(iter(both.methods))
    one = both.model_copy(update={"methods": {first: both.methods[first]}})
    run_again(one, tmp_path)
    written = (tmp_path / f"trace-{first}.parquet").stat().st_mtime_ns
    done = run_again(both, tmp_path, resume=True)
    assert (tmp_path / f"trace-{first}.parquet").stat().st_mtime_ns == written
    assert set(done.results) == set(both.methods)
    swept = Spec.model_validate(
        {**both.model_dump(exclude_none=True), "sweep": {"grid": {"step_size": [0.1, 0.2]}}}
    )
    run_again(swept, tmp_path, resume=True)  # a run does not look at [sweep]
    with pytest.raises(ArgumentError, match="holds the run of another specification"):
        run_again(one, tmp_path, resume=True)  # what is there is not forgotten silently


@pytest.mark.parametrize("resume", [False, True])
def test_directory_of_another_specification_is_refused(finished: Path, resume: bool) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()}
    with pytest.raises(
        ArgumentError, match=r"\(steps: 50 there, 40 here\); give another --out, or --overwrite"
    ):
        run_again(tiny(steps=40), finished, resume=resume)
    assert {path: path.read_bytes() for path in finished.rglob("*") if path.is_file()} == before


def test_overwrite_leaves_nothing_of_the_other_run(tmp_path: Path) -> None:
    run_again(tiny(), tmp_path)
    other = parse_spec(
        tiny()
        .to_toml()
        .replace("[methods.AB]", '[methods.GT]\nmethod = "AB"')
        .replace('method = "AB"\nstep', "step")
    )
    run(other, tmp_path, overwrite=True)
    assert not list(tmp_path.glob("*-AB.*"))
    assert load_spec(tmp_path / "spec.toml") == other


def test_directory_without_results_takes_a_corrected_specification(tmp_path: Path) -> None:
    run_directory.open_run(tmp_path, tiny(steps=60))
    assert {path.name for path in tmp_path.iterdir()} == {"environment.json", "spec.toml"}
    run_again(tiny(), tmp_path)
    assert load_spec(tmp_path / "spec.toml") == tiny()


def test_directory_with_only_a_checkpoint_is_protected(tmp_path: Path) -> None:
    checkpoint = run_directory.open_run(tmp_path, tiny(steps=60)).checkpoint("CGT", 0)
    checkpoint.write_bytes(b"hours of work")
    with pytest.raises(ArgumentError, match="steps: 60 there, 50 here"):
        run_again(tiny(), tmp_path)
    assert checkpoint.read_bytes() == b"hours of work"


def test_foreign_directory_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "spec.toml").write_text(tiny().to_toml())
    with pytest.raises(ArgumentError, match="must be empty or hold a run of digrad"):
        run_again(tiny(), tmp_path, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["spec.toml"]
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="is a file; give another --out"):
        run_again(tiny(), tmp_path / "file")


def test_specification_that_cannot_be_built_writes_nothing(tmp_path: Path) -> None:
    spec = parse_spec(tiny().to_toml().replace("[10.0, 10.0]", "[10.0]"), "tiny.toml")
    with pytest.raises(ValueError, match=r"tiny.toml: `start`: `x0` must have shape"):
        run(spec, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_resume_refuses_results_of_other_data(tmp_path: Path) -> None:
    data, out = tmp_path / "data.txt", tmp_path / "out"
    rows = [f"{1 - 2 * (row % 2):+d} 1:{row / 10} 2:1" for row in range(10)]
    text = tiny().to_toml().replace("[10.0, 10.0]", '"zeros"')
    text = text.replace('kind = "example_quartic"', f'kind = "logistic"\ndata = "{data}"')
    data.write_text("\n".join(rows) + "\n")
    run(parse_spec(text), out)
    data.write_text("\n".join([*rows[:-1], "-1 1:5 2:1"]) + "\n")
    with pytest.raises(CheckpointError, match=r"CGT in .* belongs to another run .*problem_hash"):
        run(parse_spec(text), out, resume=True)


@pytest.mark.parametrize(
    "graph",
    [
        'graph = {kind = "example5", split = 3}',
        'graph = {kind = "example5", random_edges = 0.5}',
        'graph = {kind = "out_star", n = 5}',
    ],
    ids=["split", "random", "rooted"],
)
def test_graph_without_u_or_v_is_drawn_with_what_there_is(graph: str, tmp_path: Path) -> None:
    text = TEXT.format(steps=5, seeds=1).split("methods.")[0]
    text = (
        text.replace('graph = {kind = "example5"}', graph)
        + "methods.DGD = {step_size = 0.01, mixing = 'row'}"
    )
    built = parse_spec(text, "changing.toml").build()
    figure = runner._drawing(built.network)
    assert figure.axes[0].get_title() == f"5 agents, {built.network.union.n_edges} one-way links"


def test_run_on_a_network_that_changes_with_time_is_resumed_bit_for_bit(tmp_path: Path) -> None:
    text = TEXT.format(steps=40, seeds=1).replace('"example5"', '"example5", split = 3, every = 2')
    spec = parse_spec(text, "changing.toml")
    whole = run(spec, tmp_path / "whole")
    assert whole.results["CGT"].verdict != "diverged"
    stopped = run(spec, tmp_path / "stopped", progress=Recorder(act_after=1))
    assert stopped.interrupted
    run(spec, tmp_path / "stopped", resume=True)
    assert numbers(tmp_path / "stopped") == numbers(tmp_path / "whole")


def test_seeds_on_a_lossy_network_differ_and_are_found_again(tmp_path: Path) -> None:
    text = TEXT.format(steps=20, seeds=2).split("methods.AB")[0]
    lossy = parse_spec(text + "links = {loss = 0.3}\n", "lossy.toml")
    built = lossy.build()
    first, second = run(lossy, tmp_path, built=built).results["CGT"].traces  # pyright: ignore[reportAttributeAccessIssue]
    assert first.loss[1] != second.loss[1]
    observer, before = Recorder(), numbers(tmp_path)
    run(lossy, tmp_path, built=built, resume=True, progress=observer)
    assert observer.calls == 0
    assert numbers(tmp_path) == before


@pytest.mark.parametrize(
    ("written", "edited", "place"),
    [
        ("step_size = 0.05\n", "step_size = 0.1\n", "hyper_parameters"),
        ("seed = 0\nseeds", "seed = 3\nseeds", "seed"),
        ("record_every = 5", "record_every = 10", "record_every"),
        ('dtype = "float64"', 'dtype = "float32"', "dtype"),
        ("start = [10.0, 10.0]", "start = [10.0, 9.0]", "start_hash"),
        ('average = "plain"', 'average = "weighted"', "average"),
        ("tolerance = 1e-06", "tolerance = 1e-03", "tolerance"),
        ("stop_at_tolerance = false", "stop_at_tolerance = true", "stop_at_tolerance"),
        ("steps = 50", "steps = 40", "steps"),
        ("", "", ""),
    ],
)
def test_resume_compares_the_results_themselves_not_only_the_specification_beside_them(
    finished: Path, tmp_path: Path, written: str, edited: str, place: str
) -> None:
    copy = shutil.copytree(finished, tmp_path / "copy")
    text = (copy / "spec.toml").read_text()
    assert written in text
    (copy / "spec.toml").write_text(text.replace(written, edited))
    before = {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()}
    for is_there in (True, False):  # without spec.toml nothing but the results says what they are
        if not place:
            run_again(load_spec(copy / "spec.toml") if is_there else tiny(), copy, resume=True)
        else:
            spec = parse_spec(text.replace(written, edited))
            with pytest.raises(CheckpointError, match=rf"CGT in .* belongs to another run .*{place}: "):
                run_again(spec, copy, resume=True)
            assert {path: path.read_bytes() for path in copy.rglob("*") if path.is_file()} == before
        (copy / "spec.toml").unlink(missing_ok=True)
        before.pop(copy / "spec.toml", None)


def test_a_run_builds_every_method_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built, check = [], dg.CGT.__post_init__
    monkeypatch.setattr(dg.CGT, "__post_init__", lambda self: built.append(self) or check(self))
    run_again(tiny(), tmp_path / "run")
    assert len(built) == 1
